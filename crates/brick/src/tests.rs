//! A brick as its server uses it: append, read, checkpoint, crash, power cut.

mod since;

use crate::journal::format::RECORD_HEADER_BYTES;
use crate::storage::MemoryStorage;
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use std::sync::Arc;

const RING: RingId = RingId(1);
const PARTITION: PartitionNumber = PartitionNumber(0);

fn identity() -> Identity {
    let settings =
        BrickSettings { journal_segments: 4, segment_bytes: 256 << 10, index_cache_bytes: 1 << 20, reserve_bytes: 0 };
    Identity::new(BrickId(7), "c", settings)
}

fn new_storage() -> MemoryStorage {
    let storage = MemoryStorage::new();
    Brick::create_on(&storage, &identity()).unwrap();
    storage
}

fn open(storage: &MemoryStorage, reborn: bool) -> (Brick, RecoveryReport) {
    Brick::open_on(Arc::new(storage.clone()), &identity(), Incarnation(1), reborn).unwrap()
}

fn key(name: &str) -> Key {
    let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
    Key::name(place, ROOT, name.as_bytes())
}

fn shard(index: u64) -> ShardId {
    ShardId { volume: VolumeId(1), data: DataId(3), index }
}

fn append(brick: &Brick, changes: Vec<Change>) -> Lsn {
    let sequence = Sequence(brick.position(RING, PARTITION).sequence.0 + 1);
    let (session, op_id) = (SessionId(1), OpId(sequence.0));
    let record = Record { ring: RING, partition: PARTITION, epoch: Epoch(1), sequence, session, op_id, changes };
    brick.append(&LogEntry::new(record)).unwrap()
}

fn put(brick: &Brick, name: &str, value: &'static str) -> Lsn {
    append(brick, vec![Change::Put { key: key(name), value: Bytes::from_static(value.as_bytes()) }])
}

fn blocks(first: u32, fill: u8, count: u32, writes: u64) -> (ShardRecord, BlockRun, Bytes) {
    let bytes = Bytes::from(vec![fill; count as usize * BLOCK_BYTES]);
    let block = |b: u32| block_checksum(shard(0), first + b, &bytes[..BLOCK_BYTES]);
    let checksums = (0..count).map(block).collect();
    let stamp = Stamp { count: writes, session: SessionId(1), op: OpId(writes) };
    let end = first + count;
    let record = ShardRecord { stamp, length: end * BLOCK_BYTES as u32, home_blocks: end, reserved_blocks: 0 };
    (record, BlockRun { first, checksums }, bytes)
}

fn write_blocks(brick: &Brick, first: u32, fill: u8, count: u32, writes: u64) -> Lsn {
    let (mut record, run, bytes) = blocks(first, fill, count, writes);
    record.home_blocks = record.home_blocks.max(brick.shard(RING, shard(0)).unwrap().map_or(0, |now| now.home_blocks));
    append(brick, vec![Change::WriteBlocks { shard: shard(0), record, run, bytes }])
}

fn write_fresh(brick: &Brick, first: u32, fill: u8, count: u32, writes: u64) {
    let (record, run, bytes) = blocks(first, fill, count, writes);
    brick.write_fresh(RING, shard(0), first, &[&bytes]).unwrap();
    append(brick, vec![Change::FreshBlocks { shard: shard(0), record, run }]);
}

fn names(brick: &Brick, limit: usize) -> Vec<String> {
    let found = brick.scan(&key(""), &key("").prefix_end(), limit).unwrap();
    found.into_iter().map(|(key, _)| String::from_utf8(key.rest().to_vec()).unwrap()).collect()
}

#[test]
fn reads_and_scans_see_journal_and_index_as_one() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for name in ["b", "d", "f"] {
        put(&brick, name, "1");
    }
    brick.checkpoint().unwrap();
    put(&brick, "a", "2");
    put(&brick, "d", "2");
    append(&brick, vec![Change::Delete { key: key("f") }]);
    put(&brick, "g", "2");
    assert_eq!(names(&brick, 100), ["a", "b", "d", "g"]);
    assert_eq!(names(&brick, 2), ["a", "b"]);
    assert_eq!(brick.get(&key("d")).unwrap().unwrap(), "2");
    assert_eq!(brick.get(&key("f")).unwrap(), None);
    brick.checkpoint().unwrap();
    assert_eq!(names(&brick, 100), ["a", "b", "d", "g"]);
}

