//! flock and fcntl locks: the kernel sends every lock request and keeps no locks itself.
//!
//! Invariants: a waiting lock occupies no worker, and its reply is sent when the lock is granted or refused. The
//! owner of a lock is a number chosen by the kernel: for a process (fcntl), whose locks are released by FLUSH, or for
//! an open file (flock, OFD), whose locks are released by RELEASE. RELEASE does not name the owner of OFD locks, so
//! this module remembers for each open file the owners that locked through it and have not flushed.

use super::{Caller, Filesystem};
use crate::abi::*;
use crate::encode::{Failed, Outcome, bytes_of};
use crate::session::PendingReply;
use bytes::Bytes;
use hekate_client::Context;
use hekate_proto::{InodeId, LOCK_END, Lock, LockKind, LockOwner, LockStyle, OpId};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The kernel's value for a lock that extends to the end of the file.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Set for ops that must not wait for an unavailable server: closing an open file.
static GAVE_UP: AtomicBool = AtomicBool::new(true);

/// True if ops through the open file must be on stable storage when they return (O_SYNC, O_DSYNC).
pub(super) fn is_durable_handle(handle: u64) -> bool {
    handle & 1 != 0
}

/// True if reads through the open file do not change the time of access (O_NOATIME).
pub(super) fn is_quiet_handle(handle: u64) -> bool {
    handle & 2 != 0
}

/// True if the open file reads through pages that the kernel keeps while they are pledged.
pub(super) fn is_kept_handle(handle: u64) -> bool {
    handle & 4 != 0
}

/// True if the open file may be written through a mapping.
pub(super) fn is_mappable_handle(handle: u64) -> bool {
    handle & 8 != 0
}

/// What requests on an open file are told by its handle.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HandleKind {
    /// See [`is_durable_handle`].
    pub durable: bool,
    /// See [`is_quiet_handle`].
    pub quiet: bool,
    /// See [`is_kept_handle`].
    pub kept: bool,
    /// See [`is_mappable_handle`].
    pub mappable: bool,
}

/// Locks of this mount, as far as the client library does not keep them.
#[derive(Debug, Default)]
pub(super) struct Locks {
    /// Number of open files so far.
    handles: AtomicU64,
    /// Waiting requests by number, with their locks.
    waiting: Arc<Mutex<HashMap<u64, (InodeId, OpId)>>>,
    /// Owners that locked through an open file, by inode and handle.
    owners: Mutex<HashMap<InodeId, HashMap<u64, BTreeSet<LockOwner>>>>,
}

impl Locks {
    /// The handle of a new open file. It contains flags, since some requests do not carry those of the open.
    pub fn new_handle(&self, kind: HandleKind) -> u64 {
        let HandleKind { durable, quiet, kept, mappable } = kind;
        let flags = u64::from(mappable) << 3 | u64::from(kept) << 2 | u64::from(quiet) << 1 | u64::from(durable);
        (self.handles.fetch_add(1, Ordering::Relaxed) + 1) << 4 | flags
    }

    pub fn is_waiting(&self, unique: u64) -> bool {
        self.waiting.lock().contains_key(&unique)
    }

    fn locks_through(&self, inode: InodeId, handle: u64, owner: LockOwner) {
        self.owners.lock().entry(inode).or_default().entry(handle).or_default().insert(owner);
    }

    /// A process closed the file: its locks are released, through whichever open file they were taken.
    fn flushed(&self, inode: InodeId, owner: LockOwner) {
        let mut owners = self.owners.lock();
        let Some(handles) = owners.get_mut(&inode) else { return };
        handles.values_mut().for_each(|owners| _ = owners.remove(&owner));
        handles.retain(|_, owners| !owners.is_empty());
        if handles.is_empty() {
            owners.remove(&inode);
        }
    }

    /// An open file is closed. Returns the owners that locked through it and have not flushed.
    fn released(&self, inode: InodeId, handle: u64) -> BTreeSet<LockOwner> {
        let mut owners = self.owners.lock();
        let Some(handles) = owners.get_mut(&inode) else { return BTreeSet::new() };
        let left = handles.remove(&handle).unwrap_or_default();
        if handles.is_empty() {
            owners.remove(&inode);
        }
        left
    }
}

impl Filesystem {
    /// GETLK.
    pub(super) fn test_lock(&self, caller: &Caller, lk: &LkIn) -> Outcome {
        let conflict = self.volume.test_lock(&caller.context, caller.inode, lock_of(lk)?)?;
        Ok(bytes_of(&conflict.map_or(LkOut { kind: F_UNLCK, ..Default::default() }, |held| lk_of(&held.lock))))
    }

    /// SETLK.
    pub(super) fn lock(&self, caller: &Caller, lk: &LkIn) -> Outcome {
        let lock = self.requested_lock(caller, lk)?;
        self.volume.lock(&caller.context, caller.inode, lock, false)?;
        Ok(Bytes::new())
    }

