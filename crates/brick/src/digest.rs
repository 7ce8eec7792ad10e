//! Hashes of what a brick holds of a partition, for replicas that compare themselves: entries by key and value, shards by
//! stamp and length. Not the bytes of shards, which have their checksums, nor what each brick has of its own: checksums,
//! and how much of a shard is at home. `hekate debug compare` compares all of it, by code of its own (`inspect/compare.rs`).

use crate::Brick;
use hekate_proto::*;
use xxhash_rust::xxh3::Xxh3;

/// Entries, in short.
pub type EntryHashes = Vec<(Key, u128)>;

impl Brick {
    /// Hashes of the entries in `from..to`, of which it looks at `limit` at most; and where to go on, if that was not all.
    pub fn entry_hashes(&self, from: &Key, to: &Key, limit: usize) -> Result<(EntryHashes, Option<Key>)> {
        let found = self.scan(from, to, limit)?;
        let next = found.last().filter(|_| found.len() >= limit).map(|(key, _)| key.successor());
        let hashed = found.into_iter().filter(|(key, _)| !matches!(key.kind(), Some(Kind::Shard | Kind::Checksums)));
        Ok((hashed.map(|(key, value)| (key.clone(), hash(key.as_bytes(), &value))).collect(), next))
    }

    /// Hashes of a partition's shards.
    pub fn shard_hashes(&self, ring: RingId, number: PartitionNumber, count: u32) -> Result<Vec<(ShardId, u128)>> {
        let hashed = |shard: ShardId| {
            let Some(ShardRecord { stamp, length, .. }) = self.shard(ring, shard)? else { return Ok(None) };
            let (key, mut value) = (Key::shard(ring, shard), Vec::new());
            stamp.put(&mut value);
            length.put(&mut value);
            Ok(Some((shard, hash(key.as_bytes(), &value))))
        };
        self.shards(ring, number, count)?.into_iter().filter_map(|shard| hashed(shard).transpose()).collect()
    }
}

fn hash(key: &[u8], value: &[u8]) -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    hasher.digest128()
}