#[test]
fn a_killed_process_loses_nothing_and_a_power_cut_nothing_that_was_synced() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    let synced = put(&brick, "synced", "1");
    brick.sync(synced).unwrap();
    put(&brick, "unsynced", "1");
    drop(brick);
    let (brick, report) = open(&storage, false);
    assert_eq!(names(&brick, 9), ["synced", "unsynced"]);
    assert_eq!((report.records, brick.position(RING, PARTITION).sequence), (2, Sequence(2)));
    drop(brick);
    // Opening synced what recovery had found; what comes after it is at risk again.
    let (brick, _) = open(&storage, false);
    put(&brick, "late", "1");
    drop(brick);
    let (brick, _) = open(&storage.after_power_cut(), true);
    assert_eq!(names(&brick, 9), ["synced", "unsynced"]);
    put(&brick, "again", "1");
    assert_eq!(names(&brick, 9), ["again", "synced", "unsynced"]);
}

#[test]
fn checkpoints_free_the_journal_again_and_again() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for round in 0..40u64 {
        write_blocks(&brick, (round % 8) as u32, round as u8, 8, round + 1);
        if brick.wants_checkpoint() {
            brick.checkpoint().unwrap();
        }
    }
    let (before, journal) = (brick.read_shard(RING, shard(0), 0, 1 << 20).unwrap(), brick.end());
    assert!(journal.0 > 4 * (256 << 10), "the journal went round");
    drop(brick);
    let (brick, _) = open(&storage, true);
    assert_eq!(brick.read_shard(RING, shard(0), 0, 1 << 20).unwrap(), before);
}

#[test]
fn a_full_journal_makes_writers_wait_until_a_checkpoint() {
    let storage = new_storage();
    let brick = Arc::new(open(&storage, false).0);
    let writer = brick.clone();
    let thread = std::thread::spawn(move || (0..64).for_each(|i| _ = write_blocks(&writer, 0, 1, 8, i + 1)));
    while !thread.is_finished() {
        brick.checkpoint().unwrap();
        std::thread::yield_now();
    }
    thread.join().unwrap();
    assert_eq!(brick.position(RING, PARTITION).sequence, Sequence(64));
}

#[test]
fn a_checkpoint_pauses_as_long_as_it_is_ahead_of_the_journal() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    // Three runs, so two pauses between writes and one behind them.
    let begin = || {
        (0..3).for_each(|run| _ = write_blocks(&brick, 100 * run, 1, 4, u64::from(run) + 1));
        brick.begin_checkpoint()
    };
    let mut pauses = 0;
    let few = |pauses: &mut i32| {
        *pauses += 1;
        *pauses < 5
    };
    begin().finish(&mut || few(&mut pauses)).unwrap();
    assert_eq!(pauses, 5, "nothing is appended: it may pause until it has paused enough");
    let mut pauses = 0;
    let mut write_more = || {
        pauses += 1;
        write_blocks(&brick, 500, 1, 8, 9 + pauses);
        true
    };
    begin().finish(&mut write_more).unwrap();
    assert!((2..40).contains(&pauses), "as the journal fills it hurries: {pauses}");
    assert_eq!(brick.read_shard(RING, shard(0), 0, 4).unwrap()[..], [1; 4]);
}

