//! The IO that the machine asks for.

use super::Overlay;
use crate::index::meta::Meta;
use crate::journal::Lsn;
use crate::journal::format::RECORD_HEADER_BYTES;
use bytes::Bytes;
use hekate_proto::{ShardId, Stamp};
use std::sync::Arc;

/// Names an IO until it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId(pub u64);

/// Something to do on the brick's storage.
#[derive(Debug, Clone)]
pub enum Io {
    /// Write the header of a segment of the journal.
    BeginSegment { number: u64 },
    /// Write a record into a segment.
    WriteJournal { number: u64, offset: u64, header: [u8; RECORD_HEADER_BYTES], body: Bytes },
    /// Put these segments on stable storage, in this order.
    SyncJournal { numbers: Vec<u64> },
    /// Write blocks home of which no record tells yet; the caller has the bytes.
    WriteFresh { shard: ShardId, first: u32 },
    /// Give blocks of which no record tells yet their room.
    ReserveHome { shard: ShardId, first: u32, count: u32 },
    /// Write blocks home.
    WriteHome { shard: ShardId, first: u32, blocks: Vec<Bytes> },
    /// Give back the space of the blocks `from..to`.
    PunchHome { shard: ShardId, from: u32, to: u32 },
    /// Put a data file and its name on stable storage.
    SyncHome { shard: ShardId },
    /// Move the index, in one durable step.
    CommitIndex { overlay: Arc<Overlay>, meta: Meta },
    /// Remove a data file.
    RemoveHome { shard: ShardId },
}

impl Io {
    /// The shard whose data file it is about.
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

/// What the end of an IO means.
#[derive(Debug)]
pub enum Job {
    /// The log is written from the last such on up to here.
    Journal(Lsn),
    /// The log is stable up to `target`; segments before `covered` need no sync any more.
    Sync { target: Lsn, covered: u64 },
    /// These blocks are home.
    Fresh { shard: ShardId, first: u32, end: u32 },
    /// Blocks from `first` on have room at home.
    Reserve { shard: ShardId, first: u32 },
    /// A data file is stable up to a stamp: up to so many home writes of that overlay's shard.
    Shard { shard: ShardId, stamp: Stamp, overlay: u64, writes: u64 },
    /// A data file that no record knows is gone.
    Stray(ShardId),
    /// Nobody asks any more.
    Forgotten,
    /// A step of the running checkpoint.
    Checkpoint,
}
