//! What a review of the brick as a machine found, each as the test that failed.
use crate::scrub::{Finding, ScrubCursor};
use crate::storage::{MemoryStorage, Storage, StorageFile};
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use parking_lot::{Condvar, Mutex};
use std::io::Result as R;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const RING: RingId = RingId(1);
const P: PartitionNumber = PartitionNumber(0);
const B: u32 = BLOCK_BYTES as u32;

fn identity(segment_bytes: u64) -> Identity {
    Identity::new(BrickId(7), "c", BrickSettings { journal_segments: 4, segment_bytes, index_cache_bytes: 1 << 20, reserve_bytes: 0 })
}
fn made(segment_bytes: u64) -> MemoryStorage {
    let s = MemoryStorage::new();
    Brick::create_on(&s, &identity(segment_bytes)).unwrap();
    s
}
fn open(s: impl Storage + 'static, segment_bytes: u64, reborn: bool) -> Brick {
    Brick::open_on(Arc::new(s), &identity(segment_bytes), Incarnation(1), reborn).unwrap().0
}
fn shard(index: u64) -> ShardId {
    ShardId { volume: VolumeId(1), data: DataId(3), index }
}
fn append(brick: &Brick, changes: Vec<Change>) -> Result<Lsn> {
    let sequence = Sequence(brick.position(RING, P).sequence.0 + 1);
    let (epoch, session, op_id) = (Epoch(1), SessionId(1), OpId(sequence.0));
    brick.append(&LogEntry::new(Record { ring: RING, partition: P, epoch, sequence, session, op_id, changes }))
}
fn write(brick: &Brick, s: ShardId, first: u32, count: u32, fill: u8, fresh: bool) -> Result<Lsn> {
    let before = brick.shard(RING, s)?;
    let n = before.map_or(1, |r| r.stamp.count + 1);
    let end = first + count;
    let record = ShardRecord {
        stamp: Stamp { count: n, session: SessionId(1), op: OpId(n) },
        length: before.map_or(0, |r| r.length).max(end * B),
        home_blocks: before.map_or(0, |r| r.home_blocks).max(end),
        reserved_blocks: 0,
    };
    let bytes = Bytes::from(vec![fill; (count * B) as usize]);
    let checksums = (0..count).map(|b| block_checksum(s, first + b, &bytes[..BLOCK_BYTES])).collect();
    let run = BlockRun { first, checksums };
    if fresh {
        brick.write_fresh(RING, s, first, &[&bytes])?;
        append(brick, vec![Change::FreshBlocks { shard: s, record, run }])
    } else {
        append(brick, vec![Change::WriteBlocks { shard: s, record, run, bytes }])
    }
}
fn key(n: u32) -> Key {
    Key::name(KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) }, ROOT, format!("{n}").as_bytes())
}

fn rot_checksums(s: &MemoryStorage, sums: &[u32]) {
    let path = "index/index.redb";
    let file = s.open(path, false).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let value: Vec<u8> = sums.iter().flat_map(|s| s.to_le_bytes()).collect();
    let places: Vec<usize> = (0..bytes.len() - value.len()).filter(|at| bytes[*at..*at + value.len()] == value).collect();
    assert!(!places.is_empty());
    // In the place of a block that nobody writes.
    places.iter().for_each(|at| s.flip_bit(path, at + value.len() - 1));
    crate::index::pages_tests::take_for_right(s);
}

/// a rotten `Checksums` entry, then one write (or what `mend_block` does) in its group.
#[test]
fn a_rotten_group_of_checksums_stops_no_brick_for_ever() {
    let s = made(1 << 20);
    let brick = open(s.clone(), 1 << 20, false);
    write(&brick, shard(0), 0, 8, 1, false).unwrap();
    brick.checkpoint().unwrap();
    drop(brick);
    let zero = vec![1u8; BLOCK_BYTES];
    let sums: Vec<u32> = (0..8).map(|b| block_checksum(shard(0), b, &zero)).collect();
    rot_checksums(&s, &sums);
    let brick = open(s.clone(), 1 << 20, false);
    assert!(matches!(brick.read_block(RING, shard(0), 2), Err(Error::Damaged { .. })));
    // As `mend_block`: block 2 with the other replica's bytes.
    write(&brick, shard(0), 2, 1, 1, false).unwrap();
    let first = brick.checkpoint();
    drop(brick);
    let again = open(s.clone(), 1 << 20, false).checkpoint();
    assert!(first.is_ok() && again.is_ok(), "first {first:?}; after a restart {again:?}");
}

