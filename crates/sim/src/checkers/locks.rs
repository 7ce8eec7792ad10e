//! Locks: grants, refusals and releases are linearizable (contract, section 2), for each file by itself.
//!
//! - A lock is granted only while no other owner has a conflicting one in its range, and refused only while one has.
//! - A lock of an owner replaces the same owner's locks in that range, byte by byte; flock has one range, the file.
//! - A conversion of a flock releases the old lock first: if the new kind is refused, the owner has none.
//! - fcntl and flock locks do not conflict with each other.
//! - A lock that waits is granted once, between its call and its return. A wait that was given up, and a call without an
//!   answer, may have been granted, also later.
//! - The locks of a session whose client has died are released later, or not. A leader that does not know yet what such
//!   a session holds may refuse locks for it.
//!
//! An owner is a session together with the owner that its op names.

use crate::checkers::Complaint;
use crate::checkers::linearize::{Model, Operation, linearize};
use crate::history::{Call, CallNumber, History, Moment};
use hekate_proto::{Error, InodeId, LOCK_END, Lock, LockKind, LockOp, LockOwner, LockStyle, Op, Reply, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// The holder of a lock: a session, and its owner.
type Owner = (SessionId, u64);

/// The effect of a call.
#[derive(Debug, Clone)]
struct Action {
    owner: Owner,
    kind: LockKind,
    /// Its cells: a file is cut wherever a range begins or ends.
    cells: std::ops::Range<usize>,
    granted: Granted,
    style: LockStyle,
}

/// What a call shows of its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Granted {
    Yes,
    /// It may be granted at any moment from the call on, or never.
    Perhaps,
    No,
    /// Refused, perhaps for a session of which the leader did not know what it holds.
    NoPerhaps,
}

/// A lock that a call asked for, or that ended with its session, and the moments between which.
#[derive(Debug, Clone, Copy)]
struct Judged {
    call: CallNumber,
    owner: Owner,
    lock: Lock,
    granted: Granted,
    opens: Moment,
    closes: Option<Moment>,
}

/// For each cell its holders, and whether each holds it exclusively.
type Held = Vec<BTreeMap<Owner, bool>>;

struct File;

/// Checks the locks of every file and style, which begin without any; at most one complaint for each, and one for each
/// answer that no lock request gets.
pub fn check(history: &History) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut files: BTreeMap<(InodeId, u8), Vec<Judged>> = BTreeMap::new();
    for (number, call) in history.calls() {
        match &call.op {
            Op::Lock { op: LockOp::Set { inode, lock, wait } } => match granted(history, call, lock, *wait) {
                Some(granted) => {
                    files.entry((*inode, lock.style as u8)).or_default().push(judged(call, number, *lock, granted));
                }
                None => {
                    let why = format!("no lock is answered so:\n    {}", history.describe(number));
                    complaints.push(Complaint::new(format!("locks of {inode:?}"), why));
                }
            },
            Op::Lock { op: LockOp::Release { inode, owner } } => {
                let granted = if call.returned().is_some() { Granted::Yes } else { Granted::Perhaps };
                for style in [LockStyle::Posix, LockStyle::Flock] {
                    let lock = all_unlocked(style, *owner);
                    files.entry((*inode, style as u8)).or_default().push(judged(call, number, lock, granted));
                }
            }
            _ => {}
        }
    }
    for ((inode, style), mut calls) in files {
        calls.extend(released_by_death(history, &calls));
        let borders: BTreeSet<u64> =
            calls.iter().flat_map(|call| [call.lock.start, call.lock.end.saturating_add(1)]).collect();
        let operations: Vec<_> = calls.iter().map(|call| operation(&borders, call)).collect();
        if let Err(stuck) = linearize(&File, vec![BTreeMap::new(); borders.len()], &operations, &[]) {
            let style = if style == LockStyle::Flock as u8 { "flock" } else { "fcntl" };
            complaints.push(Complaint::stuck(format!("{style} locks of {inode:?}"), history, &stuck));
        }
    }
    complaints
}

