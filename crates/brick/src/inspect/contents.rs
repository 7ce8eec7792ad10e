//! What a stopped brick holds: the index as the last checkpoint left it, and the journal's records applied over it.
//!
//! This does without the machine and recovery: after-images are put over the index in log order. So it continues where
//! an opening refuses, and for a sound brick it has to agree with what an opening finds.

use super::log::{self, LogBody, LogEnd, LogRecord, Segment};
use super::{Problem, StoppedBrick, guarded};
use crate::brick::Brick;
use crate::checksum::block_checksum;
use crate::index::meta::Meta;
use crate::index::{INDEX_BLOCK_BYTES, Index, Reading, RedbIndex};
use crate::journal::Lsn;
use crate::machine::{LogPosition, follows};
use crate::storage::{CopyOnWriteStorage, Storage};
use bytes::Bytes;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// Number of blocks of a whole shard.
pub(super) const BLOCKS: u32 = (SHARD_BYTES / BLOCK_BYTES as u64) as u32;

/// The content of a stopped brick.
pub struct Contents {
    below: Arc<dyn Storage>,
    pub(super) storage: Arc<CopyOnWriteStorage>,
    pub(super) reborn: bool,
    cache_bytes: usize,
    index: Option<RedbIndex>,
    meta: Option<Meta>,
    applied: Lsn,
    log_end: LogEnd,
    segments: Vec<Segment>,
    pub(super) journal: JournalChanges,
}

/// What the journal holds beyond the index.
#[derive(Default)]
pub(super) struct JournalChanges {
    /// Entries that were put; `None`: deleted.
    pub entries: BTreeMap<Key, Option<Bytes>>,
    pub shards: BTreeMap<(RingId, ShardId), ShardChanges>,
    /// Stamps up to which data files were synced.
    pub marks: HashMap<ShardId, Stamp>,
    positions: HashMap<(RingId, PartitionNumber), (Epoch, Sequence)>,
    generation: u32,
    stable: Lsn,
    pub records: u64,
    problems: Vec<Problem>,
}

/// The changes of a shard.
#[derive(Default)]
pub(super) struct ShardChanges {
    /// Its record; `None`: dropped.
    pub record: Option<ShardRecord>,
    /// Its length is that in the index, if the index has the shard: only its stamp changed.
    pub length_in_index: bool,
    /// It was dropped: its checksums in the index do not count.
    pub dropped: bool,
    pub sums: BTreeMap<u32, u32>,
    pub pending: BTreeMap<u32, Bytes>,
    /// Fresh blocks, each with the count of the stamp that wrote it.
    pub fresh: BTreeMap<u32, u64>,
}

impl ShardChanges {
    fn set(&mut self, record: ShardRecord) {
        (self.record, self.length_in_index) = (Some(record), false);
    }

    /// All but the length.
    fn restamp(&mut self, record: ShardRecord) {
        match self.record {
            Some(own) => self.record = Some(ShardRecord { length: own.length, ..record }),
            None => (self.record, self.length_in_index) = (Some(record), !self.dropped),
        }
    }
}

impl Contents {
    /// Reads the journal of a brick and opens its index. `on_record` gets each record. Damage is no error, but in
    /// [`Contents::problems`].
    ///
    /// # Errors
    /// `Io`, `Unavailable`: the brick's files cannot be opened at all.
    pub fn read(stopped: &StoppedBrick, on_record: &mut dyn FnMut(&LogRecord)) -> Result<Self> {
        let (storage, geometry) = (stopped.view(), stopped.geometry);
        let mut journal = JournalChanges::default();
        let cache_bytes = stopped.identity.settings.index_cache_bytes;
        let index = guarded("opening the index", || RedbIndex::open(storage.clone(), cache_bytes, Reading::Salvage));
        let index = index.map_err(|error| journal.problems.push(Problem::index(error.to_string()))).ok();
        let meta = index.as_ref().and_then(|index| {
            let meta = guarded("reading the meta record", || Meta::read(index, geometry));
            meta.map_err(|error| journal.problems.push(Problem::index(format!("the meta record: {error}")))).ok()
        });
        for log in meta.iter().flat_map(|meta| &meta.logs) {
            journal.positions.insert((log.ring, log.partition), (log.epoch, log.sequence));
        }
        // Without a meta record all records are applied, also those that the index holds: they are after-images.
        let applied = meta.as_ref().map_or_else(|| log::oldest_of_all(&*storage, geometry), |meta| Lsn(meta.applied));
        let mut take = |record: LogRecord| {
            on_record(&record);
            if !record.applied {
                journal.apply(record);
            }
        };
        let from = log::oldest(&*storage, geometry, applied);
        let mut log_end = log::walk(&*storage, geometry, (from, applied), meta.as_ref(), &mut take)?;
        if log_end.at < applied {
            let what = format!("records before the last checkpoint cannot be read: {}", log_end.why);
            let older = Problem::new(&log_end.file, Some(log_end.offset), what);
            log_end = log::walk(&*storage, geometry, (applied, applied), meta.as_ref(), &mut take)?;
            journal.problems.push(older);
        }
        journal.problems.extend(log_end.damage.clone());
        let segments = log::segments(&*storage, geometry, applied, log_end.at);
        let reborn = stopped.life.reborn;
        let below = stopped.storage.clone();
        Ok(Self { below, storage, reborn, cache_bytes, index, meta, applied, log_end, segments, journal })
    }

