//! What a review of the brick found, each as the test that failed.

use crate::storage::{MemoryStorage, Storage, StorageFile};
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use parking_lot::Mutex;
use std::io::Result as R;
use std::sync::Arc;

const RING: RingId = RingId(1);
const PARTITION: PartitionNumber = PartitionNumber(0);
const B: u32 = BLOCK_BYTES as u32;

fn identity() -> Identity {
    let settings =
        BrickSettings { journal_segments: 4, segment_bytes: 256 << 10, index_cache_bytes: 1 << 20, reserve_bytes: 0 };
    Identity::new(BrickId(7), "c", settings)
}
type Hook = Box<dyn FnOnce() + Send>;
#[derive(Clone)]
struct HookStorage {
    inner: MemoryStorage,
    on_remove: Arc<Mutex<Option<Hook>>>,
    fail_open: Arc<Mutex<Option<String>>>,
}
impl Storage for HookStorage {
    fn open(&self, path: &str, create: bool) -> R<Arc<dyn StorageFile>> {
        if self.fail_open.lock().as_deref() == Some(path) {
            *self.fail_open.lock() = None;
            return Err(std::io::Error::from_raw_os_error(5));
        }
        self.inner.open(path, create)
    }
    fn create_directory(&self, p: &str) -> R<()> {
        self.inner.create_directory(p)
    }
    fn remove(&self, p: &str) -> R<()> {
        let hook = self.on_remove.lock().take();
        if let Some(h) = hook {
            h()
        }
        self.inner.remove(p)
    }
    fn list(&self, p: &str) -> R<Vec<String>> {
        self.inner.list(p)
    }
    fn sync_directory(&self, p: &str) -> R<()> {
        self.inner.sync_directory(p)
    }
    fn space(&self) -> R<crate::storage::Space> {
        self.inner.space()
    }
}
fn hooked() -> HookStorage {
    let inner = MemoryStorage::new();
    Brick::create_on(&inner, &identity()).unwrap();
    HookStorage { inner, on_remove: Arc::default(), fail_open: Arc::default() }
}
fn open_at(s: &dyn Fn() -> Arc<dyn Storage>, reborn: bool) -> (Brick, RecoveryReport) {
    Brick::open_on(s(), &identity(), Incarnation(1), reborn).unwrap()
}
fn open(s: &MemoryStorage, reborn: bool) -> (Brick, RecoveryReport) {
    open_at(&|| Arc::new(s.clone()), reborn)
}
fn new_storage() -> MemoryStorage {
    hooked().inner
}
fn shard(index: u64) -> ShardId {
    ShardId { volume: VolumeId(1), data: DataId(3), index }
}
fn append_to(brick: &Brick, partition: PartitionNumber, changes: Vec<Change>) -> Result<Lsn> {
    let sequence = Sequence(brick.position(RING, partition).sequence.0 + 1);
    let record = Record {
        ring: RING,
        partition,
        epoch: Epoch(1),
        sequence,
        session: SessionId(1),
        op_id: OpId(sequence.0),
        changes,
    };
    brick.append(&LogEntry::new(record))
}
fn append(brick: &Brick, changes: Vec<Change>) -> Lsn {
    append_to(brick, PARTITION, changes).unwrap()
}
fn run(first: u32, fill: u8, count: u32) -> (BlockRun, Bytes) {
    let bytes = Bytes::from(vec![fill; (count * B) as usize]);
    let checksums = (0..count).map(|b| block_checksum(shard(0), first + b, &bytes[..BLOCK_BYTES])).collect();
    (BlockRun { first, checksums }, bytes)
}
// as replica::data::write_shard does
fn write(brick: &Brick, first: u32, fill: u8, count: u32) -> Lsn {
    let before = brick.shard(RING, shard(0)).unwrap();
    let (length, home) = before.map_or((0, 0), |r| (r.length, r.home_blocks));
    let n = before.map_or(1, |r| r.stamp.count + 1);
    let stamp = Stamp { count: n, session: SessionId(1), op: OpId(n) };
    let end = first + count;
    let record = ShardRecord { stamp, length: length.max(end * B), home_blocks: home.max(end), reserved_blocks: 0 };
    let (run, bytes) = run(first, fill, count);
    if count > 8 && first >= home {
        brick.write_fresh(RING, shard(0), first, &[&bytes]).unwrap();
        append(brick, vec![Change::FreshBlocks { shard: shard(0), record, run }])
    } else {
        append(brick, vec![Change::WriteBlocks { shard: shard(0), record, run, bytes }])
    }
}
fn cut(brick: &Brick, blocks: u32) -> Lsn {
    let b = brick.shard(RING, shard(0)).unwrap().unwrap();
    let stamp = Stamp { count: b.stamp.count + 1, ..b.stamp };
    append(
        brick,
        vec![Change::CutShard {
            shard: shard(0),
            record: ShardRecord { stamp, length: blocks * B, home_blocks: b.home_blocks, reserved_blocks: 0 },
        }],
    )
}
fn drop_shard(brick: &Brick) -> Lsn {
    append(brick, vec![Change::DropShard { shard: shard(0) }])
}
fn fills(brick: &Brick) -> Result<Vec<u8>> {
    Ok(brick.read_shard(RING, shard(0), 0, 1 << 22)?.chunks(BLOCK_BYTES).map(|b| b[0]).collect())
}

