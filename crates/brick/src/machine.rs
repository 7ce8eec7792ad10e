//! The brick as a pure state machine: records and results of IO come in, the IO to do goes out.
//!
//! The machine knows no file, thread, clock or lock. [`Brick`](crate::Brick) drives it on threads; tests drive it in
//! any order. It is derived state: recovery builds it from the index and the journal (`opening/recovery.rs`), and from
//! then on it decides what they will hold.
//!
//! | file | decides |
//! |---|---|
//! | `check.rs` | which records are refused |
//! | `log.rs` | where a record goes in the log |
//! | `state.rs`, `overlay.rs` | what a record changes |
//! | `checkpoint.rs` | what a checkpoint writes home, and in which order |
//! | `room.rs` | whether there is room for all of that |
//!
//! Rules for a driver. It starts the IO that a method returns, in any order, and reports each outcome once, to
//! [`Machine::done`] or, for an IO of a checkpoint that found no room, to [`Machine::stall`]. It acknowledges a record
//! when the log is [written](Machine::written) up to the record's end, and as durable when the log is
//! [stable](Machine::stable) up to there. After an IO that failed, the machine refuses everything.

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

/// Asserts a numbered invariant of `docs/format`, in release builds too. The driver catches the panic and poisons the
/// brick.
macro_rules! invariant {
    ($name:literal, $holds:expr, $($shown:tt)+) => {
        assert!($holds, "{} does not hold: {}", $name, format_args!($($shown)+))
    };
}
pub(crate) use invariant;

/// Whether the IO failed because room or a file descriptor was lacking. It can succeed later.
pub fn is_shortage(error: &Error) -> bool {
    matches!(error, Error::NoSpace { .. } | Error::Unavailable { .. })
}

/// Records of shards as the index has them.
type KnownShards = HashMap<ShardId, Before>;

/// Bytes of memory of the active overlay at which a checkpoint begins, however full the journal is.
const OVERLAY_BYTES_MAX: usize = 64 << 20;

/// Shards that one mark names at most. Such a mark takes 52 KB, which a segment of the smallest size (64 KiB) holds.
const MARKED_MAX: usize = 1000;
/// Bytes of a mark of [`MARKED_MAX`] shards at most: 52 for each, a shard id and a stamp, rounded up.
const MARK_BYTES_MAX: usize = MARKED_MAX * 56;

/// The state of an open brick, beside its files.
pub struct Machine {
    log: Log,
    state: State,
    room: Room,
    running: Option<Running>,
    /// Blocks of a shard that were written home and that no record names yet: the first one, and the one behind the
    /// last.
    fresh: HashMap<ShardId, (u32, u32)>,
    /// Data files on stable storage up to these stamps that no mark names yet.
    unmarked: Vec<(ShardId, Stamp)>,
    /// Records, as the index has them, of shards that the next record writes.
    known_shards: KnownShards,
    in_flight: BTreeMap<IoId, Job>,
    io_count: u64,
    /// The index holds the log up to here.
    applied: Lsn,
    /// After a power cut recovery replayed records, and no checkpoint has covered them yet.
    has_uncovered_recovery: bool,
    /// A record or a mark waits for a checkpoint.
    checkpoint_requested: bool,
    /// Segments from here on are kept: other bricks may not have their records on stable storage yet.
    retained_from: Lsn,
    /// The overlay that the last checkpoint wrote home, to be freed outside the machine's lock.
    retired: Option<Arc<Overlay>>,
    failed: Option<Error>,
}

/// The outcome of an append.
#[derive(Debug)]
pub enum Append {
    /// The record ends at `end`, once the IO is done.
    At { end: Lsn, io: Vec<(IoId, Io)> },
    /// The machine lacks the records of these shards: the driver looks them up, calls [`Machine::supply_shard`] for
    /// each, and appends again.
    NeedShards(Vec<(RingId, ShardId)>),
    /// The record has to wait for a checkpoint: the journal is full, or the room kept for checkpoints would not
    /// suffice, or an old file of a shard is being removed.
    Full,
}

impl Machine {
    /// The machine as the last checkpoint left the brick, with the generation of this opening. Recovery then replays
    /// the log.
    pub fn new(geometry: Geometry, meta: &Meta, generation: u32) -> Self {
        Self {
            log: Log::new(geometry, Lsn(meta.applied), generation),
            state: State::new(meta),
            room: Room::default(),
            running: None,
            fresh: HashMap::new(),
            unmarked: Vec::new(),
            known_shards: HashMap::new(),
            in_flight: BTreeMap::new(),
            io_count: 0,
            applied: Lsn(meta.applied),
            has_uncovered_recovery: false,
            checkpoint_requested: false,
            retained_from: Lsn(u64::MAX),
            retired: None,
            failed: None,
        }
    }

