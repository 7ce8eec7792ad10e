//! Room that a brick keeps for records, and what it counts on.

use super::Brick;
use crate::entry::LogEntry;
use crate::machine::{Amount, has_file};
use hekate_proto::*;

impl Brick {
    /// Keeps room for a record, to be asked of every replica before any of them takes it. `grows`: it makes the store
    /// grow, and is refused while deletes are not.
    pub fn reserve<'a>(&'a self, entry: &LogEntry, grows: bool) -> Result<Reservation<'a>> {
        let mut need = entry.need;
        let mut kept = self.machine.write().reserve(need, grows);
        if matches!(kept, Err(Error::NoSpace { .. })) && need.files > 0 {
            need.files = self.files_to_make(&entry.record)?;
            kept = self.machine.write().reserve(need, grows);
        }
        kept.map_err(|error| self.named(error))?;
        Ok(Reservation { brick: self, need })
    }

    /// Data files that a record makes a brick have that has it not: those of shards that have none yet.
    pub fn files_to_make(&self, record: &Record) -> Result<u64> {
        let mut count = 0;
        for change in &record.changes {
            if let Change::WriteBlocks { shard, .. }
            | Change::FreshBlocks { shard, .. }
            | Change::ReserveBlocks { shard, .. } = change
            {
                let before = self.shard(record.ring, *shard)?;
                count += u64::from(!before.is_some_and(|before| has_file(&before)));
            }
        }
        Ok(count)
    }

    /// Whether [`Brick::append`] would take a record without waiting for a checkpoint.
    pub fn takes_now(&self, entry: &LogEntry) -> bool {
        self.machine.write().takes_now(entry)
    }

    /// What records that make the store grow may take now.
    pub fn room_left(&self) -> Amount {
        self.machine.read().room_left()
    }

    /// Asks the file system how much room there is, and takes the reserve back if it was given up.
    pub fn refresh_room(&self) -> Result<()> {
        if let Some(_alone) = self.checkpointing.try_lock() {
            self.disk.reserve.restore()?;
        }
        self.measure_room()
    }

    fn measure_room(&self) -> Result<()> {
        let free = self.disk.reserve.free().map_err(|e| Error::io("statvfs of the brick", e))?;
        self.machine.write().set_room(free, self.disk.reserve.has());
        Ok(())
    }

    /// Gives up some of the reserve for what other replicas have taken already. False: nothing is left of it.
    pub fn give_up_reserve(&self) -> Result<bool> {
        let gave = self.disk.reserve.give_up_some()?;
        self.measure_room()?;
        Ok(gave)
    }
}

/// Room kept for a record, until this is dropped.
pub struct Reservation<'a> {
    brick: &'a Brick,
    need: Amount,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.brick.machine.write().release(self.need);
    }
}
