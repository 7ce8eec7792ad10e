//! Look-ups of missing names that are answered without a pledge on the name.

use super::NameAt;
use hekate_proto::{InodeId, Name};
use hekate_threads::HashMap;

/// Look-ups of one name that are answered so. The next one asks for a pledge, which a door may pass on.
const ANSWERED_MAX: u8 = 16;
/// Names whose look-ups are counted.
const NAMES_MAX: usize = 4096;

/// Look-ups of missing names.
#[derive(Debug, Default)]
pub(super) struct Misses(HashMap<NameAt, u8>);

impl Misses {
    /// Counts a look-up of a missing name. True if it is to be answered without a question.
    pub fn answers(&mut self, dir: InodeId, name: &Name) -> bool {
        if self.0.len() >= NAMES_MAX {
            self.0.clear();
        }
        let count = self.0.entry((dir, owned(name))).or_default();
        *count = count.saturating_add(1);
        *count <= ANSWERED_MAX
    }
}

/// A name that came with a frame or a request shares its memory.
pub(super) fn owned(name: &Name) -> Name {
    Name::new(bytes::Bytes::copy_from_slice(name.as_bytes())).unwrap_or_else(|_| name.clone())
}
