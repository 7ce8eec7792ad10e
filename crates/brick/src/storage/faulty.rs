//! A storage that injects faults into another: the Nth call of a kind, or of all, fails, once or from then on.
//!
//! It counts calls, so that a test can go through every N. It remembers which syncs failed: syncing the same file again
//! would trust a kernel that has already dropped what it could not write.

use super::{Space, Storage, StorageFile};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::{Error, Result};
use std::sync::Arc;

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum CallKind {
    /// Opens a file that has to exist.
    Open,
    /// Reads bytes or a length.
    Read,
    /// Opens a file that is made if missing.
    Create,
    /// Makes a directory.
    CreateDirectory,
    /// Removes a file.
    Remove,
    /// Syncs a directory.
    SyncDirectory,
    /// Writes.
    Write,
    /// Sets a file's length.
    SetLength,
    /// Frees space.
    Punch,
    /// Syncs a file.
    Sync,
}

/// The error of a failing call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultError {
    /// ENOSPC.
    NoSpace,
    /// EIO.
    Io,
    /// A write takes half of its bytes and fails with ENOSPC; another call fails with EIO.
    ShortWrite,
    /// EMFILE.
    NoDescriptor,
}

/// A fault: which call fails, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Only calls of this kind count; `None`: all that change something.
    pub kind: Option<CallKind>,
    /// Number of these calls that succeed first.
    pub after: u64,
    /// The error.
    pub error: FaultError,
    /// Whether all later ones fail too.
    pub forever: bool,
}

/// A storage with injected faults. Clones share faults and counts.
pub struct FaultyStorage<S> {
    inner: Arc<S>,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Default)]
struct Faults {
    counts: [u64; CallKind::Sync as usize + 1],
    armed: Option<Fault>,
    struck: Option<String>,
    failed_syncs: BTreeSet<String>,
    retried_syncs: BTreeSet<String>,
}

impl CallKind {
    /// Whether such a call changes something, or makes a change durable.
    pub fn is_change(self) -> bool {
        !matches!(self, Self::Open | Self::Read)
    }
}

impl FaultError {
    fn error(self, kind: CallKind) -> Error {
        Error::from_raw_os_error(match self {
            Self::NoSpace => 28,
            Self::ShortWrite if kind == CallKind::Write => 28,
            Self::NoDescriptor => 24,
            Self::Io | Self::ShortWrite => 5,
        })
    }
}

impl Faults {
    /// Counts a call. Returns the error with which it fails, if it fails.
    fn count(&mut self, kind: CallKind, path: &str) -> Option<FaultError> {
        self.counts[kind as usize] += 1;
        let syncs = matches!(kind, CallKind::Sync | CallKind::SyncDirectory);
        if syncs && self.failed_syncs.contains(path) {
            self.retried_syncs.insert(path.into());
        }
        let fault = self.armed.as_mut()?;
        if !fault.kind.map_or(kind.is_change(), |only| only == kind) {
            return None;
        }
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        let error = fault.error;
        if !fault.forever {
            self.armed = None;
        }
        self.struck.get_or_insert_with(|| format!("{kind:?} of {path}"));
        if syncs {
            self.failed_syncs.insert(path.into());
        }
        Some(error)
    }
}

impl<S> Clone for FaultyStorage<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), faults: self.faults.clone() }
    }
}

impl<S> FaultyStorage<S> {
    /// Over a storage, without faults.
    pub fn new(inner: S) -> Self {
        Self { inner: Arc::new(inner), faults: Arc::default() }
    }

    /// The storage without faults.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Sets the fault.
    pub fn fail(&self, fault: Fault) {
        self.faults.lock().armed = Some(fault);
    }

    /// Removes the fault.
    pub fn heal(&self) {
        self.faults.lock().armed = None;
    }

    /// Number of calls of a kind so far, failed ones included.
    pub fn calls(&self, kind: CallKind) -> u64 {
        self.faults.lock().counts[kind as usize]
    }

    /// Number of calls so far that change something: those that a [`Fault`] without a kind counts.
    pub fn changes(&self) -> u64 {
        let faults = self.faults.lock();
        let reads = faults.counts[CallKind::Open as usize] + faults.counts[CallKind::Read as usize];
        faults.counts.iter().sum::<u64>() - reads
    }

    /// The first call that failed, for people.
    pub fn struck(&self) -> Option<String> {
        self.faults.lock().struck.clone()
    }

    /// Files and directories whose sync failed.
    pub fn failed_syncs(&self) -> Vec<String> {
        self.faults.lock().failed_syncs.iter().cloned().collect()
    }

    /// Files and directories that were synced again after a failed sync.
    pub fn retried_syncs(&self) -> Vec<String> {
        self.faults.lock().retried_syncs.iter().cloned().collect()
    }

    fn check(&self, kind: CallKind, path: &str) -> Result<()> {
        match self.faults.lock().count(kind, path) {
            Some(error) => Err(error.error(kind)),
            None => Ok(()),
        }
    }
}

impl<S: Storage> Storage for FaultyStorage<S> {
    fn open(&self, path: &str, create: bool) -> Result<Arc<dyn StorageFile>> {
        self.check(if create { CallKind::Create } else { CallKind::Open }, path)?;
        let inner = self.inner.open(path, create)?;
        Ok(Arc::new(FaultyFile { inner, path: path.into(), faults: self.faults.clone() }))
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        self.check(CallKind::CreateDirectory, path)?;
        self.inner.create_directory(path)
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.check(CallKind::Remove, path)?;
        self.inner.remove(path)
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        self.check(CallKind::Read, path)?;
        self.inner.list(path)
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        self.check(CallKind::SyncDirectory, path)?;
        self.inner.sync_directory(path)
    }

    fn space(&self) -> Result<Space> {
        self.inner.space()
    }
}

struct FaultyFile {
    inner: Arc<dyn StorageFile>,
    path: String,
    faults: Arc<Mutex<Faults>>,
}

impl FaultyFile {
    fn check(&self, kind: CallKind) -> Result<()> {
        match self.faults.lock().count(kind, &self.path) {
            Some(error) => Err(error.error(kind)),
            None => Ok(()),
        }
    }
}

impl StorageFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.check(CallKind::Read)?;
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        let met = self.faults.lock().count(CallKind::Write, &self.path);
        match met {
            None => self.inner.write_at(parts, offset),
            Some(error) => {
                if error == FaultError::ShortWrite {
                    let bytes = parts.concat();
                    self.inner.write_at(&[&bytes[..bytes.len() / 2]], offset)?;
                }
                Err(error.error(CallKind::Write))
            }
        }
    }

    fn length(&self) -> Result<u64> {
        self.check(CallKind::Read)?;
        self.inner.length()
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.check(CallKind::SetLength)?;
        self.inner.set_length(length)
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        self.check(CallKind::Write)?;
        self.inner.allocate(offset, length)
    }

    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        self.check(CallKind::Punch)?;
        self.inner.punch(offset, length)
    }

    fn sync(&self) -> Result<()> {
        self.check(CallKind::Sync)?;
        self.inner.sync()
    }
}
