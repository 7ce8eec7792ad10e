//! Checkpoints: the frozen overlay is written home, then the index is committed, then segments of the journal are free
//! again.
//!
//! The order is: the journal is stable; then blocks are written home; then the data files are synced; then the index is
//! committed, in one durable step; then files of dropped shards are removed. So the index is never ahead of the journal
//! or of the data files, and after a crash in between recovery replays all of it from the journal. Appends go on
//! meanwhile. The IO of one step may be done in any order, and side by side.

use super::io::Job;
use super::{Io, IoId, Machine, Overlay, ShardOverlay, invariant};
use crate::checksum::CRC_BLOCKS;
use crate::index::meta::Meta;
use crate::journal::Lsn;
use bytes::Bytes;
use hekate_proto::{Error, Result, ShardId};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// What the driver does next for a checkpoint.
#[derive(Debug)]
pub enum Next {
    /// Sync the log up to here.
    Sync(Lsn),
    /// Begin this IO.
    Do(IoId, Io),
    /// Wait: an IO in flight has to end first.
    Wait,
    /// The checkpoint has ended, or none is running.
    Done,
}

/// A checkpoint that has begun.
pub struct Running {
    pub(super) upto: Lsn,
    /// The log has to be stable up to here before anything is written.
    pub(super) stable_from: Lsn,
    /// Shards that were dropped while the checkpoint was stalled, by records that are stable. The checkpoint does not
    /// touch their files.
    pub(super) dropped: BTreeSet<ShardId>,
    pub(super) frozen: Arc<Overlay>,
    pub(super) meta: Meta,
    pub(super) step: Step,
    /// The last shard that this step has visited.
    pub(super) cursor: Option<ShardId>,
    pub(super) queue: VecDeque<Io>,
    pub(super) in_flight: usize,
    /// Blocks written home so far. With `fill_at_begin` it decides whether the checkpoint may pause.
    pub(super) blocks_written: usize,
    /// Bytes of the journal in use when the checkpoint began.
    pub(super) fill_at_begin: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Journal,
    Home,
    SyncHome,
    Commit,
    Remove,
}

impl Machine {
    /// Freezes the active overlay: the checkpoint writes home all that was appended before now, or continues if it is
    /// stalled. False: there is nothing to write.
    pub fn begin_checkpoint(&mut self) -> Result<bool> {
        self.check_alive()?;
        let upto = self.log.end();
        self.checkpoint_requested = false;
        if self.running.is_some() {
            return Ok(self.resume_checkpoint());
        }
        if self.state.active.is_empty() && upto == self.applied {
            self.recycle();
            return Ok(false);
        }
        assert!(self.state.frozen.is_none(), "a checkpoint begins while the overlay of another is frozen");
        let frozen = Arc::new(std::mem::take(&mut self.state.active));
        self.state.active_number += 1;
        self.state.frozen = Some(frozen.clone());
        let meta = Meta::new(upto, self.log.opening(), &self.state.positions);
        self.running = Some(Running {
            upto,
            stable_from: upto,
            dropped: BTreeSet::new(),
            frozen,
            meta,
            step: Step::Journal,
            cursor: None,
            queue: VecDeque::new(),
            in_flight: 0,
            blocks_written: 0,
            fill_at_begin: self.log.fill().0,
        });
        Ok(true)
    }

    /// Reports that an IO of the running checkpoint found no room or no file descriptor; it has changed nothing that
    /// the index refers to. The checkpoint is stalled, and does this IO first when it continues. Returns the error.
    pub fn stall(&mut self, id: IoId, io: Io, error: Error) -> Error {
        let is_of_checkpoint = matches!(self.in_flight.remove(&id), Some(Job::Checkpoint));
        assert!(is_of_checkpoint, "{io:?} stalls and is not an IO of the checkpoint");
        self.checkpoint_step_done();
        if let Some(running) = &mut self.running {
            running.queue.push_front(io);
        }
        self.room.set_stalled(Some(error.to_string()));
        error
    }

    /// Continues a stalled checkpoint, which counts as stalled until it has ended. False: none is stalled.
    fn resume_checkpoint(&mut self) -> bool {
        let Some(running) = self.running.as_mut().filter(|_| self.room.stalled().is_some()) else { return false };
        running.stable_from = self.log.end();
        let is_dropped =
            |shard: &&ShardId| self.state.active.shards.get(*shard).is_some_and(|now| now.record.is_none());
        running.dropped = running.frozen.shards.keys().filter(is_dropped).copied().collect();
        true
    }

