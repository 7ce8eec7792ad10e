//! After the leader's process died: its locks are with the sessions that held them, who tell them again.

use super::{LockSettings, LockTable, LockedFile, check};
use hekate_proto::*;
use std::collections::BTreeSet;

impl LockTable {
    /// For a partition that these sessions may hold locks of: until each has told all of them or ended, nothing new is
    /// granted.
    pub fn recovering(settings: LockSettings, sessions: impl IntoIterator<Item = SessionId>) -> Self {
        Self { untold: sessions.into_iter().collect(), ..Self::new(settings) }
    }

    /// Whether sessions have locks that are not told yet.
    pub fn is_recovering(&self) -> bool {
        !self.untold.is_empty()
    }

    /// Sessions that it waits for may be gone.
    pub fn refuse_meanwhile(&mut self) {
        self.refuses_meanwhile = true;
    }

    /// For whom it waits.
    pub fn untold(&self) -> &BTreeSet<SessionId> {
        &self.untold
    }

    /// Takes what a session held under the last leader, and answers what of it is lost: what conflicts with a lock that
    /// another session told before (one of the two is wrong, and the first stands), what is over the limits, and, once
    /// the session had told everything, all that it does not hold by now, for others may have held it since.
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
                return Err(Error::invalid("an unlock is nothing that was held"));
            }
        }
        let is_awaited = self.untold.contains(&session);
        let mut lost = Vec::new();
        for (inode, lock) in locks {
            let file = LockedFile { volume, inode: *inode };
            let told = HeldLock { session, lock: *lock };
            let is_free = is_awaited && self.conflict(&file, &told).is_none();
            let is_lost = if is_free { self.hold(file, &told).is_err() } else { !self.has(&file, &told) };
            if is_lost {
                lost.push((*inode, *lock));
            }
        }
        if done && self.untold.remove(&session) {
            self.settle();
        }
        Ok(lost)
    }
}

impl LockTable {
    /// Whether a lock is held as it is told.
    fn has(&self, file: &LockedFile, told: &HeldLock) -> bool {
        let kind = |one: &HeldLock| one.lock.kind == told.lock.kind && one.lock.style == told.lock.style;
        let around = |one: &HeldLock| one.lock.start <= told.lock.start && told.lock.end <= one.lock.end;
        let same = |one: &HeldLock| one.holder() == told.holder() && kind(one) && around(one);
        self.files.get(file).is_some_and(|locks| locks.held.iter().any(same))
    }
}

impl LockTable {
    pub(super) fn locks_unknown(&self) -> Error {
        let untold: Vec<String> = self.untold.iter().map(|session| session.to_string()).collect();
        let what = format!("the partition's new leader waits for the locks of sessions {}", untold.join(", "));
        Error::Unavailable { what }
    }
}
