//! Looking at a stopped brick without changing a byte of it: for `hekate brick inspect`, `export` and `debug compare`.
//!
//! [`StoppedBrick`] holds the brick's lock and reads its files through [`CopyOnWriteStorage`]. [`Contents`] is what the
//! brick holds, index and journal together, told by a reader of its own: it goes on where an opening must refuse, and it
//! is a second opinion on recovery. Nothing here panics on damage, whatever is damaged; what is wrong is a [`Problem`].

mod blocks;
mod check;
mod compare;
mod contents;
mod entry;
mod log;

pub use blocks::{BlockState, DataFile, ShardBlocks};
pub use check::{Counts, Watch, check};
pub use compare::{Differences, Digest, Held, HeldShard, PartitionAddress, Replica, differences};
pub use contents::Contents;
pub use entry::Entry;
pub use log::{LogBody, LogEnd, LogRecord, Segment, SegmentUse};

use crate::brick::Brick;
use crate::identity::{self, Identity};
use crate::journal::Geometry;
use crate::opening::geometry;
use crate::opening::recovery::RecoveryReport;
use crate::storage::{CopyOnWriteStorage, RealStorage, Storage, StorageFile};
use hekate_proto::{Error, Incarnation, Result};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// Something in a brick that should not be so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file in the brick.
    pub file: String,
    /// Where in it, if that can be said: the index's library does not tell.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
}

impl Problem {
    pub(crate) fn new(file: impl Into<String>, offset: Option<u64>, what: impl Into<String>) -> Self {
        Self { file: file.into(), offset, what: what.into() }
    }

    /// In the index.
    pub(crate) fn index(what: impl Into<String>) -> Self {
        Self::new(crate::index::FILE, None, what)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "{} at offset {offset}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

/// What to do about a journal with damage before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamagedJournal {
    /// Refuse, as an opening does.
    Refuse,
    /// Take the log up to the damage for all there is.
    ReadUpToIt,
}

/// A brick that nobody else opens while this is held, and of which nothing is written.
pub struct StoppedBrick {
    storage: Arc<dyn Storage>,
    identity: Identity,
    geometry: Geometry,
    life: Life,
    _lock: Option<File>,
}

/// The life that the brick would be in if it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// Counted by `life.toml`.
    pub incarnation: Incarnation,
    /// What was not synced may be lost: the machine booted or the disk was mounted since, or it is another machine.
    pub reborn: bool,
    /// Why `life.toml` could not be read; then the brick is taken as reborn, which believes least.
    pub problem: Option<Problem>,
}

impl StoppedBrick {
    /// Takes the brick in a directory. `Unavailable` while a server has it open.
    pub fn take(directory: &Path) -> Result<Self> {
        let identity = Identity::read(directory)?;
        let lock = identity::lock(directory).map_err(|error| match error {
            Error::Unavailable { what } => Error::Unavailable { what: format!("{what}; stop the server first") },
            other => other,
        })?;
        let life = match identity::next_life(directory) {
            Ok(life) => Life { incarnation: life.incarnation(), reborn: life.is_new(), problem: None },
            Err(error) => {
                let problem = Problem::new("life.toml", None, error.to_string());
                Life { incarnation: Incarnation(0), reborn: true, problem: Some(problem) }
            }
        };
        let mut stopped = Self::on(Arc::new(RealStorage::read_only(directory)), identity, life.reborn)?;
        stopped.life = life;
        stopped._lock = Some(lock);
        Ok(stopped)
    }

    /// On any storage.
    pub fn on(storage: Arc<dyn Storage>, identity: Identity, reborn: bool) -> Result<Self> {
        let geometry = geometry(&identity)?;
        let life = Life { incarnation: Incarnation(0), reborn, problem: None };
        Ok(Self { storage, identity, geometry, life, _lock: None })
    }

    /// `brick.toml`.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What `life.toml` means now.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Opens the brick as a server does, recovery included; what that writes stays in memory. The brick must be dropped
    /// before this is.
    pub fn open_to_read(&self, damaged: DamagedJournal) -> Result<(Brick, RecoveryReport)> {
        let storage = self.view();
        if damaged == DamagedJournal::ReadUpToIt {
            self.forget_behind_damage(&*storage)?;
        }
        let Life { incarnation, reborn, .. } = self.life;
        guarded("opening the brick", || Brick::open_to_salvage(storage, &self.identity, (incarnation, reborn)))
    }

    /// The brick's files, with writes of its own.
    fn view(&self) -> Arc<CopyOnWriteStorage> {
        Arc::new(CopyOnWriteStorage::new(self.storage.clone()))
    }

    /// In memory, the journal ends at the damage: nothing behind it proves any more that something was there.
    fn forget_behind_damage(&self, storage: &dyn Storage) -> Result<()> {
        let contents = Contents::read(self, &mut |_| ())?;
        let end = contents.log_end().at;
        if contents.log_end().damage.is_none() {
            return Ok(());
        }
        let geometry = self.geometry;
        let first = geometry.number_of(contents.applied());
        for number in geometry.number_of(end)..geometry.number_of(end) + geometry.segments {
            // The files of the last segments are those of the log's first ones, which recovery reads.
            let holds_log = number > geometry.number_of(end) && number >= first + geometry.segments;
            let keep = if number == geometry.number_of(end) { geometry.offset_of(end) } else { 0 };
            let path = geometry.path_of(number);
            let cut = |file: Arc<dyn StorageFile>| {
                file.set_length(keep)?;
                file.set_length(geometry.segment_bytes)
            };
            if !holds_log {
                storage.open(&path, false).and_then(cut).map_err(|e| Error::io(format!("read {path}"), e))?;
            }
        }
        Ok(())
    }
}

/// Runs what reads an index that may be damaged: redb panics on some pages that are no pages. -> `Damaged` for a panic.
pub fn guarded<T>(doing: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        Err(Error::Damaged { what: format!("{doing}: the index cannot be read ({said})") })
    })
}
