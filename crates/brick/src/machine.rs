//! The brick as a pure state machine: changes and results come in, the IO to do goes out.
//!
//! No file, thread, clock or lock is in here. [`Brick`](crate::Brick) drives it on threads; tests drive it in any order.
//! Ground state is what the journal and the index hold; this is derived from them (`opening/recovery.rs`) and from then on decides
//! what they will hold: where a record goes (`log.rs`), what it changes (`state.rs`), what it may not (`check.rs`), what a
//! checkpoint writes home and in which order (`checkpoint.rs`), and what room all that will take (`room.rs`).
//!
//! Rules for a driver: it starts the IO that a method returns, in that order or any other, and tells each outcome to
//! [`Machine::done`] once. A record may be acknowledged when the log is [written](Machine::written) up to its end, and
//! as durable when it is [stable](Machine::stable) up to there. After an IO that failed nothing is done any more.

mod check;
mod checkpoint;
#[cfg(test)]
#[path = "tests/invariants.rs"]
mod invariants;
mod io;
mod log;
mod overlay;
mod room;
mod state;
#[cfg(test)]
#[path = "tests/machine.rs"]
mod tests;

pub use check::follows;
pub use checkpoint::Next;
pub use io::{Io, IoId};
pub use log::Log;
pub use overlay::{Before, Overlay, PartialGroup, ShardOverlay, decode_group, has_file};
pub use room::{Amount, Room};
pub use state::{LogPosition, State};

use crate::entry::LogEntry;
use crate::index::meta::Meta;
use crate::journal::format::{EntryKind, Mark};
use crate::journal::{Geometry, Lsn};
use bytes::Bytes;
use checkpoint::Running;
use hekate_proto::*;
use io::Job;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Stops the brick (its driver catches the panic and poisons it) when a promise of `docs/format` does not hold.
macro_rules! invariant {
    ($name:literal, $holds:expr, $($shown:tt)+) => {
        assert!($holds, "{} does not hold: {}", $name, format_args!($($shown)+))
    };
}
pub(crate) use invariant;

/// Whether an IO can be done once somebody has made room, or given file descriptors back.
pub fn is_shortage(error: &Error) -> bool {
    matches!(error, Error::NoSpace { .. } | Error::Unavailable { .. })
}

/// What the index says of shards.
type Learned = HashMap<ShardId, Before>;

/// Memory of changes at which a checkpoint begins, whatever the journal holds.
const OVERLAY_BYTES_MAX: usize = 64 << 20;

/// Shards that one mark names: 52 KiB, which the smallest segment takes.
const MARKED_MAX: usize = 1000;
/// Bytes of such a mark, at most: a shard and its stamp each.
const MARK_BYTES_MAX: usize = MARKED_MAX * 56;

/// See the module.
pub struct Machine {
    log: Log,
    state: State,
    room: Room,
    running: Option<Running>,
    /// Blocks that are at home and that no record has told of yet: first one and the one behind the last.
    fresh: HashMap<ShardId, (u32, u32)>,
    /// Data files that are on stable storage up to these stamps, and no mark says so yet.
    unmarked: Vec<(ShardId, Stamp)>,
    /// What the index says of shards that the next record writes.
    learned: Learned,
    in_flight: BTreeMap<IoId, Job>,
    io_count: u64,
    /// The index holds everything before this.
    applied: Lsn,
    /// Recovery took a power cut's losses into account, and no checkpoint has covered that yet.
    uncovered: bool,
    /// Somebody waits for a checkpoint.
    waited_for: bool,
    /// Nothing behind this is given back: another brick may not have it on stable storage yet.
    retained: Lsn,
    /// What the last checkpoint wrote home; let go of outside of the lock.
    retired: Option<Arc<Overlay>>,
    failed: Option<Error>,
}

/// What becomes of a record.
#[derive(Debug)]
pub enum Append {
    /// It ends at `end`, once the IO is done.
    At { end: Lsn, io: Vec<(IoId, Io)> },
    /// What the index says of these shards must be told first ([`Machine::learn`]).
    Learn(Vec<(RingId, ShardId)>),
    /// The journal is full, or the room that is kept for checkpoints would not do, or an old file of a shard is being
    /// removed: wait.
    Full,
}