    /// Checks what can be checked of a record alone. `Bug` names the invariant that it breaks.
    pub fn check_form(record: &Record) -> Result<()> {
        check::form(record)
    }

    /// Applies a record of the journal, which ends at `end` and has passed [`Machine::check_form`].
    pub fn replay(&mut self, record: &Record, end: Lsn) {
        let known_shards = std::mem::take(&mut self.known_shards);
        self.state.add_shards(record.ring, known_shards);
        self.state.apply(record, end);
    }

    /// Appends continue at `end`; all before it is on stable storage; segments from `oldest` on are kept.
    /// `has_uncovered_recovery`: a power cut came before, and records were replayed without the blocks that it took.
    pub fn resume(&mut self, end: Lsn, oldest: u64, has_uncovered_recovery: bool) {
        self.log.resume(end, oldest);
        self.has_uncovered_recovery = has_uncovered_recovery;
    }

    /// Appends a record.
    ///
    /// # Errors
    /// `Invalid`: it is longer than a segment. `Bug`: it breaks a numbered invariant. After both nothing has changed.
    /// `Poisoned`: the brick has stopped.
    pub fn append(&mut self, entry: &LogEntry) -> Result<Append> {
        self.append_checked(entry, true)
    }

    /// Appends a record that comes from another replica. Its fresh blocks need not be home, as on that replica.
    pub fn append_copied(&mut self, entry: &LogEntry) -> Result<Append> {
        self.append_checked(entry, false)
    }

    fn append_checked(&mut self, entry: &LogEntry, blocks_are_home: bool) -> Result<Append> {
        self.check_alive()?;
        self.log.check_size(entry.body.len())?;
        let unknown = self.unknown_shards(&entry.record);
        let known_shards = std::mem::take(&mut self.known_shards);
        if !unknown.is_empty() {
            return Ok(Append::NeedShards(unknown));
        }
        check::record(&self.state, &known_shards, &entry.record)?;
        if blocks_are_home {
            check::fresh_blocks_are_home(&self.fresh, &entry.record)?;
        }
        if !self.has_room_for(entry) {
            return Ok(Append::Full);
        }
        let (end, io) = self.append_to_log(EntryKind::Change, &entry.body, entry.checksum);
        self.state.add_shards(entry.record.ring, known_shards);
        self.state.apply(&entry.record, end);
        self.forget_named(&entry.record);
        Ok(Append::At { end, io })
    }

    /// Shards that a record writes and whose records only the index has.
    pub fn unknown_shards(&self, record: &Record) -> Vec<(RingId, ShardId)> {
        check::unknown_shards(&self.state, &self.known_shards, record)
    }

    /// Whether a change writes a shard whose file a checkpoint has yet to remove.
    pub fn awaits_removal(&self, changes: &[Change]) -> bool {
        let written = changes.iter().filter(|change| !matches!(change, Change::DropShard { .. }));
        written.filter_map(Change::shard).any(|shard| self.state.is_dropped(shard))
    }

    /// Supplies the record of a shard, as the index has it, for the next append.
    pub fn supply_shard(&mut self, shard: ShardId, before: Before) {
        self.known_shards.insert(shard, before);
    }

