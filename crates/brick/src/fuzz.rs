//! Doors for the fuzz targets: the decoders of what rests in a brick, which no other crate needs.

pub use crate::blocks::{decode_group, encode_group};
pub use crate::identity::next_life;
pub use crate::journal::format::{EntryKind, Mark, RecordHeader, SegmentHeader};
pub use crate::recovery::{Meta, PartitionLog};