impl Machine {
    /// As the last checkpoint left it, before the log from there on is taken again; the next opening.
    pub fn new(geometry: Geometry, meta: &Meta) -> Self {
        Self {
            log: Log::new(geometry, Lsn(meta.applied), meta.generation + 1),
            state: State::new(meta),
            room: Room::default(),
            running: None,
            fresh: HashMap::new(),
            unmarked: Vec::new(),
            learned: HashMap::new(),
            in_flight: BTreeMap::new(),
            io_count: 0,
            applied: Lsn(meta.applied),
            uncovered: false,
            waited_for: false,
            retained: Lsn(u64::MAX),
            retired: None,
            failed: None,
        }
    }

    /// Whether a record says what a record may say, whatever the brick holds.
    pub fn check_form(record: &Record) -> Result<()> {
        check::form(record)
    }

    /// Takes a record that the journal has, up to `end`; its form was checked.
    pub fn replay(&mut self, record: &Record, end: Lsn) {
        let learned = std::mem::take(&mut self.learned);
        self.state.learn(record.ring, learned);
        self.state.apply(record, end);
    }

    /// The log goes on at `end`, all before it on stable storage; segments from `oldest` on are kept. `uncovered`: the
    /// log was taken without what a power cut took.
    pub fn resume(&mut self, end: Lsn, oldest: u64, uncovered: bool) {
        self.log.resume(end, oldest);
        self.uncovered = uncovered;
    }

    /// Takes a record, unless it is refused; nothing has changed then.
    pub fn append(&mut self, entry: &LogEntry) -> Result<Append> {
        self.append_checked(entry, true)
    }

    /// Takes a record of another replica, whose fresh blocks may be missing here as they may be there.
    pub fn append_copied(&mut self, entry: &LogEntry) -> Result<Append> {
        self.append_checked(entry, false)
    }

    fn append_checked(&mut self, entry: &LogEntry, blocks_are_home: bool) -> Result<Append> {
        self.check_alive()?;
        self.log.check_size(entry.body.len())?;
        let unknown = self.shards_to_learn(&entry.record);
        let learned = std::mem::take(&mut self.learned);
        if !unknown.is_empty() {
            return Ok(Append::Learn(unknown));
        }
        check::record(&self.state, &learned, &entry.record)?;
        if blocks_are_home {
            check::fresh_blocks_are_home(&self.fresh, &entry.record)?;
        }
        if !self.has_room_for(entry) {
            return Ok(Append::Full);
        }
        let (end, io) = self.journal(EntryKind::Change, &entry.body, entry.checksum);
        self.state.learn(entry.record.ring, learned);
        self.state.apply(&entry.record, end);
        self.forget_told(&entry.record);
        Ok(Append::At { end, io })
    }

    /// Shards that a record writes and of which only the index may know.
    pub fn shards_to_learn(&self, record: &Record) -> Vec<(RingId, ShardId)> {
        check::shards_to_learn(&self.state, &self.learned, record)
    }

    /// Whether any of the changes writes a shard that a checkpoint has yet to remove.
    pub fn awaits_removal(&self, changes: &[Change]) -> bool {
        let written = changes.iter().filter(|change| !matches!(change, Change::DropShard { .. }));
        written.filter_map(Change::shard).any(|shard| self.state.is_dropped(shard))
    }

    /// What the index says of a shard, for the record that comes next.
    pub fn learn(&mut self, shard: ShardId, before: Before) {
        self.learned.insert(shard, before);
    }

    fn forget_told(&mut self, record: &Record) {
        for change in &record.changes {
            match change {
                Change::FreshBlocks { shard, .. } | Change::ReserveBlocks { shard, .. } => self.forget_fresh(*shard),
                Change::DropShard { shard } => {
                    self.forget_fresh(*shard);
                    self.forget_syncs(*shard);
                }
                _ => {}
            }
        }
    }

