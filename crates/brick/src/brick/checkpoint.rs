//! Checkpoints as the brick drives them: `machine/checkpoint.rs` decides what to write home, this does it.
//!
//! Another user of the file system may have taken the room that a checkpoint needs. Then the reserve is released; if
//! that is not enough, the checkpoint stalls. A brick with a stalled checkpoint answers reads and takes records that do
//! not grow, and its host calls [`Brick::checkpoint`] again until there is room. A lack of file descriptors stalls a
//! checkpoint too. A failed sync is never tried again: it stops the brick.

use super::Brick;
use crate::journal::Lsn;
use crate::machine::{Io, IoId, Next, is_shortage};
use hekate_proto::{Error, Result};
use hekate_threads::MutexGuard;

/// A checkpoint that has begun, and that [`Checkpoint::finish`] writes.
pub struct Checkpoint<'a> {
    brick: &'a Brick,
    _alone: MutexGuard<'a, ()>,
    /// The log's end when the checkpoint began.
    upto: Lsn,
    begun: Result<bool>,
}

impl Checkpoint<'_> {
    /// Writes home, commits the index, then frees segments of the journal. While the checkpoint is ahead of the
    /// journal's growth it calls `pause` between two writes, until `pause` returns false. After one that had stalled it
    /// also writes what was appended before this checkpoint began.
    ///
    /// # Errors
    /// `NoSpace` or `Unavailable`: the checkpoint is stalled for want of room or of file descriptors, and the next one
    /// continues it. Any other error has poisoned the brick.
    pub fn finish(self, pause: &mut dyn FnMut() -> bool) -> Result<()> {
        if !self.begun? {
            return Ok(());
        }
        let brick = self.brick;
        let written = brick.guarded(|| {
            loop {
                brick.write_home(pause)?;
                let mut machine = brick.machine.write();
                if machine.applied() >= self.upto || !machine.begin_checkpoint()? {
                    return Ok(());
                }
            }
        });
        written.inspect_err(|error| {
            if !is_shortage(error) || brick.stalled().is_none() {
                brick.poison(error);
            }
        })
    }
}

impl Brick {
    /// Decides what the checkpoint writes home, or continues the stalled one. Between this and `finish` a server syncs
    /// its other bricks, so that a segment that this one frees is on stable storage everywhere.
    pub fn begin_checkpoint(&self) -> Checkpoint<'_> {
        let alone = self.checkpointing.lock();
        let upto = self.machine.read().log().end();
        let begun = self.guarded(|| self.machine.write().begin_checkpoint());
        Checkpoint { brick: self, _alone: alone, upto, begun }
    }

    /// Why the running checkpoint could not write home. It counts as stalled until it has ended, also while it is tried
    /// again.
    pub fn stalled(&self) -> Option<String> {
        self.machine.read().stalled().map(str::to_string)
    }

    pub(crate) fn write_home(&self, pause: &mut dyn FnMut() -> bool) -> Result<()> {
        self.make_room()?;
        let mut may_pause = true;
        loop {
            let next = self.machine.write().checkpoint()?;
            match next {
                Next::Sync(upto) => self.sync(upto)?,
                Next::Do(id, io) => self.perform_home(id, io)?,
                Next::Wait => return Err(Error::bug("a checkpoint waits for an IO that is not in flight")),
                Next::Done => break,
            }
            while may_pause && self.machine.read().checkpoint_is_ahead() {
                may_pause = pause();
            }
        }
        // Freeing a large overlay takes time, so it is done outside the machine's lock.
        let retired = self.machine.write().take_retired();
        drop(retired);
        self.wake_writers();
        self.disk.reserve.restore()?;
        Ok(())
    }

    /// Does an IO of a checkpoint. One that finds no room is repeated with what the reserve releases. A failed sync is
    /// `Poisoned`, never `NoSpace`, so it is not repeated.
    fn perform_home(&self, id: IoId, io: Io) -> Result<()> {
        if matches!(io, Io::CommitIndex { .. }) {
            self.make_room()?;
        }
        match self.perform_with_reserve(&io) {
            Err(error) if is_shortage(&error) => {
                let error = self.with_brick_id(error);
                Err(self.machine.write().stall(id, io, error))
            }
            outcome => self.report_outcome(id, outcome),
        }
    }

    pub(super) fn perform_with_reserve(&self, io: &Io) -> Result<()> {
        let mut outcome = self.disk.perform(io, &[]);
        while matches!(outcome, Err(Error::NoSpace { .. })) && self.disk.reserve.release_some()? {
            outcome = self.disk.perform(io, &[]);
        }
        outcome
    }

    /// Releases the bytes of the reserve if less is free than this checkpoint and the next may write at most.
    fn make_room(&self) -> Result<()> {
        let space = self.disk.storage.space().map_err(|e| Error::io("statvfs of the brick", e))?;
        let promised = self.machine.read().state().promised();
        if space.available < promised.bytes { self.disk.reserve.release_bytes() } else { Ok(()) }
    }
}
