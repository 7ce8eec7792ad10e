//! Doors for the fuzz targets: the decoders of what rests in a brick, which no other crate needs.

pub use crate::identity::next_life;
pub use crate::index::meta::{Meta, PartitionLog};
pub use crate::journal::format::{EntryKind, Mark, RecordHeader, SegmentHeader};
pub use crate::machine::decode_group;

use crate::machine::PartialGroup;
use bytes::Bytes;

/// A group as the index has it.
pub fn encode_group(sums: &[u32; 64]) -> Bytes {
    let mut group = PartialGroup::default();
    (0..64).for_each(|index| group.set(index, sums[index]));
    group.encode()
}