    /// No record will tell of fresh blocks that were written to the shard.
    pub fn forget_fresh(&mut self, shard: ShardId) {
        self.fresh.remove(&shard);
    }

    /// What was synced of a shard that is gone is in no mark: the next shard of that name begins to count anew.
    fn forget_syncs(&mut self, gone: ShardId) {
        self.unmarked.retain(|(shard, _)| *shard != gone);
        for job in self.in_flight.values_mut() {
            if matches!(job, Job::Shard { shard, .. } if *shard == gone) {
                *job = Job::Forgotten;
            }
        }
    }

    fn journal(&mut self, kind: EntryKind, body: &Bytes, checksum: u32) -> (Lsn, Vec<(IoId, Io)>) {
        let (end, writes) = self.log.append(kind, body, checksum);
        let io = writes.into_iter().map(|(io, upto)| self.start(io, Job::Journal(upto))).collect();
        (end, io)
    }

    /// Fresh blocks are about to be written home: the returned IO, whose bytes the caller has. `durable`: what the index
    /// says of the shard.
    pub fn write_fresh(&mut self, shard: ShardId, durable: Before, first: u32, count: u32) -> Result<(IoId, Io)> {
        self.take_fresh(shard, durable, first, count)?;
        Ok(self.start(Io::WriteFresh { shard, first }, Job::Fresh { shard, first, end: first + count }))
    }

    /// The same, for room that is about to be made for fresh blocks.
    pub fn reserve_fresh(&mut self, shard: ShardId, durable: Before, first: u32, count: u32) -> Result<(IoId, Io)> {
        self.take_fresh(shard, durable, first, count)?;
        Ok(self.start(Io::ReserveHome { shard, first, count }, Job::Reserve { shard, first }))
    }

    /// What fresh blocks take, but for those that have their room.
    fn take_fresh(&mut self, shard: ShardId, durable: Before, first: u32, count: u32) -> Result<()> {
        self.check_alive()?;
        check::may_write(&self.state, shard)?;
        if self.is_stray(shard) {
            return Err(Error::Unavailable { what: "an old file of the shard is being removed".into() });
        }
        let known = self.state.shard_layers(shard).next().map(|overlay| Before::Is(overlay.record));
        let mut reserved = 0;
        if let Before::Is(Some(before)) = known.unwrap_or(durable) {
            check::is_fresh(shard, before.home_blocks, first)?;
            reserved = before.reserved_blocks;
        }
        let taken = first.saturating_add(count).saturating_sub(reserved.max(first));
        self.room.take(u64::from(taken) * BLOCK_BYTES as u64)
    }

    /// A data file that no record knows is about to be removed; nobody writes the shard meanwhile. `None`: somebody is
    /// writing it, or has.
    pub fn remove_stray(&mut self, shard: ShardId) -> Result<Option<(IoId, Io)>> {
        self.check_alive()?;
        let writing =
            |job: &Job| matches!(job, Job::Fresh { shard: one, .. } | Job::Reserve { shard: one, .. } if *one == shard);
        let wanted = self.fresh.contains_key(&shard) || self.state.shard_layers(shard).next().is_some();
        if wanted || self.in_flight.values().any(writing) {
            return Ok(None);
        }
        Ok(Some(self.start(Io::RemoveHome { shard }, Job::Stray(shard))))
    }

    fn is_stray(&self, shard: ShardId) -> bool {
        self.in_flight.values().any(|job| matches!(job, Job::Stray(stray) if *stray == shard))
    }

    /// Data files to sync, as far as they have bytes that no sync has covered. Once that is done, [`Machine::mark`].
    pub fn sync_shards(&mut self, shards: &[ShardId]) -> Result<Vec<(IoId, Io)>> {
        self.check_alive()?;
        let mut io = Vec::new();
        for shard in shards {
            if self.uncovered && self.state.unsynced(*shard).is_some() {
                // A mark would cover what the power cut took as well, and the next recovery take that for damage.
                return Err(Error::bug("a data file is to be synced before a checkpoint has covered recovery"));
            }
            if let Some((stamp, overlay, writes)) = self.state.unsynced(*shard) {
                io.push(
                    self.start(Io::SyncHome { shard: *shard }, Job::Shard { shard: *shard, stamp, overlay, writes }),
                );
            }
        }
        Ok(io)
    }

