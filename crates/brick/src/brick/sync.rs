//! Syncs of the journal, which the threads that wait for one share, and of data files, each followed by a mark in the
//! journal.

use super::{Brick, ROOM_PAUSE};
use crate::journal::Lsn;
use crate::machine::Append;
use hekate_proto::*;

impl Brick {
    /// Returns once the log before `upto` is on stable storage.
    ///
    /// # Errors
    /// `Poisoned`: the sync failed, now or earlier. A failed sync is never tried again, and nothing more is
    /// acknowledged.
    pub fn sync(&self, upto: Lsn) -> Result<()> {
        if self.machine.read().written() < upto {
            // Another thread holds the writer lock and is writing the record.
            drop(self.writer.lock());
        }
        self.group_commit.wait(upto, || self.guarded(|| self.sync_written()))
    }

    fn sync_written(&self) -> Result<Lsn> {
        let begun = self.machine.write().sync()?;
        if let Some((id, io)) = begun {
            self.perform(id, &io, &[])?;
        }
        Ok(self.machine.read().stable())
    }

    /// Puts the data files of these shards on stable storage, if they have bytes that no sync has covered, and appends
    /// a mark that says so. Returns the position up to which [`Brick::sync`] makes the mark durable. Waits while no
    /// file descriptor is free, since a replica treats an error as the end of the brick; waits while the journal is
    /// full; and after a power cut until a checkpoint has covered recovery.
    ///
    /// # Errors
    /// `Poisoned`: a sync failed, or the brick has stopped.
    pub fn sync_shards(&self, shards: &[ShardId]) -> Result<Lsn> {
        self.guarded(|| {
            self.wait_for_recovery(shards)?;
            while let Err(error) = self.sync_homes(shards) {
                if !matches!(error, Error::Unavailable { .. }) {
                    return Err(error);
                }
                std::thread::sleep(ROOM_PAUSE);
            }
            let mut writer = self.writer.lock();
            loop {
                let step = self.machine.write().mark()?;
                match step {
                    None => return Ok(self.end()),
                    Some(Append::At { io, .. }) => self.perform_all(io)?,
                    Some(_) => self.wait_for_room(&mut writer),
                }
            }
        })
    }

    fn sync_homes(&self, shards: &[ShardId]) -> Result<()> {
        let io = self.machine.write().sync_shards(shards)?;
        // Each IO is done, also after one that failed: the machine expects the outcome of all.
        let synced: Vec<Result<()>> = io.into_iter().map(|(id, io)| self.perform(id, &io, &[])).collect();
        synced.into_iter().collect()
    }

    /// After a power cut no data file is synced before a checkpoint has covered what recovery found: the mark would
    /// also cover the blocks that the power cut took, and the next recovery would take them for damage. That checkpoint
    /// may be stalled for want of room.
    fn wait_for_recovery(&self, shards: &[ShardId]) -> Result<()> {
        while !self.may_sync(shards)? {
            std::thread::sleep(ROOM_PAUSE);
        }
        Ok(())
    }

    /// True if [`Brick::sync_shards`] can run before a checkpoint has covered recovery: recovery is covered, or the
    /// shards have no unsynced bytes.
    pub fn may_sync(&self, shards: &[ShardId]) -> Result<bool> {
        let machine = self.machine.read();
        machine.check_alive()?;
        Ok(machine.has_covered_recovery() || !shards.iter().any(|shard| machine.state().unsynced(*shard).is_some()))
    }

    /// True if the journal has room for the mark of [`Brick::sync_shards`].
    pub fn takes_mark(&self) -> bool {
        self.machine.write().takes_mark()
    }

    /// Whether a checkpoint has covered what recovery found after a power cut. Until then no data file may be synced.
    pub fn has_covered_recovery(&self) -> bool {
        self.machine.read().has_covered_recovery()
    }

    /// Shards with bytes that only [`Brick::sync_shards`] makes durable.
    pub fn unsynced_shards(&self) -> Vec<ShardId> {
        self.machine.read().state().unsynced_shards()
    }
}
