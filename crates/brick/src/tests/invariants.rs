//! A test for each numbered invariant of `docs/format`, which violates it. `cargo xtask tidy` compares the lists with
//! the tests' names.
//!
//! A record that would violate an invariant is refused before it is journaled, and the brick continues. Bytes on the
//! disk that violate one are damage. What only a bug of the brick can violate stops the brick.

use crate::index::meta::Meta;
use crate::journal::Lsn;
use crate::journal::format::{EntryKind, RecordHeader};
use crate::machine::checkpoint::Step;
use crate::machine::{Append, Before, Io, Machine, Next};
use crate::storage::{MemoryStorage, Storage};
use crate::tests::support::{
    BLOCK, PARTITION, RING, data_file, flip_in_index, identity_with, new_storage_with, shard, stamp,
};
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use std::sync::Arc;

const SEGMENT: u64 = 64 << 10;

fn new() -> (MemoryStorage, Brick) {
    let storage = new_storage_with(SEGMENT);
    let brick = open(&storage, false).unwrap();
    (storage, brick)
}

fn open(storage: &MemoryStorage, after_power_cut: bool) -> Result<Brick> {
    Ok(Brick::open_on(Arc::new(storage.clone()), &identity_with(SEGMENT), Incarnation(1), after_power_cut)?.0)
}

fn record(count: u64, length: u32, home_blocks: u32) -> ShardRecord {
    ShardRecord { stamp: stamp(count), length, home_blocks, reserved_blocks: 0 }
}

fn run(first: u32, bytes: &[u8]) -> BlockRun {
    let sums = bytes.chunks(BLOCK_BYTES).zip(first..).map(|(bytes, block)| block_checksum(shard(0), block, bytes));
    BlockRun { first, checksums: sums.collect() }
}

fn write(first: u32, count: u32, record: ShardRecord) -> Change {
    let bytes = vec![5; count as usize * BLOCK_BYTES];
    Change::WriteBlocks { shard: shard(0), record, run: run(first, &bytes), bytes: bytes.into() }
}

fn entry(sequence: u64, changes: Vec<Change>) -> LogEntry {
    let (epoch, session, op_id) = (Epoch(1), SessionId(1), OpId(sequence));
    let sequence = Sequence(sequence);
    LogEntry::new(Record { ring: RING, partition: PARTITION, epoch, sequence, session, op_id, changes })
}

fn append(brick: &Brick, changes: Vec<Change>) -> Result<Lsn> {
    brick.append(&entry(brick.position(RING, PARTITION).sequence.0 + 1, changes))
}

fn put(name: &str) -> Change {
    let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
    Change::Put { key: Key::name(place, ROOT, name.as_bytes()), value: Bytes::from_static(b"1") }
}

/// The record was refused with the invariant's name, nothing has changed, and the next record is taken.
fn refused(brick: &Brick, name: &str, outcome: Result<impl Sized>) {
    let text = outcome.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains(name), "{name} was not named: {text:?}");
    assert_eq!(brick.status().unwrap().poisoned, None, "a refused record stops nothing");
    append(brick, vec![put("the next one")]).unwrap();
}

/// Checks that the brick has stopped, the process has not, and the error names the invariant.
fn poisons(brick: &Brick, name: &str, outcome: Result<impl Sized>) {
    let text = outcome.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains(name), "{name} was not named: {text:?}");
    assert!(brick.status().unwrap().poisoned.is_some_and(|why| why.contains(name)));
    assert!(append(brick, vec![put("x")]).is_err(), "nothing is taken any more");
    assert!(brick.sync(brick.end()).is_err(), "nothing is acknowledged any more");
}

fn damaged(outcome: Result<impl Sized>, name: &str) {
    let error = outcome.err().unwrap_or(Error::NotFound);
    assert!(matches!(&error, Error::Damaged { what } if what.contains(name)), "{name} was not named: {error}");
}

/// Writes a record at the log's end, as a program with a bug would.
fn forge(storage: &MemoryStorage, at: Lsn, header: impl FnOnce(&mut RecordHeader), record: Record) {
    let body = record.to_bytes();
    let mut made = RecordHeader {
        kind: EntryKind::Change,
        body_bytes: body.len() as u32,
        body_checksum: crc32c::crc32c(&body),
        lsn: at,
        stable: Lsn(0),
        generation: 1,
    };
    header(&mut made);
    let file = storage.open(&format!("journal/segment-{:03}", at.0 / SEGMENT % 4), false).unwrap();
    file.write_at(&[&made.encode(), &body], at.0 % SEGMENT).unwrap();
}

