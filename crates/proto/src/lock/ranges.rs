//! The effect of a lock op on the locks of a file, by the rules of fcntl(2) and flock(2). A leader uses it for all
//! locks of a file, and a client for those that it holds.

use crate::ids::SessionId;
use crate::lock::{HeldLock, Lock, LockKind, LockOwner};

/// A holder of locks: an owner of a session.
pub type LockHolder = (SessionId, LockOwner);

impl HeldLock {
    /// The holder of the lock.
    pub fn holder(&self) -> LockHolder {
        (self.session, self.lock.owner)
    }
}

/// The locks of a file after `change`: in its range it replaces the locks of the same owner and style, and it merges
/// with those of its kind that overlap or touch it. The result is sorted by first byte. Conflicts with other owners
/// are for the caller to check.
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

/// True if the ranges overlap or are adjacent.
fn touches(a: &Lock, b: &Lock) -> bool {
    a.start <= b.end.saturating_add(1) && b.start <= a.end.saturating_add(1)
}

/// The parts of a lock before and after a range.
fn without(held: &HeldLock, range: &Lock) -> impl Iterator<Item = HeldLock> {
    if !held.lock.overlaps(range) {
        return [Some(*held), None].into_iter().flatten();
    }
    let part = |start, end| HeldLock { lock: Lock { start, end, ..held.lock }, ..*held };
    let before = (held.lock.start < range.start).then(|| part(held.lock.start, range.start - 1));
    let behind = (held.lock.end > range.end).then(|| part(range.end + 1, held.lock.end));
    [before, behind].into_iter().flatten()
}