#[test]
fn blocks_come_from_the_journal_from_home_and_as_holes() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_fresh(&brick, 0, 1, 2, 1);
    write_blocks(&brick, 3, 2, 1, 2);
    let expect = |brick: &Brick, fills: [u8; 4]| {
        let bytes = brick.read_shard(RING, shard(0), 0, 1 << 22).unwrap();
        let got: Vec<u8> = bytes.chunks(BLOCK_BYTES).map(|block| block[100]).collect();
        assert_eq!(got, fills);
    };
    expect(&brick, [1, 1, 0, 2]);
    brick.checkpoint().unwrap();
    expect(&brick, [1, 1, 0, 2]);
    write_blocks(&brick, 1, 9, 3, 3);
    expect(&brick, [1, 9, 9, 9]);
    assert_eq!(brick.read_shard(RING, shard(0), 4000, 200).unwrap()[95..97], [1, 9]);
    assert_eq!(brick.read_shard(RING, shard(0), 16384, 10).unwrap().len(), 0);
}

#[test]
fn cut_blocks_are_holes_when_the_shard_grows_again() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_blocks(&brick, 0, 5, 8, 1);
    brick.checkpoint().unwrap();
    let stamp = Stamp { count: 2, session: SessionId(1), op: OpId(2) };
    let record = ShardRecord { stamp, length: 2 * BLOCK_BYTES as u32, home_blocks: 8, reserved_blocks: 0 };
    append(&brick, vec![Change::CutShard { shard: shard(0), record }]);
    write_blocks(&brick, 7, 6, 1, 3);
    let fills = |brick: &Brick| -> Vec<u8> {
        brick.read_shard(RING, shard(0), 0, 1 << 22).unwrap().chunks(BLOCK_BYTES).map(|b| b[0]).collect()
    };
    assert_eq!(fills(&brick), [5, 5, 0, 0, 0, 0, 0, 6]);
    brick.checkpoint().unwrap();
    assert_eq!(fills(&brick), [5, 5, 0, 0, 0, 0, 0, 6]);
    drop(brick);
    assert_eq!(fills(&open(&storage, true).0), [5, 5, 0, 0, 0, 0, 0, 6]);
}

#[test]
fn a_power_cut_takes_only_fresh_blocks_that_no_sync_covered() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_fresh(&brick, 0, 1, 2, 1);
    let upto = brick.sync_shards(&[shard(0)]).unwrap();
    brick.sync(upto).unwrap();
    write_fresh(&brick, 2, 2, 2, 2);
    // The journal reaches the disk, the data file does not.
    brick.sync(brick.end()).unwrap();
    let (cut, report) = open(&storage.after_power_cut(), true);
    assert_eq!(report.lost.len(), 2, "two blocks");
    let kept = cut.read_shard(RING, shard(0), 0, 1 << 22).unwrap();
    assert_eq!(kept[..2 * BLOCK_BYTES], vec![1u8; 2 * BLOCK_BYTES]);
    assert!(kept[2 * BLOCK_BYTES..].iter().all(|byte| *byte == 0), "never happened");
    drop(brick);
    let (killed, report) = open(&storage, false);
    assert_eq!((report.lost.len(), killed.read_shard(RING, shard(0), 0, 1 << 22).unwrap().len()), (0, 4 * BLOCK_BYTES));
}

#[test]
fn lost_are_the_blocks_that_nothing_wrote_since_and_that_the_shard_still_has() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_fresh(&brick, 70, 1, 6, 1);
    write_blocks(&brick, 71, 2, 1, 2);
    let stamp = Stamp { count: 3, session: SessionId(1), op: OpId(3) };
    let record = ShardRecord { stamp, length: 74 * BLOCK_BYTES as u32, home_blocks: 76, reserved_blocks: 0 };
    append(&brick, vec![Change::CutShard { shard: shard(0), record }]);
    brick.sync(brick.end()).unwrap();
    let (_, report) = open(&storage.after_power_cut(), true);
    let lost: Vec<u32> = report.lost.iter().map(|lost| lost.block).collect();
    assert_eq!(lost, [70, 72, 73], "71 was written again, 74 and 75 were cut off");
}

#[test]
fn what_the_last_of_several_syncs_covered_is_damage_when_it_rots_and_not_a_hole() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for (first, writes) in [(0, 1), (2, 2)] {
        write_fresh(&brick, first, 1, 2, writes);
        let upto = brick.sync_shards(&[shard(0)]).unwrap();
        brick.sync(upto).unwrap();
    }
    let cut = storage.after_power_cut();
    let path = cut.paths().into_iter().find(|path| path.starts_with("data/")).unwrap();
    cut.flip_bit(&path, 2 * BLOCK_BYTES);
    let (brick, report) = open(&cut, true);
    assert_eq!(report.lost, []);
    assert!(matches!(brick.read_shard(RING, shard(0), 2 * BLOCK_BYTES as u32, 1), Err(Error::Damaged { .. })));
}

