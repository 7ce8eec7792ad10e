//! Space: the content of a quiet ring is a whole tree and nothing else (contract, section 6: an interrupted operation
//! is finished or undone, never half done).
//!
//! - Every key is well formed, is stored in the partition that owns its position, and its value can be decoded.
//! - Every name leads to an inode of its kind; a name is stored where its directory's spread places it.
//! - A file has as many links as names; it is an orphan if and only if it has no name.
//! - A directory has one name, in its parent, and is reachable from the root. Each of the places that share its names
//!   has a stub that is not closed and whose counts are those of the names there.
//! - Contents and attributes belong to an inode; shards belong to a data id in an inode's layout, or to one that is
//!   garbage.
//! - No intent and no mark of a leg is left.

mod collect;
mod data;
#[cfg(test)]
mod tests;
mod tree;

use crate::checkers::Complaint;
use bytes::Bytes;
use hekate_proto::{Key, PartitionNumber, RingId};

/// All entries of a ring, from one replica of each partition.
#[derive(Debug, Clone)]
pub struct RingEntries {
    /// The ring.
    pub ring: RingId,
    /// Number of partitions, a power of two.
    pub count: u32,
    /// Each entry with the partition that holds it.
    pub entries: Vec<(PartitionNumber, Key, Bytes)>,
}

/// All complaints about the ring.
pub fn check(ring: &RingEntries) -> Vec<Complaint> {
    let (volumes, mut complaints) = collect::collect(ring);
    for (volume, found) in &volumes {
        let mut about: Vec<String> = tree::check(found);
        about.extend(data::check(found));
        complaints
            .extend(about.into_iter().map(|what| Complaint::new(format!("ring {} volume {volume}", ring.ring), what)));
    }
    complaints
}
