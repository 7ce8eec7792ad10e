//! A brick that is open: the machine, its disk, and the threads of whoever calls.
//!
//! One lock orders appends and is held while a record is written, so that records reach the journal's files in log
//! order; the machine's own lock is never held during IO. A panic in here, of an assertion or of the index library,
//! stops the brick and not the process.

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
use crate::identity::NextLife;
use crate::journal::{Geometry, Lsn};
use crate::machine::{Amount, Io, IoId, Machine};
use crate::storage::Space;
use group_commit::GroupCommit;
use hekate_proto::*;
use log_ends::Passed;
use parking_lot::{Condvar, Mutex, RwLock};
use room_queue::Starving;
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

    /// Where the journal ends.
    pub fn end(&self) -> Lsn {
        self.machine.read().log().end()
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
