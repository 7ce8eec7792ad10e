//! Overlays: what the journal holds beyond the index, as after-images in memory.

use super::Amount;
use crate::checksum::CRC_BLOCKS;
use crate::entry::{GROUP_ROOM, PAGE_BYTES, entry_room};
use bytes::Bytes;
use hekate_proto::*;
use std::collections::BTreeMap;

/// The checksums of 64 consecutive blocks of a shard; 0: the block is a hole.
pub type Group = [u32; CRC_BLOCKS as usize];

/// Bytes of a group in the index.
const GROUP_BYTES: usize = size_of::<Group>();

/// The checksums of a group that changed; the others are those of an older layer.
#[derive(Debug, Clone)]
pub struct PartialGroup {
    /// One bit for each checksum that is known.
    known: u64,
    sums: Group,
}

impl Default for PartialGroup {
    fn default() -> Self {
        Self { known: 0, sums: [0; CRC_BLOCKS as usize] }
    }
}

/// Decodes a group from the index. `Damaged` if its length is wrong.
pub fn decode_group(bytes: &[u8]) -> Result<Group> {
    if bytes.len() != GROUP_BYTES {
        return Err(Error::Damaged { what: format!("a group of checksums of {} bytes", bytes.len()) });
    }
    let mut sums = [0; CRC_BLOCKS as usize];
    for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *sum = u32::from_le_bytes(*bytes);
    }
    Ok(sums)
}

/// The value in place of a checksum that cannot be read: the block counts as damaged until it is written again. One
/// block in 2^32 has this checksum by chance.
pub const UNREADABLE: u32 = 0xdead_b10c;

impl PartialGroup {
    /// The group in an answer of the index. All blocks of a group that is damaged there count as damaged.
    pub fn from_index(answer: Result<Option<Bytes>>) -> Result<Option<Self>> {
        match answer.and_then(|found| found.map(|bytes| Self::decode(&bytes)).transpose()) {
            Err(Error::Damaged { .. }) => Ok(Some(Self { known: u64::MAX, sums: [UNREADABLE; CRC_BLOCKS as usize] })),
            other => other,
        }
    }

    /// Decodes a group from the index.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(Self { known: u64::MAX, sums: decode_group(bytes)? })
    }

    /// Encodes the group for the index. A checksum that is not known becomes that of a hole.
    pub fn encode(&self) -> Bytes {
        self.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect()
    }

    pub fn set(&mut self, index: usize, sum: u32) {
        self.known |= 1 << index;
        self.sums[index] = sum;
    }

    pub fn get(&self, index: usize) -> Option<u32> {
        (self.known >> index & 1 == 1).then(|| self.sums[index])
    }

    pub fn is_whole(&self) -> bool {
        self.known == u64::MAX
    }

    /// Fills the checksums that are not known here from an older layer.
    pub fn fill_from(&mut self, older: &Self) {
        for index in (0..CRC_BLOCKS as usize).filter(|index| self.known >> index & 1 == 0) {
            self.sums[index] = older.sums[index];
        }
        self.known |= older.known;
    }

    /// All 64 checksums. One that is not known is that of a hole.
    pub fn sums(&self) -> &Group {
        &self.sums
    }
}

/// The changes between the beginnings of two checkpoints.
#[derive(Debug, Default)]
pub struct Overlay {
    /// Entries that were put; `None`: deleted.
    pub entries: BTreeMap<Key, Option<Bytes>>,
    /// Changed shards, in the order of their ids.
    pub shards: BTreeMap<ShardId, ShardOverlay>,
    /// Bytes of memory that the overlay takes, by estimate.
    pub bytes: usize,
    /// Room that a checkpoint may need for these changes at most.
    pub promised: Amount,
    /// Whether a checkpoint frees space: a shard was dropped, cut or punched.
    pub frees_space: bool,
    /// Blocks that a checkpoint writes home at most.
    pub pending_blocks: u64,
}

/// The changes of a shard.
#[derive(Debug)]
pub struct ShardOverlay {
    pub ring: RingId,
    /// The record before these changes.
    pub before: Option<ShardRecord>,
    /// The record after them; `None`: dropped.
    pub record: Option<ShardRecord>,
    /// Checksums that changed, by group.
    pub checksums: BTreeMap<u16, Box<PartialGroup>>,
    /// Blocks that only the journal has.
    pub pending: BTreeMap<u32, Bytes>,
    /// Number of writes of fresh blocks and reservations: they are home and may be unsynced.
    pub home_writes: u64,
    /// Number of these that a sync of the data file has covered.
    pub home_synced: u64,
    /// The first block that a cut or a punch made a hole.
    pub holes_from: Option<u32>,
    /// Whether the shard's data file is counted in `promised`.
    pub file_promised: bool,
}