    /// The index holds the log up to here.
    pub fn applied(&self) -> Lsn {
        self.applied
    }

    /// The meta record of the index, if it can be read.
    pub fn meta(&self) -> Option<&Meta> {
        self.meta.as_ref()
    }

    /// Where the log ends.
    pub fn log_end(&self) -> &LogEnd {
        &self.log_end
    }

    /// The files of the journal, and what the log uses each for.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Number of records behind the last checkpoint.
    pub fn records(&self) -> u64 {
        self.journal.records
    }

    /// Whether the brick has a log of the partition.
    pub fn has_log(&self, ring: RingId, partition: PartitionNumber) -> bool {
        self.log_of(ring, partition).is_some()
    }

    /// Epoch and sequence of the last record of a partition's log on this brick.
    pub fn log_of(&self, ring: RingId, partition: PartitionNumber) -> Option<(Epoch, Sequence)> {
        self.journal.positions.get(&(ring, partition)).copied()
    }

    /// The partitions that have a log on this brick.
    pub fn logs(&self) -> impl Iterator<Item = (RingId, PartitionNumber)> {
        self.journal.positions.keys().copied()
    }

    /// The problems found while reading.
    pub fn problems(&self) -> &[Problem] {
        &self.journal.problems
    }

    /// The value of a key that is not a shard's.
    ///
    /// # Errors
    /// `Damaged`: the index cannot be read there.
    pub fn get(&self, key: &Key) -> Result<Option<Bytes>> {
        if let Some(found) = self.journal.entries.get(key) {
            return Ok(found.clone());
        }
        self.get_index(key)
    }

    /// The value in the index.
    pub(super) fn get_index(&self, key: &Key) -> Result<Option<Bytes>> {
        let Some(index) = &self.index else { return Ok(None) };
        guarded("reading an entry", || index.get(key.as_bytes()))
    }

    /// Visits the entries of `from..to` in key order until `visit` returns false; those of shards as the index has
    /// them. A damaged entry is visited as an error.
    ///
    /// # Errors
    /// `Damaged`, `Io`: a part of the index could not be visited.
    pub fn scan(&self, from: &Key, to: &Key, visit: &mut dyn FnMut(&Key, Result<Bytes>) -> bool) -> Result<()> {
        let mut newer = self.journal.entries.range::<Key, _>((Bound::Included(from), Bound::Excluded(to))).peekable();
        let mut go_on = true;
        let gone_through = self.scan_index(from, to, &mut |key, value| {
            while let Some((newer_key, newer_value)) = newer.next_if(|(newer_key, _)| *newer_key < key) {
                go_on = go_on && newer_value.clone().is_none_or(|value| visit(newer_key, Ok(value)));
            }
            match newer.next_if(|(newer_key, _)| *newer_key == key) {
                Some((_, None)) => {}
                Some((_, Some(value))) => go_on = go_on && visit(key, Ok(value.clone())),
                None => go_on = go_on && visit(key, value),
            }
            go_on
        });
        for (key, value) in newer {
            go_on = go_on && value.clone().is_none_or(|value| visit(key, Ok(value)));
        }
        gone_through
    }