#[test]
fn brick_invariant_1_a_brick_is_whole() {
    let (storage, brick) = new();
    drop(brick);
    storage.open("journal/segment-002", false).unwrap().set_length(100).unwrap();
    damaged(open(&storage, false), "brick invariant 1");
    storage.remove("journal/segment-002").unwrap();
    damaged(open(&storage, false), "journal/segment-002");
}

// The test of brick invariant 2 needs a real directory: opening.rs.

#[test]
fn brick_invariant_3_the_index_is_never_ahead_of_the_journal() {
    let (_, brick) = new();
    append(&brick, vec![put("a")]).unwrap();
    let mut machine = brick.machine.write();
    machine.begin_checkpoint().unwrap();
    let running = machine.running.as_mut().unwrap();
    (running.step, running.stable_from) = (Step::Commit, Lsn(0));
    running.queue.push_back(Io::CommitIndex { overlay: running.frozen.clone(), meta: running.meta.clone() });
    drop(machine);
    poisons(&brick, "brick invariant 3", brick.guarded(|| brick.write_home(&mut || false)));
}

#[test]
fn brick_invariant_4_a_life_is_recorded_when_recovery_is_covered() {
    let (storage, brick) = new();
    append(&brick, vec![put("a")]).unwrap();
    drop(brick);
    let brick = open(&storage, true).unwrap();
    poisons(&brick, "brick invariant 4", brick.settle_life());
    let brick = open(&storage, true).unwrap();
    brick.checkpoint().unwrap();
    brick.settle_life().unwrap();
}

#[test]
fn journal_invariant_1_records_follow_each_other() {
    let (_, brick) = new();
    append(&brick, vec![put("a")]).unwrap();
    brick.machine.write().log.written = Lsn(u64::MAX);
    poisons(&brick, "journal invariant 1 ", append(&brick, vec![put("b")]));
}

#[test]
fn journal_invariant_2_a_record_lies_in_one_segment() {
    let (_, brick) = new();
    let mut machine = brick.machine.write();
    let start = machine.log.end;
    machine.log.end = Lsn(start.0 + SEGMENT - 4096 - 20);
    drop(machine);
    // An append never leaves so little room: there is none for the end record either.
    poisons(&brick, "journal invariant 2", append(&brick, vec![put("a")]));
}

#[test]
fn journal_invariant_3_no_segment_that_is_needed_is_used_again() {
    let (_, brick) = new();
    let full = || {
        let mut machine = brick.machine.write();
        machine.log.end = Lsn(5 * SEGMENT - 100);
        // `append` returns `Full` here.
        assert!(!machine.log.has_room(200));
        machine.log.append(EntryKind::Change, &Bytes::from(vec![0; 200]), 0);
        Ok(())
    };
    poisons(&brick, "journal invariant 3", brick.guarded(full));
}

#[test]
fn journal_invariant_4_stable_is_never_ahead() {
    let (storage, brick) = new();
    let end = brick.end();
    brick.machine.write().log.stable = Lsn(u64::MAX);
    poisons(&brick, "journal invariant 4", append(&brick, vec![put("a")]));
    drop(brick);
    forge(&storage, end, |header| header.stable = Lsn(end.0 + 1), entry(1, vec![put("a")]).record);
    damaged(open(&storage, false), "journal invariant 4");
}

#[test]
fn journal_invariant_5_each_opening_has_a_generation_of_its_own() {
    let (storage, brick) = new();
    let end = brick.end();
    drop(brick);
    let as_before = |_, _| Ok(1);
    let shared = Arc::new(storage.clone());
    damaged(
        Brick::open_on_if(shared, &identity_with(SEGMENT), Incarnation(1), false, &as_before),
        "journal invariant 5",
    );
    forge(&storage, end, |header| header.generation = 99, entry(1, vec![put("a")]).record);
    damaged(open(&storage, false), "journal invariant 5");
}