    /// SETLKW. `None`: the lock waits, and `later` sends the reply.
    pub(super) fn lock_later(&self, caller: &Caller, lk: &LkIn, later: PendingReply) -> Option<Outcome> {
        let begun = self.requested_lock(caller, lk).map_err(Failed::from).and_then(|lock| {
            // Any signal ends a wait for a lock, also while the server is unavailable.
            let context = Context { interrupt: Some(&caller.signals.any), ..caller.context };
            let begun = self.volume.begin_lock(&context, caller.inode, lock);
            begun.map_err(|error| match Failed::from(error) {
                Failed(Errno::TIMEDOUT) if context.interrupted() => Failed(Errno::INTR),
                failed => failed,
            })
        });
        let op_id = match begun {
            Ok(Some(op_id)) => op_id,
            Ok(None) => return Some(Ok(Bytes::new())),
            Err(failed) => return Some(Err(failed)),
        };
        let unique = later.unique();
        let waiting = self.locks.waiting.clone();
        waiting.lock().insert(unique, (caller.inode, op_id));
        self.volume.when_locked(op_id, move |answer| {
            waiting.lock().remove(&unique);
            later.answer(&answer.map(|()| Bytes::new()).map_err(Failed::from));
        });
        // The interrupt may have arrived before the request was known to wait.
        if caller.signals.any.load(Ordering::SeqCst) {
            self.cancel_lock(unique);
        }
        None
    }

    /// INTERRUPT of a waiting SETLKW.
    pub(super) fn cancel_lock(&self, unique: u64) {
        let waiting = self.locks.waiting.lock().get(&unique).copied();
        if let Some((inode, op_id)) = waiting {
            self.volume.cancel_lock(inode, op_id);
        }
    }

    /// The lock of a request; its owner is noted.
    fn requested_lock(&self, caller: &Caller, lk: &LkIn) -> Result<Lock, Errno> {
        let lock = lock_of(lk)?;
        if lock.kind != LockKind::Unlock {
            self.locks.locks_through(caller.inode, lk.handle, lock.owner);
        }
        Ok(lock)
    }

    /// FLUSH: a process closed a descriptor, which releases its locks on the file.
    pub(super) fn flush(&self, caller: &Caller, handle: u64, owner: u64) -> Outcome {
        self.locks.flushed(caller.inode, LockOwner(owner));
        self.volume.release_locks(&caller.context, caller.inode, LockOwner(owner))?;
        self.flush_losses(caller, handle)
    }

    /// RELEASE: the locks of the open file are released. If the server is unavailable, that happens later.
    pub(super) fn release_open(&self, caller: &Caller, release: &ReleaseIn) {
        let mut owners = self.locks.released(caller.inode, release.handle);
        if release.release_flags & RELEASE_FLOCK_UNLOCK != 0 {
            owners.insert(LockOwner(release.lock_owner));
        }
        let context = Context { interrupt: Some(&GAVE_UP), ..Context::default() };
        for owner in owners {
            let _ = self.volume.release_locks(&context, caller.inode, owner);
        }
    }
}

fn lock_of(lk: &LkIn) -> Result<Lock, Errno> {
    let kind = match lk.kind {
        F_RDLCK => LockKind::Read,
        F_WRLCK => LockKind::Write,
        F_UNLCK => LockKind::Unlock,
        _ => return Err(Errno::INVAL),
    };
    let (owner, pid) = (LockOwner(lk.owner), lk.pid);
    if lk.lk_flags & LK_FLOCK != 0 {
        return Ok(Lock { kind, style: LockStyle::Flock, start: 0, end: LOCK_END, owner, pid });
    }
    let end = if lk.end >= OFFSET_MAX { LOCK_END } else { lk.end };
    if lk.start > end {
        return Err(Errno::INVAL);
    }
    Ok(Lock { kind, style: LockStyle::Posix, start: lk.start, end, owner, pid })
}

fn lk_of(lock: &Lock) -> LkOut {
    let kind = match lock.kind {
        LockKind::Read => F_RDLCK,
        LockKind::Write => F_WRLCK,
        LockKind::Unlock => F_UNLCK,
    };
    LkOut { start: lock.start.min(OFFSET_MAX), end: lock.end.min(OFFSET_MAX), kind, pid: lock.pid }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId::new(1, 2, 3);

    #[test]
    fn ranges_reach_to_the_end_of_the_file_and_back() {
        let lk = LkIn { start: 5, end: OFFSET_MAX, kind: F_WRLCK, owner: 7, pid: 9, ..Default::default() };
        let lock = lock_of(&lk).unwrap();
        assert_eq!((lock.start, lock.end, lock.kind, lock.style), (5, LOCK_END, LockKind::Write, LockStyle::Posix));
        assert_eq!(lk_of(&lock), LkOut { start: 5, end: OFFSET_MAX, kind: F_WRLCK, pid: 9 });
        let flock = lock_of(&LkIn { lk_flags: LK_FLOCK, end: OFFSET_MAX, ..lk }).unwrap();
        assert_eq!((flock.start, flock.end, flock.style), (0, LOCK_END, LockStyle::Flock));
    }

    #[test]
    fn nonsense_is_invalid() {
        assert_eq!(lock_of(&LkIn { kind: 7, ..Default::default() }), Err(Errno::INVAL));
        assert_eq!(lock_of(&LkIn { start: 9, end: 8, ..Default::default() }), Err(Errno::INVAL));
    }

    #[test]
    fn closing_an_open_file_releases_the_locks_of_owners_that_have_not_flushed() {
        let locks = Locks::default();
        locks.locks_through(FILE, 1, LockOwner(10));
        locks.locks_through(FILE, 1, LockOwner(20));
        locks.locks_through(FILE, 2, LockOwner(10));
        locks.flushed(FILE, LockOwner(10));
        assert_eq!(locks.released(FILE, 1), BTreeSet::from([LockOwner(20)]));
        assert_eq!(locks.released(FILE, 2), BTreeSet::new());
        assert!(locks.owners.lock().is_empty());
    }
}