/// What an answer shows. `None`: no lock request gets it.
fn granted(history: &History, call: &Call, lock: &Lock, wait: bool) -> Option<Granted> {
    let may_be_unknown = call.returned().is_some_and(|returned| history.has_death_before(returned));
    match call.settled() {
        Some(Ok(Reply::Done)) => Some(Granted::Yes),
        Some(Err(Error::Interrupted)) if wait => Some(Granted::Perhaps),
        Some(Err(Error::Deadlock)) if wait => Some(Granted::NoPerhaps),
        Some(Err(Error::WouldBlock)) if !wait && lock.kind != LockKind::Unlock => {
            Some(if may_be_unknown { Granted::NoPerhaps } else { Granted::No })
        }
        // The file is gone.
        Some(Err(Error::Stale)) => Some(Granted::NoPerhaps),
        None => Some(Granted::Perhaps),
        Some(_) => None,
    }
}

fn judged(call: &Call, number: CallNumber, lock: Lock, granted: Granted) -> Judged {
    let closes = if granted == Granted::Perhaps { None } else { call.returned() };
    Judged { call: number, owner: (call.session, lock.owner.0), lock, granted, opens: call.invoked, closes }
}

fn all_unlocked(style: LockStyle, owner: LockOwner) -> Lock {
    Lock { kind: LockKind::Unlock, style, start: 0, end: LOCK_END, owner, pid: 0 }
}

/// The locks of owners whose clients died end at some moment after that, or not.
fn released_by_death(history: &History, calls: &[Judged]) -> Vec<Judged> {
    let last: BTreeMap<Owner, &Judged> = calls.iter().map(|call| (call.owner, call)).collect();
    let release = |(owner, call): (Owner, &Judged)| {
        let opens = history.death_of(owner.0)?.max(call.opens);
        let lock = all_unlocked(call.lock.style, LockOwner(owner.1));
        Some(Judged { lock, granted: Granted::Perhaps, opens, closes: None, ..*call })
    };
    last.into_iter().filter_map(release).collect()
}

fn operation(borders: &BTreeSet<u64>, call: &Judged) -> Operation<Action> {
    let cell = |border: u64| borders.range(..border).count();
    let action = Action {
        owner: call.owner,
        kind: call.lock.kind,
        cells: cell(call.lock.start)..cell(call.lock.end.saturating_add(1)),
        granted: call.granted,
        style: call.lock.style,
    };
    let required = call.granted != Granted::Perhaps;
    Operation { call: call.call, action, opens: call.opens, closes: call.closes, required }
}

impl Action {
    fn conflicts(&self, held: &Held) -> bool {
        let exclusive = self.kind == LockKind::Write;
        let mut others = held[self.cells.clone()].iter().flatten().filter(|(owner, _)| **owner != self.owner);
        self.kind != LockKind::Unlock && others.any(|(_, theirs)| *theirs || exclusive)
    }

    fn refused(&self) -> bool {
        matches!(self.granted, Granted::No | Granted::NoPerhaps)
    }

    fn let_go(&self, held: &mut Held) {
        for cell in &mut held[self.cells.clone()] {
            cell.remove(&self.owner);
        }
    }
}

impl Model for File {
    type State = Held;
    type Action = Action;

    /// A flock is converted in two steps; other calls may come between them.
    fn parts(&self, action: &Action) -> usize {
        if action.style == LockStyle::Flock { 2 } else { 1 }
    }

    fn only_looks(&self, action: &Action) -> bool {
        action.style == LockStyle::Posix && action.refused()
    }

    fn steps(&self, held: &Held, action: &Action, part: usize) -> Vec<Held> {
        let mut next = held.clone();
        if part + 1 < self.parts(action) {
            // A request for the lock that is already held keeps it (flock(2) does not say so); a conversion releases it
            // first.
            let same = next[action.cells.clone()].iter().all(|cell| {
                cell.get(&action.owner).is_some_and(|exclusive| *exclusive == (action.kind == LockKind::Write))
            });
            if !same {
                action.let_go(&mut next);
            }
            return vec![next];
        }
        if action.granted != Granted::NoPerhaps && action.conflicts(held) != action.refused() {
            return Vec::new();
        }
        if !action.refused() {
            action.let_go(&mut next);
            if action.kind != LockKind::Unlock {
                let exclusive = action.kind == LockKind::Write;
                for cell in &mut next[action.cells.clone()] {
                    cell.insert(action.owner, exclusive);
                }
            }
        }
        vec![next]
    }

    fn explain(&self, held: &Held, action: &Action, _part: usize) -> String {
        let others: Vec<_> =
            held[action.cells.clone()].iter().flatten().filter(|(owner, _)| **owner != action.owner).collect();
        format!("others hold then, by (session, owner) and whether exclusively: {others:?}")
    }
}

#[cfg(test)]
mod tests;