/// a rotten `Shard` entry of a follower; the leader has taken the record.
#[test]
fn a_rotten_shard_entry_of_a_follower_does_not_end_the_partition() {
    let s = made(1 << 20);
    let brick = open(s.clone(), 1 << 20, false);
    write(&brick, shard(0), 0, 8, 1, false).unwrap();
    brick.checkpoint().unwrap();
    drop(brick);
    let file = s.open("index/index.redb", false).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let value: Vec<u8> = [1u64, 1, 1].iter().flat_map(|part| part.to_le_bytes()).collect();
    let places: Vec<usize> = (0..bytes.len() - 24).filter(|at| bytes[*at..*at + 24] == value).collect();
    places.iter().for_each(|at| s.flip_bit("index/index.redb", at + 1));
    crate::index::pages_tests::take_for_right(&s);
    let follower = open(s.clone(), 1 << 20, false);
    // The record as the leader made it from its own good copy; at a start `level` does the same with `append_copied`.
    let stamp = Stamp { count: 2, session: SessionId(1), op: OpId(2) };
    let record = ShardRecord { stamp, length: 8 * B, home_blocks: 8, reserved_blocks: 0 };
    let bytes = Bytes::from(vec![2u8; BLOCK_BYTES]);
    let run = BlockRun { first: 0, checksums: vec![block_checksum(shard(0), 0, &bytes)] };
    let changes = vec![Change::WriteBlocks { shard: shard(0), record, run, bytes }];
    let (epoch, session, op_id) = (Epoch(1), SessionId(1), OpId(2));
    let entry = LogEntry::new(Record { ring: RING, partition: P, epoch, sequence: Sequence(2), session, op_id, changes });
    let taken = follower.append_now(&entry, true);
    assert!(taken.is_ok(), "{taken:?}");
}

/// F4 with one record naming many fresh shards, so that the mark alone is too long.
#[test]
fn a_mark_longer_than_a_segment_does_not_stop_the_brick() {
    let segment = 64 << 10;
    let brick = open(made(segment), segment, false);
    let mut all = Vec::new();
    for round in 0..14u64 {
        let mut changes = Vec::new();
        for index in round * 100..(round + 1) * 100 {
            let s = shard(index);
            let bytes = vec![1u8; BLOCK_BYTES];
            brick.write_fresh(RING, s, 0, &[&bytes]).unwrap();
            let record = ShardRecord { stamp: Stamp { count: 1, session: SessionId(1), op: OpId(1) }, length: B, home_blocks: 1, reserved_blocks: 0 };
            let run = BlockRun { first: 0, checksums: vec![block_checksum(s, 0, &bytes)] };
            changes.push(Change::FreshBlocks { shard: s, record, run });
            all.push(s);
        }
        append(&brick, changes).unwrap();
    }
    let synced = brick.sync_shards(&all);
    assert!(synced.is_ok(), "{synced:?}");
}

