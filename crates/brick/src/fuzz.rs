//! What the fuzz targets call: decoders of a brick's files that no other crate needs.

pub use crate::identity::next_life;
pub use crate::index::meta::{Meta, PartitionLog};
pub use crate::journal::format::{EntryKind, Mark, RecordHeader, SegmentHeader};
pub use crate::machine::decode_group;

use crate::machine::PartialGroup;
use bytes::Bytes;

/// Encodes a group of checksums as the index stores it.
pub fn encode_group(sums: &[u32; 64]) -> Bytes {
    let mut group = PartialGroup::default();
    (0..64).for_each(|index| group.set(index, sums[index]));
    group.encode()
}