#[test]
fn journal_invariant_6_a_partitions_log_has_no_gaps() {
    let (storage, brick) = new();
    refused(&brick, "journal invariant 6", brick.append(&entry(3, vec![put("a")])));
    let end = brick.end();
    drop(brick);
    forge(&storage, end, |_| (), entry(9, vec![put("a")]).record);
    damaged(open(&storage, false), "journal invariant 6");
}

#[test]
fn journal_invariant_7_changes_become_visible_in_log_order() {
    let (_, brick) = new();
    append(&brick, vec![put("a")]).unwrap();
    brick.machine.write().state.applied_end = Lsn(u64::MAX);
    poisons(&brick, "journal invariant 7", append(&brick, vec![put("a")]));
}

#[test]
fn journal_invariant_8_fresh_blocks_are_home_before_their_record() {
    let (_, brick) = new();
    let fresh = |first| Change::FreshBlocks { shard: shard(0), record: record(1, 0, 4), run: run(first, &[5; 8192]) };
    refused(&brick, "journal invariant 8", append(&brick, vec![fresh(0)]));
    brick.write_fresh(RING, shard(0), 1, &[&[5; 8192]]).unwrap();
    refused(&brick, "journal invariant 8", append(&brick, vec![fresh(2)]));
    append(&brick, vec![fresh(1)]).unwrap();
}

#[test]
fn journal_invariant_9_the_log_goes_on_behind_what_is_stable() {
    let (_, brick) = new();
    brick.machine.write().log.stable = Lsn(0);
    poisons(&brick, "journal invariant 9", append(&brick, vec![put("a")]));
}

#[test]
fn journal_invariant_10_one_sync_runs_at_a_time() {
    let (_, brick) = new();
    let upto = append(&brick, vec![put("a")]).unwrap();
    assert!(brick.machine.write().sync().unwrap().is_some());
    poisons(&brick, "journal invariant 10", brick.sync(upto));
}

#[test]
fn index_invariant_1_a_commit_holds_what_it_was_given() {
    struct Liar(index::MemoryIndex);
    impl index::Index for Liar {
        fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
            self.0.get(key)
        }
        fn scan_all(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], Result<Bytes>) -> bool) -> Result<()> {
            self.0.scan_all(from, to, visit)
        }
        fn commit(&self, _: &mut dyn Iterator<Item = index::IndexChange<'_>>, _: &[u8]) -> Result<()> {
            Ok(())
        }
        fn meta(&self) -> Result<Option<Bytes>> {
            self.0.meta()
        }
    }
    let geometry = journal::Geometry { brick: BrickId(7), segments: 4, segment_bytes: SEGMENT };
    let (new, end) =
        (|| crate::index::meta::Meta::read(&index::MemoryIndex::default(), geometry).unwrap(), geometry.start_of(1));
    let index = index::MemoryIndex::default();
    crate::opening::next_generation(&index, geometry, (&new(), 1), end).unwrap();
    assert_eq!(crate::index::meta::Meta::read(&index, geometry).unwrap().generation, 1);
    damaged(
        crate::opening::next_generation(&Liar(index::MemoryIndex::default()), geometry, (&new(), 1), end),
        "index invariant 1",
    );
}

#[test]
fn index_invariant_2_applied_never_falls() {
    let (_, brick) = new();
    append(&brick, vec![put("a")]).unwrap();
    brick.machine.write().applied = Lsn(u64::MAX);
    poisons(&brick, "index invariant 2", brick.checkpoint());
}

#[test]
fn index_invariant_3_a_value_rests_under_its_seal() {
    // `index.rs` tests the seal itself. Here a brick reads a damaged entry in the file of its index.
    let (storage, brick) = new();
    append(&brick, vec![put("sealed-name-to-look-for")]).unwrap();
    brick.checkpoint().unwrap();
    drop(brick);
    flip_in_index(&storage, b"sealed-name-to-look-for", 0);
    let brick = open(&storage, false).unwrap();
    let all = brick.scan(&Key::from_bytes(Bytes::new()), &Key::from_bytes(Bytes::from_static(&[255; 40])), 99);
    assert!(matches!(all, Err(Error::Damaged { .. })), "index invariant 3: {all:?}");
}

