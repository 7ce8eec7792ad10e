//! Locks: grants, refusals and releases are linearizable (contract, section 2), for each file by itself.
//!
//! - A lock is granted only while no other owner has a conflicting one in its range, and refused only while one has.
//! - A lock of an owner replaces the same owner's locks in that range, byte by byte; flock has one range, the file.
//! - A conversion of a flock releases the old lock first: if the new kind is refused, the owner has none.
//! - fcntl and flock locks do not conflict with each other.
//!
//! Only calls that do not wait are judged. An owner is a client together with the owner that its op names.

use crate::checkers::Complaint;
use crate::checkers::linearize::{Model, Operation, linearize};
use crate::history::{CallNumber, History};
use hekate_proto::{Error, InodeId, Lock, LockKind, LockOp, LockStyle, Op, Reply};
use std::collections::{BTreeMap, BTreeSet};

/// The holder of a lock: client, owner in its session.
type Owner = (u32, u64);

/// The effect of a call.
#[derive(Debug, Clone)]
struct Action {
    owner: Owner,
    kind: LockKind,
    /// Its cells: a file is cut wherever a range begins or ends.
    cells: std::ops::Range<usize>,
    granted: bool,
    style: LockStyle,
}

/// A call, the lock that it asked for, and whether it was granted.
type Judged = (CallNumber, Lock, bool);

/// For each cell its holders, and whether each holds it exclusively.
type Held = Vec<BTreeMap<Owner, bool>>;

struct File;

/// Checks the locks of every file and style, which begin without any; at most one complaint for each, and one for each
/// answer that no lock request gets.
pub fn check(history: &History) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut files: BTreeMap<(InodeId, u8), Vec<Judged>> = BTreeMap::new();
    for (number, call) in history.calls() {
        let Op::Lock { op: LockOp::Set { inode, lock, wait: false } } = &call.op else { continue };
        let granted = match call.settled() {
            Some(Ok(Reply::Done)) => true,
            Some(Err(Error::WouldBlock)) if lock.kind != LockKind::Unlock => false,
            // The outcome is unknown, so the lock may or may not be held.
            None => {
                complaints
                    .push(Complaint::new("locks", format!("no answer is known:\n    {}", history.describe(number))));
                continue;
            }
            Some(_) => {
                let why = format!("no lock is answered so:\n    {}", history.describe(number));
                complaints.push(Complaint::new(format!("locks of {inode:?}"), why));
                continue;
            }
        };
        files.entry((*inode, lock.style as u8)).or_default().push((number, *lock, granted));
    }
    for ((inode, style), calls) in files {
        let borders: BTreeSet<u64> =
            calls.iter().flat_map(|(_, lock, _)| [lock.start, lock.end.saturating_add(1)]).collect();
        let operations: Vec<_> = calls.iter().map(|call| operation(history, &borders, call)).collect();
        if let Err(stuck) = linearize(&File, vec![BTreeMap::new(); borders.len()], &operations, &[]) {
            let style = if style == LockStyle::Flock as u8 { "flock" } else { "fcntl" };
            complaints.push(Complaint::stuck(format!("{style} locks of {inode:?}"), history, &stuck));
        }
    }
    complaints
}

fn operation(history: &History, borders: &BTreeSet<u64>, (number, lock, granted): &Judged) -> Operation<Action> {
    let call = history.call(*number);
    let cell = |border: u64| borders.range(..border).count();
    let action = Action {
        owner: (call.client, lock.owner.0),
        kind: lock.kind,
        cells: cell(lock.start)..cell(lock.end.saturating_add(1)),
        granted: *granted,
        style: lock.style,
    };
    Operation { call: *number, action, opens: call.invoked, closes: call.returned(), required: true }
}

impl Action {
    fn conflicts(&self, held: &Held) -> bool {
        let exclusive = self.kind == LockKind::Write;
        let mut others = held[self.cells.clone()].iter().flatten().filter(|(owner, _)| **owner != self.owner);
        self.kind != LockKind::Unlock && others.any(|(_, theirs)| *theirs || exclusive)
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
        action.style == LockStyle::Posix && !action.granted
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
        if action.conflicts(held) == action.granted {
            return Vec::new();
        }
        if action.granted {
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
        format!("others hold then, by (client, owner) and whether exclusively: {others:?}")
    }
}

#[cfg(test)]
mod tests;
