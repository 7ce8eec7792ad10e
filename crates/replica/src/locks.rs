//! File locks of a partition's inodes: fcntl(2) ranges (an open file description's with an owner of its own) and
//! flock(2). They are the leader's memory, never a record: in a new epoch clients tell them again (DESIGN section 6).
//!
//! Invariants: no two locks that conflict are held, by sessions that have not ended; what can be granted has been, when
//! a call returns. Those who wait are served in the order in which they came: none passes another with whom it conflicts,
//! but for one that the other waits for. Who does not wait goes by what is held, as POSIX says, so it may pass.
//!
//! Limits: a deadlock is seen if all its waits are in this table (not over partitions) and it is of fcntl locks alone;
//! an owner is one party, whatever its threads do, as in fcntl(2). The same holds for passing: a wait that lasts because
//! of who waits before it, and that a lock of another partition or style ties into a ring, ends when one is cancelled.

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

/// An inode of a volume: the ids of two volumes may be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockedFile {
    /// Whose inode.
    pub volume: VolumeId,
    /// Which.
    pub inode: InodeId,
}

/// The op that an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// Of whom.
    pub session: SessionId,
    /// Which; retries carry the same.
    pub op_id: OpId,
}

/// How many locks may be held. Those that wait are bounded by the slots of their sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockSettings {
    /// Locks on one file; each part of a split range counts.
    pub locks_per_file_max: usize,
    /// Locks of one session in this partition.
    pub locks_per_session_max: usize,
}

impl Default for LockSettings {
    /// A full file takes 0.5 MB and some 50 µs a call.
    fn default() -> Self {
        Self { locks_per_file_max: 8192, locks_per_session_max: 65_536 }
    }
}

/// What became of a lock that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is held; or, for unlock, let go.
    Granted,
    /// This one is in the way.
    Conflict(HeldLock),
    /// The answer comes later, as [`Told`].
    Waiting(Ticket),
    /// Waiting would be for itself.
    Deadlock,
}

/// The answer of an op that waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Which op.
    pub ticket: Ticket,
    /// Its answer.
    pub answer: Result<Reply>,
}

/// A lock that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// For which op.
    pub ticket: Ticket,
    /// What it wants.
    pub lock: HeldLock,
}

