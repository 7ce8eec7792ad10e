//! Overwrites of 4 KiB in a few shards, as a server's leaders make records of them.
//!
//! Each shard has a lock, as each partition has one in a server: it is held while the record is made and appended, and
//! released before the sync.

use hekate_brick::{Brick, LogEntry, Lsn, block_checksum};
use hekate_proto::*;
use parking_lot::{Mutex, MutexGuard};

const RING: RingId = RingId(1);
const VOLUME: VolumeId = VolumeId(1);
const SESSION: SessionId = SessionId(9);
const PARTITIONS: u32 = 16;
const BLOCKS: u32 = (SHARD_BYTES / BLOCK_BYTES as u64) as u32;

/// Shards, one in each of some partitions.
pub struct Overwrites {
    shards: Vec<Shard>,
}

struct Shard {
    id: ShardId,
    partition: PartitionNumber,
    last: Mutex<Last>,
}

#[derive(Clone, Copy)]
struct Last {
    sequence: u64,
    stamp: Stamp,
}

impl Overwrites {
    /// Makes `count` shards, at most one a partition, full and home.
    pub fn new(brick: &Brick, count: usize) -> Result<Self> {
        let mut shards: Vec<Shard> = Vec::new();
        let mut data = 0;
        while shards.len() < count.min(PARTITIONS as usize) {
            data += 1;
            let id = ShardId { volume: VOLUME, data: DataId(data), index: 0 };
            let partition = id.position().partition(PARTITIONS);
            if shards.iter().any(|shard| shard.partition == partition) {
                continue;
            }
            let stamp = Stamp { count: 0, session: SESSION, op: OpId(0) };
            let shard = Shard { id, partition, last: Mutex::new(Last { sequence: 0, stamp }) };
            let bytes = vec![7u8; SHARD_BYTES as usize];
            brick.write_fresh(RING, id, 0, &[&bytes])?;
            let blocks = (0..).zip(bytes.chunks(BLOCK_BYTES));
            let checksums = blocks.map(|(block, bytes)| block_checksum(id, block, bytes)).collect();
            let run = BlockRun { first: 0, checksums };
            let mut locked = Locked { shard: &shard, last: shard.last.lock() };
            let record = locked.next();
            let entry = locked.entry(vec![Change::FreshBlocks { shard: id, record, run }]);
            brick.append(&entry)?;
            drop(locked);
            shards.push(shard);
        }
        brick.checkpoint()?;
        Ok(Self { shards })
    }

    /// How many there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Takes a shard, as a server takes its partition.
    pub fn lock(&self, shard: usize) -> Locked<'_> {
        let shard = &self.shards[shard];
        Locked { shard, last: shard.last.lock() }
    }

    /// Writes a block of a shard. -> up to where the brick is to be synced.
    pub fn write(&self, brick: &Brick, shard: usize, block: u32, bytes: Vec<u8>) -> Result<Lsn> {
        let mut locked = self.lock(shard);
        let entry = locked.make(block, bytes);
        brick.append(&entry)
    }
}

/// A shard that no other thread writes meanwhile.
pub struct Locked<'a> {
    shard: &'a Shard,
    last: MutexGuard<'a, Last>,
}

impl Locked<'_> {
    /// The record of a write of one block, encoded.
    pub fn make(&mut self, block: u32, bytes: Vec<u8>) -> LogEntry {
        let id = self.shard.id;
        let record = self.next();
        let (first, sum) = (block % BLOCKS, block_checksum(id, block % BLOCKS, &bytes));
        let run = BlockRun { first, checksums: vec![sum] };
        let write = Change::WriteBlocks { shard: id, record, run, bytes: bytes.into() };
        let slot = (self.last.sequence % SESSION_SLOTS as u64) as u16;
        let key = Key::session(RING, self.shard.partition.first_position(PARTITIONS), SESSION, slot);
        let reply = Reply::Written { stamp: record.stamp, fast: None }.to_bytes();
        let kept = Change::Put { key, value: SessionRecord { op_id: record.stamp.op, reply }.to_bytes() };
        self.entry(vec![write, kept])
    }

    fn next(&mut self) -> ShardRecord {
        self.last.sequence += 1;
        self.last.stamp.count += 1;
        self.last.stamp.op = OpId(self.last.stamp.count);
        ShardRecord { stamp: self.last.stamp, length: SHARD_BYTES as u32, home_blocks: BLOCKS, reserved_blocks: 0 }
    }

    fn entry(&self, changes: Vec<Change>) -> LogEntry {
        LogEntry::new(Record {
            ring: RING,
            partition: self.shard.partition,
            epoch: Epoch(1),
            sequence: Sequence(self.last.sequence),
            session: SESSION,
            op_id: self.last.stamp.op,
            changes,
        })
    }
}
