//! A brick that is open: the machine, its disk, and the threads of whoever calls.
//!
//! One lock orders appends and is held while a record is written, so that records reach the journal's files in log
//! order; the machine's own lock is never held during IO. A panic in here, of an assertion or of the index library,
//! stops the brick and not the process.

mod room;
mod write_home;

pub use room::Reservation;
pub use write_home::Checkpoint;

use crate::disk::Disk;
use crate::entry::LogEntry;
use crate::group_commit::GroupCommit;
use crate::identity::NextLife;
use crate::journal::{Geometry, Lsn};
use crate::journal_marks::Passed;
use crate::machine::{Amount, Append, Io, IoId, LogPosition, Machine};
use crate::merged_index::{MergedIndex, durable_shards, read_places};
use crate::poison_note;
use crate::room_queue::Starving;
use crate::storage::Space;
use bytes::Bytes;
use hekate_proto::*;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// One disk's store, open. All methods may be called from any thread.
pub struct Brick {
    id: BrickId,
    incarnation: Incarnation,
    pub(crate) geometry: Geometry,
    pub(crate) disk: Disk,
    pub(crate) machine: RwLock<Machine>,
    /// Orders appends. Waiters for room wait for a checkpoint.
    writer: Mutex<()>,
    room: Condvar,
    group: GroupCommit,
    checkpointing: Mutex<()>,
    /// How long a write of the journal waits that finds no room, in ms.
    journal_patience_ms: AtomicU64,
    /// Members of partitions that have a record to take and no room for it, in the order in which it came.
    pub(crate) starving: Starving,
    pub(crate) passed: Passed,
    /// Whether the note of why it stopped is left.
    noted: AtomicBool,
    life: Mutex<Option<NextLife>>,
    /// Held as long as the brick is open, so that no other process opens it.
    _lock: Option<File>,
}

/// What a brick says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrickStatus {
    /// Room in the file system below it.
    pub space: Space,
    /// Bytes of the journal that recovery would read, and all.
    pub journal: (u64, u64),
    /// Memory of changes since the last checkpoint.
    pub overlay_bytes: usize,
    /// Bytes and files that the brick holds only to give them up to a checkpoint on a full disk.
    pub reserve: Amount,
    /// Why a checkpoint cannot write home: nothing grows until it can.
    pub stalled: Option<String>,
    /// Why it stopped.
    pub poisoned: Option<String>,
}

/// How often all of a partition is looked through before writers have to wait for it.
const SCANS_MAX: usize = 3;

/// How long a writer waits before it looks again whether the brick has stopped.
const ROOM_PAUSE: Duration = Duration::from_millis(100);

impl Brick {
    /// A brick that recovery has made ready.
    pub(crate) fn of(geometry: Geometry, incarnation: Incarnation, disk: Disk, machine: Machine) -> Self {
        Self {
            id: geometry.brick,
            incarnation,
            geometry,
            disk,
            machine: RwLock::new(machine),
            writer: Mutex::new(()),
            room: Condvar::new(),
            group: GroupCommit::default(),
            checkpointing: Mutex::new(()),
            journal_patience_ms: AtomicU64::new(0),
            starving: Starving::default(),
            passed: Passed::default(),
            noted: AtomicBool::new(false),
            life: Mutex::new(None),
            _lock: None,
        }
    }

    /// For a brick in a directory: keeps its lock, and the life that is to be recorded.
    pub(crate) fn hold(&mut self, lock: File, life: NextLife) {
        self._lock = Some(lock);
        self.life = Mutex::new(Some(life));
    }

    /// What a power cut took is settled (the replicas are even, a checkpoint has been): from now on the brick knows that
    /// it is in its new life, and the next start takes everything in its files for its own.
    pub fn settle_life(&self) -> Result<()> {
        self.guarded(|| {
            self.machine.read().settle();
            if let Some(life) = self.life.lock().take() {
                life.settle()?;
            }
            poison_note::clear(&*self.disk.storage)
        })
    }

    /// Which brick this is.
    pub fn id(&self) -> BrickId {
        self.id
    }

    /// How often it was opened.
    pub fn generation(&self) -> u32 {
        self.machine.read().log().generation()
    }

    /// In which life.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Why this brick has stopped itself, if it has. Asks nothing of its disk.
    pub fn stopped(&self) -> Option<String> {
        let machine = self.machine.read();
        machine.failure().map(|error| error.detail().map_or_else(|| error.to_string(), String::from))
    }