    /// The next step of the running checkpoint.
    pub fn checkpoint(&mut self) -> Result<Next> {
        self.check_alive()?;
        let stable = self.log.stable();
        loop {
            let Some(running) = &mut self.running else { return Ok(Next::Done) };
            if stable < running.stable_from {
                return Ok(Next::Sync(running.stable_from));
            }
            if running.step == Step::Journal {
                running.step = Step::Home;
            }
            if let Some(io) = running.next_io() {
                running.check(&io, stable, self.applied);
                running.in_flight += 1;
                let (id, io) = self.start(io, Job::Checkpoint);
                return Ok(Next::Do(id, io));
            }
            if running.in_flight > 0 {
                return Ok(Next::Wait);
            }
            running.cursor = None;
            running.step = match running.step {
                Step::Journal | Step::Home => Step::SyncHome,
                Step::SyncHome => Step::Commit,
                Step::Commit => Step::Remove,
                Step::Remove => {
                    self.end_checkpoint();
                    return Ok(Next::Done);
                }
            };
            if running.step == Step::Commit {
                let (overlay, meta) = (running.frozen.clone(), running.meta.clone());
                running.queue.push_back(Io::CommitIndex { overlay, meta });
            }
        }
    }

    fn end_checkpoint(&mut self) {
        let Some(running) = self.running.take() else { return };
        let is_over = running.queue.is_empty() && running.in_flight == 0;
        assert!(
            is_over,
            "a checkpoint ends with {} IOs to do and {} in flight",
            running.queue.len(),
            running.in_flight
        );
        self.retired = self.state.frozen.take();
        self.applied = running.upto;
        self.has_uncovered_recovery = false;
        self.room.set_stalled(None);
        self.recycle();
    }

    fn recycle(&mut self) {
        self.log.recycle(self.applied.min(self.retained_from));
    }

    /// Keeps the log from `from` on, even if a checkpoint covers it. What is before `from` may be freed.
    pub fn retain_from(&mut self, from: Lsn) {
        self.retained_from = from;
        self.recycle();
    }

    /// The overlay that the last checkpoint wrote home.
    pub fn take_retired(&mut self) -> Option<Arc<Overlay>> {
        self.retired.take()
    }

    pub(super) fn checkpoint_step_done(&mut self) {
        let in_flight = self.running.as_ref().map_or(0, |running| running.in_flight);
        assert!(in_flight > 0, "an IO of a checkpoint has ended and none was in flight");
        if let Some(running) = &mut self.running {
            running.in_flight -= 1;
        }
    }

    /// Whether the checkpoint may pause. It may if the share of its blocks that it has written is greater than the
    /// share that the journal has filled of its way to 65 %: the rest of the journal is for the commit of the index,
    /// which does not pause.
    pub fn checkpoint_is_ahead(&self) -> bool {
        let Some(running) = self.running.as_ref().filter(|running| running.step == Step::Home) else { return false };
        let (used, all) = self.log.fill();
        let (grown, left) =
            (used - running.fill_at_begin.min(used), (all * 13 / 20).saturating_sub(running.fill_at_begin));
        (running.blocks_written as u64).saturating_mul(left) > grown.saturating_mul(running.frozen.pending_blocks)
    }
}

impl Running {
    fn next_io(&mut self) -> Option<Io> {
        if !self.dropped.is_empty() {
            self.queue.retain(|io| io.shard().is_none_or(|shard| !self.dropped.contains(&shard)));
        }
        while self.queue.is_empty() && self.step != Step::Commit {
            let from = self.cursor.map_or(Bound::Unbounded, Bound::Excluded);
            let frozen = self.frozen.clone();
            let (shard, overlay) = frozen.shards.range((from, Bound::Unbounded)).next()?;
            self.cursor = Some(*shard);
            if self.dropped.contains(shard) {
                continue;
            }
            match self.step {
                Step::Home => self.home_of(*shard, overlay),
                Step::SyncHome if was_written(overlay) => self.queue.push_back(Io::SyncHome { shard: *shard }),
                Step::Remove if overlay.record.is_none() => self.queue.push_back(Io::RemoveHome { shard: *shard }),
                Step::Journal | Step::SyncHome | Step::Commit | Step::Remove => {}
            }
        }
        self.queue.pop_front()
    }