#[test]
fn a_sync_of_more_files_than_a_mark_names_covers_all_of_them() {
    let storage = MemoryStorage::new();
    let settings =
        BrickSettings { journal_segments: 16, segment_bytes: 64 << 10, index_cache_bytes: 1 << 20, reserve_bytes: 0 };
    let identity = Identity::new(BrickId(7), "c", settings);
    Brick::create_on(&storage, &identity).unwrap();
    let open = |storage: &MemoryStorage, reborn| {
        Brick::open_on(Arc::new(storage.clone()), &identity, Incarnation(1), reborn).unwrap()
    };
    let (brick, _) = open(&storage, false);
    let shards: Vec<ShardId> = (0..2300).map(shard).collect();
    let bytes = vec![7; BLOCK_BYTES];
    for id in &shards {
        brick.write_fresh(RING, *id, 0, &[&bytes]).unwrap();
        let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(1) };
        let record = ShardRecord { stamp, length: BLOCK_BYTES as u32, home_blocks: 1, reserved_blocks: 0 };
        let run = BlockRun { first: 0, checksums: vec![block_checksum(*id, 0, &bytes)] };
        append(&brick, vec![Change::FreshBlocks { shard: *id, record, run }]);
    }
    let upto = brick.sync_shards(&shards).unwrap();
    brick.sync(upto).unwrap();
    let (brick, report) = open(&storage.after_power_cut(), true);
    assert_eq!(report.lost, []);
    assert!(shards.iter().all(|id| brick.read_shard(RING, *id, 0, 1 << 20).unwrap() == bytes));
}

#[test]
fn a_flipped_bit_at_home_is_damage_never_an_answer() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_blocks(&brick, 0, 1, 2, 1);
    brick.checkpoint().unwrap();
    let path = storage.paths().into_iter().find(|path| path.starts_with("data/")).unwrap();
    storage.flip_bit(&path, 5000);
    assert!(brick.read_shard(RING, shard(0), 0, 4096).is_ok(), "the other block is whole");
    let error = brick.read_shard(RING, shard(0), 4096, 10).unwrap_err();
    assert!(matches!(&error, Error::Damaged { what } if what.contains(&path)), "{error}");
}

#[test]
fn a_damaged_middle_of_the_journal_is_a_refusal_that_names_the_place() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for name in ["a", "b", "c"] {
        let upto = put(&brick, name, "1");
        brick.sync(upto).unwrap();
    }
    drop(brick);
    storage.flip_bit("journal/segment-001", 4096 + 60);
    let refused = Brick::open_on(Arc::new(storage), &identity(), Incarnation(1), false).err().unwrap();
    let text = refused.to_string();
    assert!(text.contains("journal/segment-001") && text.contains("offset 4096"), "{text}");
}

#[test]
fn a_torn_tail_is_cut_and_reported() {
    let torn_at = |byte: usize| {
        let storage = new_storage();
        let (brick, _) = open(&storage, false);
        let first = put(&brick, "first", "1").0;
        let second = put(&brick, "second", "1").0;
        put(&brick, "third", "1");
        drop(brick);
        // Positions of the first segment are those in its file, 256 KiB on.
        storage.flip_bit("journal/segment-001", first as usize - (256 << 10) + byte);
        let (brick, report) = open(&storage, true);
        assert_eq!((names(&brick, 9).join(" "), report.records, report.end), ("first".into(), 1, Lsn(first)));
        put(&brick, "again", "1");
        drop(brick);
        let (brick, after) = open(&storage, true);
        assert_eq!((names(&brick, 9).join(" "), after.torn), ("again first".into(), None), "and it goes on");
        let torn = report.torn.unwrap();
        assert_eq!((torn.path.as_str(), torn.offset), ("journal/segment-001", first - (256 << 10)));
        assert!(second > first);
        (torn.why, torn.records_behind)
    };
    let body = "its body does not match its checksum";
    assert_eq!(torn_at(40), (body, 2), "the torn one and the one behind it");
    assert_eq!(torn_at(33), ("its header does not match its checksum", 1));
    assert_eq!(torn_at(0), ("there is no record", 1), "nothing says what was there");
    let storage = new_storage();
    let (brick, report) = open(&storage, false);
    assert_eq!(report.torn, None, "a new brick");
    put(&brick, "whole", "1");
    drop(brick);
    assert_eq!(open(&storage, true).1.torn, None, "a log that ends where it ends");
}

