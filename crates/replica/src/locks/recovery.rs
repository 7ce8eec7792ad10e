//! Recovery of locks after the leader's process died: the sessions that held them restore them at the new leader.

use super::{LockSettings, LockTable, LockedFile, check};
use hekate_proto::*;
use std::collections::BTreeSet;

impl LockTable {
    /// The table of a partition in which these sessions may hold locks. Nothing is granted until each has restored its
    /// locks or ended.
    pub fn recovering(settings: LockSettings, sessions: impl IntoIterator<Item = SessionId>) -> Self {
        Self { unrestored: sessions.into_iter().collect(), ..Self::new(settings) }
    }

    /// True while sessions have not restored their locks.
    pub fn is_recovering(&self) -> bool {
        !self.unrestored.is_empty()
    }

    /// Notes that some of these sessions may be dead, so that requests that would not wait are refused
    /// (`refuses_meanwhile`).
    pub fn refuse_meanwhile(&mut self) {
        self.refuses_meanwhile = true;
    }

    /// Sessions that have not restored their locks.
    pub fn unrestored(&self) -> &BTreeSet<SessionId> {
        &self.unrestored
    }

    /// Restores locks that a session held at the last leader. Returns those that are lost: locks that conflict with one
    /// that another session restored first (one of the two is wrong, and the first stands), locks over the limits and,
    /// after the session has restored everything, all that it does not hold now, since others may have held it
    /// meanwhile. `done`: the session has no further locks.
    ///
    /// # Errors
    ///
    /// `Invalid` for a malformed lock or an unlock.
    pub fn restore(
        &mut self,
        session: SessionId,
        volume: VolumeId,
        locks: &[(InodeId, Lock)],
        done: bool,
    ) -> Result<Vec<(InodeId, Lock)>> {
        for (_, lock) in locks {
            check(lock)?;
            if lock.kind == LockKind::Unlock {
                return Err(Error::invalid("an unlock cannot be restored"));
            }
        }
        let is_awaited = self.unrestored.contains(&session);
        let mut lost = Vec::new();
        for (inode, lock) in locks {
            let file = LockedFile { volume, inode: *inode };
            let wanted = HeldLock { session, lock: *lock };
            let is_free = is_awaited && self.conflict(&file, &wanted).is_none();
            let is_lost = if is_free { self.hold(file, &wanted).is_err() } else { !self.has(&file, &wanted) };
            if is_lost {
                lost.push((*inode, *lock));
            }
        }
        if done && self.unrestored.remove(&session) {
            self.settle();
        }
        Ok(lost)
    }
}

impl LockTable {
    /// True if the lock is held as restored.
    fn has(&self, file: &LockedFile, wanted: &HeldLock) -> bool {
        let kind = |one: &HeldLock| one.lock.kind == wanted.lock.kind && one.lock.style == wanted.lock.style;
        let around = |one: &HeldLock| one.lock.start <= wanted.lock.start && wanted.lock.end <= one.lock.end;
        let same = |one: &HeldLock| one.holder() == wanted.holder() && kind(one) && around(one);
        self.files.get(file).is_some_and(|locks| locks.held.iter().any(same))
    }
}

impl LockTable {
    pub(super) fn locks_unknown(&self) -> Error {
        let unrestored: Vec<String> = self.unrestored.iter().map(|session| session.to_string()).collect();
        let what = format!(
            "the partition's new leader waits until sessions {} have restored their locks",
            unrestored.join(", ")
        );
        Error::Unavailable { what }
    }
}