#[test]
fn punch_of_a_cut_spares_fresh_blocks() {
    let s = new_storage();
    let (brick, _) = open(&s, false);
    write(&brick, 0, 1, 10);
    brick.checkpoint().unwrap();
    cut(&brick, 2);
    write(&brick, 10, 2, 16); // fresh
    let upto = brick.sync_shards(&[shard(0)]).unwrap();
    brick.sync(upto).unwrap();
    write(&brick, 30, 3, 1); // journaled
    let before = fills(&brick).unwrap();
    brick.checkpoint().unwrap();
    assert_eq!(fills(&brick), Ok(before));
}

fn is_refused(brick: &Brick) -> bool {
    let (run, bytes) = run(0, 7, 16);
    let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(1) };
    let record = ShardRecord { stamp, length: 16 * B, home_blocks: 16, reserved_blocks: 0 };
    let change = Change::WriteBlocks { shard: shard(0), record, run, bytes };
    brick.is_dropped(shard(0)) && append_to(brick, PARTITION, vec![change]).is_err()
}

#[test]
fn a_dropped_shard_does_not_come_back_before_it_is_gone() {
    let s = hooked();
    let brick = Arc::new(open_at(&|| Arc::new(s.clone()), false).0);
    write(&brick, 0, 1, 5);
    brick.checkpoint().unwrap();
    drop_shard(&brick);
    assert!(is_refused(&brick));
    let writer = brick.clone();
    *s.on_remove.lock() = Some(Box::new(move || assert!(is_refused(&writer), "while its file is being removed")));
    brick.checkpoint().unwrap();
    assert!(s.on_remove.lock().is_none());
    write(&brick, 4, 2, 1);
    assert_eq!(fills(&brick).unwrap(), [0, 0, 0, 0, 2]);
}

#[test]
fn a_shard_cut_to_nothing_and_written_again_has_holes() {
    let s = new_storage();
    let (brick, _) = open(&s, false);
    write(&brick, 0, 1, 5);
    brick.checkpoint().unwrap();
    cut(&brick, 0);
    write(&brick, 4, 2, 1);
    assert_eq!(fills(&brick).unwrap(), [0, 0, 0, 0, 2]);
    brick.checkpoint().unwrap();
    assert_eq!(fills(&brick).unwrap(), [0, 0, 0, 0, 2]);
}

