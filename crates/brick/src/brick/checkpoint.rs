//! A checkpoint as the brick's driver does it: what the machine decides, on the disk as it is.
//!
//! Another user of the file system may have taken the room that a checkpoint needs. Then the reserve is given up, and if
//! that is not enough the checkpoint stalls: the brick reads and takes what does not grow, and its host calls
//! [`Brick::checkpoint`] again until there is room. It does the same for want of file descriptors. A failed sync is never
//! tried again: that one stops the brick.

use super::Brick;
use crate::journal::Lsn;
use crate::machine::{Io, IoId, Next, is_shortage};
use hekate_proto::{Error, Result};
use parking_lot::MutexGuard;

/// A checkpoint that has begun.
pub struct Checkpoint<'a> {
    brick: &'a Brick,
    _alone: MutexGuard<'a, ()>,
    /// The log's end when it began.
    upto: Lsn,
    begun: Result<bool>,
}

impl Checkpoint<'_> {
    /// Writes home, then the index, then gives the journal back. As long as it is ahead of the journal it calls `pause`
    /// between writes, until that says false. One that was stalled is followed by one of what was appended since.
    ///
    /// # Errors
    /// `NoSpace` or `Unavailable`: it is stalled for want of room or of file descriptors, and goes on with the next one
    /// that begins. Any other poisons the brick.
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
    /// Decides what the checkpoint writes home, or goes on with the one that is stalled. Between this and `finish`, a
    /// server syncs its other bricks: what this one gives back of its journal is then on stable storage everywhere.
    pub fn begin_checkpoint(&self) -> Checkpoint<'_> {
        let alone = self.checkpointing.lock();
        let upto = self.machine.read().log().end();
        let begun = self.guarded(|| self.machine.write().begin_checkpoint());
        Checkpoint { brick: self, _alone: alone, upto, begun }
    }

    /// Why the running checkpoint could not write home; it is tried again by [`Brick::checkpoint`], and until that has
    /// ended it counts as stalled.
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
                Next::Wait => return Err(Error::bug("a checkpoint waits for an IO that nobody does")),
                Next::Done => break,
            }
            while may_pause && self.machine.read().checkpoint_is_ahead() {
                may_pause = pause();
            }
        }
        // A great overlay takes its time to go: not under the lock.
        let retired = self.machine.write().take_retired();
        drop(retired);
        self.wake_writers();
        self.disk.reserve.restore()?;
        Ok(())
    }

    /// An IO of a checkpoint. What finds no room is done again with what the reserve has; a sync is not: that a failed one
    /// loses pages is `Poisoned`, not `NoSpace`.
    fn perform_home(&self, id: IoId, io: Io) -> Result<()> {
        if matches!(io, Io::CommitIndex { .. }) {
            self.make_room()?;
        }
        match self.perform_with_reserve(&io) {
            Err(error) if is_shortage(&error) => {
                let error = self.named(error);
                Err(self.machine.write().stall(id, io, error))
            }
            outcome => self.performed(id, outcome),
        }
    }

    pub(super) fn perform_with_reserve(&self, io: &Io) -> Result<()> {
        let mut outcome = self.disk.perform(io, &[]);
        while matches!(outcome, Err(Error::NoSpace { .. })) && self.disk.reserve.give_up_some()? {
            outcome = self.disk.perform(io, &[]);
        }
        outcome
    }

    /// On a disk that is nearly full the bytes of the reserve are given up, so that nothing of this checkpoint fails for
    /// want of room.
    fn make_room(&self) -> Result<()> {
        let space = self.disk.storage.space().map_err(|e| Error::io("statvfs of the brick", e))?;
        let promised = self.machine.read().state().promised();
        if space.available < promised.bytes { self.disk.reserve.give_up_bytes() } else { Ok(()) }
    }
}
