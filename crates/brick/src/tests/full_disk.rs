//! Bricks on a disk that fills up: growing records are refused in time, deletes are always taken, no checkpoint fails.

mod inodes;
mod stalled;

use crate::storage::{MemoryStorage, Space, Storage, StorageFile};
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::io::{Error as IoError, Result as IoResult};
use std::sync::Arc;

const RING: RingId = RingId(1);
const PAGE: u64 = 4096;
const ENOSPC: i32 = 28;

/// The pages of a file system that several bricks share.
struct Pages {
    all: u64,
    used: u64,
    /// Whether another user of the file system takes all pages that are freed.
    greedy: bool,
    /// Pages that were freed and count as used until the file system has settled that; `None`: they are free at once.
    late: Option<u64>,
    files: HashMap<String, BTreeSet<u64>>,
    /// Inodes of the file system; `None`: it does not count them.
    inodes: Option<u64>,
    /// Files that exist, also those of other users.
    names: BTreeSet<String>,
}

/// A directory of a small file system. A file takes a page when the page is first written.
#[derive(Clone)]
struct SmallStorage {
    below: MemoryStorage,
    directory: &'static str,
    pages: Arc<Mutex<Pages>>,
}

struct SmallFile {
    below: Arc<dyn StorageFile>,
    path: String,
    pages: Arc<Mutex<Pages>>,
}

impl Pages {
    fn free(&self) -> u64 {
        self.all - self.used
    }
    fn release(&mut self, path: &str, keep: impl Fn(u64) -> bool) {
        let held = self.files.entry(path.into()).or_default();
        let before = held.len();
        held.retain(|page| keep(*page));
        let freed = (before - held.len()) as u64;
        match &mut self.late {
            Some(late) => *late += freed,
            None if self.greedy => {}
            None => self.used -= freed,
        }
    }
}

impl SmallStorage {
    fn path(&self, path: &str) -> String {
        format!("{}/{path}", self.directory)
    }
}

impl Storage for SmallStorage {
    fn open(&self, path: &str, create: bool) -> IoResult<Arc<dyn StorageFile>> {
        let name = self.path(path);
        if create {
            let mut pages = self.pages.lock();
            let is_full = pages.inodes.is_some_and(|inodes| pages.names.len() as u64 >= inodes);
            if is_full && !pages.names.contains(&name) {
                return Err(IoError::from_raw_os_error(ENOSPC));
            }
            pages.names.insert(name);
        }
        let below = self.below.open(path, create)?;
        Ok(Arc::new(SmallFile { below, path: self.path(path), pages: self.pages.clone() }))
    }
    fn create_directory(&self, path: &str) -> IoResult<()> {
        self.below.create_directory(path)
    }
    fn remove(&self, path: &str) -> IoResult<()> {
        let mut pages = self.pages.lock();
        pages.release(&self.path(path), |_| false);
        if !pages.greedy {
            pages.names.remove(&self.path(path));
        }
        self.below.remove(path)
    }
    fn list(&self, path: &str) -> IoResult<Vec<String>> {
        self.below.list(path)
    }
    fn sync_directory(&self, path: &str) -> IoResult<()> {
        self.below.sync_directory(path)
    }
    fn space(&self) -> IoResult<Space> {
        let pages = self.pages.lock();
        let bytes = Space::of_bytes(pages.all * PAGE, pages.free() * PAGE);
        Ok(match pages.inodes {
            None => bytes,
            Some(inodes) => {
                Space { files: inodes, files_available: inodes.saturating_sub(pages.names.len() as u64), ..bytes }
            }
        })
    }
    fn settle_removals(&self) -> IoResult<()> {
        let mut pages = self.pages.lock();
        let freed = pages.late.as_mut().map(std::mem::take);
        pages.used -= freed.unwrap_or(0);
        Ok(())
    }
}