    /// Visits the entries of the index, without the journal. Entries around a damaged page are skipped, and the scan
    /// continues behind them; the first error is returned at the end.
    ///
    /// # Errors
    /// `Damaged`, `Io`: a part of the index could not be visited.
    pub fn scan_index(&self, from: &Key, to: &Key, visit: &mut dyn FnMut(&Key, Result<Bytes>) -> bool) -> Result<()> {
        let Some(index) = &self.index else { return Ok(()) };
        let (mut from, mut step, mut first_error) = (from.clone(), SKIP_MIN, None);
        while from < *to {
            let mut last = from.clone();
            let mut seen = false;
            let gone_through = guarded("going through the index", || {
                index.scan_all(from.as_bytes(), to.as_bytes(), &mut |key, value| {
                    last = Key::from_bytes(Bytes::copy_from_slice(key));
                    seen = true;
                    visit(&last, value)
                })
            });
            let Err(error) = gone_through else { break };
            first_error.get_or_insert(error);
            step = if seen { SKIP_MIN } else { step * 2 };
            from = behind(&last, step);
        }
        first_error.map_or(Ok(()), Err)
    }

    /// The range of all keys: from, to (exclusive).
    pub fn all_keys() -> (Key, Key) {
        (Key::from_bytes(Bytes::new()), Key::from_bytes(Bytes::from_static(&[u8::MAX])))
    }

    /// Blocks of the index that this, or `brick`, which was [opened to read](StoppedBrick::open_to_read), has read
    /// though they do not match their sums: entries may be missing in all that was read.
    pub fn wrong_index_blocks(&self, brick: &Brick) -> Vec<Problem> {
        let own = self.index.as_ref().map_or_else(Vec::new, RedbIndex::wrong_blocks);
        let all: BTreeSet<u64> = own.into_iter().chain(brick.wrong_index_blocks()).collect();
        all.into_iter().map(wrong_block).collect()
    }

    /// Reads the whole file of the index. Returns the blocks that do not match their sums, and the pages that do not
    /// have the checksum that their parents have for them.
    pub fn check_index_pages(&self) -> Vec<Problem> {
        let view = CopyOnWriteStorage::new(self.below.clone());
        let pages = match guarded("checking the pages", || RedbIndex::check_pages(&view, self.cache_bytes)) {
            Ok(pages) => pages,
            Err(error) => return vec![Problem::index(error.to_string())],
        };
        let flipped = pages.flipped.iter().map(|block| {
            let what = format!("block {block} has a flipped bit; it is repaired when it is read");
            Problem::new(crate::index::FILE, Some(block * INDEX_BLOCK_BYTES as u64), what)
        });
        let wrong = pages.wrong.into_iter().map(wrong_block);
        let tree = match pages.tree {
            Ok(true) => None,
            Ok(false) => Some(Problem::index("a page does not have the checksum that its parent has for it")),
            Err(error) => Some(Problem::index(error.to_string())),
        };
        flipped.chain(wrong).chain(tree).collect()
    }
}

fn wrong_block(block: u64) -> Problem {
    let what = format!("block {block} does not match its sum; what it had may be missing");
    Problem::new(crate::index::FILE, Some(block * INDEX_BLOCK_BYTES as u64), what)
}

/// Positions that a scan skips behind a damaged page at first; doubled until it can continue.
const SKIP_MIN: u64 = 1 << 12;

/// The first key `step` positions behind this one.
fn behind(key: &Key, step: u64) -> Key {
    let mut head = [0; 7];
    let count = key.as_bytes().len().min(7);
    head[..count].copy_from_slice(&key.as_bytes()[..count]);
    let number = head.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte)) + step;
    Key::from_bytes(Bytes::copy_from_slice(&number.to_be_bytes()[1..]))
}

impl Drop for Contents {
    fn drop(&mut self) {
        // Closing the index reads pages and writes to memory: a damaged page must not end the process.
        let index = self.index.take();
        let _ = guarded("closing the index", || {
            drop(index);
            Ok(())
        });
    }
}

impl JournalChanges {
    fn apply(&mut self, found: LogRecord) {
        self.records += 1;
        if found.generation < self.generation || found.stable < self.stable || found.stable > found.lsn {
            self.problem(&found, "its generation or stable position cannot be that of a record here".into());
        }
        (self.generation, self.stable) = (found.generation, found.stable);
        match &found.body {
            LogBody::Malformed(why) => self.problem(&found, format!("a record with a right checksum: {why}")),
            LogBody::Mark(marks) => self.marks.extend(marks.iter().copied()),
            LogBody::Change(record) => {
                self.check_follows(&found, record);
                for change in &record.changes {
                    if let Err(what) = self.change(record.ring, change) {
                        self.problem(&found, what);
                    }
                }
            }
        }
    }

