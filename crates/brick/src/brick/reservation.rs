//! Reservations of room for records, and the room that a brick has.

use super::Brick;
use crate::entry::LogEntry;
use crate::machine::{Amount, has_file};
use hekate_proto::*;

impl Brick {
    /// Reserves room for a record. A leader reserves it on every replica before any of them appends the record.
    /// `grows`: the record makes the store grow; such records are refused earlier than deletes.
    ///
    /// # Errors
    /// `NoSpace`: the text says what is short, bytes or inodes.
    pub fn reserve<'a>(&'a self, entry: &LogEntry, grows: bool) -> Result<Reservation<'a>> {
        let mut need = entry.need;
        let mut kept = self.machine.write().reserve(need, grows);
        if matches!(kept, Err(Error::NoSpace { .. })) && need.files > 0 {
            need.files = self.files_to_make(&entry.record)?;
            kept = self.machine.write().reserve(need, grows);
        }
        kept.map_err(|error| self.with_brick_id(error))?;
        Ok(Reservation { brick: self, need })
    }

    /// Data files that a checkpoint may have to make for a record: one for each shard that has none.
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

    /// Room that growing records may still take.
    pub fn room_left(&self) -> Amount {
        self.machine.read().room_left()
    }

    /// Reads the free room from the file system, after restoring what the reserve has released, unless a checkpoint
    /// runs.
    ///
    /// # Errors
    /// `Io`: the file system or the reserve's files cannot be read.
    pub fn refresh_room(&self) -> Result<()> {
        if let Some(_alone) = self.checkpointing.try_lock() {
            self.disk.reserve.restore()?;
        }
        self.measure_room()
    }

    fn measure_room(&self) -> Result<()> {
        let free = self.disk.reserve.free().map_err(|e| Error::io("statvfs of the brick", e))?;
        self.machine.write().set_room(free, self.disk.reserve.held());
        Ok(())
    }

    /// Releases a part of the reserve for records that other replicas have appended already. Returns false if nothing
    /// is left of it.
    pub fn give_up_reserve(&self) -> Result<bool> {
        let gave = self.disk.reserve.release_some()?;
        self.measure_room()?;
        Ok(gave)
    }
}

/// Room reserved for a record, until this is dropped.
pub struct Reservation<'a> {
    brick: &'a Brick,
    need: Amount,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.brick.machine.write().release(self.need);
    }
}