impl StorageFile for SmallFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> IoResult<usize> {
        self.below.read_at(buffer, offset)
    }
    fn write_at(&self, parts: &[&[u8]], offset: u64) -> IoResult<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.allocate(offset, length as u64)?;
        self.below.write_at(parts, offset)
    }
    fn allocate(&self, offset: u64, length: u64) -> IoResult<()> {
        let mut pages = self.pages.lock();
        for page in offset / PAGE..(offset + length).div_ceil(PAGE) {
            let (full, held) = (pages.free() == 0, pages.files.entry(self.path.clone()).or_default());
            if held.contains(&page) {
                continue;
            }
            if full {
                return Err(IoError::from_raw_os_error(ENOSPC));
            }
            held.insert(page);
            pages.used += 1;
        }
        Ok(())
    }
    fn length(&self) -> IoResult<u64> {
        self.below.length()
    }
    fn set_length(&self, length: u64) -> IoResult<()> {
        self.pages.lock().release(&self.path, |page| page * PAGE < length);
        self.below.set_length(length)
    }
    fn punch(&self, offset: u64, length: u64) -> IoResult<()> {
        let holes = offset.div_ceil(PAGE)..(offset + length) / PAGE;
        self.pages.lock().release(&self.path, |page| !holes.contains(&page));
        self.below.punch(offset, length)
    }
    fn sync(&self) -> IoResult<()> {
        self.below.sync()
    }
}

const RESERVE: u64 = 4 << 20;

fn identity(number: u128) -> Identity {
    let settings = BrickSettings {
        journal_segments: 4,
        segment_bytes: 512 << 10,
        index_cache_bytes: 1 << 20,
        reserve_bytes: RESERVE,
    };
    Identity::new(BrickId(number), "c", settings)
}

/// Two bricks on a file system of this size, in bytes.
fn bricks(bytes: u64) -> (Arc<Mutex<Pages>>, Vec<Brick>) {
    bricks_with(bytes, None)
}

/// Two bricks on a file system of this size, in bytes, with `inodes` inodes; `None`: it does not count them.
fn bricks_with(bytes: u64, inodes: Option<u64>) -> (Arc<Mutex<Pages>>, Vec<Brick>) {
    let (files, names) = (HashMap::new(), BTreeSet::new());
    let pages = Pages { all: bytes / PAGE, used: 0, greedy: false, late: None, files, inodes, names };
    let pages = Arc::new(Mutex::new(pages));
    let make = |(number, directory)| {
        let storage = SmallStorage { below: MemoryStorage::new(), directory, pages: pages.clone() };
        Brick::create_on(&storage, &identity(number)).unwrap();
        Brick::open_on(Arc::new(storage), &identity(number), Incarnation(1), false).unwrap().0
    };
    let bricks = [(1, "one"), (2, "two")].map(make).into();
    (pages, bricks)
}

