//! Hashes of what a brick holds of a partition, for replicas that compare themselves.
//!
//! An entry is hashed by key and value, a shard by stamp and length. The bytes of shards are not hashed: they have
//! checksums. What each brick has of its own is left out: checksums, and how much of a shard is at home. An entry or
//! shard that cannot be read is no error: its hash differs from that on every other brick, so that the comparison finds
//! it and repairs it. `hekate debug compare` compares everything, with code of its own (`inspect/compare.rs`).

use crate::Brick;
use bytes::Bytes;
use hekate_proto::*;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::Xxh3;

/// Keys of entries, each with the hash of key and value.
pub type EntryHashes = Vec<(Key, u128)>;

impl Brick {
    /// Hashes of the entries in `from..to`, of at most `limit` that are visited; and the key to continue from, if there
    /// may be more.
    pub fn entry_hashes(&self, from: &Key, to: &Key, limit: usize) -> Result<(EntryHashes, Option<Key>)> {
        let damaged = |error| match error {
            Error::Damaged { .. } => Ok(self.id().to_bytes()),
            other => Err(other),
        };
        let found = self.view(|view| view.scan_with(from, to, limit, &damaged))?;
        let next = found.last().filter(|_| found.len() >= limit).map(|(key, _)| key.successor());
        let hashed = found.into_iter().filter(|(key, _)| !matches!(key.kind(), Some(Kind::Shard | Kind::Checksums)));
        Ok((hashed.map(|(key, value)| (key.clone(), hash(key.as_bytes(), &value))).collect(), next))
    }

    /// Stands for the record of a shard that cannot be read: no writer makes such a stamp, and any of its blocks may be
    /// at home.
    fn unreadable_shard(&self) -> ShardRecord {
        let stamp = Stamp { count: 0, session: SessionId(u64::MAX), op: OpId(self.id().0 as u64) };
        let home_blocks = (SHARD_BYTES / BLOCK_BYTES as u64) as u32;
        ShardRecord { stamp, length: 0, home_blocks, reserved_blocks: 0 }
    }

    /// Shards whose keys are in `from..to`, with their records.
    pub fn shards_between(&self, ring: RingId, from: &Key, to: &Key) -> Result<Vec<(ShardId, ShardRecord)>> {
        self.view(|view| {
            let mut found: BTreeMap<Key, Option<ShardRecord>> = BTreeMap::new();
            let mut unreadable = None;
            view.index.scan_all(from.as_bytes(), to.as_bytes(), &mut |key, value| {
                let key = Key::from_bytes(Bytes::copy_from_slice(key));
                if key.kind() == Some(Kind::Shard) {
                    match value.and_then(|value| Ok(ShardRecord::from_bytes(value)?)) {
                        Ok(record) => drop(found.insert(key, Some(record))),
                        Err(Error::Damaged { .. }) => drop(found.insert(key, Some(self.unreadable_shard()))),
                        Err(error) => unreadable = Some(error),
                    }
                }
                unreadable.is_none()
            })?;
            if let Some(error) = unreadable {
                return Err(error);
            }
            for overlay in view.state.layers_oldest_first() {
                let changed = overlay.shards.iter().filter(|(_, change)| change.ring == ring);
                let keyed = changed.map(|(shard, change)| (Key::shard(ring, *shard), change.record));
                found.extend(keyed.filter(|(key, _)| from <= key && key < to));
            }
            Ok(found.into_iter().filter_map(|(key, record)| Some((key.as_shard()?, record?))).collect())
        })
    }

    /// Number and hash of each block of a shard that is no hole and can be read.
    pub fn block_hashes(&self, ring: RingId, shard: ShardId) -> Result<Vec<(u32, u128)>> {
        let Some(record) = self.shard(ring, shard)? else { return Ok(Vec::new()) };
        let holes = self.holes(ring, shard, 0, record.home_blocks)?;
        let mut found = Vec::new();
        for (block, _) in (0..).zip(&holes).filter(|(_, is_hole)| !**is_hole) {
            match self.read_block(ring, shard, block) {
                Ok(Some(bytes)) => found.push((block, xxhash_rust::xxh3::xxh3_128(&bytes))),
                Ok(None) | Err(Error::Damaged { .. } | Error::Io { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Shards whose keys are in `from..to`, each with the hash of its stamp and length.
    pub fn shard_hashes_between(&self, ring: RingId, from: &Key, to: &Key) -> Result<Vec<(ShardId, u128)>> {
        let found = self.shards_between(ring, from, to)?;
        Ok(found.into_iter().map(|(shard, record)| (shard, shard_hash(ring, shard, record))).collect())
    }

    /// The shards of a partition, each with the hash of its stamp and length.
    pub fn shard_hashes(&self, ring: RingId, number: PartitionNumber, count: u32) -> Result<Vec<(ShardId, u128)>> {
        let hashed = |shard: ShardId| {
            let Some(record) = self.shard(ring, shard)? else { return Ok(None) };
            Ok(Some((shard, shard_hash(ring, shard, record))))
        };
        self.shards(ring, number, count)?.into_iter().filter_map(|shard| hashed(shard).transpose()).collect()
    }
}

fn shard_hash(ring: RingId, shard: ShardId, ShardRecord { stamp, length, .. }: ShardRecord) -> u128 {
    let (key, mut value) = (Key::shard(ring, shard), Vec::new());
    stamp.put(&mut value);
    length.put(&mut value);
    hash(key.as_bytes(), &value)
}

fn hash(key: &[u8], value: &[u8]) -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    hasher.digest128()
}
