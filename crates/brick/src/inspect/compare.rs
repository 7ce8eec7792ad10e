//! Comparison of replicas of a partition: a digest of each, and the keys that differ.
//!
//! It is computed from [`Contents`], so by other code than that with which a server reads. What is compared is the
//! state with the journal applied to the index: replicas of one log are equal whatever each has checkpointed. The state
//! is a set of pairs, each of a key and a 128-bit hash of all that is stored under it (`pairs.rs`). A digest is the sum
//! of the hashes, so neither the order nor the steps in which a partition is read matter, and memory does not grow with
//! it. What each brick has of its own does not count: the meta record with its generation, `life.toml`, whether bytes
//! are in the journal or at home, `home_blocks`, checksums of blocks, and whether a block of zeros was written or is a
//! hole.

mod pairs;

use super::{BlockState, Contents, Entry, Problem};
use hekate_proto::*;
use pairs::Cursor;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_128;

/// Bits of an inode number below the tag `P | p` (docs/format/index.md, "Numbers").
const COUNTER_BITS: u32 = 40;
/// Problems of a partition that are kept; the others are only counted.
const PROBLEMS_MAX: usize = 100;

/// A partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionAddress {
    pub ring: RingId,
    /// Its number.
    pub number: PartitionNumber,
    /// Number of partitions of the ring, a power of two.
    pub count: u32,
}

/// The replicas on one brick.
pub struct Replica<'a> {
    contents: &'a Contents,
    /// Shards that the journal changes, by their keys.
    changed_shards: BTreeMap<Key, ShardId>,
}

/// The digest of a replica of a partition.
#[derive(Debug, Clone, Default)]
pub struct Digest {
    /// The sum of the hashes of all pairs. Equal sums mean equal replicas.
    pub sum: u128,
    /// Number of pairs that are no shards.
    pub entries: u64,
    /// Number of shards.
    pub shards: u64,
    /// Sum of the lengths of the shards, in bytes.
    pub shard_bytes: u64,
    /// The first problems.
    pub problems: Vec<Problem>,
    /// Number of all problems.
    pub problem_count: u64,
}

/// The differences between replicas of a partition.
#[derive(Debug, Clone, Default)]
pub struct Differences {
    /// Number of keys under which the replicas differ.
    pub count: u64,
    /// The first of these keys.
    pub first: Vec<Key>,
}

/// What a replica has under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// An entry of the index.
    Entry(KeyPrefix, Entry),
    /// A shard.
    Shard(HeldShard),
    /// Something malformed or unreadable, and why it is so.
    Unreadable(String),
}

/// A shard as a replica has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldShard {
    /// The shard.
    pub shard: ShardId,
    /// Its record.
    pub record: ShardRecord,
    /// The state of each block.
    pub states: Vec<BlockState>,
    /// A hash of each block's bytes; a hole counts as zeros.
    pub hashes: Vec<u128>,
}

impl<'a> Replica<'a> {
    /// The replicas on a brick.
    pub fn new(contents: &'a Contents) -> Self {
        let changed = contents.journal.shards.keys();
        Self { contents, changed_shards: changed.map(|(ring, shard)| (Key::shard(*ring, *shard), *shard)).collect() }
    }

    /// All pairs of a partition, in key order: those of objects, then those of work.
    fn pairs(&self, partition: PartitionAddress) -> Cursor<'_> {
        Cursor::new(self, partition)
    }

    /// Reads all of a partition. `progress` gets the digest of what has been read so far.
    pub fn digest(&self, partition: PartitionAddress, progress: &mut dyn FnMut(&Digest)) -> Digest {
        let mut digest = Digest::default();
        let mut pairs = self.pairs(partition);
        while let Some(pair) = pairs.take() {
            digest.sum = digest.sum.wrapping_add(pair.hash);
            match pair.shard_bytes {
                Some(bytes) => (digest.shards, digest.shard_bytes) = (digest.shards + 1, digest.shard_bytes + bytes),
                None => digest.entries += 1,
            }
            digest.note(pairs.problems());
            progress(&digest);
        }
        digest.note(pairs.problems());
        digest
    }

    /// The entry, shard or checksums that the brick has under a key; `None` if it has nothing there.
    pub fn held(&self, key: &Key) -> Option<Held> {
        let held = match (key.as_shard(), key.prefix()) {
            (Some(shard), Some(place)) => self.held_shard(place.ring, shard).map(|found| found.map(Held::Shard)),
            _ => self.contents.get(key).map(|value| {
                value.map(|value| match Entry::decode(key, value) {
                    Ok((place, entry)) => Held::Entry(place, entry),
                    Err(why) => Held::Unreadable(why),
                })
            }),
        };
        held.unwrap_or_else(|error| Some(Held::Unreadable(error.to_string())))
    }

    fn held_shard(&self, ring: RingId, shard: ShardId) -> Result<Option<HeldShard>> {
        let mut hashes = Vec::new();
        let found = self.contents.visit_blocks(ring, shard, &mut |state, bytes| {
            hashes.push(xxh3_128(if state.is_zeros() { &[0; BLOCK_BYTES] } else { bytes }));
        })?;
        Ok(found.map(|found| HeldShard { shard, record: found.record, states: found.states, hashes }))
    }
}

impl Digest {
    fn note(&mut self, problems: Vec<Problem>) {
        self.problem_count += problems.len() as u64;
        self.problems.extend(problems);
        self.problems.truncate(PROBLEMS_MAX);
    }
}

/// Reads all replicas of a partition side by side. At most `first_max` of the keys that differ are kept; `progress` is
/// called for each key.
pub fn differences(
    replicas: &[&Replica],
    partition: PartitionAddress,
    first_max: usize,
    progress: &mut dyn FnMut(),
) -> Differences {
    let mut found = Differences::default();
    let mut cursors: Vec<Cursor> = replicas.iter().map(|replica| replica.pairs(partition)).collect();
    while let Some(key) = cursors.iter_mut().filter_map(Cursor::peek).map(|pair| pair.key.clone()).min() {
        progress();
        let hashes: Vec<Option<u128>> =
            cursors.iter_mut().map(|cursor| cursor.take_if(&key).map(|pair| pair.hash)).collect();
        if hashes.iter().any(|hash| *hash != hashes[0]) {
            found.count += 1;
            if found.first.len() < first_max {
                found.first.push(key);
            }
        }
    }
    found
}

impl Contents {
    /// The number of partitions of each ring, as far as the logs and inode numbers on this brick show it: for a caller
    /// without a coordinator.
    pub fn partitions_of_rings(&self) -> BTreeMap<RingId, u32> {
        let mut counts: BTreeMap<RingId, u32> = BTreeMap::new();
        let mut note = |ring: RingId, count: u32| {
            let known = counts.entry(ring).or_insert(1);
            *known = (*known).max(count);
        };
        self.logs().for_each(|(ring, number)| note(ring, number.0.saturating_add(1).next_power_of_two()));
        let (from, to) = Self::all_keys();
        // A digest reports the errors of the scan.
        let _ = self.scan(&from, &to, &mut |key, _| {
            let numbered = matches!(key.kind(), Some(Kind::Inode | Kind::Shard | Kind::Intent));
            let tag = key.id().filter(|_| numbered).map_or(0, |id| (id as u64) >> COUNTER_BITS);
            if let (Some(place), Some(bits)) = (key.prefix(), tag.checked_ilog2()) {
                note(place.ring, 1 << bits.min(u32::BITS - 1));
            }
            true
        });
        counts
    }
}