fn key(number: u64) -> Key {
    let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
    Key::name(place, ROOT, format!("{:020}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).as_bytes())
}

fn shard(number: u64) -> ShardId {
    ShardId { volume: VolumeId(1), data: DataId(u128::from(number)), index: 0 }
}

/// Appends a record as a server does: it reserves room on every replica, makes a checkpoint where one is wanted, and
/// appends the record.
fn commit(bricks: &[Brick], grows: bool, changes: Vec<Change>) -> Result<()> {
    let sequence = Sequence(bricks[0].position(RING, PartitionNumber(0)).sequence.0 + 1);
    let (partition, epoch, session, op_id) = (PartitionNumber(0), Epoch(1), SessionId(1), OpId(1));
    let entry = LogEntry::new(Record { ring: RING, partition, epoch, sequence, session, op_id, changes });
    let room: Result<Vec<Reservation>> = bricks.iter().map(|brick| brick.reserve(&entry, grows)).collect();
    drop(room?);
    for brick in bricks {
        if brick.wants_checkpoint() {
            brick.checkpoint()?;
            brick.refresh_room()?;
        }
        brick.append(&entry)?;
    }
    Ok(())
}

fn blocks(number: u64, count: usize) -> Vec<Change> {
    let bytes = Bytes::from(vec![number as u8; count * BLOCK_BYTES]);
    let sums = (0..count as u32).map(|block| block_checksum(shard(number), block, &bytes[..BLOCK_BYTES])).collect();
    let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(1) };
    let record = ShardRecord { stamp, length: bytes.len() as u32, home_blocks: count as u32, reserved_blocks: 0 };
    let run = BlockRun { first: 0, checksums: sums };
    let put = Change::Put { key: key(number), value: Bytes::from_static(b"a file with a shard") };
    vec![put, Change::WriteBlocks { shard: shard(number), record, run, bytes }]
}

/// Commits growing records until one is refused. Returns the number that were appended.
fn fill(bricks: &[Brick], first: u64, mut one: impl FnMut(u64) -> Vec<Change>) -> u64 {
    for number in first.. {
        match commit(bricks, true, one(number)) {
            Ok(()) => {}
            Err(Error::NoSpace { .. }) => return number - first,
            Err(other) => panic!("{other}"),
        }
        if number % 16 == 0 {
            bricks.iter().for_each(|brick| brick.refresh_room().unwrap());
        }
    }
    unreachable!("an endless disk")
}

fn settle(bricks: &[Brick]) {
    for brick in bricks {
        brick.checkpoint().unwrap();
        brick.refresh_room().unwrap();
        assert_eq!(brick.status().unwrap().poisoned, None);
    }
}

#[test]
fn a_full_disk_refuses_what_grows_and_goes_on_deleting() {
    let (pages, bricks) = bricks(96 << 20);
    let files = fill(&bricks, 0, |number| blocks(number, 8));
    settle(&bricks);
    // Records are refused only when little room is left, and room that a checkpoint made is used.
    let more = fill(&bricks, files, |number| vec![Change::Put { key: key(number), value: Bytes::from(vec![1; 300]) }]);
    settle(&bricks);
    let free = pages.lock().free() * PAGE;
    assert!(files > 500, "{files} files of 32 KiB on a disk of 96 MiB, twice");
    assert!(free < 24 << 20, "{free} bytes were left");
    let full = commit(&bricks, true, blocks(u64::MAX, 200)).unwrap_err();
    assert!(matches!(&full, Error::NoSpace { what } if what.contains("on brick")), "{full}");
    for number in 0..files + more {
        let mut changes = vec![Change::Delete { key: key(number) }];
        if number < files {
            changes.push(Change::DropShard { shard: shard(number) });
        }
        commit(&bricks, false, changes).unwrap();
    }
    settle(&bricks);
    settle(&bricks);
    assert_eq!(bricks[0].scan(&key(0).prefix_end(), &key(0).prefix_end(), 9).unwrap(), []);
    assert!(bricks.iter().all(|brick| brick.status().unwrap().reserve.bytes == RESERVE), "restored");
    assert!(fill(&bricks, 0, |number| blocks(number, 8)) > files / 2, "there is room again");
}

#[test]
fn another_user_may_fill_the_disk() {
    let (pages, bricks) = bricks(64 << 20);
    for number in 0..40 {
        commit(&bricks, true, blocks(number, 8)).unwrap();
    }
    // Another user takes all that is free between two readings of the room.
    let taken_pages = pages.lock().free();
    pages.lock().used += taken_pages;
    settle(&bricks);
    assert!(bricks.iter().any(|brick| brick.status().unwrap().reserve.bytes < RESERVE), "released");
    assert!(fill(&bricks, 100, |number| blocks(number, 8)) < 100);
    settle(&bricks);
    for number in 0..20 {
        commit(&bricks, false, vec![Change::Delete { key: key(number) }, Change::DropShard { shard: shard(number) }])
            .unwrap();
    }
    settle(&bricks);
    pages.lock().used -= taken_pages;
    settle(&bricks);
    commit(&bricks, true, blocks(99, 1)).unwrap();
    assert!(bricks.iter().all(|brick| brick.status().unwrap().reserve.bytes == RESERVE), "restored");
}

#[test]
fn another_user_may_fill_the_disk_while_a_checkpoint_runs() {
    let (pages, bricks) = bricks(64 << 20);
    for number in 0..10 {
        commit(&bricks, true, blocks(number, 8)).unwrap();
    }
    let (mut taken_pages, mut pauses) = (0, 0);
    for brick in &bricks {
        let mut fill = || {
            pauses += 1;
            let mut pages = pages.lock();
            let free = pages.free();
            (taken_pages, pages.used) = (taken_pages + free, pages.used + free);
            false
        };
        brick.begin_checkpoint().finish(&mut fill).unwrap();
        assert_eq!(brick.status().unwrap().poisoned, None);
        assert!(brick.status().unwrap().reserve.bytes < RESERVE, "released");
        pages.lock().used -= std::mem::take(&mut taken_pages);
        brick.refresh_room().unwrap();
    }
    assert_eq!(pauses, 2);
    commit(&bricks, true, blocks(99, 1)).unwrap();
}

#[test]
fn reserved_blocks_are_written_on_a_full_disk_and_freed_by_a_cut() {
    let (pages, bricks) = bricks(96 << 20);
    let (id, count) = (shard(u64::MAX), 300);
    let stamp = |count| Stamp { count, session: SessionId(1), op: OpId(count) };
    let reserved = ShardRecord { reserved_blocks: count, ..ShardRecord::empty(stamp(1)) };
    bricks.iter().for_each(|brick| brick.reserve_fresh(RING, id, 0, count).unwrap());
    let reserve = Change::ReserveBlocks { shard: id, record: reserved, first: 0, count };
    commit(&bricks, true, vec![reserve]).unwrap();
    let files = fill(&bricks, 0, |number| blocks(number, 8));
    settle(&bricks);
    let used = pages.lock().used;
    pages.lock().all = used;
    settle(&bricks);
    assert!(matches!(bricks[0].write_fresh(RING, id, count, &[&[1; BLOCK_BYTES]]), Err(Error::NoSpace { .. })));

    let bytes = vec![7; count as usize * BLOCK_BYTES];
    let checksums = (0..count).map(|block| block_checksum(id, block, &bytes[..BLOCK_BYTES])).collect();
    let record = ShardRecord { stamp: stamp(2), length: bytes.len() as u32, home_blocks: count, ..reserved };
    bricks.iter().for_each(|brick| brick.write_fresh(RING, id, 0, &[&bytes]).unwrap());
    let run = BlockRun { first: 0, checksums };
    commit(&bricks, false, vec![Change::FreshBlocks { shard: id, record, run }]).unwrap();
    settle(&bricks);
    assert_eq!(bricks[1].read_shard(RING, id, 0, 1 << 22).unwrap(), bytes);

    let used = pages.lock().used;
    let record = ShardRecord { stamp: stamp(3), length: 0, home_blocks: count, reserved_blocks: 0 };
    commit(&bricks, false, vec![Change::CutShard { shard: id, record }]).unwrap();
    settle(&bricks);
    // The index may have grown by some pages.
    let given_back = used.saturating_sub(pages.lock().used);
    assert!(given_back + 50 > 2 * u64::from(count), "{given_back} pages of {count} on two bricks, {files} files");
}

#[test]
fn reserved_blocks_that_were_never_written_are_freed_by_a_cut() {
    let (pages, bricks) = bricks(96 << 20);
    let (id, count) = (shard(1), 300);
    let stamp = |count| Stamp { count, session: SessionId(1), op: OpId(count) };
    let record = ShardRecord { reserved_blocks: count, ..ShardRecord::empty(stamp(1)) };
    settle(&bricks);
    let before = pages.lock().used;
    bricks.iter().for_each(|brick| brick.reserve_fresh(RING, id, 0, count).unwrap());
    commit(&bricks, true, vec![Change::ReserveBlocks { shard: id, record, first: 0, count }]).unwrap();
    settle(&bricks);
    assert!(pages.lock().used >= before + 2 * u64::from(count), "taken");
    let record = ShardRecord { home_blocks: count, ..ShardRecord::empty(stamp(2)) };
    commit(&bricks, false, vec![Change::CutShard { shard: id, record }]).unwrap();
    settle(&bricks);
    assert!(pages.lock().used < before + 50, "freed");
}
