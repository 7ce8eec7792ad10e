//! An open brick: the machine, its disk, and the locks between the threads of its callers.
//!
//! A writer lock orders appends and is held while a record is written, so that records reach the journal's files in log
//! order. The machine's lock is never held during IO to the journal or to data files. A panic in this module, of an
//! assertion or of the index library, poisons the brick: every later call answers [`Error::Poisoned`], and the process
//! continues.

mod append;
mod checkpoint;
pub mod digest;
mod group_commit;
pub mod log_ends;
pub mod merged_index;
pub mod poison_note;
mod read;
pub mod records_since;
mod reservation;
mod room_queue;
pub mod scrub;
mod sync;

pub use checkpoint::Checkpoint;
pub use reservation::Reservation;

use crate::disk::Disk;
use crate::journal::{Geometry, Lsn};
use crate::machine::{Amount, Io, IoId, Machine};
use crate::storage::Space;
use group_commit::GroupCommit;
use hekate_proto::*;
use hekate_threads::{Condvar, Mutex, RwLock};
use log_ends::LogEnds;
use room_queue::RoomQueue;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Records the incarnation of a brick as settled, where the next opening finds it.
pub type RecordLife = Box<dyn FnOnce() -> Result<()> + Send>;

/// The open store of one disk. All methods may be called from any thread.
///
/// # Errors
/// Unless a method says otherwise, it answers `Poisoned` once the brick has stopped itself: the caller stops using the
/// brick, and other replicas continue without it. `Damaged` says that stored bytes do not match their checksum: the
/// caller repairs the block or entry from another replica.
pub struct Brick {
    id: BrickId,
    incarnation: Incarnation,
    pub(crate) geometry: Geometry,
    pub(crate) disk: Disk,
    pub(crate) machine: RwLock<Machine>,
    /// Held by the thread that appends. Threads that found no room wait on `room` until a checkpoint has ended.
    writer: Mutex<()>,
    room: Condvar,
    group_commit: GroupCommit,
    checkpointing: Mutex<()>,
    /// Time that a write of the journal waits for room in the file system before it poisons the brick, in ms.
    journal_patience_ms: AtomicU64,
    /// Members of partitions that wait for room for a record, in the order in which they began to wait.
    room_queue: RoomQueue,
    log_ends: LogEnds,
    /// Whether the file that says why the brick stopped has been written.
    has_noted_poison: AtomicBool,
    life: Mutex<Option<RecordLife>>,
    /// The `flock` on `brick.toml`: no other process opens the brick.
    _lock: Option<File>,
}

/// The state of a brick, for `hekate status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrickStatus {
    /// Room in the file system that the brick is on.
    pub space: Space,
    /// Bytes of the journal in use, from the oldest segment that is kept to the log's end, and bytes of all its
    /// segments.
    pub journal: (u64, u64),
    /// Bytes of memory that the overlays take, by estimate.
    pub overlay_bytes: usize,
    /// What the reserve holds: bytes and files that a checkpoint may use on a full disk.
    pub reserve: Amount,
    /// Why the running checkpoint cannot write home. Until it can, growing records are refused.
    pub stalled: Option<String>,
    /// Why the brick stopped itself.
    pub poisoned: Option<String>,
}

/// Interval at which a writer that waits for room checks whether the brick has stopped.
const ROOM_PAUSE: Duration = Duration::from_millis(100);

impl Brick {
    /// A brick on a disk and a machine that recovery has prepared.
    pub(crate) fn of(geometry: Geometry, incarnation: Incarnation, disk: Disk, machine: Machine) -> Self {
        Self {
            id: geometry.brick,
            incarnation,
            geometry,
            disk,
            machine: RwLock::new(machine),
            writer: Mutex::new(()),
            room: Condvar::new(),
            group_commit: GroupCommit::default(),
            checkpointing: Mutex::new(()),
            journal_patience_ms: AtomicU64::new(0),
            room_queue: RoomQueue::default(),
            log_ends: LogEnds::default(),
            has_noted_poison: AtomicBool::new(false),
            life: Mutex::new(None),
            _lock: None,
        }
    }

    /// Keeps the directory's lock.
    pub(crate) fn hold(&mut self, lock: File) {
        self._lock = Some(lock);
    }

    /// Sets what [`Brick::settle_life`] does to record the incarnation.
    pub fn set_record_life(&mut self, record: RecordLife) {
        self.life = Mutex::new(Some(record));
    }

    /// Records the incarnation as settled: the replicas are reconciled and a checkpoint has covered what recovery
    /// found. From now on an opening within this boot and mount trusts all that is in the brick's files.
    ///
    /// # Errors
    /// `Poisoned`, also when recovery is not yet covered by a checkpoint; `Io` if `life.toml` cannot be written.
    pub fn settle_life(&self) -> Result<()> {
        self.guarded(|| {
            self.machine.read().settle();
            if let Some(record) = self.life.lock().take() {
                record()?;
            }
            poison_note::clear(&*self.disk.storage)
        })
    }

    pub fn id(&self) -> BrickId {
        self.id
    }

