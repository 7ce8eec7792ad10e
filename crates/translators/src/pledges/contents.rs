//! The contents of small files, as they were read last. They are used only while the attributes that came with them
//! are pledged, so they need no pledge of their own: a leader recalls the attributes before the bytes beside an inode
//! change.

use bytes::Bytes;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{Attr, InodeId};
use hekate_threads::HashMap;

/// Bytes that are remembered, in two generations of half as many.
const BYTES_MAX: usize = 32 << 20;
/// What an entry takes besides its bytes.
const ENTRY_BYTES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Contents {
    newer: HashMap<InodeId, Content>,
    older: HashMap<InodeId, Content>,
    newer_bytes: usize,
}

#[derive(Debug)]
struct Content {
    attr: Attr,
    bytes: Bytes,
}

impl Contents {
    /// Remembers what was read, if it is the whole content of a file whose bytes are beside its inode.
    pub(super) fn remember(&mut self, offset: u64, bytes: &Bytes, attr: &Attr) {
        if offset != 0 || bytes.len() as u64 != attr.size || !attr.layout.is_inline() || self.get(attr).is_some() {
            return;
        }
        if self.newer_bytes + bytes.len() + ENTRY_BYTES > BYTES_MAX / 2 {
            self.older = std::mem::take(&mut self.newer);
            self.newer_bytes = 0;
        }
        // Bytes that came with a frame share its memory.
        let content = Content { attr: attr.clone(), bytes: Bytes::copy_from_slice(bytes) };
        self.newer_bytes += bytes.len() + ENTRY_BYTES;
        if let Some(before) = self.newer.insert(attr.id, content) {
            self.newer_bytes -= before.bytes.len() + ENTRY_BYTES;
        }
    }

    /// The content of the inode that has these attributes.
    pub(super) fn get(&self, attr: &Attr) -> Option<&Bytes> {
        let known = self.newer.get(&attr.id).or_else(|| self.older.get(&attr.id))?;
        has_same_content(&known.attr, attr).then_some(&known.bytes)
    }
}

/// True if an inode has the same bytes with both: after a loss of all replicas' memory a change count may come twice,
/// but not with the same times.
pub(super) fn has_same_content(one: &Attr, other: &Attr) -> bool {
    let key = |attr: &Attr| (attr.id, attr.size, attr.change, attr.mtime, attr.ctime);
    key(one) == key(other) && one.layout == other.layout || is_planted(Bug::OldContentAnswered)
}