#[test]
fn waiters_for_room_do_not_write_over_the_segments_end() {
    let s = new_storage();
    let brick = Arc::new(open(&s, false).0);
    let threads: Vec<_> = (0..12u32)
        .map(|p| {
            let brick = brick.clone();
            std::thread::spawn(move || {
                for round in 0..12u32 {
                    let place = KeyPrefix { ring: RING, position: Position(p), volume: VolumeId(1) };
                    let key = Key::name(place, ROOT, format!("{p}-{round}").as_bytes());
                    append_to(
                        &brick,
                        PartitionNumber(p),
                        vec![Change::Put { key, value: Bytes::from(vec![p as u8; 100 << 10]) }],
                    )
                    .unwrap();
                }
            })
        })
        .collect();
    let mut lost = Vec::new();
    while threads.iter().any(|t| !t.is_finished()) {
        std::thread::sleep(std::time::Duration::from_millis(20)); // all wait for room by now
        let want: Vec<_> = (0..12).map(|p| brick.position(RING, PartitionNumber(p)).sequence.0).collect();
        brick.sync(brick.end()).unwrap();
        // what a power cut (or a SIGKILL) now leaves
        match Brick::open_on(Arc::new(s.after_power_cut()), &identity(), Incarnation(1), true) {
            Ok((copy, _)) => {
                let have: Vec<_> = (0..12).map(|p| copy.position(RING, PartitionNumber(p)).sequence.0).collect();
                if have.iter().zip(&want).any(|(h, w)| h < w) {
                    lost.push(format!("acknowledged {want:?}, recovered {have:?}"))
                }
            }
            Err(e) => lost.push(e.to_string()),
        }
        brick.checkpoint().unwrap();
    }
    assert!(lost.is_empty(), "{} of the cuts lost: {}", lost.len(), lost[0]);
}

#[test]
fn a_sync_that_a_freeze_overtakes_does_not_count_for_later_writes() {
    let s = new_storage();
    let (brick, _) = open(&s, false);
    write(&brick, 0, 1, 16);
    // sync_shards, step by step, with a checkpoint and a fresh write in between
    let mut begun = brick.machine.write().sync_shards(&[shard(0)]).unwrap();
    let (id, io) = begun.pop().unwrap();
    let outcome = brick.disk.perform(&io, &[]);
    brick.checkpoint().unwrap();
    write(&brick, 16, 2, 16);
    brick.machine.write().done(id, outcome).unwrap();
    let upto = brick.sync_shards(&[shard(0)]).unwrap(); // the fsync of the second write
    brick.sync(upto).unwrap();
    let (after, report) = open(&s.after_power_cut(), true);
    assert_eq!(report.lost, []);
    assert_eq!(fills(&after).unwrap().len(), 32);
}

#[test]
fn a_synced_overwrite_survives_though_an_older_extent_was_lost() {
    let s = new_storage();
    let (brick, _) = open(&s, false);
    write(&brick, 0, 1, 4);
    brick.checkpoint().unwrap();
    write(&brick, 4, 2, 16); // fresh, unsynced
    let upto = write(&brick, 0, 9, 1); // O_DSYNC: what batch.rs syncs is the journal alone
    brick.sync(upto).unwrap();
    let (after, _) = open(&s.after_power_cut(), true);
    assert_eq!(fills(&after).unwrap()[0], 9);
}

#[test]
fn a_synced_drop_survives_though_an_older_extent_was_lost() {
    let s = new_storage();
    let (brick, _) = open(&s, false);
    write(&brick, 0, 1, 4);
    brick.checkpoint().unwrap();
    write(&brick, 4, 2, 16);
    let upto = drop_shard(&brick);
    brick.sync(upto).unwrap();
    let (after, _) = open(&s.after_power_cut(), true);
    assert_eq!(fills(&after).unwrap(), Vec::<u8>::new());
}

