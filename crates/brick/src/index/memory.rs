//! An index in memory, for tests.

use super::{Index, IndexChange};
use bytes::Bytes;
use hekate_proto::Result;
use hekate_threads::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound;

/// An index that lives as long as the process.
#[derive(Default)]
pub struct MemoryIndex {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<Vec<u8>, Bytes>,
    meta: Option<Bytes>,
}

impl Index for MemoryIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.state.read().entries.get(key).cloned())
    }

    fn scan_all(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], Result<Bytes>) -> bool) -> Result<()> {
        let state = self.state.read();
        for (key, value) in state.entries.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to))) {
            if !visit(key, Ok(value.clone())) {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, changes: &mut dyn Iterator<Item = IndexChange<'_>>, meta: &[u8]) -> Result<()> {
        let mut state = self.state.write();
        for (key, value) in changes {
            match value {
                Some(value) => state.entries.insert(key.to_vec(), Bytes::copy_from_slice(value)),
                None => state.entries.remove(key),
            };
        }
        state.meta = Some(Bytes::copy_from_slice(meta));
        Ok(())
    }

    fn meta(&self) -> Result<Option<Bytes>> {
        Ok(self.state.read().meta.clone())
    }
}
