//! Hashes of what a brick holds of a partition, for replicas that compare themselves: entries by key and value, shards by
//! stamp and length. Not the bytes of shards, which have their checksums, nor what each brick has of its own: checksums,
//! and how much of a shard is at home. `hekate debug compare` compares all of it, by code of its own (`inspect/compare.rs`).

use crate::Brick;
use hekate_proto::*;
use xxhash_rust::xxh3::Xxh3;

impl Brick {
    /// Hashes of the entries in `from..to`, of which it looks at `limit` at most; and where to go on, if that was not all.
    pub fn entry_hashes(&self, from: &Key, to: &Key, limit: usize) -> Result<(Vec<(Key, u128)>, Option<Key>)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BrickSettings, LogEntry, block_checksum};
    use bytes::Bytes;
    use std::time::Instant;

    const RING: RingId = RingId(1);
    const NUMBER: PartitionNumber = PartitionNumber(0);

    fn key(number: u64) -> Key {
        let place = Place { ring: RING, position: Position(number as u32), volume: VolumeId(1) };
        Key::name(place, InodeId::new(number as u32, 3, number), b"a name as long as many are")
    }

    fn append(brick: &Brick, changes: Vec<Change>) {
        let sequence = Sequence(brick.position(RING, NUMBER).sequence.0 + 1);
        let (epoch, session, op_id) = (Epoch(1), SYSTEM_SESSION, OpId(0));
        let record = Record { ring: RING, partition: NUMBER, epoch, sequence, session, op_id, changes };
        brick.append(&LogEntry::new(record)).unwrap();
    }

    fn all(brick: &Brick) -> (Vec<(Key, u128)>, Vec<(ShardId, u128)>) {
        let (mut from, to) = Key::object_range(RING, NUMBER, 1);
        let mut found = Vec::new();
        loop {
            let (some, next) = brick.entry_hashes(&from, &to, 100).unwrap();
            found.extend(some);
            match next {
                Some(next) => from = next,
                None => return (found, brick.shard_hashes(RING, NUMBER, 1).unwrap()),
            }
        }
    }

    /// HEKATE_ENTRIES=1000000 tells how fast it is, in a release build.
    #[test]
    fn what_is_hashed_does_not_depend_on_what_is_at_home() {
        let count: u64 = std::env::var("HEKATE_ENTRIES").map_or(1000, |text| text.parse().unwrap());
        let directory = std::env::temp_dir().join(format!("hekate-digest-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let make = |number: u128| {
            let path = directory.join(number.to_string());
            Brick::create(&path, BrickId(number), "c", BrickSettings::default()).unwrap();
            Brick::open(&path, "c").unwrap().0
        };
        let (one, other) = (make(1), make(2));
        let shard = ShardId { volume: VolumeId(1), data: DataId(9), index: 0 };
        let bytes = Bytes::from(vec![5; BLOCK_BYTES]);
        let run = BlockRun { first: 0, checksums: vec![block_checksum(shard, 0, &bytes)] };
        let stamp = |count| Stamp { count, session: SessionId(1), op: OpId(1) };
        let write = |count| {
            let record = ShardRecord { stamp: stamp(count), length: BLOCK_BYTES as u32, home_blocks: 1 };
            Change::WriteBlocks { shard, record, run: run.clone(), bytes: bytes.clone() }
        };
        for brick in [&one, &other] {
            for first in (0..count).step_by(500) {
                let put = |number| Change::Put { key: key(number), value: Bytes::from(vec![1; 60]) };
                append(brick, (first..count.min(first + 500)).map(put).collect());
                if brick.wants_checkpoint() {
                    brick.checkpoint().unwrap();
                }
            }
            append(brick, vec![write(1)]);
        }
        one.checkpoint().unwrap();
        let begun = Instant::now();
        let held = all(&one);
        println!("{count} entries from the index in {:.2} s", begun.elapsed().as_secs_f64());
        assert_eq!((held.0.len() as u64, held.1.len()), (count, 1));
        assert!(held == all(&other), "one is at home, the other in the journal");
        append(&other, vec![write(2)]);
        assert!(held.1 != all(&other).1 && held.0 == all(&other).0, "another stamp");
        append(&other, vec![Change::Put { key: key(7), value: Bytes::from(vec![2; 60]) }]);
        let differ = held.0.iter().zip(&all(&other).0).filter(|(one, other)| one != other).count();
        assert_eq!(differ, 1, "another value");
        drop((one, other));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
