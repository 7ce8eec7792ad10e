//! Room at home: kept before a record is journaled, so that a full disk can always empty its journal.
//!
//! What the running and the next checkpoint may take at most is *promised*. Records that make the store grow are refused
//! before the promise reaches half of the reserve (a file that is there only to be given up); those that make it
//! shrink may use all of it, and wait for a checkpoint beyond. An eighth of what is free counts too, for a brick may
//! share its file system with seven others.

use hekate_proto::{Error, Result};

/// Bricks that may share a file system.
const SHARERS: u64 = 8;

/// See the module. All in bytes.
#[derive(Debug, Clone)]
pub struct Room {
    free: u64,
    reserve: u64,
    /// Kept for records that are about to be taken.
    kept: u64,
}

impl Default for Room {
    /// Before it is measured: as much as one likes.
    fn default() -> Self {
        Self { free: u64::MAX / 4, reserve: 0, kept: 0 }
    }
}

impl Room {
    pub fn set(&mut self, free: u64, reserve: u64) {
        (self.free, self.reserve) = (free, reserve);
    }

    /// What may be promised while the store grows.
    fn growing_max(&self) -> u64 {
        self.free.min(self.reserve / 2 + self.free / SHARERS)
    }

    fn shrinking_max(&self) -> u64 {
        self.reserve + self.free / SHARERS
    }

    pub fn reserve(&mut self, bytes: u64, grows: bool, promised: u64) -> Result<()> {
        if grows && promised.saturating_add(self.kept).saturating_add(bytes) > self.growing_max() {
            return Err(self.full());
        }
        self.kept = self.kept.saturating_add(bytes);
        Ok(())
    }

    /// What `reserve` would still keep for records that grow.
    pub fn left(&self, promised: u64) -> u64 {
        self.growing_max().saturating_sub(promised).saturating_sub(self.kept)
    }

    pub fn release(&mut self, bytes: u64) {
        self.kept = self.kept.saturating_sub(bytes);
    }

    /// Whether a record can be taken before the next checkpoint. However great, it needs no more than half of the room:
    /// what it changes lies together, and a checkpoint always makes that much.
    pub fn takes(&self, bytes: u64, promised: u64) -> bool {
        promised == 0 || promised.saturating_add(bytes.min(self.shrinking_max() / 2)) <= self.shrinking_max()
    }

    /// Blocks go home at once.
    pub fn take(&mut self, bytes: u64) -> Result<()> {
        self.free = self.free.checked_sub(bytes).ok_or_else(|| self.full())?;
        Ok(())
    }

    /// Whether a checkpoint should give the promise back before growing records are refused; or, when they are refused
    /// anyway, before deletes wait.
    pub fn wants_checkpoint(&self, promised: u64) -> bool {
        promised > (self.growing_max() / 2).max(self.reserve / 8)
    }

    fn full(&self) -> Error {
        let what = format!("{} MiB are free and {} MiB kept for deletes", self.free >> 20, self.reserve >> 20);
        Error::NoSpace { what }
    }
}
