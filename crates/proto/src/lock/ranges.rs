//! What is held on one file, and by the rules of fcntl(2) and flock(2) what a change makes of it: a leader reckons so,
//! and so does a client that remembers what it holds.

use crate::ids::SessionId;
use crate::lock::{HeldLock, Lock, LockKind, LockOwner};

/// One that holds locks or waits for them: a session's owner.
pub type LockHolder = (SessionId, LockOwner);

impl HeldLock {
    /// Whose it is.
    pub fn holder(&self) -> LockHolder {
        (self.session, self.lock.owner)
    }
}

/// The locks of a file once `change` is made: its owner's others of that style give way to it byte by byte, and merge
/// with it where they touch and are of its kind. Sorted by first byte. What conflicts with it is the caller's to know.
pub fn locks_with(held: &[HeldLock], change: &HeldLock) -> Vec<HeldLock> {
    let mut merged = *change;
    let mut after = Vec::with_capacity(held.len() + 2);
    for one in held {
        if one.holder() != change.holder() || one.lock.style != change.lock.style {
            after.push(*one);
        } else if one.lock.kind == change.lock.kind && touches(&one.lock, &merged.lock) {
            merged.lock.start = merged.lock.start.min(one.lock.start);
            merged.lock.end = merged.lock.end.max(one.lock.end);
        } else {
            after.extend(without(one, &change.lock));
        }
    }
    if merged.lock.kind != LockKind::Unlock {
        after.push(merged);
    }
    after.sort_by_key(|one| (one.lock.start, one.holder()));
    after
}

/// Whether they overlap or one begins where the other ends.
fn touches(a: &Lock, b: &Lock) -> bool {
    a.start <= b.end.saturating_add(1) && b.start <= a.end.saturating_add(1)
}

/// What is left of a lock on both sides of a range.
fn without(held: &HeldLock, range: &Lock) -> impl Iterator<Item = HeldLock> {
    if !held.lock.overlaps(range) {
        return [Some(*held), None].into_iter().flatten();
    }
    let part = |start, end| HeldLock { lock: Lock { start, end, ..held.lock }, ..*held };
    let before = (held.lock.start < range.start).then(|| part(held.lock.start, range.start - 1));
    let behind = (held.lock.end > range.end).then(|| part(range.end + 1, held.lock.end));
    [before, behind].into_iter().flatten()
}
