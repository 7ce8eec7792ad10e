//! Appending a record: the machine assigns it a position in the log, and the writer's thread puts it into the journal's
//! file.
//!
//! There is one writer at a time, so that records reach the journal's files in log order.

use super::{Brick, ROOM_PAUSE};
use crate::entry::LogEntry;
use crate::journal::Lsn;
use crate::machine::{Append, Io, IoId, Machine};
use hekate_proto::*;
use hekate_threads::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Interval between two tries of a journal write for which the file system has no room, in ms.
const JOURNAL_PAUSE_MS: u64 = 50;

impl Brick {
    /// Appends a record. When this returns the record is in the journal's file and every read sees it; it is durable
    /// once [`Brick::sync`] has covered the returned position. Waits for a checkpoint while the journal is full.
    ///
    /// # Errors
    /// `Invalid`: no segment holds a record of this length. `Bug`: the record breaks a numbered invariant of the
    /// formats. After both nothing has changed. `Poisoned`: the brick has stopped.
    pub fn append(&self, entry: &LogEntry) -> Result<Lsn> {
        self.append_waiting(|machine| machine.append(entry))
    }

    /// As [`Brick::append`], but it does not wait: `None` means that the record has to wait for a checkpoint, and
    /// nothing has changed. For a caller that holds a lock that the checkpoint needs. `copied`: the record comes from
    /// another replica, and its fresh blocks may be missing here.
    ///
    /// # Errors
    /// Those of [`Brick::append`].
    pub fn append_now(&self, entry: &LogEntry, copied: bool) -> Result<Option<Lsn>> {
        let append = if copied { Machine::append_copied } else { Machine::append };
        self.guarded(|| {
            let _writer = self.writer.lock();
            self.try_append(|machine| append(machine, entry))
        })
    }

    fn append_waiting(&self, append: impl Fn(&mut Machine) -> Result<Append>) -> Result<Lsn> {
        self.guarded(|| {
            let mut writer = self.writer.lock();
            loop {
                match self.try_append(&append)? {
                    Some(end) => return Ok(end),
                    None => self.wait_for_room(&mut writer),
                }
            }
        })
    }

    /// Called with the writer lock held. `None`: the record has to wait for a checkpoint.
    fn try_append(&self, append: impl Fn(&mut Machine) -> Result<Append>) -> Result<Option<Lsn>> {
        loop {
            let step = append(&mut self.machine.write())?;
            match step {
                Append::At { end, io } => {
                    self.perform_all(io)?;
                    self.remember_end(end);
                    return Ok(Some(end));
                }
                Append::NeedShards(shards) => self.supply_shards(&shards)?,
                Append::Full => return Ok(None),
            }
        }
    }

    fn supply_shards(&self, shards: &[(RingId, ShardId)]) -> Result<()> {
        for (ring, shard) in shards {
            let before = self.view(|view| view.before(*ring, *shard))?;
            self.machine.write().supply_shard(*shard, before);
        }
        Ok(())
    }

    /// Waits for a checkpoint to make room. With a limit: the brick may stop between the caller's check and this wait.
    pub(super) fn wait_for_room(&self, writer: &mut MutexGuard<()>) {
        self.room.wait_for(writer, ROOM_PAUSE);
    }

    /// Wakes the threads that wait for room. It takes the writer lock first, so that no writer is between finding no
    /// room and waiting.
    pub(crate) fn wake_writers(&self) {
        drop(self.writer.lock());
        self.room.notify_all();
    }

    pub(super) fn perform_all(&self, all: Vec<(IoId, Io)>) -> Result<()> {
        all.into_iter().try_for_each(|(id, io)| self.perform(id, &io, &[]))
    }

    /// Writes to the journal. Its segments have their space, so `NoSpace` occurs only on a file system that copies on
    /// write. The machine has taken the record by then, so the write is tried again, with the reserve released, until
    /// `journal_patience_ms` is over; then the brick stops, and other replicas continue without it.
    pub(super) fn perform_journal(&self, io: &Io) -> Result<()> {
        let mut outcome = self.perform_with_reserve(io);
        for _ in 0..self.journal_patience_ms.load(Ordering::Relaxed) / JOURNAL_PAUSE_MS {
            if !matches!(outcome, Err(Error::NoSpace { .. })) {
                break;
            }
            std::thread::sleep(Duration::from_millis(JOURNAL_PAUSE_MS));
            outcome = self.disk.perform(io, &[]);
        }
        outcome
    }

    /// Writes fresh blocks home: blocks at or behind `home_blocks` of the shard. The record that names them is appended
    /// afterwards ([`Brick::append`] checks that they are home), or [`Brick::forget_fresh`] is called. `parts` are
    /// whole blocks together.
    ///
    /// # Errors
    /// `NoSpace`, `Unavailable` (no file descriptor, or an older file of the shard is being removed): no record refers
    /// to what was written, and the caller may try again. `Bug`: the blocks are not fresh, or the shard is being
    /// dropped.
    pub fn write_fresh(&self, ring: RingId, shard: ShardId, first_block: u32, parts: &[&[u8]]) -> Result<()> {
        self.guarded(|| {
            let count = parts.iter().map(|part| part.len()).sum::<usize>() / BLOCK_BYTES;
            let durable = self.view(|view| view.before(ring, shard))?;
            let begun = self.machine.write().write_fresh(shard, durable, first_block, count as u32);
            let (id, io) = begun.map_err(|error| self.with_brick_id(error))?;
            self.perform(id, &io, parts)
        })
    }

    /// Allocates space at home for fresh blocks, without bytes, before the record that reserves them is appended.
    ///
    /// # Errors
    /// Those of [`Brick::write_fresh`].
    pub fn reserve_fresh(&self, ring: RingId, shard: ShardId, first_block: u32, count: u32) -> Result<()> {
        self.guarded(|| {
            let durable = self.view(|view| view.before(ring, shard))?;
            let begun = self.machine.write().reserve_fresh(shard, durable, first_block, count);
            let (id, io) = begun.map_err(|error| self.with_brick_id(error))?;
            self.perform(id, &io, &[])
        })
    }

    /// Declares that no record will name the fresh blocks that were written to the shard. A scrub may then remove its
    /// data file if no record knows the shard.
    pub fn forget_fresh(&self, shard: ShardId) {
        self.machine.write().forget_fresh(shard);
    }

    /// Whether a change writes a shard that was dropped and whose file a checkpoint has yet to remove: the record must
    /// wait.
    pub fn awaits_removal(&self, changes: &[Change]) -> bool {
        self.machine.read().awaits_removal(changes)
    }

    /// Keeps the segments with `from` and all that follows, even if a checkpoint covers them, and frees those before
    /// it. The host of a brick that shares partitions with other bricks calls this right after opening it
    /// (`replica/log/retention.rs`).
    pub fn retain_from(&self, from: Lsn) {
        self.machine.write().retain_from(from);
        self.wake_writers();
    }

    /// Sets the time that a journal write for which the file system has no room is tried again, before it stops the
    /// brick. Initially 0.
    pub fn set_journal_patience(&self, limit: Duration) {
        self.journal_patience_ms.store(limit.as_millis() as u64, Ordering::Relaxed);
    }
}