    fn problem(&mut self, found: &LogRecord, what: String) {
        self.problems.push(Problem::new(&found.file, Some(found.offset), what));
    }

    /// Checks that the record comes next in its partition's log.
    fn check_follows(&mut self, found: &LogRecord, record: &Record) {
        let here = (record.epoch, record.sequence);
        let at = (record.ring, record.partition);
        let before = if record.is_fast() { self.positions.get(&at).copied() } else { self.positions.insert(at, here) };
        if let Some((epoch, sequence)) = before
            && !follows(LogPosition { epoch, sequence }, record)
        {
            let (ring, partition) = (record.ring, record.partition);
            self.problem(
                found,
                format!(
                    "record {} of epoch {} after {sequence} of epoch {epoch} in partition {partition} of ring {ring}",
                    record.sequence, record.epoch
                ),
            );
        }
    }

    fn change(&mut self, ring: RingId, change: &Change) -> std::result::Result<(), String> {
        match change {
            Change::Put { key, value } => {
                self.entries.insert(key.clone(), Some(value.clone()));
            }
            Change::Delete { key } => {
                self.entries.insert(key.clone(), None);
            }
            Change::WriteBlocks { shard, record, run, bytes } => {
                let blocks: Vec<Bytes> = (0..bytes.len() / BLOCK_BYTES)
                    .map(|block| bytes.slice(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES))
                    .collect();
                if blocks.len() != run.checksums.len() || bytes.len() % BLOCK_BYTES != 0 {
                    return Err(format!("{} bytes for {} blocks", bytes.len(), run.checksums.len()));
                }
                let changes = self.shard(ring, *shard, *record, run)?;
                let mut wrong = Vec::new();
                for ((block, sum), bytes) in (run.first..).zip(&run.checksums).zip(blocks) {
                    if block_checksum(*shard, block, &bytes) != *sum {
                        wrong.push(block);
                    }
                    changes.fresh.remove(&block);
                    changes.pending.insert(block, bytes);
                }
                if !wrong.is_empty() {
                    return Err(format!("blocks {wrong:?} of {shard:?} in the record do not match their checksums"));
                }
            }
            Change::FreshBlocks { shard, record, run } => {
                let changes = self.shard(ring, *shard, *record, run)?;
                for block in run.first..run.first + run.checksums.len() as u32 {
                    changes.pending.remove(&block);
                    changes.fresh.insert(block, record.stamp.count);
                }
            }
            Change::CutShard { shard, record } => {
                let changes = self.shards.entry((ring, *shard)).or_default();
                changes.set(*record);
                let kept = record.length.div_ceil(BLOCK_BYTES as u32);
                changes.sums.extend((kept..record.home_blocks.min(BLOCKS)).map(|block| (block, 0)));
                changes.pending.split_off(&kept);
                changes.fresh.split_off(&kept);
            }
            Change::PunchBlocks { shard, record, first, count } => {
                let changes = self.shards.entry((ring, *shard)).or_default();
                changes.set(*record);
                for block in *first..first.saturating_add(*count).min(BLOCKS) {
                    changes.sums.insert(block, 0);
                    changes.pending.remove(&block);
                    changes.fresh.remove(&block);
                }
            }
            Change::ReserveBlocks { shard, record, .. } => {
                self.shards.entry((ring, *shard)).or_default().set(*record);
            }
            Change::Restamp { shard, record } => self.shards.entry((ring, *shard)).or_default().restamp(*record),
            Change::BeginLog => {}
            Change::DropShard { shard } => {
                self.shards.insert((ring, *shard), ShardChanges { dropped: true, ..ShardChanges::default() });
            }
        }
        Ok(())
    }

    fn shard(
        &mut self,
        ring: RingId,
        shard: ShardId,
        record: ShardRecord,
        run: &BlockRun,
    ) -> std::result::Result<&mut ShardChanges, String> {
        let fits = u64::from(run.first) + run.checksums.len() as u64 <= u64::from(BLOCKS);
        if !fits || run.checksums.contains(&0) {
            return Err(format!("{} blocks from {} of {shard:?}", run.checksums.len(), run.first));
        }
        let changes = self.shards.entry((ring, shard)).or_default();
        changes.set(record);
        changes.sums.extend((run.first..).zip(run.checksums.iter().copied()));
        Ok(changes)
    }
}