    /// The number of this opening: greater than those of all openings before it, with gaps.
    pub fn generation(&self) -> u32 {
        self.machine.read().log().generation()
    }

    /// Counter of the boots, mounts and stops after which unsynced changes may be lost.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Why this brick has stopped itself, if it has. Does no IO.
    pub fn stopped(&self) -> Option<String> {
        let machine = self.machine.read();
        machine.failure().map(|error| error.detail().map_or_else(|| error.to_string(), String::from))
    }

    /// The error with this brick's id in its text.
    fn with_brick_id(&self, error: Error) -> Error {
        let id = self.id.text();
        let name = |what: String| if what.contains(&id) { what } else { format!("brick {id}: {what}") };
        match error {
            Error::NoSpace { what } => Error::NoSpace { what: format!("on brick {id}: {what}") },
            Error::Io { what } => Error::Io { what: name(what) },
            Error::Poisoned { what } => Error::Poisoned { what: name(what) },
            other => other,
        }
    }

    /// Runs `act`. A panic in it poisons the brick, and so does an index file that can no longer be read.
    pub(crate) fn guarded<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let outcome = catch_unwind(AssertUnwindSafe(act));
        if let Some(what) = self.disk.index.broken() {
            return Err(self.poison(&Error::Damaged { what: format!("brick {}: {what}", self.id.text()) }));
        }
        outcome.unwrap_or_else(|panic| {
            Err(self.poison(&Error::Poisoned { what: format!("brick {}: {}", self.id.text(), panic_text(&*panic)) }))
        })
    }

    /// Numbers of the index's blocks that were read though they do not match their sums: none, unless the brick has
    /// stopped.
    pub(crate) fn wrong_index_blocks(&self) -> Vec<u64> {
        self.disk.index.wrong_blocks()
    }

    /// Numbers of the index's blocks whose flipped bit was repaired since the last call.
    pub fn take_mended_index_blocks(&self) -> Vec<u64> {
        self.disk.index.take_mended()
    }

    /// Stops the brick: nothing is appended, acknowledged or read any more. Returns the reason, which is the first one
    /// given.
    pub fn poison(&self, error: &Error) -> Error {
        let error = self.machine.write().fail(&self.with_brick_id(error.clone()));
        self.group_commit.fail(&error);
        if !self.has_noted_poison.swap(true, Ordering::Relaxed) {
            poison_note::leave(&*self.disk.storage, &error.to_string());
        }
        self.room.notify_all();
        error
    }

    /// Does an IO and reports its outcome to the machine.
    pub(crate) fn perform(&self, id: IoId, io: &Io, fresh: &[&[u8]]) -> Result<()> {
        let outcome = match io {
            Io::BeginSegment { .. } | Io::WriteJournal { .. } => self.perform_journal(io),
            _ => self.disk.perform(io, fresh),
        };
        self.report_outcome(id, outcome)
    }

    fn report_outcome(&self, id: IoId, outcome: Result<()>) -> Result<()> {
        let outcome = outcome.map_err(|error| self.with_brick_id(error));
        let done = self.machine.write().done(id, outcome);
        done.inspect_err(|error| {
            if matches!(error, Error::Poisoned { .. }) {
                self.poison(error);
            }
        })
    }

    /// Where the log ends.
    pub fn end(&self) -> Lsn {
        self.machine.read().log().end()
    }

    /// Whether a checkpoint should begin soon.
    pub fn wants_checkpoint(&self) -> bool {
        self.machine.read().wants_checkpoint()
    }

    /// Bytes of the longest record that a segment holds.
    pub fn record_bytes_max(&self) -> usize {
        self.geometry.body_bytes_max()
    }

    /// Bytes of all segments of the journal.
    pub fn journal_bytes(&self) -> u64 {
        self.geometry.segments * self.geometry.segment_bytes
    }

    /// Whether a checkpoint would free space: shards were dropped, cut or punched since the last one.
    pub fn could_free_space(&self) -> bool {
        self.machine.read().state().active.frees_space
    }

    /// Whether a checkpoint may make room for growing records that are refused now: more than a quarter of the room
    /// that may be promised is promised to other records.
    pub fn could_free_promises(&self) -> bool {
        self.machine.read().is_promised()
    }

    /// The brick's state.
    ///
    /// # Errors
    /// `Io` if statvfs(3) fails. A poisoned brick reports its status too.
    pub fn status(&self) -> Result<BrickStatus> {
        let space = self.disk.storage.space().map_err(|e| Error::io("statvfs of the brick", e))?;
        let machine = self.machine.read();
        Ok(BrickStatus {
            space,
            journal: machine.log().fill(),
            overlay_bytes: machine.state().bytes(),
            reserve: self.disk.reserve.held(),
            stalled: machine.stalled().map(str::to_string),
            poisoned: machine.failure().map(|error| error.to_string()),
        })
    }

    /// Writes home all records that were appended before this call.
    ///
    /// # Errors
    /// Those of [`Checkpoint::finish`].
    pub fn checkpoint(&self) -> Result<()> {
        self.begin_checkpoint().finish(&mut || false)
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string())).unwrap_or_else(|| "a panic".into())
}
