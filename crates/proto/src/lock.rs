//! Locks on files as in fcntl(2) and flock(2).

mod ranges;

pub use ranges::{LockHolder, locks_with};

use crate::ids::SessionId;
use crate::{wire_enum, wire_newtype, wire_struct};

/// The end of a lock that extends to the end of the file, whatever its size.
pub const LOCK_END: u64 = u64::MAX;

wire_newtype! {
    /// The owner of locks within a session: a process (fcntl) or an open file (OFD, flock). The mount assigns the
    /// number.
    pub struct LockOwner(u64);
}

wire_enum! {
    /// Kind of a lock.
    #[derive(Copy)]
    pub enum LockKind {
        /// Shared: `F_RDLCK`, `LOCK_SH`.
        1 = Read,
        /// Exclusive: `F_WRLCK`, `LOCK_EX`.
        2 = Write,
        /// No lock: `F_UNLCK`, `LOCK_UN`. It is only requested, never held.
        3 = Unlock,
    }

    /// Rules of a lock. Locks of different styles never conflict.
    #[derive(Copy)]
    pub enum LockStyle {
        /// fcntl(2): byte ranges. The locks of open file descriptions (OFD) have this style, with an owner of their
        /// own.
        1 = Posix,
        /// flock(2): the whole file.
        2 = Flock,
        /// The whole file, held by a mount that appends (O_APPEND) until the leader knows the new end.
        3 = Append,
    }
}

wire_struct! {
    /// A lock that is requested or held.
    #[derive(Copy)]
    pub struct Lock {
        pub kind: LockKind,
        pub style: LockStyle,
        /// First byte. 0 for flock.
        pub start: u64,
        /// Last byte, inclusive. [`LOCK_END`] for all bytes that follow, and for flock.
        pub end: u64,
        /// The owner, within the session.
        pub owner: LockOwner,
        /// The process, for `F_GETLK` and for people. 0: unknown. It decides nothing.
        pub pid: u32,
    }

    /// A lock, and the session that holds it or waits for it.
    #[derive(Copy)]
    pub struct HeldLock {
        pub session: SessionId,
        pub lock: Lock,
    }
}

impl Lock {
    /// True if the ranges have a byte in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

impl HeldLock {
    /// True if the two locks cannot be held at once: different owners, the same style, a common byte, and at least
    /// one exclusive.
    pub fn conflicts(&self, other: &Self) -> bool {
        let (a, b) = (&self.lock, &other.lock);
        self.holder() != other.holder()
            && a.style == b.style
            && a.overlaps(b)
            && (a.kind == LockKind::Write || b.kind == LockKind::Write)
    }
}