impl ShardOverlay {
    /// Whether a checkpoint may have to make the data file. True once for each shard.
    fn lacks_file(&mut self) -> bool {
        let had = self.before.is_some_and(|before| has_file(&before));
        !had && self.home_writes == 0 && !std::mem::replace(&mut self.file_promised, true)
    }

    /// Some or all blocks from this one on become holes.
    pub fn hole_at(&mut self, block: u32) {
        self.holes_from = Some(self.holes_from.map_or(block, |before| before.min(block)));
    }
}

/// The record of a shard in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// The record; `None`: the index has none.
    Is(Option<ShardRecord>),
    /// The record is damaged. The next record of the shard replaces it without a check against it.
    Unreadable,
}

/// Whether a shard's data file has been made or is promised. A shard whose blocks were all punched before a checkpoint
/// wrote them has no file though this is true: its next write takes a file of the reserve.
pub fn has_file(record: &ShardRecord) -> bool {
    record.home_blocks > 0 || record.reserved_blocks > 0
}

/// Number of blocks of a whole shard: 1,024.
pub const SHARD_BLOCKS: u32 = (SHARD_BYTES / BLOCK_BYTES as u64) as u32;

/// Bytes of memory of an entry beyond key and value: map nodes and counters, by estimate.
const ENTRY_BYTES: usize = 96;

impl Overlay {
    /// Puts or deletes an entry.
    pub fn put(&mut self, key: Key, value: Option<Bytes>) {
        let (key_bytes, value_bytes) = (key.as_bytes().len(), value.as_ref().map_or(0, Bytes::len));
        match self.entries.insert(key, value) {
            None => {
                self.bytes += ENTRY_BYTES + key_bytes + value_bytes;
                self.promised.bytes += entry_room(key_bytes + value_bytes);
            }
            Some(before) => {
                self.bytes = (self.bytes + value_bytes).saturating_sub(before.map_or(0, |value| value.len()));
                self.promised.bytes += 2 * value_bytes as u64;
            }
        }
    }

    /// The changes of a shard, made if missing. `before`: its record before them.
    pub fn shard(&mut self, ring: RingId, shard: ShardId, before: Before) -> &mut ShardOverlay {
        let before = match before {
            Before::Is(record) => record,
            // As long as a shard can be, so that a drop deletes all groups of checksums.
            Before::Unreadable => {
                let stamp = Stamp { count: 0, session: SessionId(0), op: OpId(0) };
                Some(ShardRecord { stamp, length: 0, home_blocks: SHARD_BLOCKS, reserved_blocks: 0 })
            }
        };
        let (bytes, promised) = (&mut self.bytes, &mut self.promised.bytes);
        self.shards.entry(shard).or_insert_with(|| {
            *bytes += size_of::<ShardOverlay>() + ENTRY_BYTES;
            *promised += PAGE_BYTES;
            ShardOverlay {
                ring,
                before,
                record: before,
                checksums: BTreeMap::new(),
                pending: BTreeMap::new(),
                home_writes: 0,
                home_synced: 0,
                holes_from: None,
                file_promised: false,
            }
        })
    }

    /// Sets the checksum of a block. The shard has to be in the overlay.
    pub fn set_checksum(&mut self, shard: ShardId, block: u32, sum: u32) {
        let Some(overlay) = self.shards.get_mut(&shard) else { return };
        let group = overlay.checksums.entry((block / CRC_BLOCKS) as u16).or_insert_with(|| {
            self.bytes += size_of::<PartialGroup>() + ENTRY_BYTES;
            self.promised.bytes += GROUP_ROOM;
            Box::default()
        });
        group.set((block % CRC_BLOCKS) as usize, sum);
    }

    /// Keeps a block for a checkpoint to write home. The shard has to be in the overlay.
    pub fn set_pending(&mut self, shard: ShardId, block: u32, bytes: Bytes) {
        let Some(overlay) = self.shards.get_mut(&shard) else { return };
        if overlay.pending.insert(block, bytes).is_none() {
            self.bytes += BLOCK_BYTES;
            self.pending_blocks += 1;
            self.promised.bytes += BLOCK_BYTES as u64;
        }
        self.promised.files += u64::from(overlay.lacks_file());
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.shards.is_empty()
    }
}