#[test]
fn index_invariant_4_keys_are_well_formed() {
    let (_, brick) = new();
    let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
    for key in
        [Bytes::new(), Bytes::from_static(b"abc"), Bytes::copy_from_slice(Key::name(place, ROOT, b"").as_bytes())]
    {
        refused(&brick, "index invariant 4", append(&brick, vec![Change::Delete { key: Key::from_bytes(key) }]));
    }
}

/// Reads a brick whose index has these bytes changed: its blocks and a name are as they were written, or the read fails
/// and the brick has stopped. Returns the outcome of the reads.
fn read_with_damage(sound: &MemoryStorage, at: usize, count: usize, bits: u8) -> Result<()> {
    let storage = sound.copy();
    let file = storage.open("index/index.redb", false).unwrap();
    let mut bytes = vec![0; count];
    file.read_at(&mut bytes, at as u64).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= bits);
    file.write_at(&[&bytes], at as u64).unwrap();
    let brick = open(&storage, false)?;
    let read = || {
        for block in 0..200 {
            let bytes = brick.read_shard(RING, shard(0), block * BLOCK, BLOCK)?;
            assert!(bytes.len() == BLOCK_BYTES && bytes.iter().all(|byte| *byte == 5), "byte {at}: block {block}");
        }
        let Change::Put { key, .. } = put("name 77") else { unreachable!() };
        assert_eq!(brick.get(&key)?, Some(Bytes::from_static(b"1")), "byte {at}");
        Ok(())
    };
    let ended = read();
    let stopped = brick.status().unwrap().poisoned;
    assert_eq!(ended.is_err(), stopped.is_some(), "byte {at}: {ended:?}");
    let block =
        format!("block {} of index/index.redb does not match its sum; the brick is to be replaced", at / BLOCK_BYTES);
    assert!(stopped.is_none_or(|why| why.contains(&block)), "byte {at}: {ended:?}");
    assert!(
        brick.get(&Key::shard(RING, shard(0))).is_ok() == ended.is_ok() && brick.checkpoint().is_ok() == ended.is_ok()
    );
    ended
}

#[test]
fn index_invariant_5_no_block_is_read_but_as_it_was_written() {
    let (storage, brick) = new();
    for part in 0..20 {
        let end = (part + 1) * 10;
        append(&brick, vec![write(part * 10, 10, record(u64::from(end), end * BLOCK, end))]).unwrap();
        brick.checkpoint().unwrap();
    }
    for number in 0..300 {
        append(&brick, vec![put(&format!("name {number}"))]).unwrap();
    }
    brick.checkpoint().unwrap();
    drop(brick);
    let length = storage.open("index/index.redb", false).unwrap().length().unwrap() as usize;
    let mut stopped = 0;
    // Steps of an odd length, to hit different places of the blocks.
    for at in (BLOCK_BYTES..length - 40).step_by(1021) {
        read_with_damage(&storage, at, 1, 1 << (at % 8)).unwrap();
        stopped += usize::from(read_with_damage(&storage, at, 40, 0x55).is_err());
    }
    assert!(stopped > 20, "index invariant 5: {stopped}");
}

#[test]
fn data_invariant_1_a_checksum_has_its_block() {
    let (_, brick) = new();
    let mut short = write(0, 2, record(1, 0, 2));
    if let Change::WriteBlocks { bytes, .. } = &mut short {
        *bytes = bytes.slice(..BLOCK_BYTES);
    }
    refused(&brick, "data invariant 1", append(&brick, vec![short]));
    refused(&brick, "data invariant 1", append(&brick, vec![write(0, 0, record(1, 0, 2))]));
    refused(&brick, "data invariant 1", append(&brick, vec![write(1, 2, record(1, 0, 2))]));
    let far = BlockRun { first: u32::MAX, checksums: vec![1, 1] };
    let far = Change::WriteBlocks { shard: shard(0), record: record(1, 0, 2), run: far, bytes: vec![0; 8192].into() };
    refused(&brick, "data invariant 1", append(&brick, vec![far]));
}

#[test]
fn data_invariant_2_home_changes_after_the_journal_is_stable() {
    let (_, brick) = new();
    append(&brick, vec![write(0, 1, record(1, BLOCK, 1))]).unwrap();
    brick.machine.write().begin_checkpoint().unwrap();
    let mut machine = brick.machine.write();
    let running = machine.running.as_mut().unwrap();
    (running.step, running.stable_from) = (Step::Home, Lsn(0));
    drop(machine);
    poisons(&brick, "data invariant 2", brick.guarded(|| brick.write_home(&mut || false)));
}