    /// Punches holes first, then writes the blocks that are only in the journal; neighbours in one write.
    fn home_of(&mut self, shard: ShardId, overlay: &ShardOverlay) {
        let Some(record) = overlay.record else { return };
        if let Some(first) = overlay.holes_from {
            self.punch_holes(shard, overlay, first, record.home_blocks);
        }
        let mut blocks: Vec<Bytes> = Vec::new();
        let mut first = 0;
        for (block, bytes) in &overlay.pending {
            if *block != first + blocks.len() as u32 || blocks.len() == CRC_BLOCKS as usize {
                self.write_run(shard, first, std::mem::take(&mut blocks));
                first = *block;
            }
            blocks.push(bytes.clone());
        }
        self.write_run(shard, first, blocks);
    }

    fn write_run(&mut self, shard: ShardId, first: u32, blocks: Vec<Bytes>) {
        if !blocks.is_empty() {
            self.blocks_written += blocks.len();
            self.queue.push_back(Io::WriteHome { shard, first, blocks });
        }
    }

    /// Frees blocks that a cut or a punch made holes and that nothing wrote since: their checksum in the overlay is 0.
    /// Blocks that become fresh meanwhile are at or behind `end`.
    fn punch_holes(&mut self, shard: ShardId, overlay: &ShardOverlay, first: u32, end: u32) {
        let mut block = first;
        while block < end {
            let hole_end = (block..end).find(|block| checksum(overlay, *block) != Some(0)).unwrap_or(end);
            if hole_end > block {
                self.queue.push_back(Io::PunchHome { shard, from: block, to: hole_end });
            }
            block = hole_end + 1;
        }
    }

    /// Each IO belongs to one step, so that no file of a dropped shard is removed before the index is committed, for
    /// example. No block is written home before the journal that has it is stable, and the index is not committed
    /// before all of that.
    pub(super) fn check(&self, io: &Io, stable: Lsn, applied: Lsn) {
        assert!(step_of(io) == Some(self.step), "an IO on {:?} in step {:?} of a checkpoint", io.shard(), self.step);
        match io {
            Io::WriteHome { shard, .. } => {
                invariant!(
                    "data invariant 2",
                    stable >= self.upto,
                    "{shard:?} at {stable:?}, the journal at {:?}",
                    self.upto
                );
            }
            Io::PunchHome { shard, from, to } => {
                let overlay = self.frozen.shards.get(shard);
                let hole = |block| overlay.is_some_and(|overlay| checksum(overlay, block) == Some(0));
                invariant!("data invariant 10", (*from..*to).all(hole), "blocks {from} to {to} of {shard:?}");
            }
            Io::CommitIndex { meta, .. } => {
                let to = Lsn(meta.applied);
                let in_step = self.step == Step::Commit && self.in_flight == 0 && stable >= to;
                invariant!("brick invariant 3", in_step, "the index to {to:?}, the journal stable up to {stable:?}");
                invariant!("index invariant 2", to >= applied, "{to:?} after {applied:?}");
            }
            _ => {}
        }
    }
}

/// The step of a checkpoint that an IO belongs to.
fn step_of(io: &Io) -> Option<Step> {
    match io {
        Io::WriteHome { .. } | Io::PunchHome { .. } => Some(Step::Home),
        Io::SyncHome { .. } => Some(Step::SyncHome),
        Io::CommitIndex { .. } => Some(Step::Commit),
        Io::RemoveHome { .. } => Some(Step::Remove),
        Io::BeginSegment { .. }
        | Io::WriteJournal { .. }
        | Io::SyncJournal { .. }
        | Io::WriteFresh { .. }
        | Io::ReserveHome { .. } => None,
    }
}

fn checksum(overlay: &ShardOverlay, block: u32) -> Option<u32> {
    overlay.checksums.get(&((block / CRC_BLOCKS) as u16))?.get((block % CRC_BLOCKS) as usize)
}

fn was_written(overlay: &ShardOverlay) -> bool {
    overlay.record.is_some() && (!overlay.pending.is_empty() || overlay.home_synced < overlay.home_writes)
}