    fn forget_named(&mut self, record: &Record) {
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

    /// No record will name the fresh blocks that were written to the shard.
    pub fn forget_fresh(&mut self, shard: ShardId) {
        self.fresh.remove(&shard);
    }

    /// Removes a dropped shard from the next mark: the stamps of the next shard of that name begin anew.
    fn forget_syncs(&mut self, gone: ShardId) {
        self.unmarked.retain(|(shard, _)| *shard != gone);
        for job in self.in_flight.values_mut() {
            if matches!(job, Job::Shard { shard, .. } if *shard == gone) {
                *job = Job::Forgotten;
            }
        }
    }

    fn append_to_log(&mut self, kind: EntryKind, body: &Bytes, checksum: u32) -> (Lsn, Vec<(IoId, Io)>) {
        let (end, writes) = self.log.append(kind, body, checksum);
        let io = writes.into_iter().map(|(io, upto)| self.start(io, Job::Journal(upto))).collect();
        (end, io)
    }

    /// Begins a write of fresh blocks: the returned IO, whose bytes the caller has. `durable`: the shard's record in
    /// the index.
    ///
    /// # Errors
    /// `NoSpace`, `Unavailable`: see [`Room::take`], or an old file of the shard is being removed. `Bug`: the blocks
    /// are not fresh.
    pub fn write_fresh(&mut self, shard: ShardId, durable: Before, first: u32, count: u32) -> Result<(IoId, Io)> {
        self.claim_fresh(shard, durable, first, count)?;
        Ok(self.start(Io::WriteFresh { shard, first }, Job::Fresh { shard, first, end: first + count }))
    }

    /// As [`Machine::write_fresh`], for blocks that get space at home and no bytes.
    pub fn reserve_fresh(&mut self, shard: ShardId, durable: Before, first: u32, count: u32) -> Result<(IoId, Io)> {
        self.claim_fresh(shard, durable, first, count)?;
        Ok(self.start(Io::ReserveHome { shard, first, count }, Job::Reserve { shard, first }))
    }

    /// Checks that the blocks are fresh, and takes their bytes from the free room, except for blocks that are reserved.
    fn claim_fresh(&mut self, shard: ShardId, durable: Before, first: u32, count: u32) -> Result<()> {
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

    /// Begins the removal of a data file that no record knows; its shard is not written meanwhile. `None`: it is being
    /// written, or has been.
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

    /// Syncs of those data files that have bytes no sync has covered. When they have ended, [`Machine::mark`] journals
    /// them.
    pub fn sync_shards(&mut self, shards: &[ShardId]) -> Result<Vec<(IoId, Io)>> {
        self.check_alive()?;
        let mut io = Vec::new();
        for shard in shards {
            if self.has_uncovered_recovery && self.state.unsynced(*shard).is_some() {
                // The mark would cover blocks that the power cut took, and the next recovery would report them as
                // damage.
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

    /// Appends a mark of the data files that were synced, as many as one mark names. `None`: there are none.
    pub fn mark(&mut self) -> Result<Option<Append>> {
        self.check_alive()?;
        if self.unmarked.is_empty() {
            return Ok(None);
        }
        let count = self.unmarked.len().min(MARKED_MAX);
        let body = Mark { shards: self.unmarked[..count].to_vec() }.to_bytes();
        if !self.log.has_room(body.len()) {
            self.checkpoint_requested = true;
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
        let (end, io) = self.append_to_log(EntryKind::Mark, &body, crc32c::crc32c(&body));
        Ok(Some(Append::At { end, io }))
    }

    /// Whether a checkpoint has covered what recovery replayed after a power cut.
    pub fn has_covered_recovery(&self) -> bool {
        !self.has_uncovered_recovery
    }

    /// Whether the journal has room for the longest mark. If not, a checkpoint is requested.
    pub fn takes_mark(&mut self) -> bool {
        let body_bytes = MARK_BYTES_MAX.min(self.log.geometry.body_bytes_max());
        let has_room = self.log.has_room(body_bytes);
        self.checkpoint_requested |= !has_room;
        has_room
    }

    /// Where the log ends, and the last record of each partition.
    pub fn ends(&self) -> (Lsn, Vec<(RingId, PartitionNumber, LogPosition)>) {
        let positions = self.state.positions.iter().map(|((ring, partition), at)| (*ring, *partition, *at));
        (self.log.end(), positions.collect())
    }

    /// Begins a sync of the log that is written. `None`: all of it is stable. One sync runs at a time.
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

    /// Reports the outcome of an IO.
    ///
    /// # Errors
    /// `NoSpace`, `Unavailable`: an IO of fresh blocks, or a sync that did not begin, that may be tried again.
    /// `Poisoned`: any other failure, which stops the brick. An IO of a checkpoint that found no room is reported to
    /// [`Machine::stall`] instead.
    pub fn done(&mut self, id: IoId, outcome: Result<()>) -> Result<()> {
        let ended = self.in_flight.remove(&id);
        let job = ended.ok_or_else(|| Error::bug(format!("{id:?} has ended and is not in flight")))?;
        self.check_alive()?;
        if let Err(error) = outcome {
            let may_be_tried_again = match job {
                Job::Fresh { .. } | Job::Reserve { .. } => true,
                // The file could not be opened. A sync that fails is `Poisoned`.
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
            // Until a record names the shard, a scrub must not remove its file.
            Job::Reserve { shard, first } => drop(self.fresh.entry(shard).or_insert((first, first))),
            Job::Stray(_) | Job::Forgotten => {}
            Job::Checkpoint => self.checkpoint_step_done(),
        }
        Ok(())
    }

    fn fresh_written(&mut self, shard: ShardId, first: u32, end: u32) {
        let known = self.fresh.entry(shard).or_insert((first, end));
        // A copy is written block by block. A write that is tried again replaces one that no record names.
        *known = if first == known.1 { (known.0, end) } else { (first, end) };
    }

    /// Stops the machine: nothing is appended or acknowledged any more. Returns the reason, which is the first one
    /// given.
    pub fn fail(&mut self, error: &Error) -> Error {
        let what = error.detail().unwrap_or("a failed write").to_string();
        self.failed.get_or_insert(Error::Poisoned { what }).clone()
    }

    /// `Poisoned`, with the reason, if the brick has stopped.
    pub fn check_alive(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// The reason, if the brick has stopped.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// The journal's files have the log up to here.
    pub fn written(&self) -> Lsn {
        self.log.written_end()
    }

    pub fn stable(&self) -> Lsn {
        self.log.stable()
    }

    /// The index holds the log up to here.
    pub fn applied(&self) -> Lsn {
        self.applied
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Reports that a part of this segment cannot be read. If it is the last segment, the next record begins another
    /// one, so that readers find the record.
    pub fn avoid_segment(&mut self, number: u64) {
        self.log.avoid_segment(number);
    }

    /// The overlays.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Sets the room that the file system has free, and what the reserve holds.
    pub fn set_room(&mut self, free: Amount, reserve: Amount) {
        self.room.set(free, reserve);
    }

    pub fn stalled(&self) -> Option<&str> {
        self.room.stalled()
    }

    /// Whether a checkpoint should begin soon: the journal is half full and a checkpoint can free a segment, an append
    /// waits, the overlay is large, or much room is promised. A stalled checkpoint is tried again when its host sees
    /// fit, not for this.
    pub fn wants_checkpoint(&self) -> bool {
        let (used, all) = self.log.fill();
        let active = &self.state.active;
        let full = used > all / 2 && self.log.could_recycle(self.retained_from);
        self.stalled().is_none()
            && (full
                || self.checkpoint_requested
                || active.bytes > OVERLAY_BYTES_MAX
                || self.room.wants_checkpoint(active.promised))
    }

    /// Reserves room for a record, on every replica before any of them appends it.
    ///
    /// # Errors
    /// `NoSpace`: a growing record finds too little room. `Poisoned`: the brick has stopped.
    pub fn reserve(&mut self, need: Amount, grows: bool) -> Result<()> {
        self.check_alive()?;
        self.room.reserve(need, grows, self.state.promised())
    }

    /// Room that growing records may still take.
    pub fn room_left(&self) -> Amount {
        self.room.left(self.state.promised())
    }

    /// Whether a checkpoint may make room for growing records that are refused now.
    pub fn is_promised(&self) -> bool {
        self.room.is_promised(self.state.promised())
    }

    /// Whether a record would be appended without waiting for a checkpoint. If not, a checkpoint is requested.
    pub fn takes_now(&mut self, entry: &LogEntry) -> bool {
        self.has_room_for(entry) && !self.awaits_removal(&entry.record.changes)
    }

    fn has_room_for(&mut self, entry: &LogEntry) -> bool {
        let changed = entry.record.changes.iter().filter_map(Change::shard);
        let removing = changed.into_iter().any(|shard| self.is_stray(shard));
        let no_room = !self.log.has_room(entry.body.len()) || !self.room.takes(entry.need, self.state.promised());
        self.checkpoint_requested |= no_room;
        !removing && !no_room
    }

    /// Whether more of the journal is free than what is kept for records that other bricks have.
    pub fn has_room_for_new(&self) -> bool {
        let (used, all) = self.log.fill();
        all - used > all / 4
    }

    pub fn request_checkpoint(&mut self) {
        self.checkpoint_requested = true;
    }

    /// Releases reserved room: the record has been appended, or never will be.
    pub fn release(&mut self, need: Amount) {
        self.room.release(need);
    }

    /// Asserts that the incarnation may be recorded as settled.
    pub fn settle(&self) {
        invariant!(
            "brick invariant 4",
            !self.has_uncovered_recovery,
            "an incarnation is settled before a checkpoint has covered recovery"
        );
    }
}