#[test]
fn what_a_power_cut_took_stays_gone_after_a_kill() {
    let s = new_storage();
    let (brick, _) = open(&s, false);
    write(&brick, 0, 1, 4);
    brick.checkpoint().unwrap();
    write(&brick, 4, 2, 16);
    brick.sync(brick.end()).unwrap();
    let cut = s.after_power_cut();
    let (after, _) = open(&cut, true);
    let first = fills(&after);
    assert_eq!(first.as_ref().unwrap()[..5], [1, 1, 1, 1, 0]);
    after.checkpoint().unwrap(); // as a server does before it lets the brick settle in its new life
    drop(after);
    let (again, _) = open(&cut, false); // SIGKILL, same boot
    assert_eq!(fills(&again), first);
}

#[test]
fn a_segment_that_cannot_be_begun_stops_the_journal() {
    let s = hooked();
    let (brick, _) = open_at(&|| Arc::new(s.clone()), false);
    let key =
        |n: &str| Key::name(KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) }, ROOT, n.as_bytes());
    append(&brick, vec![Change::Put { key: key("a"), value: Bytes::from(vec![1; 150 << 10]) }]);
    *s.fail_open.lock() = Some("journal/segment-002".into());
    assert!(
        append_to(&brick, PARTITION, vec![Change::Put { key: key("b"), value: Bytes::from(vec![1; 150 << 10]) }])
            .is_err()
    );
    // another partition's op, acknowledged
    let done =
        append_to(&brick, PartitionNumber(1), vec![Change::Put { key: key("c"), value: Bytes::from_static(b"1") }]);
    if let Ok(upto) = done {
        brick.sync(upto).unwrap();
        drop(brick);
        let (brick, _) = open_at(&|| Arc::new(s.clone()), false);
        assert!(brick.get(&key("c")).unwrap().is_some(), "acknowledged, synced, lost");
    }
}

#[test]
fn an_empty_index_file_is_refused() {
    let s = new_storage();
    let (brick, _) = open(&s, false);
    for _ in 0..30 {
        write(&brick, 0, 1, 8);
        write(&brick, 0, 1, 8);
        brick.checkpoint().unwrap();
    }
    drop(brick);
    s.open("index/index.redb", false).unwrap().set_length(0).unwrap();
    assert!(Brick::open_on(Arc::new(s), &identity(), Incarnation(1), false).is_err(), "opened empty");
}

#[test]
fn rot_in_a_segments_header_is_damage_not_an_empty_log() {
    let s = new_storage();
    let (brick, _) = open(&s, false);
    let upto = write(&brick, 0, 1, 1);
    brick.sync(upto).unwrap();
    drop(brick);
    s.flip_bit("journal/segment-001", 3);
    let refused = Brick::open_on(Arc::new(s), &identity(), Incarnation(1), false).err().unwrap();
    assert!(refused.to_string().contains("segment-001"), "{refused}");
}