    /// Journals which data files were synced, as many as a record takes. `None`: there is nothing more to tell.
    pub fn mark(&mut self) -> Result<Option<Append>> {
        self.check_alive()?;
        if self.unmarked.is_empty() {
            return Ok(None);
        }
        let count = self.unmarked.len().min(MARKED_MAX);
        let body = Mark { shards: self.unmarked[..count].to_vec() }.to_bytes();
        if !self.log.has_room(body.len()) {
            self.waited_for = true;
            return Ok(Some(Append::Full));
        }
        for (shard, stamp) in self.unmarked.drain(..count) {
            let newest = self.state.newest(shard);
            invariant!(
                "data invariant 8",
                newest.is_none_or(|record| record.stamp.count >= stamp.count),
                "a mark of {shard:?} at {stamp:?}, which was never written"
            );
        }
        let (end, io) = self.journal(EntryKind::Mark, &body, crc32c::crc32c(&body));
        Ok(Some(Append::At { end, io }))
    }

    /// Whether a checkpoint has covered what recovery found after a power cut.
    pub fn has_covered_recovery(&self) -> bool {
        !self.uncovered
    }

    /// Whether there is room for the mark of any sync; if not, a checkpoint is wanted.
    pub fn takes_mark(&mut self) -> bool {
        let body_bytes = MARK_BYTES_MAX.min(self.log.geometry.body_bytes_max());
        let has_room = self.log.has_room(body_bytes);
        self.waited_for |= !has_room;
        has_room
    }

    /// Where the log ends, and up to which record of each partition.
    pub fn ends(&self) -> (Lsn, Vec<(RingId, PartitionNumber, LogPosition)>) {
        let positions = self.state.positions.iter().map(|((ring, partition), at)| (*ring, *partition, *at));
        (self.log.end(), positions.collect())
    }

    /// Syncs what is written. `None`: all of it is stable. One sync runs at a time.
    pub fn sync(&mut self) -> Result<Option<(IoId, Io)>> {
        self.check_alive()?;
        let Some((io, target, covered)) = self.log.sync() else { return Ok(None) };
        Ok(Some(self.start(io, Job::Sync { target, covered })))
    }

    fn start(&mut self, io: Io, job: Job) -> (IoId, Io) {
        self.io_count += 1;
        let id = IoId(self.io_count);
        self.in_flight.insert(id, job);
        (id, io)
    }

    /// An IO has ended. -> what that means for who waits for it: a failure stops the brick, but for one of fresh blocks
    /// for which there is no room, or no file descriptor. For IO of a checkpoint see [`Machine::stall`].
    pub fn done(&mut self, id: IoId, outcome: Result<()>) -> Result<()> {
        let ended = self.in_flight.remove(&id);
        let job = ended.ok_or_else(|| Error::bug(format!("{id:?} has ended and was never begun, or twice")))?;
        self.check_alive()?;
        if let Err(error) = outcome {
            let may_be_tried_again = match job {
                Job::Fresh { .. } | Job::Reserve { .. } => true,
                // Its file could not be opened; a sync that fails is `Poisoned`.
                Job::Shard { .. } => matches!(error, Error::Unavailable { .. }),
                _ => false,
            };
            if may_be_tried_again && is_shortage(&error) {
                return Err(error);
            }
            return Err(self.fail(&error));
        }
        match job {
            Job::Journal(upto) => self.log.written(upto),
            Job::Sync { target, covered } => self.log.synced(target, covered),
            Job::Fresh { shard, first, end } => self.fresh_written(shard, first, end),
            Job::Shard { shard, stamp, overlay, writes } => {
                self.state.home_synced(shard, overlay, writes);
                self.unmarked.push((shard, stamp));
            }
            // Until a record tells of it, its file is not one that nobody knows.
            Job::Reserve { shard, first } => drop(self.fresh.entry(shard).or_insert((first, first))),
            Job::Stray(_) | Job::Forgotten => {}
            Job::Checkpoint => self.checkpoint_step_done(),
        }
        Ok(())
    }

