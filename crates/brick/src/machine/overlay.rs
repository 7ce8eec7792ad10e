//! What the journal says beyond the index: after-images in memory, bounded by the journal's size.

use super::Amount;
use crate::checksum::CRC_BLOCKS;
use crate::entry::{GROUP_ROOM, PAGE_BYTES, entry_room};
use bytes::Bytes;
use hekate_proto::*;
use std::collections::BTreeMap;

/// Checksums of 64 blocks of a shard; 0: never written.
pub type Group = [u32; CRC_BLOCKS as usize];

/// Bytes of a group in the index.
const GROUP_BYTES: usize = size_of::<Group>();

/// A group as far as it changed: the other checksums are those of an older layer.
#[derive(Debug, Clone)]
pub struct PartialGroup {
    /// A bit for each that is known.
    known: u64,
    sums: Group,
}

impl Default for PartialGroup {
    fn default() -> Self {
        Self { known: 0, sums: [0; CRC_BLOCKS as usize] }
    }
}

/// A group as the index has it.
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

/// Stands for a checksum that cannot be read: the block is damaged until it is written anew. A block that has this
/// checksum by chance is one in four thousand million.
pub const UNREADABLE: u32 = 0xdead_b10c;

impl PartialGroup {
    /// As the index answers: a group that is damaged there has nothing but damaged blocks.
    pub fn from_index(answer: Result<Option<Bytes>>) -> Result<Option<Self>> {
        match answer.and_then(|found| found.map(|bytes| Self::decode(&bytes)).transpose()) {
            Err(Error::Damaged { .. }) => Ok(Some(Self { known: u64::MAX, sums: [UNREADABLE; CRC_BLOCKS as usize] })),
            other => other,
        }
    }

    /// From the index.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(Self { known: u64::MAX, sums: decode_group(bytes)? })
    }

    /// As the index has it; what is not known is a hole.
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

    /// Takes what is not known here from an older layer.
    pub fn fill_from(&mut self, older: &Self) {
        for index in (0..CRC_BLOCKS as usize).filter(|index| self.known >> index & 1 == 0) {
            self.sums[index] = older.sums[index];
        }
        self.known |= older.known;
    }

    /// All of it; what is not known is a hole.
    pub fn sums(&self) -> &Group {
        &self.sums
    }
}

/// Changes between two checkpoints.
#[derive(Debug, Default)]
pub struct Overlay {
    /// `None`: deleted.
    pub entries: BTreeMap<Key, Option<Bytes>>,
    /// Changed shards, in the order of their files.
    pub shards: BTreeMap<ShardId, ShardOverlay>,
    /// Roughly how much memory this takes.
    pub bytes: usize,
    /// What a checkpoint may take at home, at most.
    pub promised: Amount,
    /// Whether home has space that a checkpoint gives back.
    pub frees_space: bool,
    /// Blocks that a checkpoint writes home, at most.
    pub pending_blocks: u64,
}

/// A shard's changes.
#[derive(Debug)]
pub struct ShardOverlay {
    /// Its ring.
    pub ring: RingId,
    /// As it was before.
    pub before: Option<ShardRecord>,
    /// As it is now; `None`: dropped.
    pub record: Option<ShardRecord>,
    /// Checksums that changed.
    pub checksums: BTreeMap<u16, Box<PartialGroup>>,
    /// Blocks that are only in the journal.
    pub pending: BTreeMap<u32, Bytes>,
    /// Blocks were written home and not synced since; counts such writes.
    pub home_writes: u64,
    /// Up to which of these writes the data file was synced.
    pub home_synced: u64,
    /// The first block that a cut or a punch made a hole of.
    pub holes_from: Option<u32>,
    /// Whether its data file is among those that the overlay promises.
    pub file_promised: bool,
}

impl ShardOverlay {
    /// Whether its data file may have to be made, which is counted once.
    fn lacks_file(&mut self) -> bool {
        let had = self.before.is_some_and(|before| has_file(&before));
        !had && self.home_writes == 0 && !std::mem::replace(&mut self.file_promised, true)
    }

    /// Blocks from this one on become holes, all of them or some.
    pub fn hole_at(&mut self, block: u32) {
        self.holes_from = Some(self.holes_from.map_or(block, |before| before.min(block)));
    }
}

/// What the index says of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// This.
    Is(Option<ShardRecord>),
    /// Its record is damaged: whatever is written to it next takes its place.
    Unreadable,
}

/// Whether a shard's data file has been made, or is promised. One whose blocks were all punched before a checkpoint
/// wrote them has none: its next write takes a file of the reserve.
pub fn has_file(record: &ShardRecord) -> bool {
    record.home_blocks > 0 || record.reserved_blocks > 0
}

/// Blocks of a shard.
pub const SHARD_BLOCKS: u32 = (SHARD_BYTES / BLOCK_BYTES as u64) as u32;

/// Beyond its key and value: map nodes and counters.
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

    /// The shard's changes, made if missing from what it was before.
    pub fn shard(&mut self, ring: RingId, shard: ShardId, before: Before) -> &mut ShardOverlay {
        let before = match before {
            Before::Is(record) => record,
            // As large as any, so that all of its groups go with it.
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

    /// Sets the checksum of a block of a shard that is in here.
    pub fn set_checksum(&mut self, shard: ShardId, block: u32, sum: u32) {
        let Some(overlay) = self.shards.get_mut(&shard) else { return };
        let group = overlay.checksums.entry((block / CRC_BLOCKS) as u16).or_insert_with(|| {
            self.bytes += size_of::<PartialGroup>() + ENTRY_BYTES;
            self.promised.bytes += GROUP_ROOM;
            Box::default()
        });
        group.set((block % CRC_BLOCKS) as usize, sum);
    }

    /// Takes a block of a shard that is in here, for a checkpoint to write home.
    pub fn set_pending(&mut self, shard: ShardId, block: u32, bytes: Bytes) {
        let Some(overlay) = self.shards.get_mut(&shard) else { return };
        if overlay.pending.insert(block, bytes).is_none() {
            self.bytes += BLOCK_BYTES;
            self.pending_blocks += 1;
            self.promised.bytes += BLOCK_BYTES as u64;
        }
        self.promised.files += u64::from(overlay.lacks_file());
    }

    /// Whether there is nothing to write home.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.shards.is_empty()
    }
}
