//! Appending a record: the machine gives it its place in the log, and its writer puts it into the journal's file.
//!
//! One writer at a time, so that records reach the journal's files in log order.

use super::{Brick, ROOM_PAUSE};
use crate::entry::LogEntry;
use crate::journal::Lsn;
use crate::machine::{Append, Io, IoId, Machine};
use hekate_proto::*;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Between two looks whether there is room for a write of the journal, in ms.
const JOURNAL_PAUSE_MS: u64 = 50;

impl Brick {
    /// Takes a record: it is in the journal file when this returns, and every read sees it. Durable once
    /// [`Brick::sync`] has covered the returned position. Waits while the journal is full. A record that is refused
    /// (`Invalid`, `Bug`) has changed nothing.
    pub fn append(&self, entry: &LogEntry) -> Result<Lsn> {
        self.journal(|machine| machine.append(entry))
    }

    /// The same, but it does not wait: `None` while the journal is full, and then nothing has changed. For who holds
    /// what a checkpoint needs, as a replica's lock. `copied`: a record of another replica that may lack fresh blocks
    /// as this one then does.
    pub fn append_now(&self, entry: &LogEntry, copied: bool) -> Result<Option<Lsn>> {
        let append = if copied { Machine::append_copied } else { Machine::append };
        self.guarded(|| {
            let _writer = self.writer.lock();
            self.try_append(|machine| append(machine, entry))
        })
    }

    fn journal(&self, append: impl Fn(&mut Machine) -> Result<Append>) -> Result<Lsn> {
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

    /// By who is the writer.
    fn try_append(&self, append: impl Fn(&mut Machine) -> Result<Append>) -> Result<Option<Lsn>> {
        loop {
            let step = append(&mut self.machine.write())?;
            match step {
                Append::At { end, io } => {
                    self.perform_all(io)?;
                    self.pass(end);
                    return Ok(Some(end));
                }
                Append::Learn(shards) => self.learn(&shards)?,
                Append::Full => return Ok(None),
            }
        }
    }

    fn learn(&self, shards: &[(RingId, ShardId)]) -> Result<()> {
        for (ring, shard) in shards {
            let before = self.view(|view| view.before(*ring, *shard))?;
            self.machine.write().learn(*shard, before);
        }
        Ok(())
    }

    /// A checkpoint gives room; a failure may come while this thread is not waiting yet.
    pub(super) fn wait_for_room(&self, writer: &mut MutexGuard<()>) {
        self.room.wait_for(writer, ROOM_PAUSE);
    }

    /// With the lock, so that nobody is between finding no room and waiting.
    pub(crate) fn wake_writers(&self) {
        drop(self.writer.lock());
        self.room.notify_all();
    }

    pub(super) fn perform_all(&self, all: Vec<(IoId, Io)>) -> Result<()> {
        all.into_iter().try_for_each(|(id, io)| self.perform(id, &io, &[]))
    }

    /// A write of the journal finds no room only where the file system copies on write. The machine has taken the record
    /// by then, so the write waits, with the reserve given up; in the end the brick stops and other replicas go on.
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

    /// Writes fresh blocks home, before the record that tells of them is appended.
    pub fn write_fresh(&self, ring: RingId, shard: ShardId, first_block: u32, parts: &[&[u8]]) -> Result<()> {
        self.guarded(|| {
            let count = parts.iter().map(|part| part.len()).sum::<usize>() / BLOCK_BYTES;
            let durable = self.view(|view| view.before(ring, shard))?;
            let begun = self.machine.write().write_fresh(shard, durable, first_block, count as u32);
            let (id, io) = begun.map_err(|error| self.named(error))?;
            self.perform(id, &io, parts)
        })
    }

    /// Makes room at home for fresh blocks, before the record that tells of them is appended.
    pub fn reserve_fresh(&self, ring: RingId, shard: ShardId, first_block: u32, count: u32) -> Result<()> {
        self.guarded(|| {
            let durable = self.view(|view| view.before(ring, shard))?;
            let begun = self.machine.write().reserve_fresh(shard, durable, first_block, count);
            let (id, io) = begun.map_err(|error| self.named(error))?;
            self.perform(id, &io, &[])
        })
    }

    /// No record will tell of fresh blocks that were written to the shard.
    pub fn forget_fresh(&self, shard: ShardId) {
        self.machine.write().forget_fresh(shard);
    }

    /// Whether any of the changes writes a shard that a checkpoint has yet to remove: they must wait for it.
    pub fn awaits_removal(&self, changes: &[Change]) -> bool {
        self.machine.read().awaits_removal(changes)
    }

    /// What is in the journal from here on is kept, though a checkpoint covers it; what is before it may go. The host of a
    /// brick that shares partitions with others says so at once when it has opened it (`replica/log/retention.rs`).
    pub fn retain_from(&self, from: Lsn) {
        self.machine.write().retain_from(from);
        self.wake_writers();
    }

    /// How long a write of the journal waits that finds no room, before it stops the brick; at first not at all. The
    /// journal's files have their room, but on a file system that copies on write.
    pub fn set_journal_patience(&self, limit: Duration) {
        self.journal_patience_ms.store(limit.as_millis() as u64, Ordering::Relaxed);
    }
}
