//! What a brick has to hold: the state after each record of a history, and what was promised after each call.

use crate::block_checksum;
use bytes::Bytes;
use hekate_proto::*;
use std::collections::BTreeMap;
use std::sync::OnceLock;

pub const RING: RingId = RingId(1);
/// Partitions of the ring; histories use the first three.
pub const PARTITION_COUNT: u32 = 4;
pub const PARTITIONS: usize = 3;
pub const B: u32 = BLOCK_BYTES as u32;

/// The one shard of a partition.
pub fn shard_of(partition: usize) -> ShardId {
    static SHARDS: OnceLock<[ShardId; PARTITIONS]> = OnceLock::new();
    SHARDS.get_or_init(|| {
        std::array::from_fn(|partition| {
            let mut shard = ShardId { volume: VolumeId(1), data: DataId(3), index: 0 };
            while shard.position().partition(PARTITION_COUNT).0 as usize != partition {
                shard.index += 1;
            }
            shard
        })
    })[partition]
}

pub fn partition_of(shard: ShardId) -> usize {
    shard.position().partition(PARTITION_COUNT).0 as usize
}

/// The key of a name in a partition.
pub fn key(partition: usize, name: &str) -> Key {
    let position = PartitionNumber(partition as u32).first_position(PARTITION_COUNT);
    Key::name(KeyPrefix { ring: RING, position, volume: VolumeId(1) }, ROOT, name.as_bytes())
}

/// The bytes of a block: a pattern of its tag, with zeros behind the first `kept`. Tag 0: all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub tag: u64,
    pub kept: u32,
}

impl Block {
    pub fn bytes(self) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        if self.tag == 0 {
            return bytes;
        }
        let words = self.kept.div_ceil(8) as usize;
        for (at, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate().take(words) {
            // Each sector differs, so that a sector at another's place is noticed.
            *word = (self.tag * 0x1_0000 + at as u64 / 64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        }
        bytes[self.kept as usize..].fill(0);
        bytes
    }
}

/// The bytes and checksums of neighbouring blocks.
pub fn run_of(shard: ShardId, first: u32, blocks: &[Block]) -> (BlockRun, Bytes) {
    let mut bytes = Vec::with_capacity(blocks.len() * BLOCK_BYTES);
    let mut checksums = Vec::with_capacity(blocks.len());
    for (number, block) in (first..).zip(blocks) {
        let block = block.bytes();
        checksums.push(block_checksum(shard, number, &block));
        bytes.extend_from_slice(&block);
    }
    (BlockRun { first, checksums }, bytes.into())
}

/// A change of a record, as the model applies it.
#[derive(Debug, Clone)]
pub enum Effect {
    Put(Key, Bytes),
    Delete(Key),
    Blocks { record: ShardRecord, first: u32, blocks: Vec<Block>, fresh: bool },
    Cut(ShardRecord),
    Punch { record: ShardRecord, first: u32, count: u32 },
    Reserve { record: ShardRecord, first: u32, count: u32 },
    Drop,
}

impl Effect {
    /// The change as the brick takes it, of the shard of the record's partition.
    pub fn change(&self, partition: usize) -> Change {
        let shard = shard_of(partition);
        match self {
            Self::Put(key, value) => Change::Put { key: key.clone(), value: value.clone() },
            Self::Delete(key) => Change::Delete { key: key.clone() },
            Self::Blocks { record, first, blocks, fresh } => {
                let (run, bytes) = run_of(shard, *first, blocks);
                match fresh {
                    true => Change::FreshBlocks { shard, record: *record, run },
                    false => Change::WriteBlocks { shard, record: *record, run, bytes },
                }
            }
            Self::Cut(record) => Change::CutShard { shard, record: *record },
            Self::Punch { record, first, count } => {
                Change::PunchBlocks { shard, record: *record, first: *first, count: *count }
            }
            Self::Reserve { record, first, count } => {
                Change::ReserveBlocks { shard, record: *record, first: *first, count: *count }
            }
            Self::Drop => Change::DropShard { shard },
        }
    }
}

/// The state of the brick after some records.
#[derive(Clone, Default)]
pub struct State {
    pub sequences: [u64; PARTITIONS],
    pub entries: BTreeMap<Key, Bytes>,
    pub shards: [Option<Shard>; PARTITIONS],
}

#[derive(Clone)]
pub struct Shard {
    pub record: ShardRecord,
    /// Blocks that are no holes.
    pub blocks: BTreeMap<u32, Written>,
    /// For each block that was ever written fresh: the last record that did so, even if the block was cut off or
    /// overwritten later.
    pub fresh: BTreeMap<u32, usize>,
}

#[derive(Debug, Clone, Copy)]
pub struct Written {
    pub block: Block,
    /// The number of the record in the log, from 0.
    pub by: usize,
    pub fresh: bool,
}

impl State {
    fn take(&mut self, by: usize, partition: usize, effects: &[Effect]) {
        self.sequences[partition] += 1;
        for effect in effects {
            match effect {
                Effect::Put(key, value) => _ = self.entries.insert(key.clone(), value.clone()),
                Effect::Delete(key) => _ = self.entries.remove(key),
                Effect::Drop => self.shards[partition] = None,
                Effect::Blocks { record, first, blocks, fresh } => {
                    let shard = self.shard(partition, *record);
                    for (number, block) in (*first..).zip(blocks) {
                        shard.blocks.insert(number, Written { block: *block, by, fresh: *fresh });
                        if *fresh {
                            shard.fresh.insert(number, by);
                        }
                    }
                }
                Effect::Punch { record, first, count } => {
                    let shard = self.shard(partition, *record);
                    shard.blocks.retain(|block, _| !(*first..first + count).contains(block));
                }
                Effect::Reserve { record, .. } => _ = self.shard(partition, *record),
                Effect::Cut(record) => {
                    let shard = self.shard(partition, *record);
                    shard.blocks.split_off(&record.length.div_ceil(B));
                }
            }
        }
    }

