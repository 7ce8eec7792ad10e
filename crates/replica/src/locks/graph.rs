//! The graph of waits: what blocks a wait, whether a request would close a cycle, and which waits may overtake others.

use super::LockTable;
use hekate_proto::*;
use std::collections::BTreeSet;

/// The edges of the graph that count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edges {
    /// From fcntl waits to the holders of conflicting locks: a cycle of these is a deadlock.
    Held,
    /// From all waits to holders of conflicting locks and to earlier conflicting waits.
    All,
}

impl LockTable {
    /// True if the wait at this place of its file's queue may be granted: no held lock conflicts, and no earlier wait
    /// does, except those that wait for this one's owner. Those would wait for ever if this one did not overtake them.
    pub(super) fn is_free(&self, file: &super::LockedFile, place: usize) -> bool {
        let Some(locks) = self.files.get(file) else { return true };
        let wait = &locks.waiting[place].lock;
        let held_up = |before: &HeldLock| {
            before.conflicts(wait) && !self.leads_to(BTreeSet::from([before.holder()]), wait.holder(), Edges::All)
        };
        !locks.held.iter().any(|held| held.conflicts(wait))
            && !locks.waiting[..place].iter().any(|before| held_up(&before.lock))
    }

    /// True if an owner that this request would wait for waits for its owner. flock(2) detects no deadlocks.
    pub(super) fn is_deadlock(&self, file: &super::LockedFile, wait: &HeldLock) -> bool {
        let Some(locks) = self.files.get(file) else { return false };
        let blockers = locks.held.iter().filter(|held| held.conflicts(wait)).map(HeldLock::holder).collect();
        wait.lock.style == LockStyle::Posix && self.leads_to(blockers, wait.holder(), Edges::Held)
    }

    /// True if one of `from` is `to`, or waits for it directly or through others.
    fn leads_to(&self, from: BTreeSet<LockHolder>, to: LockHolder, edges: Edges) -> bool {
        let mut seen = from.clone();
        let mut open: Vec<LockHolder> = from.into_iter().collect();
        while let Some(next) = open.pop() {
            if next == to {
                return true;
            }
            open.extend(self.waits_for(next, edges).into_iter().filter(|found| seen.insert(*found)));
        }
        false
    }

    fn waits_for(&self, waiter: LockHolder, edges: Edges) -> Vec<LockHolder> {
        let mut found = Vec::new();
        for (_, file) in self.waits_of(waiter.0) {
            let Some(locks) = self.files.get(&file) else { continue };
            let own = |wait: &HeldLock| {
                wait.holder() == waiter && (edges == Edges::All || wait.lock.style == LockStyle::Posix)
            };
            for (place, wait) in locks.waiting.iter().enumerate().filter(|(_, wait)| own(&wait.lock)) {
                let before = locks.waiting[..place].iter().map(|before| &before.lock);
                let before = before.filter(|_| edges == Edges::All);
                let blockers = locks.held.iter().chain(before).filter(|other| other.conflicts(&wait.lock));
                found.extend(blockers.map(HeldLock::holder));
            }
        }
        found
    }
}
