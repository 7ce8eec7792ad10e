//! A record to be appended: encoded once for all replicas, with the room that a checkpoint may need for it.

use crate::checksum::CRC_BLOCKS;
use crate::machine::Amount;
use bytes::Bytes;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{BLOCK_BYTES, BlockRun, Change, Input, Malformed, Record, Wire};

/// Bytes that a changed key may make the index write anew: a page of 4,096 bytes, and 512 for its share of the pages
/// above.
pub const PAGE_BYTES: u64 = 4096 + 512;

/// A record with its encoding and checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// The record.
    pub record: Record,
    pub(crate) body: Bytes,
    pub(crate) checksum: u32,
    /// Room that a checkpoint may need for the record at most; one file for each shard that gets bytes.
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

    /// Room that a checkpoint may need for the record at most. Files: one for each shard that gets bytes.
    pub fn need(&self) -> Amount {
        self.need
    }

    /// Bytes of the encoded record.
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

/// Number of shards that get bytes. A shard whose changes are not next to each other counts several times.
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

/// Room for the checksums of a run, which may begin and end inside a group.
fn run_room(run: &BlockRun) -> u64 {
    PAGE_BYTES + (run.checksums.len() as u64 / u64::from(CRC_BLOCKS) + 2) * GROUP_ROOM
}

/// Room for a changed group of checksums in the index: a page, and 512 bytes for key and value.
pub const GROUP_ROOM: u64 = PAGE_BYTES + 512;

/// Room for an entry of the index with `bytes` bytes of key and value: a page, and the entry twice, for a page that
/// splits.
pub fn entry_room(bytes: usize) -> u64 {
    PAGE_BYTES + 2 * bytes as u64
}
