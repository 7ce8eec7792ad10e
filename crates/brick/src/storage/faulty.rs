//! Any storage with faults: the Nth call fails, of a kind or of all, once or from then on.
//!
//! It counts the calls, so that a test goes through every N, and it remembers which syncs failed: to sync the same file
//! again would ask a kernel that has already forgotten what it could not write.

use super::{Space, Storage, StorageFile};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::{Error, Result};
use std::sync::Arc;

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum CallKind {
    /// Opening a file that has to be there.
    Open,
    /// Reading, and asking for a length.
    Read,
    /// Opening a file that is made if missing.
    Create,
    /// Making a directory.
    CreateDirectory,
    /// Removing a file.
    Remove,
    /// Making a directory's names durable.
    SyncDirectory,
    /// Writing.
    Write,
    /// Cutting or extending a file.
    SetLength,
    /// Giving space back.
    Punch,
    /// Making a file's content durable.
    Sync,
}

/// What a failing call answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultError {
    /// ENOSPC.
    NoSpace,
    /// EIO.
    Io,
    /// A write takes half of its bytes, then ENOSPC; another call EIO.
    ShortWrite,
    /// EMFILE.
    NoDescriptor,
}

/// Which call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Only calls of this kind count; without one, all that change something.
    pub kind: Option<CallKind>,
    /// How many of them succeed first, from now on.
    pub after: u64,
    /// With what.
    pub error: FaultError,
    /// Whether those that follow it fail too.
    pub forever: bool,
}

/// See the module. Clones share faults and counts.
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
    /// Counts a call. -> the fault that it meets.
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
    /// Without faults yet.
    pub fn new(inner: S) -> Self {
        Self { inner: Arc::new(inner), faults: Arc::default() }
    }

    /// The storage without faults.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// From now on a call fails as this says.
    pub fn fail(&self, fault: Fault) {
        self.faults.lock().armed = Some(fault);
    }

    /// From now on no call fails.
    pub fn heal(&self) {
        self.faults.lock().armed = None;
    }

    /// Calls of a kind so far, those that failed included.
    pub fn calls(&self, kind: CallKind) -> u64 {
        self.faults.lock().counts[kind as usize]
    }

    /// Calls that change something so far: what a [`Fault`] without a kind counts.
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

    /// Of these, the ones that were synced again.
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
