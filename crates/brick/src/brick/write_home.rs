//! A checkpoint as the brick's driver does it: what the machine decides, on the disk as it is.

use super::Brick;
use crate::machine::{Io, IoId, Next};
use hekate_proto::{Error, Result};
use parking_lot::MutexGuard;
use std::time::Duration;

/// Between two looks whether a full disk has space again.
const SPACE_PAUSE: Duration = Duration::from_millis(50);

/// What a checkpoint does on a disk that somebody else has filled, reserve and all.
pub(super) struct Patience {
    looks: u64,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl Patience {
    pub fn new(limit: Duration, tell: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { looks: (limit.as_millis() / SPACE_PAUSE.as_millis()) as u64, tell }
    }

    /// Tries again until there is space, or it has tried long enough.
    fn retry(&self, mut outcome: Result<()>, perform: impl Fn() -> Result<()>) -> Result<()> {
        for look in 0..self.looks {
            if !matches!(outcome, Err(Error::NoSpace { .. })) {
                break;
            }
            if look == 0 {
                (self.tell)();
            }
            std::thread::sleep(SPACE_PAUSE);
            outcome = perform();
        }
        outcome
    }
}

/// A checkpoint that has begun.
pub struct Checkpoint<'a> {
    brick: &'a Brick,
    _alone: MutexGuard<'a, ()>,
    begun: Result<bool>,
}

impl Checkpoint<'_> {
    /// Writes home, then the index, then gives the journal back. As long as it is ahead of the journal it calls `pause`
    /// between writes, until that says false. An error poisons the brick.
    pub fn finish(self, pause: &mut dyn FnMut() -> bool) -> Result<()> {
        if self.begun? {
            let brick = self.brick;
            brick.guarded(|| brick.write_home(pause)).inspect_err(|error| drop(brick.poison(error)))?;
        }
        Ok(())
    }
}

impl Brick {
    /// Decides what the checkpoint writes home. Between this and `finish`, a server syncs its other bricks: what this
    /// one gives back of its journal is then on stable storage everywhere.
    pub fn begin_checkpoint(&self) -> Checkpoint<'_> {
        let alone = self.checkpointing.lock();
        let begun = self.guarded(|| self.machine.write().begin_checkpoint());
        Checkpoint { brick: self, _alone: alone, begun }
    }

    pub(crate) fn write_home(&self, pause: &mut dyn FnMut() -> bool) -> Result<()> {
        self.make_room()?;
        let mut may_pause = true;
        loop {
            let next = self.machine.write().checkpoint()?;
            match next {
                Next::Sync(upto) => self.sync(upto)?,
                Next::Do(id, io) => self.perform_home(id, &io)?,
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

    /// An IO of a checkpoint. Somebody else may have filled the disk since it began: then the reserve is given up now, and it is
    /// done once more; and again for a while, since who fills a disk may be faster, and may go. A sync is not: that a failed one
    /// loses pages is `Poisoned`, not `NoSpace`.
    fn perform_home(&self, id: IoId, io: &Io) -> Result<()> {
        if matches!(io, Io::CommitIndex { .. }) {
            self.make_room()?;
        }
        let mut outcome = self.disk.perform(io, &[]);
        if matches!(outcome, Err(Error::NoSpace { .. })) && self.disk.reserve.bytes() > 0 {
            self.disk.reserve.give_up()?;
            outcome = self.disk.perform(io, &[]);
        }
        if let Some(patience) = self.patience.get() {
            outcome = patience.retry(outcome, || self.disk.perform(io, &[]));
        }
        self.performed(id, outcome)
    }

    /// On a disk that is nearly full the reserve is given up, so that nothing of this checkpoint fails for want of room.
    fn make_room(&self) -> Result<()> {
        let (_, free) = self.disk.storage.space().map_err(|e| Error::io("statvfs of the brick", e))?;
        if free < self.machine.read().state().promised() { self.disk.reserve.give_up() } else { Ok(()) }
    }
}
