//! File locks of a partition's inodes: fcntl(2) ranges, open file descriptions' locks (each with an owner of its own)
//! and flock(2). They are in the leader's memory and in no record: clients restore them at a new leader (ADR 10).
//!
//! Invariants: no two conflicting locks are held by sessions that have not ended. When a call returns, every wait that
//! can be granted has been. Waits are granted in order of arrival: none overtakes one that it conflicts with, unless
//! that one waits for its owner. A request that does not wait is granted if no held lock conflicts, as POSIX says, so
//! it may overtake.
//!
//! Limits: a deadlock is detected if all its waits are in this table (not over partitions) and it consists of fcntl
//! locks. An owner is one party whatever its threads do, as in fcntl(2). Whether a wait may overtake is decided by this
//! table alone, too: a wait that lasts because of an earlier wait, where a lock of another partition or style closes
//! the cycle, ends when one is cancelled.

mod answers;
mod grant;
mod graph;
pub(crate) mod locking;
#[cfg(test)]
mod model;
mod recovery;
#[cfg(test)]
mod tests;

use answers::Answers;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// An inode and its volume: inodes of two volumes may have the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockedFile {
    /// The inode's volume.
    pub volume: VolumeId,
    /// The inode.
    pub inode: InodeId,
}

/// The op that an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// The session that sent the op.
    pub session: SessionId,
    /// The op's id, which its retries carry too.
    pub op_id: OpId,
}

/// Limits of held locks. Waiting locks are bounded by the slots of their sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockSettings {
    /// Locks on one file. Each part of a range that was split counts.
    pub locks_per_file_max: usize,
    /// Locks of one session in this partition.
    pub locks_per_session_max: usize,
}

impl Default for LockSettings {
    /// A file with 8,192 locks takes 0.5 MB, and some 50 µs a call.
    fn default() -> Self {
        Self { locks_per_file_max: 8192, locks_per_session_max: 65_536 }
    }
}

/// The result of a lock request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The lock is held or, for an unlock, released.
    Granted,
    /// This lock conflicts.
    Conflict(HeldLock),
    /// The answer comes later, as [`EndedWait`].
    Waiting(Ticket),
    /// The owner would wait for itself.
    Deadlock,
}

/// The answer of an op that waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedWait {
    /// The op.
    pub ticket: Ticket,
    /// The answer.
    pub answer: Result<Reply>,
}

/// A lock request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The op.
    pub ticket: Ticket,
    /// The wanted lock.
    pub lock: HeldLock,
}

/// One file's locks.
#[derive(Debug, Clone, Default)]
pub struct FileLocks {
    /// Held locks, by first byte.
    pub held: Vec<HeldLock>,
    /// Waiting requests, in order of arrival.
    pub waiting: Vec<Wait>,
}

/// The locks of a partition, and the requests that wait for one.
#[derive(Debug, Clone, Default)]
pub struct LockTable {
    files: BTreeMap<LockedFile, FileLocks>,
    waiting_at: BTreeMap<Ticket, LockedFile>,
    held_by_session: BTreeMap<SessionId, usize>,
    answers: Answers,
    /// Locks that were granted to ops which waited, until the session has asked for the answer: to the session such a
    /// lock comes after all ops of its owner that are executed meanwhile. Without the parts that later grants to its
    /// owner replaced.
    unseen: BTreeMap<Ticket, (LockedFile, Vec<HeldLock>)>,
    /// Sessions that may have held locks at an earlier leader and have not restored all of them.
    unrestored: BTreeSet<SessionId>,
    /// While there are such sessions, requests that would not wait are refused with `WouldBlock`.
    refuses_meanwhile: bool,
    ended_waits: Vec<EndedWait>,
    settings: LockSettings,
}