    /// The error with this brick's id in its text.
    fn named(&self, error: Error) -> Error {
        let id = self.id.text();
        let name = |what: String| if what.contains(&id) { what } else { format!("brick {id}: {what}") };
        match error {
            Error::NoSpace { what } => Error::NoSpace { what: format!("on brick {id}: {what}") },
            Error::Io { what } => Error::Io { what: name(what) },
            Error::Poisoned { what } => Error::Poisoned { what: name(what) },
            other => other,
        }
    }

    /// Runs with panics turned into the end of this brick, and so what cannot be read of its index.
    pub(crate) fn guarded<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let outcome = catch_unwind(AssertUnwindSafe(act));
        if let Some(what) = self.disk.index.broken() {
            return Err(self.poison(&Error::Damaged { what: format!("brick {}: {what}", self.id.text()) }));
        }
        outcome.unwrap_or_else(|panic| {
            Err(self.poison(&Error::Poisoned { what: format!("brick {}: {}", self.id.text(), words(&*panic)) }))
        })
    }

    /// Blocks of the index's file that were read though they do not match their sums: none but in a stopped brick.
    pub(crate) fn wrong_index_blocks(&self) -> Vec<u64> {
        self.disk.index.wrong_blocks()
    }

    /// Blocks of the index's file that had a flipped bit and were put right since this was last asked.
    pub fn take_mended_index_blocks(&self) -> Vec<u64> {
        self.disk.index.take_mended()
    }

    /// Stops the brick: nothing is appended, acknowledged or read any more. -> why it stopped first.
    pub fn poison(&self, error: &Error) -> Error {
        let error = self.machine.write().fail(&self.named(error.clone()));
        self.group.fail(&error);
        if !self.noted.swap(true, Ordering::Relaxed) {
            poison_note::leave(&*self.disk.storage, &error.to_string());
        }
        self.room.notify_all();
        error
    }

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

    /// With the lock, so that nobody is between finding no room and waiting.
    pub(crate) fn wake_writers(&self) {
        drop(self.writer.lock());
        self.room.notify_all();
    }

    /// A checkpoint gives room; a failure may come while this thread is not waiting yet.
    fn wait_for_room(&self, writer: &mut MutexGuard<()>) {
        self.room.wait_for(writer, ROOM_PAUSE);
    }

    fn learn(&self, shards: &[(RingId, ShardId)]) -> Result<()> {
        for (ring, shard) in shards {
            let before = self.view(|view| view.before(*ring, *shard))?;
            self.machine.write().learn(*shard, before);
        }
        Ok(())
    }

    fn perform_all(&self, all: Vec<(IoId, Io)>) -> Result<()> {
        all.into_iter().try_for_each(|(id, io)| self.perform(id, &io, &[]))
    }

    /// Does an IO and tells the machine how it ended.
    pub(crate) fn perform(&self, id: IoId, io: &Io, fresh: &[&[u8]]) -> Result<()> {
        let outcome = match io {
            Io::BeginSegment { .. } | Io::WriteJournal { .. } => self.perform_journal(io),
            _ => self.disk.perform(io, fresh),
        };
        self.performed(id, outcome)
    }

    fn performed(&self, id: IoId, outcome: Result<()>) -> Result<()> {
        let outcome = outcome.map_err(|error| self.named(error));
        let told = self.machine.write().done(id, outcome);
        told.inspect_err(|error| {
            if matches!(error, Error::Poisoned { .. }) {
                self.poison(error);
            }
        })
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

    /// Puts the data files of these shards on stable storage, as far as they have bytes that no sync has covered.
    /// -> the position to [`Brick::sync`] to. Waits while the process has no file descriptor for them: replicas take an
    /// error for the end of the brick.
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
        // All of them: the machine waits for each to end.
        let synced: Vec<Result<()>> = io.into_iter().map(|(id, io)| self.perform(id, &io, &[])).collect();
        synced.into_iter().collect()
    }

    /// After a power cut no data file is synced before a checkpoint has covered what recovery found: a mark would cover
    /// what the power cut took as well. That checkpoint may be stalled for want of room.
    fn wait_for_recovery(&self, shards: &[ShardId]) -> Result<()> {
        while !self.may_sync(shards)? {
            std::thread::sleep(ROOM_PAUSE);
        }
        Ok(())
    }

    /// Whether [`Brick::sync_shards`] would not wait for a checkpoint that is to cover recovery.
    pub fn may_sync(&self, shards: &[ShardId]) -> Result<bool> {
        let machine = self.machine.read();
        machine.check_alive()?;
        Ok(machine.has_covered_recovery() || !shards.iter().any(|shard| machine.state().unsynced(*shard).is_some()))
    }

    /// Returns once everything before `upto` is on stable storage.
    pub fn sync(&self, upto: Lsn) -> Result<()> {
        if self.machine.read().written() < upto {
            // Another thread is writing it.
            drop(self.writer.lock());
        }
        self.group.wait(upto, || self.guarded(|| self.sync_written()))
    }

    fn sync_written(&self) -> Result<Lsn> {
        let begun = self.machine.write().sync()?;
        if let Some((id, io)) = begun {
            self.perform(id, &io, &[])?;
        }
        Ok(self.machine.read().stable())
    }

    /// Where the journal ends.
    pub fn end(&self) -> Lsn {
        self.machine.read().log().end()
    }

    /// Reads under the machine's lock; nothing of a brick that stopped.
    pub(crate) fn view<T>(&self, read: impl FnOnce(&MergedIndex) -> Result<T>) -> Result<T> {
        self.guarded(|| {
            let machine = self.machine.read();
            machine.check_alive()?;
            read(&MergedIndex { state: machine.state(), index: &*self.disk.index })
        })
    }

    /// The value of a key.
    pub fn get(&self, key: &Key) -> Result<Option<Bytes>> {
        self.view(|view| view.get(key))
    }

    /// At most `limit` entries of `from..to`, in order.
    pub fn scan(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Bytes)>> {
        self.view(|view| view.scan(from, to, limit))
    }

    /// A shard as it is.
    pub fn shard(&self, ring: RingId, shard: ShardId) -> Result<Option<ShardRecord>> {
        self.view(|view| view.shard(ring, shard))
    }

    /// All shards of a partition (one of `count`).
    pub fn shards(&self, ring: RingId, partition: PartitionNumber, count: u32) -> Result<Vec<ShardId>> {
        // It may take long, so not under the machine's lock: unless checkpoints end again and again meanwhile, each of
        // which moves shards from the overlay to the index.
        for _ in 0..SCANS_MAX {
            let applied = self.machine.read().applied();
            let durable = self.guarded(|| durable_shards(&*self.disk.index, ring, partition, count))?;
            let found = self.view(|view| Ok(view.shards(ring, partition, count, durable)))?;
            if self.machine.read().applied() == applied {
                return Ok(found);
            }
        }
        self.view(|view| {
            let durable = durable_shards(view.index, ring, partition, count)?;
            Ok(view.shards(ring, partition, count, durable))
        })
    }

    /// At most `length` bytes of a shard from `offset`, each block checked; short at the shard's end.
    pub fn read_shard(&self, ring: RingId, shard: ShardId, offset: u32, length: u32) -> Result<Bytes> {
        let block = BLOCK_BYTES as u32;
        let found = self.view(|view| {
            let Some(record) = view.shard(ring, shard)? else { return Ok(None) };
            let end = record.length.min(offset.saturating_add(length));
            if end <= offset {
                return Ok(None);
            }
            Ok(Some((end, view.places(ring, shard, offset / block, end.div_ceil(block))?)))
        })?;
        let Some((end, places)) = found else { return Ok(Bytes::new()) };
        let buffer = read_places(&self.disk.home, shard, offset / block, &places)?;
        let from = (offset % block) as usize;
        Ok(buffer.freeze().slice(from..from + (end - offset) as usize))
    }

    /// Of the blocks `first..end`, which are holes: never written, or cut off or punched since.
    pub fn holes(&self, ring: RingId, shard: ShardId, first: u32, end: u32) -> Result<Vec<bool>> {
        let places = self.view(|view| match view.shard(ring, shard)? {
            Some(_) => view.places(ring, shard, first, end),
            None => Ok(vec![(0, crate::merged_index::BlockSource::Hole); end.saturating_sub(first) as usize]),
        })?;
        Ok(places.into_iter().map(|(sum, _)| sum == 0).collect())
    }

    /// A block, checked, also behind the shard's end; `None` for a hole.
    pub fn read_block(&self, ring: RingId, shard: ShardId, block: u32) -> Result<Option<Bytes>> {
        let places = self.view(|view| view.places(ring, shard, block, block + 1))?;
        if matches!(places[..], [(0, _)]) {
            return Ok(None);
        }
        Ok(Some(read_places(&self.disk.home, shard, block, &places)?.freeze()))
    }

    /// Whether these bytes are what a block is to hold: by its checksum, whatever the block itself holds by now.
    pub fn is_meant(&self, ring: RingId, shard: ShardId, block: u32, bytes: &[u8]) -> Result<bool> {
        let places = self.view(|view| view.places(ring, shard, block, block + 1))?;
        Ok(matches!(places[..], [(sum, _)] if sum != 0 && sum == crate::block_checksum(shard, block, bytes)))
    }

    /// A block of a data file as it is, unchecked.
    pub fn read_home(&self, shard: ShardId, block: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.disk.home.read(shard, block, &mut bytes)?;
        Ok(bytes)
    }

    /// So many blocks of it, with zeros for those that cannot be read.
    pub fn readable_home(&self, shard: ShardId, first: u32, count: usize) -> Result<Vec<u8>> {
        self.disk.home.readable(shard, first, count)
    }

    /// Whether the shard was given up and a checkpoint has yet to remove it: it cannot be written.
    pub fn is_dropped(&self, shard: ShardId) -> bool {
        self.machine.read().state().is_dropped(shard)
    }

    /// Whether any of the changes writes a shard that a checkpoint has yet to remove: they must wait for it.
    pub fn awaits_removal(&self, changes: &[Change]) -> bool {
        self.machine.read().awaits_removal(changes)
    }

    /// Shards with bytes that only [`Brick::sync_shards`] makes durable.
    pub fn unsynced_shards(&self) -> Vec<ShardId> {
        self.machine.read().state().unsynced_shards()
    }

    /// How far a partition's log has come here.
    pub fn position(&self, ring: RingId, partition: PartitionNumber) -> LogPosition {
        self.machine.read().state().position(ring, partition)
    }

    /// Whether it is time to write home.
    pub fn wants_checkpoint(&self) -> bool {
        self.machine.read().wants_checkpoint()
    }

    /// Bytes of the greatest record that the journal takes.
    pub fn record_bytes_max(&self) -> usize {
        self.geometry.body_bytes_max()
    }

    /// Bytes of the whole journal.
    pub fn journal_bytes(&self) -> u64 {
        self.geometry.segments * self.geometry.segment_bytes
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

    /// Whether a checkpoint has covered what recovery found after a power cut. Until then no data file may be synced.
    pub fn has_covered_recovery(&self) -> bool {
        self.machine.read().has_covered_recovery()
    }

    /// Whether [`Brick::sync_shards`] would not wait for room in the journal.
    pub fn takes_mark(&self) -> bool {
        self.machine.write().takes_mark()
    }

    /// No record will tell of fresh blocks that were written to the shard.
    pub fn forget_fresh(&self, shard: ShardId) {
        self.machine.write().forget_fresh(shard);
    }

    /// Whether a checkpoint would give space back to the file system.
    pub fn could_free_space(&self) -> bool {
        self.machine.read().state().active.frees_space
    }

    /// Whether a checkpoint would let records grow that are refused now: most of the room is promised to others.
    pub fn could_free_promises(&self) -> bool {
        self.machine.read().is_promised()
    }

    /// What the brick says of itself.
    pub fn status(&self) -> Result<BrickStatus> {
        let space = self.disk.storage.space().map_err(|e| Error::io("statvfs of the brick", e))?;
        let machine = self.machine.read();
        Ok(BrickStatus {
            space,
            journal: machine.log().fill(),
            overlay_bytes: machine.state().bytes(),
            reserve: self.disk.reserve.has(),
            stalled: machine.stalled().map(str::to_string),
            poisoned: machine.failure().map(|error| error.to_string()),
        })
    }

    /// Writes everything home that was appended before now.
    ///
    /// # Errors
    /// See [`Checkpoint::finish`].
    pub fn checkpoint(&self) -> Result<()> {
        self.begin_checkpoint().finish(&mut || false)
    }
}

pub(crate) fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string())).unwrap_or_else(|| "a panic".into())
}