    fn fresh_written(&mut self, shard: ShardId, first: u32, end: u32) {
        let known = self.fresh.entry(shard).or_insert((first, end));
        // A copy is written block by block; a write that is tried again replaces what nobody told of.
        *known = if first == known.1 { (known.0, end) } else { (first, end) };
    }

    /// Nothing is taken or acknowledged from now on. -> why.
    pub fn fail(&mut self, error: &Error) -> Error {
        let what = error.detail().unwrap_or("a failed write").to_string();
        self.failed.get_or_insert(Error::Poisoned { what }).clone()
    }

    /// Why the brick stopped, if it did.
    pub fn check_alive(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Why the brick stopped.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// The log is in the journal's files up to here.
    pub fn written(&self) -> Lsn {
        self.log.written_end()
    }

    /// The log is on stable storage up to here.
    pub fn stable(&self) -> Lsn {
        self.log.stable()
    }

    /// The index holds everything before this.
    pub fn applied(&self) -> Lsn {
        self.applied
    }

    /// The log's end.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Something of this segment cannot be read: nothing more goes behind that.
    pub fn leave_segment(&mut self, number: u64) {
        self.log.leave_segment(number);
    }

    /// What the brick holds beyond its index.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The file system has so much room, and the reserve so much.
    pub fn set_room(&mut self, free: Amount, reserve: Amount) {
        self.room.set(free, reserve);
    }

    /// Why the running checkpoint cannot write home.
    pub fn stalled(&self) -> Option<&str> {
        self.room.stalled()
    }

    /// Whether the next checkpoint should come soon. One that is stalled is tried again when its host thinks that it may
    /// go on.
    pub fn wants_checkpoint(&self) -> bool {
        let (used, all) = self.log.fill();
        let active = &self.state.active;
        let full = used > all / 2 && self.log.could_recycle(self.retained);
        self.stalled().is_none()
            && (full
                || self.waited_for
                || active.bytes > OVERLAY_BYTES_MAX
                || self.room.wants_checkpoint(active.promised))
    }

    /// Keeps room for a record, on every replica before any of them takes it.
    pub fn reserve(&mut self, need: Amount, grows: bool) -> Result<()> {
        self.check_alive()?;
        self.room.reserve(need, grows, self.state.promised())
    }

    /// What growing records may take.
    pub fn room_left(&self) -> Amount {
        self.room.left(self.state.promised())
    }

    /// Whether a checkpoint would let records grow that are refused now.
    pub fn is_promised(&self) -> bool {
        self.room.is_promised(self.state.promised())
    }

    /// Whether a record would be taken without waiting for a checkpoint; if not, one is wanted.
    pub fn takes_now(&mut self, entry: &LogEntry) -> bool {
        self.has_room_for(entry) && !self.awaits_removal(&entry.record.changes)
    }

    fn has_room_for(&mut self, entry: &LogEntry) -> bool {
        let changed = entry.record.changes.iter().filter_map(Change::shard);
        let removing = changed.into_iter().any(|shard| self.is_stray(shard));
        let no_room = !self.log.has_room(entry.body.len()) || !self.room.takes(entry.need, self.state.promised());
        self.waited_for |= no_room;
        !removing && !no_room
    }

    /// Gives kept room back: the record has been taken, or never will be.
    pub fn release(&mut self, need: Amount) {
        self.room.release(need);
    }

    /// The life that the brick is in may be recorded: nothing that an earlier one left is still to be settled.
    pub fn settle(&self) {
        invariant!(
            "brick invariant 4",
            !self.uncovered,
            "a new life is recorded before a checkpoint has covered recovery"
        );
    }
}