/// waits for a checkpoint that nothing wants.
#[test]
fn full_means_that_a_checkpoint_is_wanted() {
    struct Small(MemoryStorage);
    impl Storage for Small {
        fn open(&self, p: &str, c: bool) -> R<Arc<dyn StorageFile>> { self.0.open(p, c) }
        fn create_directory(&self, p: &str) -> R<()> { self.0.create_directory(p) }
        fn remove(&self, p: &str) -> R<()> { self.0.remove(p) }
        fn list(&self, p: &str) -> R<Vec<String>> { self.0.list(p) }
        fn sync_directory(&self, p: &str) -> R<()> { self.0.sync_directory(p) }
        // 10 MiB free, the reserve was given up.
        fn space(&self) -> R<crate::storage::Space> { Ok(crate::storage::Space::of_bytes(1 << 40, 10 << 20)) }
    }
    let brick = Arc::new(open(Small(made(1 << 20)), 1 << 20, false));
    append(&brick, vec![Change::Put { key: key(0), value: Bytes::from_static(b"x") }]).unwrap();
    // What `level::remove` makes of swept entries: 512 deletes.
    let sweeper = brick.clone();
    let thread = std::thread::spawn(move || append(&sweeper, (0..512).map(|n| Change::Delete { key: key(n) }).collect()));
    for _ in 0..120 {
        if thread.is_finished() {
            break;
        }
        // What the housekeeping does, every 25 ms and every 3 s.
        if brick.wants_checkpoint() || brick.could_free_space() {
            brick.checkpoint().unwrap();
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    assert!(thread.is_finished(), "waits for ever, with its partition locked");
}

/// Begun, may end, ended.
type Progress = (bool, bool, bool);

#[derive(Clone)]
struct SlowDirectory {
    inner: MemoryStorage,
    armed: Arc<AtomicBool>,
    state: Arc<(Mutex<Progress>, Condvar)>,
}
impl Storage for SlowDirectory {
    fn open(&self, p: &str, c: bool) -> R<Arc<dyn StorageFile>> { self.inner.open(p, c) }
    fn create_directory(&self, p: &str) -> R<()> { self.inner.create_directory(p) }
    fn remove(&self, p: &str) -> R<()> { self.inner.remove(p) }
    fn list(&self, p: &str) -> R<Vec<String>> { self.inner.list(p) }
    fn sync_directory(&self, p: &str) -> R<()> {
        if p.starts_with("data/") && self.armed.load(Ordering::SeqCst) {
            let mut state = self.state.0.lock();
            state.0 = true;
            self.state.1.notify_all();
            while !state.1 {
                self.state.1.wait(&mut state);
            }
            state.2 = true;
        }
        Ok(())
    }
    fn space(&self) -> R<crate::storage::Space> { self.inner.space() }
}

/// a name is told durable while another thread's sync of its directory runs (and may yet fail).
#[test]
fn a_shard_is_synced_only_once_its_name_is() {
    let storage = SlowDirectory { inner: made(1 << 20), armed: Arc::default(), state: Arc::default() };
    let brick = Arc::new(open(storage.clone(), 1 << 20, false));
    let directory = |s: ShardId| s.position().0 % 256;
    let other = (1..).map(shard).find(|s| directory(*s) == directory(shard(0))).unwrap();
    write(&brick, shard(0), 0, 1, 1, true).unwrap();
    write(&brick, other, 0, 1, 1, true).unwrap();
    storage.armed.store(true, Ordering::SeqCst);
    let syncing = brick.clone();
    let thread = std::thread::spawn(move || syncing.sync_shards(&[other]));
    {
        let mut state = storage.state.0.lock();
        while !state.0 {
            storage.state.1.wait(&mut state);
        }
    }
    let (second, told) = (brick.clone(), Arc::new(AtomicBool::new(false)));
    let flag = told.clone();
    let second = std::thread::spawn(move || {
        let upto = second.sync_shards(&[shard(0)]).unwrap();
        second.sync(upto).unwrap();
        flag.store(true, Ordering::SeqCst);
    });
    std::thread::sleep(Duration::from_millis(500));
    let early = told.load(Ordering::SeqCst);
    storage.state.0.lock().1 = true;
    storage.state.1.notify_all();
    thread.join().unwrap().unwrap();
    second.join().unwrap();
    assert!(!early, "told durable, with a mark on stable storage, before its directory was synced");
}

/// what a fresh write without a record left is never given back.
#[test]
fn a_fresh_write_that_another_member_refused_leaves_no_file_for_ever() {
    let s = made(1 << 20);
    let brick = open(s.clone(), 1 << 20, false);
    append(&brick, vec![Change::Put { key: key(0), value: Bytes::new() }]).unwrap();
    brick.write_fresh(RING, shard(9), 0, &[&[1; BLOCK_BYTES]]).unwrap();
    // The other member said ENOSPC; the client gave up and deleted its file.
    brick.checkpoint().unwrap();
    // What a server says of it then.
    brick.forget_fresh(shard(9));
    let mut cursor = ScrubCursor::default();
    let mut found = Vec::new();
    while !cursor.is_done() {
        found.extend(brick.scrub(&mut cursor).unwrap().findings);
    }
    assert!(found.iter().any(|f| matches!(f, Finding::Stray { .. })), "the file stays as long as the server runs");
}

/// an older mark that was appended later lowers the newer one.
#[test]
fn a_later_mark_of_an_earlier_stamp_lowers_nothing() {
    let s = made(1 << 20);
    let brick = open(s.clone(), 1 << 20, false);
    write(&brick, shard(0), 0, 4, 1, true).unwrap();
    let early = brick.machine.write().sync_shards(&[shard(0)]).unwrap();
    write(&brick, shard(0), 4, 4, 2, true).unwrap();
    let upto = brick.sync_shards(&[shard(0)]).unwrap();
    brick.sync(upto).unwrap(); // mark of stamp 2 is stable
    for (id, io) in early {
        brick.perform(id, &io, &[]).unwrap(); // the slow one returns
    }
    let upto = brick.sync_shards(&[]).unwrap();
    brick.sync(upto).unwrap();
    let cut = s.after_power_cut();
    let path = crate::home::Home::path(shard(0));
    cut.flip_bit(&path, 5 * BLOCK_BYTES); // rot, in what the mark covered
    let (_, report) = Brick::open_on(Arc::new(cut), &identity(1 << 20), Incarnation(2), true).unwrap();
    assert_eq!(report.lost, [], "rot of acknowledged durable bytes passes for a power cut's loss");
}

#[derive(Clone)]
struct SlowReserve(MemoryStorage, Arc<AtomicBool>);
struct SlowFile(Arc<dyn StorageFile>, Arc<AtomicBool>);
impl Storage for SlowReserve {
    fn open(&self, p: &str, c: bool) -> R<Arc<dyn StorageFile>> {
        let file = self.0.open(p, c)?;
        Ok(if p == "reserve" { Arc::new(SlowFile(file, self.1.clone())) } else { file })
    }
    fn create_directory(&self, p: &str) -> R<()> { self.0.create_directory(p) }
    fn remove(&self, p: &str) -> R<()> { self.0.remove(p) }
    fn list(&self, p: &str) -> R<Vec<String>> { self.0.list(p) }
    fn sync_directory(&self, p: &str) -> R<()> { self.0.sync_directory(p) }
    fn space(&self) -> R<crate::storage::Space> { self.0.space() }
}
impl StorageFile for SlowFile {
    fn read_at(&self, b: &mut [u8], o: u64) -> R<usize> { self.0.read_at(b, o) }
    fn write_at(&self, p: &[&[u8]], o: u64) -> R<()> {
        while self.1.load(Ordering::SeqCst) { std::thread::sleep(Duration::from_millis(5)); }
        self.0.write_at(p, o)
    }
    fn length(&self) -> R<u64> { self.0.length() }
    fn set_length(&self, l: u64) -> R<()> { self.0.set_length(l) }
    fn allocate(&self, o: u64, l: u64) -> R<()> { self.0.allocate(o, l) }
    fn punch(&self, o: u64, l: u64) -> R<()> { self.0.punch(o, l) }
    fn sync(&self) -> R<()> { self.0.sync() }
}

/// a reserve that is written anew stops every append for as long, once somebody asks for the status.
#[test]
fn nothing_waits_for_the_reserve_to_be_written() {
    let mut identity = identity(1 << 20);
    identity.settings.reserve_bytes = 1 << 20;
    let slow = SlowReserve(MemoryStorage::new(), Arc::default());
    Brick::create_on(&slow, &identity).unwrap();
    let brick = Arc::new(Brick::open_on(Arc::new(slow.clone()), &identity, Incarnation(1), false).unwrap().0);
    brick.disk.reserve.give_up_bytes().unwrap();
    slow.1.store(true, Ordering::SeqCst);
    let (a, b, c) = (brick.clone(), brick.clone(), brick.clone());
    std::thread::spawn(move || a.refresh_room());
    std::thread::sleep(Duration::from_millis(100));
    std::thread::spawn(move || b.status());
    std::thread::sleep(Duration::from_millis(100));
    let append = std::thread::spawn(move || append(&c, vec![Change::Put { key: key(0), value: Bytes::new() }]));
    std::thread::sleep(Duration::from_secs(1));
    let ended = append.is_finished();
    slow.1.store(false, Ordering::SeqCst);
    assert!(ended, "an append waits for the reserve's zeros");
}
