//! The pairs that make up a replica of a partition: each key, with a hash of all that is stored under it.

use super::{PartitionAddress, Replica};
use crate::inspect::{BlockState, Contents, Problem};
use bytes::Bytes;
use hekate_proto::*;
use std::collections::VecDeque;
use std::ops::Bound;
use xxhash_rust::xxh3::Xxh3;

/// Entries read at a time.
const PAGE_ENTRIES: usize = 1024;

/// The byte that follows the key in what is hashed.
const ENTRY: u8 = 1;
const SHARD: u8 = 2;
const UNREADABLE: u8 = 3;

/// A key, and the XXH3-128 of the key and of what is stored under it. For an entry that is its value. For a shard it is
/// stamp, length and bytes, with zeros for holes, and then the numbers of the blocks that are damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Key,
    /// The hash.
    pub hash: u128,
    /// Length of the shard in bytes, if it is one.
    pub shard_bytes: Option<u64>,
}

/// Reads the pairs of a partition in key order, a page of entries at a time.
pub struct Cursor<'a> {
    replica: &'a Replica<'a>,
    /// Ranges of keys still to be read: from, to (exclusive).
    ranges: VecDeque<(Key, Key)>,
    /// Pairs read and not yet taken. The blocks of a shard are read when it is the next one.
    page: VecDeque<Found>,
    problems: Vec<Problem>,
}

/// An entry found by a scan.
enum Found {
    Pair(Pair),
    Shard(Key, ShardId),
}

impl Found {
    fn key(&self) -> &Key {
        match self {
            Self::Pair(pair) => &pair.key,
            Self::Shard(key, _) => key,
        }
    }
}

impl<'a> Cursor<'a> {
    pub(super) fn new(replica: &'a Replica<'a>, partition: PartitionAddress) -> Self {
        let PartitionAddress { ring, number, count } = partition;
        let ranges = VecDeque::from([Key::object_range(ring, number, count), Key::work_range(ring, number, count)]);
        Self { replica, ranges, page: VecDeque::new(), problems: Vec::new() }
    }

    /// The next pair.
    pub fn take(&mut self) -> Option<Pair> {
        self.peek();
        match self.page.pop_front()? {
            Found::Pair(pair) => Some(pair),
            // `peek` has turned a shard in front into a pair.
            Found::Shard(..) => None,
        }
    }

    /// The next pair, if it has this key.
    pub fn take_if(&mut self, key: &Key) -> Option<Pair> {
        if self.peek()?.key == *key { self.take() } else { None }
    }

    /// The next pair, without taking it.
    pub fn peek(&mut self) -> Option<&Pair> {
        loop {
            match self.page.pop_front() {
                Some(Found::Pair(pair)) => {
                    self.page.push_front(Found::Pair(pair));
                    break;
                }
                Some(Found::Shard(key, shard)) => {
                    if let Some(pair) = self.shard(key, shard) {
                        self.page.push_front(Found::Pair(pair));
                    }
                }
                None => {
                    let (from, to) = self.ranges.pop_front()?;
                    self.read_page(from, to);
                }
            }
        }
        match self.page.front() {
            Some(Found::Pair(pair)) => Some(pair),
            _ => None,
        }
    }

    /// Problems since the last call.
    pub fn problems(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.problems)
    }

    /// Reads a page of entries from `from` on, and puts the rest of the range back.
    fn read_page(&mut self, from: Key, to: Key) {
        let Replica { contents, changed_shards } = self.replica;
        let (mut found, mut problems, mut last) = (Vec::new(), Vec::new(), None);
        let gone_through = contents.scan(&from, &to, &mut |key, value| {
            match key.kind() {
                Some(Kind::Checksums) => return true,
                Some(Kind::Shard) if changed_shards.contains_key(key) => return true,
                _ => {}
            }
            found.push(match key.as_shard() {
                Some(shard) => Found::Shard(key.clone(), shard),
                None => Found::Pair(entry(key, value, &mut problems)),
            });
            last = Some(key.clone());
            found.len() < PAGE_ENTRIES
        });
        problems.extend(gone_through.err().map(|error| Problem::index(error.to_string())));
        self.problems.extend(problems);
        let end = match last.filter(|_| found.len() >= PAGE_ENTRIES) {
            Some(last) => last.successor(),
            None => to.clone(),
        };
        let changed = changed_shards.range::<Key, _>((Bound::Included(&from), Bound::Excluded(&end)));
        found.extend(changed.map(|(key, shard)| Found::Shard(key.clone(), *shard)));
        found.sort_by(|one, other| one.key().cmp(other.key()));
        self.page = found.into();
        if end < to {
            self.ranges.push_front((end, to));
        }
    }

    /// The pair of a shard. `None`: the journal drops it.
    fn shard(&mut self, key: Key, shard: ShardId) -> Option<Pair> {
        let ring = key.prefix()?.ring;
        match hash_shard(self.replica.contents, ring, &key, shard) {
            Ok(None) => None,
            Ok(Some((hash, length, problems))) => {
                self.problems.extend(problems);
                Some(Pair { key, hash, shard_bytes: Some(length) })
            }
            Err(error) => {
                self.problems.push(Problem::index(format!("{shard:?}: {error}")));
                Some(Pair { hash: begin(&key, UNREADABLE).digest128(), key, shard_bytes: Some(0) })
            }
        }
    }
}

/// A hasher that has been given the key.
fn begin(key: &Key, what: u8) -> Xxh3 {
    let mut hasher = Xxh3::new();
    hasher.update(&(key.as_bytes().len() as u64).to_le_bytes());
    hasher.update(key.as_bytes());
    hasher.update(&[what]);
    hasher
}

fn entry(key: &Key, value: Result<Bytes>, problems: &mut Vec<Problem>) -> Pair {
    let hash = match value {
        Ok(value) => {
            let mut hasher = begin(key, ENTRY);
            hasher.update(&value);
            hasher.digest128()
        }
        Err(error) => {
            problems.push(Problem::index(error.to_string()));
            begin(key, UNREADABLE).digest128()
        }
    };
    Pair { key: key.clone(), hash, shard_bytes: None }
}

/// Hashes a shard. Returns hash, length and problems; `None`: the brick does not have the shard.
fn hash_shard(
    contents: &Contents,
    ring: RingId,
    key: &Key,
    shard: ShardId,
) -> Result<Option<(u128, u64, Vec<Problem>)>> {
    let Some(record) = contents.shard_record(ring, shard)? else { return Ok(None) };
    let mut hasher = begin(key, SHARD);
    hasher.update(&record.stamp.to_bytes());
    hasher.update(&record.length.to_le_bytes());
    let mut left = record.length as usize;
    let mut damaged: Vec<u32> = Vec::new();
    let mut block = 0;
    let found = contents.visit_blocks(ring, shard, &mut |state, bytes| {
        let inside = left.min(BLOCK_BYTES);
        hasher.update(if state.is_zeros() { &[0; BLOCK_BYTES][..inside] } else { &bytes[..inside] });
        if state == BlockState::Damaged {
            damaged.push(block);
        }
        (left, block) = (left - inside, block + 1);
    })?;
    damaged.iter().for_each(|block| hasher.update(&block.to_le_bytes()));
    let problems = found.map(|found| found.problems).unwrap_or_default();
    Ok(Some((hasher.digest128(), record.length.into(), problems)))
}

impl BlockState {
    /// Whether a read of the block returns zeros.
    pub(super) fn is_zeros(self) -> bool {
        matches!(self, Self::Hole | Self::Lost)
    }
}
