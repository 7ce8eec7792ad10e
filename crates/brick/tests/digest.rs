//! Two bricks with the same records have the same hashes.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use hekate_brick::{Brick, BrickSettings, EntryHashes, LogEntry, block_checksum};
use hekate_proto::*;
use std::time::Instant;

const RING: RingId = RingId(1);
const NUMBER: PartitionNumber = PartitionNumber(0);

fn key(number: u64) -> Key {
    let place = KeyPrefix { ring: RING, position: Position(number as u32), volume: VolumeId(1) };
    Key::name(place, InodeId::new(number as u32, 3, number), b"a name as long as many are")
}

fn append(brick: &Brick, changes: Vec<Change>) {
    let sequence = Sequence(brick.position(RING, NUMBER).sequence.0 + 1);
    let (epoch, session, op_id) = (Epoch(1), SYSTEM_SESSION, OpId(0));
    let record = Record { ring: RING, partition: NUMBER, epoch, sequence, session, op_id, changes };
    brick.append(&LogEntry::new(record)).unwrap();
}

fn all(brick: &Brick) -> (EntryHashes, Vec<(ShardId, u128)>) {
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
        let record =
            ShardRecord { stamp: stamp(count), length: BLOCK_BYTES as u32, home_blocks: 1, reserved_blocks: 0 };
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
