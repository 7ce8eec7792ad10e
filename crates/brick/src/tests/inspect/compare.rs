//! Replicas with the same state are equal whatever their history; each difference is found and named.

use super::*;
use crate::inspect::*;
use crate::storage::{MemoryStorage, Storage};
use crate::{Brick, block_checksum};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

const WHOLE: PartitionAddress = PartitionAddress { ring: RING, number: PartitionNumber(0), count: 1 };

/// A step of a brick's history.
#[derive(Clone)]
enum Step {
    Change(Change),
    Checkpoint,
    Restart,
}

fn live(steps: &[Step]) -> MemoryStorage {
    let storage = new_storage();
    let open = || open(&storage, false).0;
    let mut brick = open();
    for step in steps {
        match step {
            Step::Checkpoint => brick.checkpoint().unwrap(),
            Step::Restart => {
                drop(brick);
                brick = open();
            }
            Step::Change(change) => {
                if let Change::FreshBlocks { shard, run, .. } = change {
                    let bytes = vec![run.checksums.len() as u8; run.checksums.len() * BLOCK_BYTES];
                    brick.write_fresh(RING, *shard, run.first, &[&bytes]).unwrap();
                }
                append_synced(&brick, vec![change.clone()]);
            }
        }
    }
    drop(brick);
    storage
}

fn changes(all: &[Change]) -> Vec<Step> {
    all.iter().cloned().map(Step::Change).collect()
}

fn contents(storage: &MemoryStorage) -> Contents {
    Contents::read(&stopped(storage, false), &mut |_| ()).unwrap()
}

fn digest(storage: &MemoryStorage) -> Digest {
    Replica::new(&contents(storage)).digest(WHOLE, &mut |_| ())
}

/// Keys that differ between two bricks.
fn differ(one: &MemoryStorage, other: &MemoryStorage) -> Vec<Key> {
    let (one, other) = (contents(one), contents(other));
    let found = differences(&[&Replica::new(&one), &Replica::new(&other)], WHOLE, usize::MAX, &mut || ());
    assert_eq!(found.count as usize, found.first.len());
    found.first
}

fn name(text: &str) -> Key {
    Key::name(PLACE, ROOT, text.as_bytes())
}

fn write(first: u32, fill: u8, count: u32, writes: u64) -> Change {
    let (record, run, bytes) = blocks(first, fill, count, writes);
    Change::WriteBlocks { shard: shard(0), record, run, bytes }
}

/// Fresh blocks of which each byte is `count`.
fn fresh(first: u32, count: u32, writes: u64) -> Change {
    let (record, run, _) = blocks(first, count as u8, count, writes);
    Change::FreshBlocks { shard: shard(0), record, run }
}

fn xattr(value: &'static str) -> Change {
    Change::Put { key: Key::xattr(RING, VOLUME, FILE, b"user.a"), value: Bytes::from(value) }
}

/// One of each kind: a directory, a file with two names, an attribute and a shard, an orphan, garbage.
fn state() -> Vec<Change> {
    let piece = Piece { data: shard(0).data, length: u64::MAX };
    let file = NameRecord { inode: FILE, kind: NodeKind::File };
    vec![
        put(object(ROOT, Kind::Inode), &inode(NodeKind::Directory, Vec::new())),
        put(object(ROOT, Kind::Stub), &stub(2)),
        put(name("f"), &file),
        put(name("g"), &file),
        put(object(FILE, Kind::Inode), &inode(NodeKind::File, vec![piece])),
        xattr("1"),
        write(0, 1, 4, 1),
        write(4, 2, 2, 2),
        fresh(6, 1, 3),
        put(Key::orphan(RING, VOLUME, InodeId::new(0, 5, 79)), &0u8),
        put(Key::garbage(RING, VOLUME, Position(0), DataId(99)), &GarbageRecord { shards: 1 }),
    ]
}

#[test]
fn equal_states_have_equal_digests_whatever_is_checkpointed() {
    let plain = live(&changes(&state()));
    let wanted = digest(&plain);
    assert_eq!((wanted.entries, wanted.shards, wanted.problem_count), (8, 1, 0));
    assert_eq!(wanted.shard_bytes, 8 * BLOCK_BYTES as u64);
    for at in 0..=state().len() {
        for step in [Step::Checkpoint, Step::Restart] {
            let mut steps = changes(&state());
            steps.insert(at, step);
            let other = live(&steps);
            assert_eq!(digest(&other).sum, wanted.sum, "with a step more before change {at}");
            assert_eq!(differ(&plain, &other), []);
        }
    }
    let each_its_checkpoint: Vec<Step> =
        changes(&state()).into_iter().flat_map(|step| [step, Step::Checkpoint, Step::Restart]).collect();
    assert_eq!(digest(&live(&each_its_checkpoint)).sum, wanted.sum);
}

