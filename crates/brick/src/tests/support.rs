//! What the tests of a brick share: a small brick in memory, keys and shards, and records as a replica makes them.

use crate::storage::{MemoryStorage, Space, Storage, StorageFile};
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use std::io::Result as IoResult;
use std::sync::Arc;

pub const RING: RingId = RingId(1);
pub const PARTITION: PartitionNumber = PartitionNumber(0);
pub const BLOCK: u32 = BLOCK_BYTES as u32;

/// Bytes of a segment of [`identity`].
pub const SEGMENT_BYTES: u64 = 256 << 10;

pub fn identity() -> Identity {
    identity_with(SEGMENT_BYTES)
}

/// Brick 7 of cluster "c": a journal of four segments, and no reserve.
pub fn identity_with(segment_bytes: u64) -> Identity {
    let settings = BrickSettings { journal_segments: 4, segment_bytes, index_cache_bytes: 1 << 20, reserve_bytes: 0 };
    Identity::new(BrickId(7), "c", settings)
}

pub fn new_storage() -> MemoryStorage {
    new_storage_with(SEGMENT_BYTES)
}

pub fn new_storage_with(segment_bytes: u64) -> MemoryStorage {
    let storage = MemoryStorage::new();
    Brick::create_on(&storage, &identity_with(segment_bytes)).unwrap();
    storage
}

/// Opens the brick of [`new_storage`]; `after_power_cut`: after a power cut.
pub fn open(storage: &MemoryStorage, after_power_cut: bool) -> (Brick, RecoveryReport) {
    open_on(storage.clone(), &identity(), after_power_cut)
}

pub fn open_on(storage: impl Storage + 'static, identity: &Identity, after_power_cut: bool) -> (Brick, RecoveryReport) {
    Brick::open_on(Arc::new(storage), identity, Incarnation(1), after_power_cut).unwrap()
}

pub fn key(name: &str) -> Key {
    let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
    Key::name(place, ROOT, name.as_bytes())
}

pub fn shard(index: u64) -> ShardId {
    ShardId { volume: VolumeId(1), data: DataId(3), index }
}

pub fn stamp(count: u64) -> Stamp {
    Stamp { count, session: SessionId(1), op: OpId(count) }
}

/// The record that comes next in the partition's log.
pub fn next_entry(brick: &Brick, partition: PartitionNumber, changes: Vec<Change>) -> LogEntry {
    let sequence = Sequence(brick.position(RING, partition).sequence.0 + 1);
    let (epoch, session, op_id) = (Epoch(1), SessionId(1), OpId(sequence.0));
    LogEntry::new(Record { ring: RING, partition, epoch, sequence, session, op_id, changes })
}

pub fn append_to(brick: &Brick, partition: PartitionNumber, changes: Vec<Change>) -> Result<Lsn> {
    brick.append(&next_entry(brick, partition, changes))
}

pub fn append(brick: &Brick, changes: Vec<Change>) -> Lsn {
    append_to(brick, PARTITION, changes).unwrap()
}

pub fn put(brick: &Brick, name: &str, value: &'static str) -> Lsn {
    append(brick, vec![Change::Put { key: key(name), value: Bytes::from_static(value.as_bytes()) }])
}

/// Blocks of which each byte is `fill`, and their checksums.
pub fn run_of(shard: ShardId, first: u32, fill: u8, count: u32) -> (BlockRun, Bytes) {
    let bytes = Bytes::from(vec![fill; count as usize * BLOCK_BYTES]);
    let checksums = (first..first + count).map(|block| block_checksum(shard, block, &bytes[..BLOCK_BYTES])).collect();
    (BlockRun { first, checksums }, bytes)
}

/// Write number `writes` of shard 0, which ends the shard.
pub fn blocks(first: u32, fill: u8, count: u32, writes: u64) -> (ShardRecord, BlockRun, Bytes) {
    let (run, bytes) = run_of(shard(0), first, fill, count);
    let end = first + count;
    (ShardRecord { stamp: stamp(writes), length: end * BLOCK, home_blocks: end, reserved_blocks: 0 }, run, bytes)
}

/// [`blocks`] through the journal.
pub fn write_blocks(brick: &Brick, first: u32, fill: u8, count: u32, writes: u64) -> Lsn {
    let (mut record, run, bytes) = blocks(first, fill, count, writes);
    record.home_blocks = record.home_blocks.max(brick.shard(RING, shard(0)).unwrap().map_or(0, |now| now.home_blocks));
    append(brick, vec![Change::WriteBlocks { shard: shard(0), record, run, bytes }])
}

/// [`blocks`] written home before their record.
pub fn write_fresh(brick: &Brick, first: u32, fill: u8, count: u32, writes: u64) {
    let (record, run, bytes) = blocks(first, fill, count, writes);
    brick.write_fresh(RING, shard(0), first, &[&bytes]).unwrap();
    append(brick, vec![Change::FreshBlocks { shard: shard(0), record, run }]);
}

/// How the bytes of a write reach the disk: in the journal, or home before their record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    Journal,
    Home,
}

/// The next write of a shard, which never shortens it.
pub fn write_via(via: Via, brick: &Brick, shard: ShardId, first: u32, fill: u8, count: u32) -> Lsn {
    let before = brick.shard(RING, shard).unwrap().unwrap_or(ShardRecord::empty(stamp(0)));
    let end = first + count;
    let record = ShardRecord {
        stamp: stamp(before.stamp.count + 1),
        length: before.length.max(end * BLOCK),
        home_blocks: before.home_blocks.max(end),
        reserved_blocks: 0,
    };
    let (run, bytes) = run_of(shard, first, fill, count);
    append(
        brick,
        vec![match via {
            Via::Journal => Change::WriteBlocks { shard, record, run, bytes },
            Via::Home => {
                brick.write_fresh(RING, shard, first, &[&bytes]).unwrap();
                Change::FreshBlocks { shard, record, run }
            }
        }],
    )
}