#[test]
fn a_fresh_block_that_a_lost_checkpoint_overwrote_takes_no_neighbour_with_it() {
    let s = new_storage();
    let (brick, _) = open(&s, false);
    write(&brick, 0, 1, 16); // fresh, unsynced, but it reaches the disk
    let upto = write(&brick, 3, 2, 1);
    brick.sync(upto).unwrap();
    // what the checkpoint did before the power went
    let path = s.paths().into_iter().find(|path| path.starts_with("data/")).unwrap();
    let file = s.open(&path, false).unwrap();
    file.write_at(&[&run(3, 2, 1).1], 3 * u64::from(B)).unwrap();
    file.sync().unwrap();
    let (after, report) = open(&s.after_power_cut(), true);
    assert_eq!(report.lost, []);
    assert_eq!(fills(&after).unwrap(), [1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
}

/// Found by the simulator (seed 7): a record that a power cut tore off lay right where a checkpoint ended later.
#[test]
fn what_an_earlier_cut_left_behind_a_checkpoint_is_not_taken() {
    let storage = new_storage();
    let key = |name: &str| {
        let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
        Key::name(place, ROOT, name.as_bytes())
    };
    let put = |brick: &Brick, name: &str, fill: u8| {
        append(brick, vec![Change::Put { key: key(name), value: Bytes::from(vec![fill; 999]) }])
    };
    let (brick, _) = open(&storage, true);
    let kept = put(&brick, "a", 1);
    brick.sync(kept).unwrap();
    put(&brick, "b", 2);
    put(&brick, "c", 3);
    drop(brick);
    // The power cut loses a part of b, and c is on the disk behind it.
    let lost_at = |path: &String| {
        let mut journal = vec![0; 300 << 10];
        let count = storage.open(path, false).unwrap().read_at(&mut journal, 0).unwrap();
        journal[..count].windows(99).position(|bytes| bytes == [2; 99])
    };
    let (path, lost) = storage.paths().into_iter().find_map(|path| Some((path.clone(), lost_at(&path)?))).unwrap();
    storage.flip_bit(&path, lost);
    let (brick, report) = open(&storage, true);
    assert!(report.torn.is_some() && brick.get(&key("b")).unwrap().is_none());
    // As long as b was: the log goes on to where c begins, and a checkpoint ends there.
    let end = put(&brick, "d", 4);
    brick.sync(end).unwrap();
    brick.checkpoint().unwrap();
    drop(brick);
    let (brick, _) = open(&storage, false);
    assert_eq!(brick.get(&key("c")).unwrap(), None, "nobody was told of it, and the log went on without it");
    assert_eq!(brick.position(RING, PARTITION).sequence, Sequence(2));
}

/// The same where the log goes on to another segment: its header is on the disk, the record is the one of before.
#[test]
fn what_an_earlier_cut_left_at_the_beginning_of_a_segment_is_not_taken() {
    let storage = new_storage();
    let key = |name: u8| {
        let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
        Key::name(place, ROOT, &[name])
    };
    let put = |brick: &Brick, name: u8| {
        append(brick, vec![Change::Put { key: key(name), value: Bytes::from(vec![name; 60 << 10]) }])
    };
    let (brick, _) = open(&storage, false);
    // Four fill a segment.
    let ends: Vec<Lsn> = (1..=5).map(|name| put(&brick, name)).collect();
    drop(brick);
    let first = storage.open("journal/segment-001", false).unwrap();
    let second = storage.open("journal/segment-002", false).unwrap();
    let mut left = vec![0; 64 << 10];
    second.read_at(&mut left, 4096).unwrap();
    first.write_at(&[&[9]], ends[2].0 % (256 << 10) + 100).unwrap();
    let (brick, report) = open(&storage, true);
    assert_eq!((report.end, report.torn.unwrap().records_behind), (ends[2], 3), "with the mark of the end");
    put(&brick, 6);
    put(&brick, 7);
    drop(brick);
    // This power cut takes the last record; what an earlier one left is there instead.
    second.write_at(&[&left], 4096).unwrap();
    let (brick, report) = open(&storage, true);
    assert_eq!(report.end, Lsn(2 * (256 << 10) + 4096));
    brick.checkpoint().unwrap();
    drop(brick);
    let (brick, _) = open(&storage, false);
    assert!(brick.get(&key(5)).unwrap().is_none(), "nobody was told of it, and the log went on without it");
    assert_eq!(brick.position(RING, PARTITION).sequence, Sequence(4));
}

/// So many records, of which four fill a segment.
fn append_large(brick: &Brick, count: u64) {
    let key = Key::partition(RING, PARTITION.first_position(1));
    for sequence in 1..=count {
        append(brick, vec![Change::Put { key: key.clone(), value: Bytes::from(vec![sequence as u8; 60 << 10]) }]);
    }
}

fn sequences(brick: &Brick, after: u64) -> Vec<u64> {
    let found = brick.records_since(RING, PARTITION, Sequence(after)).unwrap().all();
    found.into_iter().flatten().map(|entry| entry.record.sequence.0).collect()
}

/// A mutant that no test noticed: another replica may lack what a checkpoint has covered here.
#[test]
fn a_journal_that_is_kept_outlives_its_process() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    brick.retain_from(Lsn(0));
    append_large(&brick, 10);
    brick.checkpoint().unwrap();
    drop(brick);
    let (brick, report) = open(&storage, false);
    assert_eq!((report.records, sequences(&brick, 0)), (0, (1..=10).collect()));
}

/// The simulator's seed 3358: after a power cut a file had the header of an old segment and a record of its next use; who
/// asked for later records got none.
#[test]
fn records_behind_a_segment_of_which_a_power_cut_left_two_uses_are_found() {
    let storage = MemoryStorage::new();
    Brick::create_on(&storage, &identity()).unwrap();
    let brick = Brick::open_on(Arc::new(storage.clone()), &identity(), Incarnation(1), false).unwrap().0;
    brick.retain_from(Lsn(0));
    append_large(&brick, 10);
    assert_eq!(sequences(&brick, 0), (1..=10).collect::<Vec<_>>());
    let earlier = brick.earlier_ends(100 << 10).unwrap();
    let marked: Vec<u64> = earlier.iter().map(|(_, ends)| ends[0].2.sequence.0).collect();
    assert_eq!(marked, [2, 4, 6, 8, 10], "each some two records on");
    assert_eq!(earlier.last().map(|(upto, ends)| (*upto, ends.clone())), Some(brick.ends()));
    // Four records fit a segment: the second one of the first is written over.
    let first = storage.open("journal/segment-001", false).unwrap();
    first.write_at(&[&[0xab; 4096]], 80 << 10).unwrap();
    let hidden = |after: u64| matches!(brick.records_since(RING, PARTITION, Sequence(after)), Ok(Since::Hidden(_)));
    assert_eq!(sequences(&brick, 2), (3..=10).collect::<Vec<_>>());
    assert!(hidden(1) && hidden(0), "nothing before a gap");
    // And its header: nothing says where the third one begins.
    first.write_at(&[&[0xab; 32 << 10]], 48 << 10).unwrap();
    assert_eq!(sequences(&brick, 4), (5..=10).collect::<Vec<_>>());
    assert!(hidden(3));
    assert_eq!(sequences(&brick, 6), (7..=10).collect::<Vec<_>>());
}

/// A power cut leaves the first half of a record. The next life writes another one at its place, which ends with the bytes that
/// were lost, and the next cut leaves that half alone: the old record is whole, and never was one (simulator, seed 2674).
#[test]
fn a_record_that_two_power_cuts_put_together_is_none() {
    let storage = new_storage();
    let name = |letter: &str| {
        let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
        Key::name(place, ROOT, letter.as_bytes())
    };
    let put = |letter| vec![Change::Put { key: name(letter), value: Bytes::from(vec![9; 1500]) }];
    let (brick, _) = open(&storage, false);
    let begin = brick.end();
    let end = append(&brick, put("a"));
    drop(brick);
    let geometry = crate::open::geometry(&identity()).unwrap();
    let file = storage.open(&geometry.path_of(geometry.number_of(begin)), false).unwrap();
    let (from, to) = (geometry.offset_of(begin), geometry.offset_of(end));
    let half = (from / 512 + 1) * 512;
    let mut first_half = vec![0; (half - from) as usize];
    file.read_at(&mut first_half, from).unwrap();
    file.write_at(&[&vec![0; (to - half) as usize]], half).unwrap();
    let (brick, report) = open(&storage, true);
    assert_eq!((report.records, report.end), (0, begin));
    append(&brick, put("b"));
    append(&brick, put("c"));
    drop(brick);
    file.write_at(&[&first_half], from).unwrap();
    let (brick, report) = open(&storage, true);
    assert_eq!((report.records, report.end), (0, begin));
    assert!(["a", "b", "c"].into_iter().all(|letter| brick.get(&name(letter)).unwrap().is_none()));
}