impl LockTable {
    /// The table of a partition in which no session holds locks.
    pub fn new(settings: LockSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Executes an op of a session that has not ended. An op that was answered gets the same answer again. `None`: the
    /// op waits. Each call may end waits of other ops: see [`LockTable::take_ended_waits`].
    pub fn execute(&mut self, ticket: Ticket, volume: VolumeId, op: &LockOp) -> Option<Result<Reply>> {
        if let LockOp::Get { inode, lock } = op {
            let file = LockedFile { volume, inode: *inode };
            return Some(self.get(ticket.session, file, lock).map(|conflict| Reply::Lock { conflict }));
        }
        if self.waiting_at.contains_key(&ticket) {
            return None;
        }
        if let Some(answer) = self.answers.of(ticket) {
            self.unseen.remove(&ticket);
            return Some(answer);
        }
        self.unseen.retain(|other, _| (other.session, other.slot()) != (ticket.session, ticket.slot()));
        if self.waits_of(ticket.session).any(|(other, _)| other.slot() == ticket.slot()) {
            return Some(Err(Error::Protocol { what: "two unanswered ops of a session share a slot".into() }));
        }
        let answer = self.change(ticket, volume, op)?;
        // An op that is to be sent again was not answered.
        if !matches!(answer, Err(Error::Unavailable { .. })) {
            self.answers.keep(ticket, answer.clone());
        }
        Some(answer)
    }

    fn change(&mut self, ticket: Ticket, volume: VolumeId, op: &LockOp) -> Option<Result<Reply>> {
        let session = ticket.session;
        Some(match op {
            LockOp::Get { .. } => Err(Error::bug("F_GETLK was passed to `change`")),
            LockOp::Set { inode, lock, wait } => {
                match self.set(ticket, LockedFile { volume, inode: *inode }, lock, *wait) {
                    Ok(Outcome::Granted) => Ok(Reply::Done),
                    Ok(Outcome::Conflict(_)) => Err(Error::WouldBlock),
                    Ok(Outcome::Waiting(_)) => return None,
                    Ok(Outcome::Deadlock) => Err(Error::Deadlock),
                    Err(error) => Err(error),
                }
            }
            LockOp::Cancel { op_id, .. } => {
                Ok(Reply::Cancelled { ended: self.cancel(Ticket { session, op_id: *op_id }) })
            }
            LockOp::Release { inode, owner } => {
                self.release(session, *owner, LockedFile { volume, inode: *inode });
                Ok(Reply::Done)
            }
            LockOp::Restore { locks, done } => {
                self.restore(session, volume, locks, *done).map(|lost| Reply::Restored { lost })
            }
        })
    }

    /// The answers of ops that waited, in the order in which they were answered.
    pub fn take_ended_waits(&mut self) -> Vec<EndedWait> {
        std::mem::take(&mut self.ended_waits)
    }

    /// `F_GETLK`: the conflicting lock with the lowest first byte.
    ///
    /// # Errors
    ///
    /// `Invalid` for a malformed lock; `Unavailable` while sessions have not restored their locks.
    pub fn get(&self, session: SessionId, file: LockedFile, lock: &Lock) -> Result<Option<HeldLock>> {
        check(lock)?;
        if self.is_recovering() {
            return Err(self.locks_unknown());
        }
        Ok(self.conflict(&file, &HeldLock { session, lock: *lock }))
    }

    /// `F_SETLK`, `F_SETLKW`, flock. A conversion of a flock lock releases the old lock first, as flock(2) says, so a
    /// request that waits may be granted before.
    ///
    /// # Errors
    ///
    /// `Invalid` for a malformed lock; `TooManyLocks`; while sessions have not restored their locks, `Unavailable` or
    /// `WouldBlock` for a request that does not wait and adds to what its owner holds.
    pub fn set(&mut self, ticket: Ticket, file: LockedFile, lock: &Lock, wait: bool) -> Result<Outcome> {
        check(lock)?;
        let wanted = HeldLock { session: ticket.session, lock: *lock };
        if lock.kind == LockKind::Unlock {
            self.hold(file, &wanted)?;
            self.hold_unseen(file, wanted.holder())?;
            self.settle();
            return Ok(Outcome::Granted);
        }
        // A downgrade is neither refused nor waits: its session has reported the weaker lock, and counts on the other.
        let is_downgrade = self.is_recovering() && self.covers(&file, &wanted);
        if self.is_recovering() && !wait && !is_downgrade {
            return Err(if self.refuses_meanwhile { Error::WouldBlock } else { self.locks_unknown() });
        }
        if lock.style == LockStyle::Flock && !self.holds(&file, &wanted) {
            self.hold(file, &HeldLock { lock: Lock { kind: LockKind::Unlock, ..*lock }, ..wanted })?;
            self.hold_unseen(file, wanted.holder())?;
            self.settle();
        }
        let waits = wait && !is_downgrade;
        if waits { self.wait(Wait { ticket, lock: wanted }, file) } else { self.take(file, &wanted) }
    }

    fn holds(&self, file: &LockedFile, wanted: &HeldLock) -> bool {
        let same = |held: &HeldLock| {
            let (held_lock, lock) = (&held.lock, &wanted.lock);
            held.holder() == wanted.holder() && held_lock.style == lock.style && held_lock.kind == lock.kind
        };
        self.files.get(file).is_some_and(|locks| locks.held.iter().any(same))
    }

    /// True if the owner holds every byte of the range as `wanted`, or exclusively.
    fn covers(&self, file: &LockedFile, wanted: &HeldLock) -> bool {
        let Some(locks) = self.files.get(file) else { return false };
        let is_enough = |held: &&HeldLock| {
            let is_own = held.holder() == wanted.holder() && held.lock.style == wanted.lock.style;
            is_own && (held.lock.kind == LockKind::Write || held.lock.kind == wanted.lock.kind)
        };
        // The first byte that none of the locks so far has; they are in the order of their first bytes.
        let mut next = wanted.lock.start;
        for HeldLock { lock, .. } in locks.held.iter().filter(is_enough) {
            if (lock.start..=lock.end).contains(&next) {
                if lock.end >= wanted.lock.end {
                    return true;
                }
                next = lock.end + 1;
            }
        }
        false
    }

    fn take(&mut self, file: LockedFile, wanted: &HeldLock) -> Result<Outcome> {
        if let Some(conflict) = self.conflict(&file, wanted) {
            return Ok(Outcome::Conflict(conflict));
        }
        self.hold(file, wanted)?;
        self.hold_unseen(file, wanted.holder())?;
        self.settle();
        Ok(Outcome::Granted)
    }

    fn wait(&mut self, wait: Wait, file: LockedFile) -> Result<Outcome> {
        // During recovery not all locks are known. All waits are checked once they are.
        if !self.is_recovering() && self.is_deadlock(&file, &wait.lock) {
            return Ok(Outcome::Deadlock);
        }
        let waiting = &mut self.files.entry(file).or_default().waiting;
        waiting.push(wait);
        let place = waiting.len() - 1;
        self.waiting_at.insert(wait.ticket, file);
        if self.is_recovering() || !self.is_free(&file, place) {
            // This wait may let others overtake.
            self.settle();
            return Ok(Outcome::Waiting(wait.ticket));
        }
        self.stop_waiting(wait.ticket);
        self.hold(file, &wait.lock)?;
        self.hold_unseen(file, wait.lock.holder())?;
        self.settle();
        Ok(Outcome::Granted)
    }

    /// Takes again what was granted to ops of an owner whose session does not know it yet.
    fn hold_unseen(&mut self, file: LockedFile, holder: (SessionId, LockOwner)) -> Result<()> {
        let of_file = self.unseen.values().filter(|(of, _)| *of == file).flat_map(|(_, locks)| locks);
        let locks: Vec<HeldLock> = of_file.filter(|lock| lock.holder() == holder).copied().collect();
        locks.iter().try_for_each(|lock| self.hold(file, lock))
    }

    /// Cancels an op. Returns true if that ends the op: it waited, or has yet to arrive and will be answered
    /// `Interrupted`. If it was answered already, a lock that was granted stays.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        if self.stop_waiting(ticket) {
            self.end_wait(ticket, Err(Error::Interrupted));
            self.settle();
            return true;
        }
        let is_new = self.answers.of(ticket).is_none();
        if is_new {
            self.answers.keep(ticket, Err(Error::Interrupted));
        }
        is_new
    }

    /// Releases what an owner holds of a file that it closed, of both styles. Its waits stay, as in Linux.
    pub fn release(&mut self, session: SessionId, owner: LockOwner, file: LockedFile) {
        self.drop_held(&file, |held| held.holder() == (session, owner));
        let held = self.hold_unseen(file, (session, owner));
        assert!(held.is_ok(), "locks that were within the limits are, when their owner has released others");
        self.settle();
    }

    /// Releases all locks of a session and ends its waits.
    pub fn end_session(&mut self, session: SessionId) {
        let waits: Vec<Ticket> = self.waits_of(session).map(|(ticket, _)| ticket).collect();
        for ticket in waits {
            self.stop_waiting(ticket);
            self.end_wait(ticket, Err(Error::SessionEnded));
        }
        let files: Vec<LockedFile> = self.files.keys().copied().collect();
        files.iter().for_each(|file| self.drop_held(file, |held| held.session == session));
        self.answers.forget(session);
        self.unseen.retain(|ticket, _| ticket.session != session);
        self.unrestored.remove(&session);
        self.settle();
    }

    /// Held locks and waits, by file.
    pub fn list(&self) -> impl Iterator<Item = (&LockedFile, &FileLocks)> {
        self.files.iter()
    }
}

/// Checks that the range is not empty, and that a flock lock covers the whole file.
fn check(lock: &Lock) -> Result<()> {
    if lock.start > lock.end {
        return Err(Error::invalid("the lock ends before it starts"));
    }
    if lock.style == LockStyle::Flock && (lock.start, lock.end) != (0, LOCK_END) {
        return Err(Error::invalid("a flock lock covers the whole file, not a range"));
    }
    Ok(())
}