#[test]
fn what_an_earlier_life_left_right_behind_the_end_is_neither_taken_nor_reported() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    let first = put(&brick, "first", "1").0;
    put(&brick, "other", "1");
    put(&brick, "third", "1");
    drop(brick);
    storage.flip_bit("journal/segment-001", first as usize - (256 << 10) + RECORD_HEADER_BYTES);
    let (brick, report) = open(&storage, true);
    assert!(report.torn.is_some());
    // As long as the torn one, so that the third record, which is whole, follows it.
    put(&brick, "again", "1");
    drop(brick);
    let (brick, report) = open(&storage, true);
    assert_eq!((names(&brick, 9).join(" "), report.torn), ("again first".into(), None));
}

#[test]
fn a_checkpoint_frees_a_journal_of_records_that_change_nothing() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    while !brick.wants_checkpoint() {
        append(&brick, vec![]);
    }
    brick.checkpoint().unwrap();
    assert!(!brick.wants_checkpoint(), "writers would wait for ever");
}

#[test]
fn what_a_cut_took_is_given_back_to_the_file_system() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_blocks(&brick, 0, 5, 8, 1);
    brick.checkpoint().unwrap();
    let stamp = Stamp { count: 2, session: SessionId(1), op: OpId(2) };
    let record = ShardRecord { stamp, length: 2 * BLOCK_BYTES as u32, home_blocks: 8, reserved_blocks: 0 };
    append(&brick, vec![Change::CutShard { shard: shard(0), record }]);
    write_blocks(&brick, 2, 6, 1, 3);
    write_blocks(&brick, 5, 6, 1, 4);
    brick.checkpoint().unwrap();
    let home: Vec<u8> = (0..8).map(|block| brick.read_home(shard(0), block).unwrap()[0]).collect();
    assert_eq!(home, [5, 5, 6, 0, 0, 6, 0, 0], "punched, but for what was written since");
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    let upto = put(&brick, "a", "1");
    storage.fail_syncs_after(0);
    assert!(matches!(brick.sync(upto), Err(Error::Poisoned { .. })));
    storage.fail_syncs_after(i64::MAX);
    assert!(matches!(brick.sync(upto), Err(Error::Poisoned { .. })), "a failed sync is never tried again");
    let record = Record {
        ring: RING,
        partition: PARTITION,
        epoch: Epoch(1),
        sequence: Sequence(2),
        session: SessionId(1),
        op_id: OpId(2),
        changes: vec![],
    };
    assert!(matches!(brick.append(&LogEntry::new(record)), Err(Error::Poisoned { .. })));
    assert!(brick.status().unwrap().poisoned.is_some());
}

