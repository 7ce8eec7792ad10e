//! Runs the steps of a history on a brick, and keeps in the model what was promised.

use super::check::{Expect, Found, Holes, check};
use super::model::*;
use super::steps::Step;
use crate::storage::{PowerCutStorage, Storage};
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use std::sync::{Arc, OnceLock};

pub const SEGMENT_BYTES: u64 = 64 << 10;

pub fn identity() -> Identity {
    let settings = BrickSettings {
        journal_segments: 4,
        segment_bytes: SEGMENT_BYTES,
        index_cache_bytes: 256 << 10,
        reserve_bytes: 0,
    };
    Identity::new(BrickId(7), "c", settings)
}

/// A machine with a new brick.
pub fn new_machine() -> PowerCutStorage {
    static MADE: OnceLock<PowerCutStorage> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let storage = PowerCutStorage::new();
        Brick::create_on(&storage, &identity()).unwrap();
        storage
    });
    made.copy()
}

pub fn open(storage: Arc<dyn Storage>, after_power_cut: bool) -> Result<(Brick, RecoveryReport)> {
    Brick::open_on(storage, &identity(), Incarnation(1), after_power_cut)
}

/// A brick in use.
pub struct Runner {
    pub machine: PowerCutStorage,
    /// What wraps the machine's storage for the brick.
    pub wrap: Box<dyn Fn(PowerCutStorage) -> Arc<dyn Storage>>,
    pub brick: Option<Arc<Brick>>,
    pub model: Model,
    /// The log's end after the last append.
    pub end: Lsn,
    /// Whether a checkpoint has begun: then an append to a full journal would wait for ever.
    in_checkpoint: bool,
    tags: u64,
    /// Blocks that a power cut took before the first step.
    holes: Holes,
}

impl Runner {
    pub fn new(machine: PowerCutStorage, wrap: Box<dyn Fn(PowerCutStorage) -> Arc<dyn Storage>>) -> Self {
        let (model, end) = (Model::default(), Lsn::default());
        Self { machine, wrap, brick: None, model, end, in_checkpoint: false, tags: 0, holes: Holes::new() }
    }

    /// Records all calls from now on. What was promised before is promised at the first of them.
    pub fn record(&mut self) {
        self.machine.record();
        self.model.recording_begins();
    }

    fn calls(&self) -> usize {
        self.machine.recorded_calls()
    }

    fn brick(&self) -> Result<Arc<Brick>> {
        self.brick.clone().ok_or_else(|| Error::bug("no brick is open"))
    }

    /// Opens the brick without a power cut, and checks that nothing is missing.
    pub fn open(&mut self) -> Result<()> {
        let (brick, report) = open((self.wrap)(self.machine.clone()), false)?;
        self.end = report.end;
        let expect = Expect {
            states: &self.model.states,
            low: self.model.appended,
            high: self.model.records(),
            covered: [usize::MAX; PARTITIONS],
            marked: [usize::MAX; PARTITIONS],
            holes: &self.holes,
        };
        let found = check(&brick, &report, &expect);
        let found = found.map_err(|what| Error::bug(format!("after a kill: {what}")))?;
        self.model.cut_to(found.records);
        self.brick = Some(Arc::new(brick));
        let (calls, records) = (self.calls(), self.model.records());
        // An opening puts the log that it found on stable storage.
        self.model.promise(calls, |promise| promise.records = records);
        Ok(())
    }

    /// Runs a step. If the process dies in it, another process opens the brick.
    pub fn step(&mut self, step: &Step) -> Result<()> {
        match self.try_step(step) {
            Err(_) if self.machine.is_dead() => self.restart(false),
            other => other,
        }
    }

    /// Ends the process and begins another.
    pub fn restart(&mut self, clean: bool) -> Result<()> {
        self.in_checkpoint = false;
        if clean {
            self.brick = None;
        }
        self.machine = self.machine.next_process();
        self.brick = None;
        self.open()
    }

    /// Runs a step, or the part of it up to an error.
    pub fn try_step(&mut self, step: &Step) -> Result<()> {
        let brick = self.brick()?;
        match step {
            Step::Reopen { clean } => {
                drop(brick);
                return self.restart(*clean);
            }
            Step::Die { calls } => self.machine.die_after(*calls),
            Step::Sync => {
                brick.sync(self.end)?;
                let (calls, records) = (self.calls(), self.model.appended);
                self.model.promise(calls, |promise| promise.records = promise.records.max(records));
            }
            Step::SyncShards { shards } => self.sync_shards(&brick, *shards)?,
            Step::Checkpoint => {
                let records = self.model.appended;
                brick.checkpoint()?;
                self.checkpointed(records);
            }
            Step::CheckpointAround(steps) => self.checkpoint_around(&brick, steps)?,
            change => {
                let used = brick.status()?.journal.0;
                if used >= 3 * SEGMENT_BYTES {
                    if self.in_checkpoint {
                        return Ok(());
                    }
                    self.try_step(&Step::Checkpoint)?;
                }
                self.change(&brick, change)?;
            }
        }
        Ok(())
    }

