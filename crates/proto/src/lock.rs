//! Locks on files as fcntl(2) and flock(2) know them: what is locked, by whom, and who tells whom.

mod ranges;

pub use ranges::{LockHolder, locks_with};

use crate::ids::SessionId;
use crate::{wire_enum, wire_newtype, wire_struct};

/// The end of a lock that reaches to the end of the file, however long it grows.
pub const LOCK_END: u64 = u64::MAX;

wire_newtype! {
    /// Who holds locks, within a session: a process (fcntl), an open file (OFD, flock). Its mount chooses the number.
    pub struct LockOwner(u64);
}

wire_enum! {
    /// What a lock lets others do.
    #[derive(Copy)]
    pub enum LockKind {
        /// Shared: `F_RDLCK`, `LOCK_SH`.
        1 = Read,
        /// Exclusive: `F_WRLCK`, `LOCK_EX`.
        2 = Write,
        /// None: `F_UNLCK`, `LOCK_UN`. Only asked for, never held.
        3 = Unlock,
    }

    /// Whose rules hold. Locks of one style never meet those of the other.
    #[derive(Copy)]
    pub enum LockStyle {
        /// fcntl(2): ranges. An open file description's locks (OFD) are these with an owner of their own.
        1 = Posix,
        /// flock(2): the whole file.
        2 = Flock,
        /// Of a mount that writes at the end of the file (O_APPEND) until it has told the new end.
        3 = Append,
    }
}

wire_struct! {
    /// A lock that is asked for or held.
    #[derive(Copy)]
    pub struct Lock {
        /// Shared, exclusive or none.
        pub kind: LockKind,
        /// Whose rules.
        pub style: LockStyle,
        /// First byte; 0 for flock.
        pub start: u64,
        /// Last byte, inclusive; [`LOCK_END`] for all that follow, and for flock.
        pub end: u64,
        /// Whose it is, in its session.
        pub owner: LockOwner,
        /// The process, for `F_GETLK` and for people; 0 is none. It never decides anything.
        pub pid: u32,
    }

    /// A lock and the session that holds it or waits for it.
    #[derive(Copy)]
    pub struct HeldLock {
        /// Whose mount.
        pub session: SessionId,
        /// What it holds.
        pub lock: Lock,
    }
}

impl Lock {
    /// Whether both have a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

impl HeldLock {
    /// Whether the two cannot be held at once: other owners, the same style, a common byte, and one of them exclusive.
    pub fn conflicts(&self, other: &Self) -> bool {
        let (a, b) = (&self.lock, &other.lock);
        self.holder() != other.holder()
            && a.style == b.style
            && a.overlaps(b)
            && (a.kind == LockKind::Write || b.kind == LockKind::Write)
    }
}
