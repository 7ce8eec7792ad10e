//! The locks that a session knows to hold, for its report to a new leader. The leader trusts the report, so it never
//! contains a lock that the session may not hold.

use hekate_proto::*;
use hekate_threads::HashMap;

/// The locks held by a session.
#[derive(Debug)]
pub(super) struct Held {
    session: SessionId,
    files: HashMap<InodeId, Vec<HeldLock>>,
}

impl Held {
    pub fn new(session: SessionId) -> Self {
        Self { session, files: HashMap::default() }
    }

    /// The leader has executed a lock or unlock.
    pub fn apply(&mut self, inode: InodeId, lock: &Lock) {
        let after = locks_with(self.of(inode), &HeldLock { session: self.session, lock: *lock });
        self.put(inode, after);
    }

    fn of(&self, inode: InodeId) -> &[HeldLock] {
        self.files.get(&inode).map(Vec::as_slice).unwrap_or_default()
    }

    fn put(&mut self, inode: InodeId, locks: Vec<HeldLock>) {
        match locks.is_empty() {
            true => self.files.remove(&inode),
            false => self.files.insert(inode, locks),
        };
    }

    /// Notes an op that is about to be sent and whose reply may be lost: only what is held with and without the op
    /// remains. Returns the locks before it.
    pub fn assume_pending(&mut self, inode: InodeId, lock: &Lock) -> Vec<HeldLock> {
        let before = self.of(inode).to_vec();
        let own = before.iter().map(|held| held.lock);
        let own = own.filter(|held| held.owner == lock.owner && held.style == lock.style && held.overlaps(lock));
        for held in own.collect::<Vec<_>>() {
            let part = Lock { start: held.start.max(lock.start), end: held.end.min(lock.end), ..held };
            match (lock.style, lock.kind, held.kind) {
                (_, LockKind::Unlock, _) => self.apply(inode, &Lock { kind: LockKind::Unlock, ..part }),
                // The conversion of a flock releases the old lock first.
                (LockStyle::Flock, new, old) if new != old => {
                    self.apply(inode, &Lock { kind: LockKind::Unlock, ..part });
                }
                (LockStyle::Posix, LockKind::Read, LockKind::Write) => {
                    self.apply(inode, &Lock { kind: LockKind::Read, ..part });
                }
                _ => {}
            }
        }
        before
    }

    /// The op was not executed. A flock that was released for its conversion stays released.
    pub fn undo_pending(&mut self, inode: InodeId, lock: &Lock, before: Vec<HeldLock>) {
        if lock.style == LockStyle::Posix {
            self.put(inode, before);
        }
    }

    /// The locks of an owner on a file were released.
    pub fn release(&mut self, inode: InodeId, owner: LockOwner) {
        let left = self.of(inode).iter().filter(|held| held.lock.owner != owner).copied().collect();
        self.put(inode, left);
    }

    /// All locks on the inodes for which `belongs` is true.
    pub fn locks_where(&self, belongs: impl Fn(InodeId) -> bool) -> Vec<(InodeId, Lock)> {
        let files = self.files.iter().filter(|(inode, _)| belongs(**inode));
        files.flat_map(|(inode, held)| held.iter().map(|held| (*inode, held.lock))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockKind::*;

    const FILE: InodeId = InodeId::new(1, 1, 1);

    fn lock(kind: LockKind, style: LockStyle, start: u64, end: u64) -> Lock {
        Lock { kind, style, start, end, owner: LockOwner(5), pid: 1 }
    }

    fn reported(held: &Held) -> Vec<(LockKind, u64, u64)> {
        held.locks_where(|_| true).iter().map(|(_, lock)| (lock.kind, lock.start, lock.end)).collect()
    }

    #[test]
    fn an_unlock_without_a_reply_is_not_reported_and_a_refused_one_is() {
        let mut held = Held::new(SessionId(1));
        held.apply(FILE, &lock(Write, LockStyle::Posix, 0, 99));
        let middle = lock(Unlock, LockStyle::Posix, 40, 59);
        let before = held.assume_pending(FILE, &middle);
        assert_eq!(reported(&held), [(Write, 0, 39), (Write, 60, 99)]);
        held.undo_pending(FILE, &middle, before);
        assert_eq!(reported(&held), [(Write, 0, 99)]);
    }

    #[test]
    fn of_a_downgrade_or_upgrade_without_a_reply_the_weaker_lock_is_reported() {
        let mut held = Held::new(SessionId(1));
        held.apply(FILE, &lock(Write, LockStyle::Posix, 0, 9));
        held.assume_pending(FILE, &lock(Read, LockStyle::Posix, 5, 20));
        assert_eq!(reported(&held), [(Write, 0, 4), (Read, 5, 9)]);
        held.assume_pending(FILE, &lock(Write, LockStyle::Posix, 0, 20));
        assert_eq!(reported(&held), [(Write, 0, 4), (Read, 5, 9)]);
    }

    #[test]
    fn a_flock_that_is_converted_is_released_whatever_the_outcome() {
        let mut held = Held::new(SessionId(1));
        held.apply(FILE, &lock(Read, LockStyle::Flock, 0, LOCK_END));
        let more = lock(Write, LockStyle::Flock, 0, LOCK_END);
        let before = held.assume_pending(FILE, &more);
        held.undo_pending(FILE, &more, before);
        assert_eq!(reported(&held), []);
    }

    #[test]
    fn a_release_takes_the_owners_locks_of_both_styles() {
        let mut held = Held::new(SessionId(1));
        held.apply(FILE, &lock(Read, LockStyle::Flock, 0, LOCK_END));
        held.apply(FILE, &lock(Write, LockStyle::Posix, 0, 9));
        held.apply(FILE, &Lock { owner: LockOwner(6), ..lock(Write, LockStyle::Posix, 20, 29) });
        held.release(FILE, LockOwner(5));
        assert_eq!(reported(&held), [(Write, 20, 29)]);
    }
}