    fn sync_shards(&mut self, brick: &Brick, mask: u8) -> Result<()> {
        let chosen = |partition: &usize| mask & (1 << partition) != 0;
        let shards: Vec<ShardId> = (0..PARTITIONS).filter(chosen).map(shard_of).collect();
        let records = self.model.appended;
        let upto = brick.sync_shards(&shards)?;
        brick.sync(upto)?;
        let calls = self.calls();
        self.model.promise(calls, |promise| {
            promise.records = promise.records.max(records);
            (0..PARTITIONS).filter(chosen).for_each(|partition| promise.covered[partition] = records);
        });
        Ok(())
    }

    fn checkpointed(&mut self, records: usize) {
        let calls = self.calls();
        self.model.promise(calls, |promise| {
            promise.records = promise.records.max(records);
            promise.covered.iter_mut().for_each(|covered| *covered = (*covered).max(records));
        });
    }

    fn checkpoint_around(&mut self, brick: &Brick, steps: &[Step]) -> Result<()> {
        if brick.status()?.journal.0 >= 2 * SEGMENT_BYTES {
            self.try_step(&Step::Checkpoint)?;
        }
        let records = self.model.appended;
        let begun = brick.begin_checkpoint();
        self.in_checkpoint = true;
        for step in steps {
            self.try_step(step)?;
        }
        self.in_checkpoint = false;
        begun.finish(&mut || false)?;
        self.checkpointed(records);
        Ok(())
    }

    fn change(&mut self, brick: &Brick, step: &Step) -> Result<()> {
        match *step {
            Step::Put { partition, name, bytes } => {
                self.tags += 1;
                let text = format!("{} ", self.tags);
                let value: Bytes = text.bytes().cycle().take(text.len().max(bytes)).collect();
                self.append(brick, partition, vec![Effect::Put(key(partition, &format!("n{name}")), value)])
            }
            Step::Delete { partition, name } => {
                self.append(brick, partition, vec![Effect::Delete(key(partition, &format!("n{name}")))])
            }
            Step::Write { shard, first, count, short } => self.write(brick, shard, first, count, short, false),
            Step::Fresh { shard, gap, count, short } => {
                self.write(brick, shard, self.fresh_from(shard, gap), count, short, true)
            }
            Step::FreshWithoutRecord { shard, gap, count } => {
                if brick.is_dropped(shard_of(shard)) {
                    return Ok(());
                }
                let first = self.fresh_from(shard, gap);
                self.tags += 1;
                let blocks = vec![Block { tag: self.tags, kept: B }; count as usize];
                let (_, bytes) = run_of(shard_of(shard), first, &blocks);
                brick.write_fresh(RING, shard_of(shard), first, &[&bytes])
            }
            Step::Cut { shard, bytes } => self.cut(brick, shard, bytes),
            Step::Punch { shard, first, count } => self.punch(brick, shard, first, count),
            Step::Reserve { shard, count } => self.reserve(brick, shard, count),
            Step::Drop { shard } => match &self.model.now().shards[shard] {
                Some(_) => self.append(brick, shard, vec![Effect::Drop]),
                None => Ok(()),
            },
            _ => Err(Error::bug("not a change")),
        }
    }

    fn fresh_from(&self, shard: usize, gap: u32) -> u32 {
        let home = self.model.now().shards[shard].as_ref().map_or(0, |shard| shard.record.home_blocks);
        // Far from 1,024, and few enough to read all of them after each cut.
        home + if home > 100 { 0 } else { gap }
    }

    fn write(&mut self, brick: &Brick, at: usize, first: u32, count: u32, short: u32, fresh: bool) -> Result<()> {
        let shard = shard_of(at);
        if brick.is_dropped(shard) {
            return Ok(());
        }
        let before = self.model.now().shards[at].as_ref().map(|shard| shard.record);
        let end = first + count;
        let length = before.map_or(0, |record| record.length).max(end * B - short.min(B - 1));
        let home_blocks = before.map_or(0, |record| record.home_blocks).max(end);
        let reserved_blocks = before.map_or(0, |record| record.reserved_blocks);
        let record = ShardRecord { stamp: self.next_stamp(before), length, home_blocks, reserved_blocks };
        let blocks: Vec<Block> = (first..end)
            .map(|number| {
                self.tags += 1;
                Block { tag: self.tags, kept: (length.saturating_sub(number * B)).min(B) }
            })
            .collect();
        if fresh {
            let (_, bytes) = run_of(shard, first, &blocks);
            brick.write_fresh(RING, shard, first, &[&bytes])?;
        }
        let size = Effect::Put(key(at, "size"), Bytes::from(length.to_string()));
        self.append(brick, at, vec![size, Effect::Blocks { record, first, blocks, fresh }])
    }

