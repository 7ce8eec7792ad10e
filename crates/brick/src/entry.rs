//! A record on its way into journals: encoded once for all replicas, with the room that it may take at home.

use crate::checksum::CRC_BLOCKS;
use crate::machine::Amount;
use bytes::Bytes;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{BLOCK_BYTES, BlockRun, Change, Input, Malformed, Record, Wire};

/// A page of the index, which a changed key may make it write anew, and its share of those above.
pub const PAGE_BYTES: u64 = 4096 + 512;

/// A record, encoded once for all replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// What it says.
    pub record: Record,
    pub(crate) body: Bytes,
    pub(crate) checksum: u32,
    /// What a checkpoint may need for it at most: a file for each shard that it writes to.
    pub(crate) need: Amount,
}

impl LogEntry {
    /// Encodes a record.
    pub fn new(record: Record) -> Self {
        let body = record.to_bytes();
        Self::of(record, body)
    }

    fn of(record: Record, body: Bytes) -> Self {
        let checksum = if is_planted(Bug::ChecksumsOff) { 0 } else { crc32c::crc32c(&body) };
        let need = Amount { bytes: record.changes.iter().map(room_of).sum(), files: written_shards(&record.changes) };
        Self { record, body, checksum, need }
    }

    /// Bytes that a checkpoint may need for it at most, and files: one for each shard that it writes to.
    pub fn need(&self) -> Amount {
        self.need
    }

    /// Bytes of its encoding.
    pub fn encoded_bytes(&self) -> usize {
        self.body.len()
    }
}

impl Wire for LogEntry {
    fn put(&self, out: &mut Vec<u8>) {
        self.body.put(out);
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        let body = Bytes::take(input)?;
        Ok(Self::of(Record::from_bytes(body.clone())?, body))
    }
}

/// Shards that get bytes; one that comes again behind another counts again.
fn written_shards(changes: &[Change]) -> u64 {
    let (mut count, mut last) = (0, None);
    for change in changes {
        let written = match change {
            Change::WriteBlocks { shard, .. }
            | Change::FreshBlocks { shard, .. }
            | Change::ReserveBlocks { shard, .. } => Some(*shard),
            _ => None,
        };
        if let Some(shard) = written
            && last.replace(shard) != Some(shard)
        {
            count += 1;
        }
    }
    count
}

fn room_of(change: &Change) -> u64 {
    match change {
        Change::Put { key, value } => entry_room(key.as_bytes().len() + value.len()),
        Change::Delete { .. } => PAGE_BYTES,
        Change::WriteBlocks { run, .. } => run.checksums.len() as u64 * BLOCK_BYTES as u64 + run_room(run),
        Change::FreshBlocks { run, .. } => run_room(run),
        Change::ReserveBlocks { .. } | Change::Restamp { .. } => PAGE_BYTES,
        Change::CutShard { record, .. } => PAGE_BYTES + u64::from(record.home_blocks.div_ceil(CRC_BLOCKS)) * GROUP_ROOM,
        Change::DropShard { .. } => PAGE_BYTES + GROUP_ROOM,
        Change::BeginLog => 0,
        Change::PunchBlocks { count, .. } => PAGE_BYTES + (u64::from(*count) / u64::from(CRC_BLOCKS) + 2) * GROUP_ROOM,
    }
}

/// Checksums of a run touch one group more than it has blocks for.
fn run_room(run: &BlockRun) -> u64 {
    PAGE_BYTES + (run.checksums.len() as u64 / u64::from(CRC_BLOCKS) + 2) * GROUP_ROOM
}

/// A group of checksums in the index.
pub const GROUP_ROOM: u64 = PAGE_BYTES + 512;

/// An entry of the index with so many bytes in key and value: a page of its own, and once more when it splits.
pub fn entry_room(bytes: usize) -> u64 {
    PAGE_BYTES + 2 * bytes as u64
}