    fn shard(&mut self, partition: usize, record: ShardRecord) -> &mut Shard {
        let new = || Shard { record, blocks: BTreeMap::new(), fresh: BTreeMap::new() };
        let shard = self.shards[partition].get_or_insert_with(new);
        shard.record = record;
        shard
    }
}

/// What was acknowledged as durable when this many calls of the storage had returned.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    pub calls: usize,
    /// Number of records of the log.
    pub records: usize,
    /// For each shard: the fresh blocks of all records before this one.
    pub covered: [usize; PARTITIONS],
}

/// The states and promises of a history.
pub struct Model {
    /// The states after 0, 1, … records.
    pub states: Vec<State>,
    /// Calls of the storage that had returned when the append of each record began.
    begun: Vec<usize>,
    promises: Vec<Promise>,
    /// Number of records before the first call that is counted.
    already: usize,
    /// Number of records whose append returned.
    pub appended: usize,
}

impl Default for Model {
    fn default() -> Self {
        let nothing = Promise { calls: 0, records: 0, covered: [0; PARTITIONS] };
        Self { states: vec![State::default()], begun: Vec::new(), promises: vec![nothing], already: 0, appended: 0 }
    }
}

impl Model {
    /// The model of a brick that has these states, with all records on stable storage.
    pub fn going_on(states: Vec<State>, covered: [usize; PARTITIONS]) -> Self {
        let records = states.len() - 1;
        let all = Promise { calls: 0, records, covered };
        Self { states, begun: vec![0; records], promises: vec![all], already: records, appended: records }
    }

    /// Counts calls from here on.
    pub fn recording_begins(&mut self) {
        self.already = self.begun.len();
        self.begun.fill(0);
        let promise = Promise { calls: 0, ..self.promised(usize::MAX) };
        self.promises = vec![promise];
    }

    /// The state after all records whose append has begun.
    pub fn now(&self) -> &State {
        &self.states[self.begun.len()]
    }

    pub fn records(&self) -> usize {
        self.begun.len()
    }

    /// Adds a record that is about to be appended.
    pub fn begin(&mut self, calls: usize, partition: usize, effects: &[Effect]) {
        let mut state = self.now().clone();
        state.take(self.begun.len(), partition, effects);
        self.states.push(state);
        self.begun.push(calls);
    }

    /// Removes records behind the first `records`: they were not taken.
    pub fn cut_to(&mut self, records: usize) {
        self.states.truncate(records + 1);
        self.begun.truncate(records);
        self.appended = records;
    }

    /// The last promise, to be changed.
    pub fn promise(&mut self, calls: usize, change: impl FnOnce(&mut Promise)) {
        let mut promise = self.promised(usize::MAX);
        promise.calls = calls;
        change(&mut promise);
        self.promises.push(promise);
    }

    /// What was promised when this many calls had returned.
    pub fn promised(&self, calls: usize) -> Promise {
        let after = self.promises.partition_point(|promise| promise.calls <= calls);
        self.promises[after - 1]
    }

    /// Records that the brick can have at most after so many calls.
    pub fn possible(&self, calls: usize) -> usize {
        self.begun.partition_point(|begun| *begun < calls).max(self.already)
    }
}