#[test]
fn equal_states_have_equal_digests_whatever_came_before() {
    let wanted = digest(&live(&changes(&state()))).sum;
    let gone = InodeId::new(0, 5, 500);
    // Entries that were deleted or overwritten, and shards that were dropped, leave no trace.
    let detour = [
        put(name("z"), &NameRecord { inode: gone, kind: NodeKind::File }),
        xattr("another"),
        put(object(ROOT, Kind::Stub), &stub(77)),
        write(0, 9, 3, 1),
    ];
    let back = [Change::Delete { key: name("z") }, Change::DropShard { shard: shard(0) }];
    let mut steps = changes(&detour);
    steps.push(Step::Checkpoint);
    steps.extend(changes(&back));
    steps.push(Step::Checkpoint);
    steps.extend(changes(&state()));
    assert_eq!(digest(&live(&steps)).sum, wanted);
    steps.push(Step::Checkpoint);
    assert_eq!(digest(&live(&steps)).sum, wanted);
}

#[test]
fn zeros_and_holes_are_the_same_bytes_and_where_they_rest_does_not_matter() {
    let (record, mut run, _) = blocks(6, 0, 2, 4);
    let zeros = Bytes::from(vec![0; 2 * BLOCK_BYTES]);
    run.checksums = (6..8).map(|block| block_checksum(shard(0), block, &zeros[..BLOCK_BYTES])).collect();
    let written = [write(0, 1, 4, 1), Change::WriteBlocks { shard: shard(0), record, run, bytes: zeros }];
    let cut = Change::CutShard { shard: shard(0), record: ShardRecord { home_blocks: 8, ..record } };
    let holes = [write(0, 1, 4, 1), cut];
    let at_home = ShardRecord { home_blocks: 9, ..record };
    let more_at_home = [write(0, 1, 4, 1), Change::CutShard { shard: shard(0), record: at_home }];
    let wanted = digest(&live(&changes(&written))).sum;
    assert_eq!(digest(&live(&changes(&holes))).sum, wanted);
    assert_eq!(digest(&live(&changes(&more_at_home))).sum, wanted);
}

#[test]
fn each_difference_is_noticed_and_named() {
    let plain = live(&changes(&state()));
    let wanted = digest(&plain).sum;
    let shard_key = Key::shard(RING, shard(0));
    let (record, ..) = blocks(6, 1, 1, 3);
    let (_, run, bytes) = blocks(1, 7, 1, 3);
    let cut = |record| Change::CutShard { shard: shard(0), record };
    let stamp = Stamp { op: OpId(1000), ..record.stamp };
    let changed = InodeRecord { mtime: Time(2), ..inode(NodeKind::File, Vec::new()) };
    for (what, change, key) in [
        ("a name more", put(name("h"), &NameRecord { inode: FILE, kind: NodeKind::File }), name("h")),
        ("a name less", Change::Delete { key: name("g") }, name("g")),
        ("a name to elsewhere", put(name("g"), &NameRecord { inode: ROOT, kind: NodeKind::File }), name("g")),
        ("an inode", put(object(FILE, Kind::Inode), &changed), object(FILE, Kind::Inode)),
        ("a stub", put(object(ROOT, Kind::Stub), &stub(3)), object(ROOT, Kind::Stub)),
        ("an attribute", xattr("2"), Key::xattr(RING, VOLUME, FILE, b"user.a")),
        ("a stamp", cut(ShardRecord { stamp, ..record }), shard_key.clone()),
        ("a length", cut(ShardRecord { length: record.length - 1, ..record }), shard_key.clone()),
        ("bytes", Change::WriteBlocks { shard: shard(0), record, run, bytes }, shard_key.clone()),
        ("a shard less", Change::DropShard { shard: shard(0) }, shard_key.clone()),
        (
            "work",
            Change::Delete { key: Key::orphan(RING, VOLUME, InodeId::new(0, 5, 79)) },
            Key::orphan(RING, VOLUME, InodeId::new(0, 5, 79)),
        ),
    ] {
        // The difference is in the last change before a checkpoint, and behind it.
        for checkpoint in [false, true] {
            let mut steps = changes(&state());
            steps.push(Step::Change(change.clone()));
            steps.extend(checkpoint.then_some(Step::Checkpoint));
            let other = live(&steps);
            assert_ne!(digest(&other).sum, wanted, "{what}");
            assert_eq!(differ(&plain, &other), std::slice::from_ref(&key), "{what}");
            assert_eq!(differ(&other, &plain), std::slice::from_ref(&key), "{what}");
        }
    }
}

