//! The IO that the machine asks for.

use super::Overlay;
use crate::index::meta::Meta;
use crate::journal::Lsn;
use crate::journal::format::RECORD_HEADER_BYTES;
use bytes::Bytes;
use hekate_proto::{ShardId, Stamp};
use std::sync::Arc;

/// The id of an IO, until it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId(pub u64);

/// An operation on the brick's storage.
#[derive(Debug, Clone)]
pub enum Io {
    /// Write the header of a segment of the journal.
    BeginSegment { number: u64 },
    /// Write a record into a segment.
    WriteJournal { number: u64, offset: u64, header: [u8; RECORD_HEADER_BYTES], body: Bytes },
    /// Sync these segments, in this order.
    SyncJournal { numbers: Vec<u64> },
    /// Write blocks home that no record names yet. The caller has the bytes.
    WriteFresh { shard: ShardId, first: u32 },
    /// Allocate space for blocks that no record names yet.
    ReserveHome { shard: ShardId, first: u32, count: u32 },
    /// Write blocks home.
    WriteHome { shard: ShardId, first: u32, blocks: Vec<Bytes> },
    /// Free the space of the blocks `from..to`.
    PunchHome { shard: ShardId, from: u32, to: u32 },
    /// Sync a data file and its name.
    SyncHome { shard: ShardId },
    /// Commit the overlay and the meta record to the index, in one durable step.
    CommitIndex { overlay: Arc<Overlay>, meta: Meta },
    /// Remove a data file.
    RemoveHome { shard: ShardId },
}

impl Io {
    /// The shard whose data file the IO is on.
    pub fn shard(&self) -> Option<ShardId> {
        match self {
            Io::WriteFresh { shard, .. }
            | Io::ReserveHome { shard, .. }
            | Io::WriteHome { shard, .. }
            | Io::PunchHome { shard, .. }
            | Io::SyncHome { shard }
            | Io::RemoveHome { shard } => Some(*shard),
            Io::BeginSegment { .. } | Io::WriteJournal { .. } | Io::SyncJournal { .. } | Io::CommitIndex { .. } => None,
        }
    }
}

/// What the machine does when an IO has ended.
#[derive(Debug)]
pub enum Job {
    /// The log is written up to here, once all writes before this one have ended.
    Journal(Lsn),
    /// The log is stable up to `target`; segments before `covered` need no more syncs.
    Sync { target: Lsn, covered: u64 },
    /// These fresh blocks are home.
    Fresh { shard: ShardId, first: u32, end: u32 },
    /// Blocks from `first` on have space at home.
    Reserve { shard: ShardId, first: u32 },
    /// A data file is stable up to a stamp, and up to this number of home writes of that overlay.
    Shard { shard: ShardId, stamp: Stamp, overlay: u64, writes: u64 },
    /// A data file that no record knows was removed.
    Stray(ShardId),
    /// Nothing: the shard of the sync was dropped meanwhile.
    Forgotten,
    /// A step of the running checkpoint.
    Checkpoint,
}