    fn cut(&mut self, brick: &Brick, at: usize, bytes: u32) -> Result<()> {
        let Some(shard) = &self.model.now().shards[at] else { return Ok(()) };
        let before = shard.record;
        let length = bytes % (before.length + 1);
        let stamp = self.next_stamp(Some(before));
        let (written, record) =
            (ShardRecord { stamp, length, ..before }, ShardRecord { stamp, length, ..before.without_room() });
        let mut effects = vec![Effect::Put(key(at, "size"), Bytes::from(length.to_string()))];
        if !length.is_multiple_of(B) {
            let last = shard.blocks.get(&(length / B)).map_or(Block { tag: 0, kept: 0 }, |written| written.block);
            let block = Block { kept: last.kept.min(length % B), ..last };
            effects.push(Effect::Blocks { record: written, first: length / B, blocks: vec![block], fresh: false });
        }
        effects.push(Effect::Cut(record));
        self.append(brick, at, effects)
    }

    fn punch(&mut self, brick: &Brick, at: usize, first: u32, count: u32) -> Result<()> {
        let Some(shard) = &self.model.now().shards[at] else { return Ok(()) };
        let before = shard.record;
        let count = count.min(before.home_blocks.saturating_sub(first));
        if count == 0 {
            return Ok(());
        }
        let record = ShardRecord { stamp: self.next_stamp(Some(before)), ..before.without_room() };
        self.append(brick, at, vec![Effect::Punch { record, first, count }])
    }

    fn reserve(&mut self, brick: &Brick, at: usize, count: u32) -> Result<()> {
        let shard = shard_of(at);
        if brick.is_dropped(shard) {
            return Ok(());
        }
        let before = self.model.now().shards[at].as_ref().map(|shard| shard.record);
        let stamp = self.next_stamp(before);
        let before = before.unwrap_or(ShardRecord::empty(stamp));
        let first = before.home_blocks.max(before.reserved_blocks);
        let record = ShardRecord { stamp, reserved_blocks: first + count, ..before };
        brick.reserve_fresh(RING, shard, first, count)?;
        self.append(brick, at, vec![Effect::Reserve { record, first, count }])
    }

    fn next_stamp(&self, before: Option<ShardRecord>) -> Stamp {
        let count = before.map_or(1, |record| record.stamp.count + 1);
        Stamp { count, session: SessionId(1), op: OpId(count) }
    }

    fn append(&mut self, brick: &Brick, partition: usize, effects: Vec<Effect>) -> Result<()> {
        let calls = self.calls();
        self.model.begin(calls, partition, &effects);
        let sequence = self.model.now().sequences[partition];
        let record = Record {
            ring: RING,
            partition: PartitionNumber(partition as u32),
            epoch: Epoch(1),
            sequence: Sequence(sequence),
            session: SessionId(1),
            op_id: OpId(sequence),
            changes: effects.iter().map(|effect| effect.change(partition)).collect(),
        };
        self.end = brick.append(&LogEntry::new(record))?;
        self.model.appended = self.model.records();
        Ok(())
    }

    /// Whether the brick, which has stopped, takes a record with the right number.
    pub fn takes_a_record(&self, brick: &Brick) -> bool {
        let partition = PartitionNumber(0);
        let sequence = Sequence(brick.position(RING, partition).sequence.0 + 1);
        let (epoch, session, op_id) = (Epoch(1), SessionId(1), OpId(1));
        let record = Record { ring: RING, partition, epoch, sequence, session, op_id, changes: Vec::new() };
        brick.append(&LogEntry::new(record)).is_ok()
    }

    /// After a power cut: the recovered brick takes more records, and keeps them.
    pub fn use_further(machine: PowerCutStorage, brick: Brick, expect: &Expect<'_>, found: &Found) -> Self {
        let mut runner = Self::new(machine, Box::new(|machine| Arc::new(machine)));
        runner.model = Model::going_on(expect.states[..=found.records].to_vec(), expect.marked);
        runner.brick = Some(Arc::new(brick));
        runner.tags = 1 << 32;
        runner.holes = found.holes.clone();
        runner
    }
}
