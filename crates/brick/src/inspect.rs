//! Inspection of a stopped brick without changing a byte of it: for `hekate brick inspect`, `export` and `debug
//! compare`.
//!
//! [`StoppedBrick`] holds the brick's lock and reads its files through [`CopyOnWriteStorage`]. [`Contents`] is what the
//! brick holds, index and journal together, computed without the machine and recovery: it continues where an opening
//! must refuse, and its result can be compared with that of recovery. No function of this module panics on damage: each
//! violation is reported as a [`Problem`].

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

/// Damage, or another violation of the formats, in a brick.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, relative to the brick's directory.
    pub file: String,
    /// Bytes from the beginning of the file, if known: redb does not report where an entry is.
    pub offset: Option<u64>,
    /// The violation, in words for people.
    pub what: String,
}

impl Problem {
    pub(crate) fn new(file: impl Into<String>, offset: Option<u64>, what: impl Into<String>) -> Self {
        Self { file: file.into(), offset, what: what.into() }
    }

    /// A problem in the index.
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

/// What an opening does if the journal is damaged before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamagedJournal {
    /// It refuses, as a server's opening does.
    Refuse,
    /// It reads the log up to the damage, and ignores the records after it.
    ReadUpToIt,
}

/// A brick that no process has open. While this is held no process opens it, and nothing is written to it.
pub struct StoppedBrick {
    storage: Arc<dyn Storage>,
    identity: Identity,
    geometry: Geometry,
    life: Life,
    _lock: Option<File>,
}

/// The incarnation that an opening of the brick would begin or continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The number of the incarnation.
    pub incarnation: Incarnation,
    /// Whether it would be a new one, so that what was not synced may be lost: the machine booted, the disk was
    /// mounted, or it is another machine.
    pub reborn: bool,
    /// Why `life.toml` could not be read, if so. Then `reborn` is true, so that no unsynced byte is trusted.
    pub problem: Option<Problem>,
}

impl StoppedBrick {
    /// Locks the brick in a directory.
    ///
    /// # Errors
    /// `Unavailable`: a server has it open. `Invalid`, `NotSupported`, `Damaged`: see [`Identity::read`].
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

    /// A brick on any storage, without a lock.
    ///
    /// # Errors
    /// `Invalid`, `Damaged`: the settings or the id in `identity` are not valid.
    pub fn on(storage: Arc<dyn Storage>, identity: Identity, reborn: bool) -> Result<Self> {
        let geometry = geometry(&identity)?;
        let life = Life { incarnation: Incarnation(0), reborn, problem: None };
        Ok(Self { storage, identity, geometry, life, _lock: None })
    }

    /// The content of `brick.toml`.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The incarnation that an opening would begin or continue.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Opens the brick as a server does, recovery included. What that writes stays in memory. The returned brick must
    /// be dropped before this.
    ///
    /// # Errors
    /// Those of [`Brick::open_if`]; with [`DamagedJournal::ReadUpToIt`] no damage of the journal behind the last
    /// checkpoint.
    pub fn open_to_read(&self, damaged: DamagedJournal) -> Result<(Brick, RecoveryReport)> {
        let storage = self.view();
        if damaged == DamagedJournal::ReadUpToIt {
            self.forget_behind_damage(&*storage)?;
        }
        let Life { incarnation, reborn, .. } = self.life;
        guarded("opening the brick", || Brick::open_to_salvage(storage, &self.identity, (incarnation, reborn)))
    }

    /// The brick's files, with writes in memory.
    fn view(&self) -> Arc<CopyOnWriteStorage> {
        Arc::new(CopyOnWriteStorage::new(self.storage.clone()))
    }

    /// Zeros the journal behind the damage, in memory, so that no record there proves that the damaged one had been
    /// synced.
    fn forget_behind_damage(&self, storage: &dyn Storage) -> Result<()> {
        let contents = Contents::read(self, &mut |_| ())?;
        let end = contents.log_end().at;
        if contents.log_end().damage.is_none() {
            return Ok(());
        }
        let geometry = self.geometry;
        let first = geometry.number_of(contents.applied());
        for number in geometry.number_of(end)..geometry.number_of(end) + geometry.segments {
            // The log may reach into files whose earlier use, at the log's beginning, recovery reads.
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

/// Runs `run`, which reads an index that may be damaged. redb panics on some damaged pages: a panic becomes `Damaged`.
///
/// # Errors
/// What `run` returns, and `Damaged` if it panics.
pub fn guarded<T>(doing: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        Err(Error::Damaged { what: format!("{doing}: the index cannot be read ({said})") })
    })
}