#[test]
fn data_invariant_3_only_fresh_blocks_are_written_before_their_record() {
    let (_, brick) = new();
    append(&brick, vec![write(0, 2, record(1, 2 * BLOCK, 2))]).unwrap();
    refused(&brick, "data invariant 3", brick.write_fresh(RING, shard(0), 1, &[&[1; BLOCK_BYTES]]));
    brick.checkpoint().unwrap();
    refused(&brick, "data invariant 3", brick.write_fresh(RING, shard(0), 1, &[&[1; BLOCK_BYTES]]));
    let change = Change::FreshBlocks { shard: shard(0), record: record(2, 0, 2), run: run(1, &[1; BLOCK_BYTES]) };
    refused(&brick, "data invariant 3", append(&brick, vec![change]));
    refused(&brick, "data invariant 3", brick.reserve_fresh(RING, shard(0), 1, 3));
    let record = ShardRecord { reserved_blocks: 4, ..record(2, 0, 2) };
    let change = Change::ReserveBlocks { shard: shard(0), record, first: 1, count: 3 };
    refused(&brick, "data invariant 3", append(&brick, vec![change]));
}

#[test]
fn data_invariant_4_home_blocks_do_not_fall() {
    let (_, brick) = new();
    append(&brick, vec![write(0, 2, record(1, 0, 9))]).unwrap();
    refused(&brick, "data invariant 4", append(&brick, vec![write(0, 2, record(2, 0, 8))]));
    brick.checkpoint().unwrap();
    let cut = Change::CutShard { shard: shard(0), record: record(2, 0, 0) };
    refused(&brick, "data invariant 4", append(&brick, vec![cut]));
    let reserve = Change::ReserveBlocks {
        shard: shard(0),
        record: ShardRecord { reserved_blocks: 20, ..record(2, 0, 9) },
        first: 9,
        count: 11,
    };
    append(&brick, vec![reserve]).unwrap();
    refused(&brick, "data invariant 4", append(&brick, vec![write(0, 2, record(3, 0, 9))]));
    for (home_blocks, reserved_blocks) in [(9, 20), (9, 0), (19, 0), (20, 20)] {
        let record = ShardRecord { reserved_blocks, ..record(3, 0, home_blocks) };
        refused(&brick, "data invariant 4", append(&brick, vec![Change::CutShard { shard: shard(0), record }]));
        let punch = Change::PunchBlocks { shard: shard(0), record, first: 0, count: 1 };
        refused(&brick, "data invariant 4", append(&brick, vec![punch]));
    }
    append(&brick, vec![Change::CutShard { shard: shard(0), record: record(3, 0, 20) }]).unwrap();
}

#[test]
fn data_invariant_5_a_shard_ends_in_its_blocks() {
    let (_, brick) = new();
    refused(&brick, "data invariant 5", append(&brick, vec![write(0, 1, record(1, BLOCK + 1, 1))]));
    refused(&brick, "data invariant 5", append(&brick, vec![write(0, 1, record(1, 0, 1025))]));
    let beyond = ShardRecord { reserved_blocks: 1025, ..record(1, 0, 1) };
    refused(&brick, "data invariant 5", append(&brick, vec![write(0, 1, beyond)]));
    for (first, count) in [(0, 0), (2, 3), (u32::MAX, u32::MAX)] {
        let record = ShardRecord { reserved_blocks: 4, ..record(1, 0, 0) };
        let reserve = Change::ReserveBlocks { shard: shard(0), record, first, count };
        refused(&brick, "data invariant 5", append(&brick, vec![reserve]));
    }
}

#[test]
fn data_invariant_6_zeros_follow_the_end() {
    let (_, brick) = new();
    refused(&brick, "data invariant 6", append(&brick, vec![write(0, 2, record(1, BLOCK + 1, 2))]));
}