#[test]
fn a_brick_that_stopped_itself_says_so_and_trusts_what_it_had_synced() {
    let directory = std::env::temp_dir().join(format!("hekate-brick-stopped-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    Brick::create(&directory, BrickId(5), "c1", identity().settings).unwrap();
    let open = || Brick::open(&directory, "c1").unwrap();
    let (brick, _) = open();
    brick.settle_life().unwrap();
    let life = brick.incarnation();
    let upto = put(&brick, "synced", "1");
    brick.sync(upto).unwrap();
    brick.poison(&Error::Poisoned { what: "a test".into() });
    assert!(brick.get(&key("synced")).is_err(), "nothing is answered any more");
    drop(brick);
    let (brick, report) = open();
    assert!(report.stopped.unwrap().contains("a test"));
    assert_eq!(names(&brick, 9), ["synced"]);
    assert_eq!(brick.incarnation().0, life.0 + 1, "unsynced changes may be gone, as after a boot");
    brick.checkpoint().unwrap();
    brick.settle_life().unwrap();
    drop(brick);
    let (brick, report) = open();
    assert_eq!((report.stopped, brick.incarnation().0), (None, life.0 + 1));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn dropped_shards_leave_neither_file_nor_records() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_blocks(&brick, 20, 1, 50, 1);
    brick.checkpoint().unwrap();
    assert!(storage.paths().iter().any(|path| path.starts_with("data/")));
    append(&brick, vec![Change::DropShard { shard: shard(0) }]);
    assert_eq!(brick.read_shard(RING, shard(0), 0, 100).unwrap().len(), 0);
    brick.checkpoint().unwrap();
    assert!(!storage.paths().iter().any(|path| path.starts_with("data/")));
    let all = brick.scan(&Key::from_bytes(Bytes::new()), &Key::from_bytes(Bytes::from_static(&[255; 40])), 99);
    assert_eq!(all.unwrap(), []);
}

#[test]
fn a_shard_that_was_dropped_before_a_crash_leaves_no_checksums_either() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_blocks(&brick, 20, 1, 50, 1);
    brick.checkpoint().unwrap();
    append(&brick, vec![Change::DropShard { shard: shard(0) }]);
    drop(brick);
    let (brick, _) = open(&storage, false);
    brick.checkpoint().unwrap();
    let mut left = Vec::new();
    let mut visit = |key: &[u8], _: Bytes| {
        left.push(key.to_vec());
        true
    };
    brick.disk.index.scan(&[0], &[255], &mut visit).unwrap();
    assert_eq!(left, Vec::<Vec<u8>>::new());
}

/// The simulator's seed 3958: a disk that failed again before its life was settled came back as if nothing had been.
#[test]
fn lives_that_were_not_settled_do_not_pass_for_one() {
    let directory = std::env::temp_dir().join(format!("hekate-brick-lives-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    Brick::create(&directory, BrickId(5), "c1", identity().settings).unwrap();
    let open = || Brick::open(&directory, "c1").unwrap().0;
    let life = || open().incarnation().0;
    assert_eq!([life(), life()], [1, 2]);
    let brick = open();
    brick.checkpoint().unwrap();
    brick.settle_life().unwrap();
    drop(brick);
    assert_eq!([life(), life()], [3, 3]);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn brick_invariant_2_a_real_brick_is_locked_and_remembers_its_life() {
    let directory = std::env::temp_dir().join(format!("hekate-brick-test-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    Brick::create(&directory, BrickId(5), "c1", identity().settings).unwrap();
    assert!(Brick::create(&directory, BrickId(6), "c1", identity().settings).is_err(), "the directory is not empty");
    let (brick, _) = Brick::open(&directory, "c1").unwrap();
    let second = Brick::open(&directory, "c1").err().unwrap();
    assert!(second.to_string().contains("in use"), "{second}");
    brick.checkpoint().unwrap();
    brick.settle_life().unwrap();
    let life = brick.incarnation();
    drop(brick);
    let foreign = Brick::open(&directory, "c2").err().unwrap();
    assert!(foreign.to_string().contains("belongs to cluster c1"), "{foreign}");
    let (brick, _) = Brick::open(&directory, "c1").unwrap();
    assert_eq!(brick.incarnation(), life, "a restarted process keeps its incarnation");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn an_opening_that_is_refused_is_not_counted() {
    let storage = new_storage();
    let refuse = |_, openings: u32| Err(Error::invalid(format!("opening {openings}")));
    for _ in 0..3 {
        let refused = Brick::open_on_if(Arc::new(storage.clone()), &identity(), Incarnation(1), false, &refuse);
        assert!(refused.err().unwrap().to_string().contains("opening 1"));
    }
    assert_eq!(open(&storage, false).0.generation(), 1);
}