#[test]
fn one_byte_of_a_block_with_a_right_checksum_is_a_difference() {
    let other_block = |fill: u8| {
        let (record, mut run, bytes) = blocks(0, 1, 4, 1);
        let mut bytes = bytes.to_vec();
        bytes[2 * BLOCK_BYTES + 17] = fill;
        run.checksums[2] = block_checksum(shard(0), 2, &bytes[2 * BLOCK_BYTES..3 * BLOCK_BYTES]);
        live(&changes(&[Change::WriteBlocks { shard: shard(0), record, run, bytes: bytes.into() }]))
    };
    let (one, other) = (other_block(1), other_block(2));
    let key = Key::shard(RING, shard(0));
    assert_eq!(differ(&one, &other), std::slice::from_ref(&key));
    let (one, other) = (contents(&one), contents(&other));
    let held = |contents| match Replica::new(contents).held(&key) {
        Some(Held::Shard(shard)) => shard,
        other => panic!("{other:?}"),
    };
    let (one, other) = (held(&one), held(&other));
    let blocks: Vec<usize> = (0..4).filter(|block| one.hashes[*block] != other.hashes[*block]).collect();
    assert_eq!((blocks, one.record), (vec![2], other.record));
}

#[test]
fn damage_is_a_difference_and_a_problem() {
    let mut steps = changes(&state());
    steps.push(Step::Checkpoint);
    let (plain, other) = (live(&steps), live(&steps));
    let path = crate::data_file_path(shard(0));
    other.flip_bit(&path, 2 * BLOCK_BYTES);
    assert_eq!(differ(&plain, &other), [Key::shard(RING, shard(0))]);
    let found = digest(&other);
    assert_eq!(found.problem_count, 1);
    assert!(found.problems[0].to_string().contains("block 2: damaged"), "{:?}", found.problems);
    plain.flip_bit(&path, 2 * BLOCK_BYTES);
    assert_eq!(differ(&plain, &other), [], "the same damage, and each names it");
    assert_eq!(digest(&plain).problem_count, 1);
    plain.open(&path, false).unwrap().write_at(&[&[1; BLOCK_BYTES]], 2 * BLOCK_BYTES as u64).unwrap();
    assert_eq!(digest(&plain).problem_count, 0);
}

#[test]
fn a_partition_of_many_pages_is_read_to_its_end() {
    let file = NameRecord { inode: FILE, kind: NodeKind::File };
    let named = |number: u32| put(name(&format!("{number:05}")), &file);
    let batch = |numbers: std::ops::Range<u32>| numbers.map(named).collect::<Vec<_>>();
    let make = |without: &[u32], checkpoint_at: u32| {
        let storage = MemoryStorage::new();
        Brick::create_on(&storage, &identity()).unwrap();
        let (brick, _) = Brick::open_on(Arc::new(storage.clone()), &identity(), Incarnation(1), false).unwrap();
        for hundred in 0..30 {
            append_synced(&brick, batch(hundred * 100..hundred * 100 + 100));
            if hundred == checkpoint_at {
                brick.checkpoint().unwrap();
            }
        }
        append_synced(
            &brick,
            without.iter().map(|number| Change::Delete { key: name(&format!("{number:05}")) }).collect(),
        );
        storage
    };
    let (plain, other) = (make(&[], 12), make(&[0, 1023, 1024, 2999], 25));
    assert_eq!((digest(&plain).entries, digest(&other).entries), (3000, 2996));
    let wanted: Vec<Key> = [0, 1023, 1024, 2999].map(|number| name(&format!("{number:05}"))).into();
    assert_eq!(differ(&plain, &other), wanted);
    let (one, two) = (contents(&plain), contents(&other));
    let some = differences(&[&Replica::new(&one), &Replica::new(&two)], WHOLE, 2, &mut || ());
    assert_eq!((some.count, some.first), (4, wanted[..2].to_vec()));
}

#[test]
fn partitions_add_up_and_their_count_is_known_from_numbers() {
    let inode_in = |partition: u64| InodeId::new((partition as u32) << 28, 9, (16 | partition) << 40 | 5);
    let made: Vec<Change> = (0..16)
        .map(|partition| put(object(inode_in(partition), Kind::Inode), &inode(NodeKind::File, Vec::new())))
        .collect();
    let storage = live(&changes(&made));
    let contents = contents(&storage);
    assert_eq!(contents.partitions_of_rings(), BTreeMap::from([(RING, 16)]));
    let replica = Replica::new(&contents);
    let parts = (0..16).map(|number| PartitionAddress { number: PartitionNumber(number), count: 16, ..WHOLE });
    let digests: Vec<Digest> = parts.map(|part| replica.digest(part, &mut |_| ())).collect();
    assert!(digests.iter().all(|digest| digest.entries == 1));
    let sum = digests.iter().fold(0u128, |sum, digest| sum.wrapping_add(digest.sum));
    assert_eq!(sum, replica.digest(WHOLE, &mut |_| ()).sum);
}