/// One file's locks.
#[derive(Debug, Clone, Default)]
pub struct FileLocks {
    /// By first byte.
    pub held: Vec<HeldLock>,
    /// In the order in which they came.
    pub waiting: Vec<Wait>,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct LockTable {
    files: BTreeMap<LockedFile, FileLocks>,
    waiting_at: BTreeMap<Ticket, LockedFile>,
    held_by_session: BTreeMap<SessionId, usize>,
    answers: Answers,
    /// Sessions that held locks under the last leader, perhaps, and have not told all of them.
    untold: BTreeSet<SessionId>,
    /// While there are such, who does not wait is refused.
    refuses_meanwhile: bool,
    told: Vec<Told>,
    settings: LockSettings,
}

impl LockTable {
    /// For a partition that nobody can hold locks of.
    pub fn new(settings: LockSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Does an op of a session that has not ended; one that was answered before is answered the same again. None: it
    /// waits. After each call of the table the answers of others may have come: [`LockTable::take_told`].
    pub fn execute(&mut self, ticket: Ticket, volume: VolumeId, op: &LockOp) -> Option<Result<Reply>> {
        if let LockOp::Get { inode, lock } = op {
            let file = LockedFile { volume, inode: *inode };
            return Some(self.get(ticket.session, file, lock).map(|conflict| Reply::Lock { conflict }));
        }
        if self.waiting_at.contains_key(&ticket) {
            return None;
        }
        if let Some(answer) = self.answers.of(ticket) {
            return Some(answer);
        }
        if self.waits_of(ticket.session).any(|(other, _)| other.slot() == ticket.slot()) {
            return Some(Err(Error::Protocol { what: "two unanswered ops of a session share a slot".into() }));
        }
        let answer = self.change(ticket, volume, op)?;
        // What asks to be sent again is no answer.
        if !matches!(answer, Err(Error::Unavailable { .. })) {
            self.answers.keep(ticket, answer.clone());
        }
        Some(answer)
    }

    fn change(&mut self, ticket: Ticket, volume: VolumeId, op: &LockOp) -> Option<Result<Reply>> {
        let session = ticket.session;
        Some(match op {
            LockOp::Get { .. } => Err(Error::bug("a read is to change locks")),
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

    /// The answers of ops that waited, in the order in which they came to be.
    pub fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// `F_GETLK`: of the locks that `lock` conflicts with, the one with the lowest first byte.
    pub fn get(&self, session: SessionId, file: LockedFile, lock: &Lock) -> Result<Option<HeldLock>> {
        check(lock)?;
        if self.is_recovering() {
            return Err(self.locks_unknown());
        }
        Ok(self.conflict(&file, &HeldLock { session, lock: *lock }))
    }

    /// `F_SETLK`, `F_SETLKW`, flock. As flock(2) says, a conversion there lets go first: whoever waits may come before.
    pub fn set(&mut self, ticket: Ticket, file: LockedFile, lock: &Lock, wait: bool) -> Result<Outcome> {
        check(lock)?;
        let wanted = HeldLock { session: ticket.session, lock: *lock };
        if lock.kind == LockKind::Unlock {
            self.hold(file, &wanted)?;
            self.settle();
            return Ok(Outcome::Granted);
        }
        if self.is_recovering() && !wait {
            return Err(if self.refuses_meanwhile { Error::WouldBlock } else { self.locks_unknown() });
        }
        if lock.style == LockStyle::Flock && !self.holds(&file, &wanted) {
            self.hold(file, &HeldLock { lock: Lock { kind: LockKind::Unlock, ..*lock }, ..wanted })?;
            self.settle();
        }
        if wait { self.wait(Wait { ticket, lock: wanted }, file) } else { self.take(file, &wanted) }
    }

    fn holds(&self, file: &LockedFile, wanted: &HeldLock) -> bool {
        let same = |held: &HeldLock| {
            let (held_lock, lock) = (&held.lock, &wanted.lock);
            held.holder() == wanted.holder() && held_lock.style == lock.style && held_lock.kind == lock.kind
        };
        self.files.get(file).is_some_and(|locks| locks.held.iter().any(same))
    }

    fn take(&mut self, file: LockedFile, wanted: &HeldLock) -> Result<Outcome> {
        if let Some(conflict) = self.conflict(&file, wanted) {
            return Ok(Outcome::Conflict(conflict));
        }
        self.hold(file, wanted)?;
        self.settle();
        Ok(Outcome::Granted)
    }

    fn wait(&mut self, wait: Wait, file: LockedFile) -> Result<Outcome> {
        // Known only once all is told; then every wait is looked at.
        if !self.is_recovering() && self.is_deadlock(&file, &wait.lock) {
            return Ok(Outcome::Deadlock);
        }
        let waiting = &mut self.files.entry(file).or_default().waiting;
        waiting.push(wait);
        let place = waiting.len() - 1;
        self.waiting_at.insert(wait.ticket, file);
        if self.is_recovering() || !self.is_free(&file, place) {
            // That it waits may let others pass.
            self.settle();
            return Ok(Outcome::Waiting(wait.ticket));
        }
        self.stop_waiting(wait.ticket);
        self.hold(file, &wait.lock)?;
        self.settle();
        Ok(Outcome::Granted)
    }

    /// Whether the op is ended by this: it waited, or is yet to come and will be answered `Interrupted` then. If not, it
    /// had its answer, and a lock that was granted stays.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        if self.stop_waiting(ticket) {
            self.tell(ticket, Err(Error::Interrupted));
            self.settle();
            return true;
        }
        let is_new = self.answers.of(ticket).is_none();
        if is_new {
            self.answers.keep(ticket, Err(Error::Interrupted));
        }
        is_new
    }

    /// An owner closed the file: what it holds there, of both styles, goes. What it waits for stays, as in Linux.
    pub fn release(&mut self, session: SessionId, owner: LockOwner, file: LockedFile) {
        self.drop_held(&file, |held| held.holder() == (session, owner));
        self.settle();
    }

    /// All that it held goes, and its waits end.
    pub fn end_session(&mut self, session: SessionId) {
        let waits: Vec<Ticket> = self.waits_of(session).map(|(ticket, _)| ticket).collect();
        for ticket in waits {
            self.stop_waiting(ticket);
            self.tell(ticket, Err(Error::SessionEnded));
        }
        let files: Vec<LockedFile> = self.files.keys().copied().collect();
        files.iter().for_each(|file| self.drop_held(file, |held| held.session == session));
        self.answers.forget(session);
        self.untold.remove(&session);
        self.settle();
    }

    /// Who holds and who waits, file by file.
    pub fn list(&self) -> impl Iterator<Item = (&LockedFile, &FileLocks)> {
        self.files.iter()
    }
}

/// A range has a byte, and flock's is the whole file.
fn check(lock: &Lock) -> Result<()> {
    if lock.start > lock.end {
        return Err(Error::invalid("a lock that ends before it starts"));
    }
    if lock.style == LockStyle::Flock && (lock.start, lock.end) != (0, LOCK_END) {
        return Err(Error::invalid("flock locks the whole file"));
    }
    Ok(())
}
