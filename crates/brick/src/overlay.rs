//! What the journal says beyond the index: after-images in memory, bounded by the journal's size.

use bytes::Bytes;
use hekate_proto::{Key, RingId, ShardId, ShardRecord};
use std::collections::{BTreeMap, HashMap};

/// Checksums of 64 blocks of a shard; 0: never written.
pub type Group = [u32; crate::CRC_BLOCKS as usize];

/// Changes between two checkpoints.
#[derive(Default)]
pub struct Overlay {
    /// `None`: deleted.
    pub entries: BTreeMap<Key, Option<Bytes>>,
    /// Changed shards.
    pub shards: HashMap<ShardId, ShardOverlay>,
    /// Roughly how much memory this takes.
    pub bytes: usize,
    /// Whether home has space that a checkpoint gives back.
    pub frees_space: bool,
}

/// A shard's changes.
pub struct ShardOverlay {
    /// Its ring.
    pub ring: RingId,
    /// As it is now; `None`: dropped.
    pub record: Option<ShardRecord>,
    /// Checksum groups that changed.
    pub checksums: BTreeMap<u16, Box<Group>>,
    /// Blocks that are only in the journal.
    pub pending: BTreeMap<u32, Bytes>,
    /// Blocks were written home and not synced since; counts such writes.
    pub home_writes: u64,
    /// Up to which of these writes the data file was synced.
    pub home_synced: u64,
    /// Blocks from here on were cut off.
    pub cut_from: Option<u32>,
}

/// Beyond its key and value: map nodes and counters.
const ENTRY_BYTES: usize = 96;

impl Overlay {
    /// Puts or deletes an entry.
    pub fn put(&mut self, key: Key, value: Option<Bytes>) {
        self.bytes += ENTRY_BYTES + key.as_bytes().len() + value.as_ref().map_or(0, Bytes::len);
        self.entries.insert(key, value);
    }

    /// The shard's changes, made if missing.
    pub fn shard(&mut self, ring: RingId, shard: ShardId) -> &mut ShardOverlay {
        self.shards.entry(shard).or_insert_with(|| ShardOverlay {
            ring,
            record: None,
            checksums: BTreeMap::new(),
            pending: BTreeMap::new(),
            home_writes: 0,
            home_synced: 0,
            cut_from: None,
        })
    }

    /// Whether there is nothing to write home.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.shards.is_empty()
    }
}