/// A write of shard 0 as a replica makes it: more than 8 blocks behind its end go home at once.
pub fn write(brick: &Brick, first: u32, fill: u8, count: u32) -> Lsn {
    let home = brick.shard(RING, shard(0)).unwrap().map_or(0, |record| record.home_blocks);
    let via = if count > 8 && first >= home { Via::Home } else { Via::Journal };
    write_via(via, brick, shard(0), first, fill, count)
}

/// Cuts shard 0 to so many blocks.
pub fn cut(brick: &Brick, blocks: u32) -> Lsn {
    let before = brick.shard(RING, shard(0)).unwrap().unwrap();
    let record = ShardRecord {
        stamp: stamp(before.stamp.count + 1),
        length: blocks * BLOCK,
        home_blocks: before.home_blocks,
        reserved_blocks: 0,
    };
    append(brick, vec![Change::CutShard { shard: shard(0), record }])
}

pub fn drop_shard(brick: &Brick) -> Lsn {
    append(brick, vec![Change::DropShard { shard: shard(0) }])
}

/// The first byte of each block of shard 0.
pub fn fills(brick: &Brick) -> Result<Vec<u8>> {
    Ok(brick.read_shard(RING, shard(0), 0, 1 << 22)?.chunks(BLOCK_BYTES).map(|block| block[0]).collect())
}

/// Names of the root directory, at most `limit`.
pub fn names(brick: &Brick, limit: usize) -> Vec<String> {
    let found = brick.scan(&key(""), &key("").prefix_end(), limit).unwrap();
    found.into_iter().map(|(key, _)| String::from_utf8(key.rest().to_vec()).unwrap()).collect()
}

/// Numbers of the records that follow record `after` of the partition's log.
pub fn sequences(brick: &Brick, after: u64) -> Vec<u64> {
    let found = brick.records_since(RING, PARTITION, Sequence(after)).unwrap().all();
    found.into_iter().flatten().map(|entry| entry.record.sequence.0).collect()
}

/// The only data file of a brick.
pub fn data_file(storage: &MemoryStorage) -> String {
    storage.paths().into_iter().find(|path| path.starts_with("data/")).unwrap()
}

/// Flips a bit `offset` bytes behind each place of the index that holds `value`, as if it had been written so.
pub fn flip_in_index(storage: &MemoryStorage, value: &[u8], offset: usize) {
    let path = "index/index.redb";
    let file = storage.open(path, false).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let places: Vec<usize> = (0..bytes.len() - value.len()).filter(|at| bytes[*at..].starts_with(value)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| storage.flip_bit(path, at + offset));
    super::index_damage::take_for_right(storage);
}

/// A call of a [`HookedStorage`] that its hook sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Open,
    Remove,
    SyncDirectory,
    Write,
}

type Hook = Arc<dyn Fn(Call, &str) -> IoResult<()> + Send + Sync>;

/// A storage that calls a hook with each call and its path first: the hook may fail it, hold it up, or do something.
#[derive(Clone)]
pub struct HookedStorage {
    pub inner: MemoryStorage,
    hook: Hook,
    /// What it says of its file system's room, if not what `inner` says.
    pub space: Option<Space>,
}

impl HookedStorage {
    pub fn new(inner: MemoryStorage, hook: impl Fn(Call, &str) -> IoResult<()> + Send + Sync + 'static) -> Self {
        Self { inner, hook: Arc::new(hook), space: None }
    }
}

impl Storage for HookedStorage {
    fn open(&self, path: &str, create: bool) -> IoResult<Arc<dyn StorageFile>> {
        (self.hook)(Call::Open, path)?;
        let inner = self.inner.open(path, create)?;
        Ok(Arc::new(HookedFile { inner, path: path.into(), hook: self.hook.clone() }))
    }

    fn create_directory(&self, path: &str) -> IoResult<()> {
        self.inner.create_directory(path)
    }

    fn remove(&self, path: &str) -> IoResult<()> {
        (self.hook)(Call::Remove, path)?;
        self.inner.remove(path)
    }

    fn list(&self, path: &str) -> IoResult<Vec<String>> {
        self.inner.list(path)
    }

    fn sync_directory(&self, path: &str) -> IoResult<()> {
        (self.hook)(Call::SyncDirectory, path)?;
        self.inner.sync_directory(path)
    }

    fn space(&self) -> IoResult<Space> {
        self.space.map_or_else(|| self.inner.space(), Ok)
    }
}

struct HookedFile {
    inner: Arc<dyn StorageFile>,
    path: String,
    hook: Hook,
}

impl StorageFile for HookedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> IoResult<usize> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, parts: &[&[u8]], offset: u64) -> IoResult<()> {
        (self.hook)(Call::Write, &self.path)?;
        self.inner.write_at(parts, offset)
    }

    fn length(&self) -> IoResult<u64> {
        self.inner.length()
    }

    fn set_length(&self, length: u64) -> IoResult<()> {
        self.inner.set_length(length)
    }

    fn allocate(&self, offset: u64, length: u64) -> IoResult<()> {
        self.inner.allocate(offset, length)
    }

    fn punch(&self, offset: u64, length: u64) -> IoResult<()> {
        self.inner.punch(offset, length)
    }

    fn sync(&self) -> IoResult<()> {
        self.inner.sync()
    }
}