#[test]
fn data_invariant_7_an_answer_has_matched_its_checksum() {
    let (storage, brick) = new();
    append(&brick, vec![write(0, 1, record(1, BLOCK, 1))]).unwrap();
    brick.checkpoint().unwrap();
    let path = data_file(&storage);
    for bit in [0, 17, 4095] {
        storage.flip_bit(&path, bit);
        damaged(brick.read_shard(RING, shard(0), 0, 1), "block 0");
        storage.flip_bit(&path, bit);
        brick.read_shard(RING, shard(0), 0, 1).unwrap();
    }
}

#[test]
fn data_invariant_8_a_mark_names_what_was_written() {
    let (_, brick) = new();
    append(&brick, vec![write(0, 1, record(1, BLOCK, 1))]).unwrap();
    brick.machine.write().unmarked.push((shard(0), record(2, 0, 0).stamp));
    poisons(&brick, "data invariant 8", brick.sync_shards(&[]));
}

#[test]
fn data_invariant_9_a_dropped_shard_is_not_written() {
    let (_, brick) = new();
    append(&brick, vec![write(0, 1, record(1, BLOCK, 1))]).unwrap();
    append(&brick, vec![Change::DropShard { shard: shard(0) }]).unwrap();
    refused(&brick, "data invariant 9", append(&brick, vec![write(0, 1, record(2, BLOCK, 1))]));
    refused(&brick, "data invariant 9", brick.write_fresh(RING, shard(0), 3, &[&[1; BLOCK_BYTES]]));
    let again = vec![Change::DropShard { shard: shard(0) }, write(0, 1, record(3, BLOCK, 1))];
    refused(&brick, "data invariant 9", append(&brick, again));
}

#[test]
fn data_invariant_10_only_holes_are_punched() {
    let (_, brick) = new();
    append(&brick, vec![write(0, 3, record(1, 3 * BLOCK, 3))]).unwrap();
    brick.checkpoint().unwrap();
    append(&brick, vec![Change::CutShard { shard: shard(0), record: record(2, BLOCK, 3) }]).unwrap();
    brick.sync(brick.end()).unwrap();
    let mut machine = brick.machine.write();
    machine.begin_checkpoint().unwrap();
    let running = machine.running.as_mut().unwrap();
    running.step = Step::Home;
    running.queue.push_back(Io::PunchHome { shard: shard(0), from: 0, to: 2 });
    drop(machine);
    poisons(&brick, "data invariant 10", brick.guarded(|| brick.write_home(&mut || false)));
}

/// No record stops one replica after the other: each of them refuses it, or takes it.
#[test]
fn no_record_stops_a_brick() {
    let fresh = Change::FreshBlocks { shard: shard(0), record: record(1, 0, 2), run: run(0, &[1; 4096]) };
    let odd: [Vec<Change>; 6] = [
        vec![Change::DropShard { shard: shard(0) }],
        vec![Change::DropShard { shard: shard(0) }, Change::DropShard { shard: shard(0) }],
        vec![Change::CutShard { shard: shard(0), record: record(0, 0, 1024) }],
        vec![write(0, 1, record(1, 0, 1)), Change::DropShard { shard: shard(0) }, write(0, 1, record(2, 0, 1))],
        vec![fresh],
        vec![],
    ];
    for changes in odd {
        let (storage, brick) = new();
        let _ = append(&brick, changes);
        append(&brick, vec![put("x")]).unwrap();
        brick.sync(brick.end()).unwrap();
        brick.checkpoint().unwrap();
        drop(brick);
        open(&storage, true).unwrap();
    }
}

#[test]
fn an_append_asks_for_the_record_of_an_unknown_shard_and_then_succeeds() {
    let geometry = journal::Geometry { brick: BrickId(7), segments: 4, segment_bytes: SEGMENT };
    let mut machine = Machine::new(
        geometry,
        &Meta { applied: geometry.start_of(1).0, generation: 0, resumed: geometry.start_of(1).0, logs: vec![] },
        1,
    );
    machine.resume(geometry.start_of(1), 1, false);
    let entry = entry(1, vec![write(0, 1, record(1, 0, 1))]);
    let Append::NeedShards(shards) = machine.append(&entry).unwrap() else { panic!("the shard is not known") };
    assert_eq!(shards, [(RING, shard(0))]);
    machine.supply_shard(shard(0), Before::Is(None));
    assert!(matches!(machine.append(&entry), Ok(Append::At { .. })));
    assert!(matches!(machine.checkpoint(), Ok(Next::Done)), "none has begun");
}
