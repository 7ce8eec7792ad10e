//! What a session remembers of the locks that it holds, to tell it to a new leader: never more than it surely holds, for
//! what it tells is believed.

use hekate_proto::*;
use std::collections::HashMap;

/// See the module.
#[derive(Debug)]
pub(super) struct Held {
    session: SessionId,
    files: HashMap<InodeId, Vec<HeldLock>>,
}

impl Held {
    /// Nothing.
    pub fn new(session: SessionId) -> Self {
        Self { session, files: HashMap::new() }
    }

    /// The leader has taken it, or let it go.
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

    /// An op is about to be sent, and its answer may be lost: what is held whether it is done or not stays. -> how it was.
    pub fn doubt(&mut self, inode: InodeId, lock: &Lock) -> Vec<HeldLock> {
        let before = self.of(inode).to_vec();
        let own = before.iter().map(|held| held.lock);
        let own = own.filter(|held| held.owner == lock.owner && held.style == lock.style && held.overlaps(lock));
        for held in own.collect::<Vec<_>>() {
            let part = Lock { start: held.start.max(lock.start), end: held.end.min(lock.end), ..held };
            match (lock.style, lock.kind, held.kind) {
                (_, LockKind::Unlock, _) => self.apply(inode, &Lock { kind: LockKind::Unlock, ..part }),
                // A conversion lets go first.
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

    /// The op was not done. What a flock's conversion let go stays gone.
    pub fn was_not_done(&mut self, inode: InodeId, lock: &Lock, before: Vec<HeldLock>) {
        if lock.style == LockStyle::Posix {
            self.put(inode, before);
        }
    }

    /// An owner's locks on a file are gone.
    pub fn release(&mut self, inode: InodeId, owner: LockOwner) {
        let left = self.of(inode).iter().filter(|held| held.lock.owner != owner).copied().collect();
        self.put(inode, left);
    }

    /// All on the inodes for which this holds.
    pub fn tell(&self, is_meant: impl Fn(InodeId) -> bool) -> Vec<(InodeId, Lock)> {
        let meant = self.files.iter().filter(|(inode, _)| is_meant(**inode));
        meant.flat_map(|(inode, held)| held.iter().map(|held| (*inode, held.lock))).collect()
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

    fn told(held: &Held) -> Vec<(LockKind, u64, u64)> {
        held.tell(|_| true).iter().map(|(_, lock)| (lock.kind, lock.start, lock.end)).collect()
    }

    #[test]
    fn an_unlock_in_doubt_is_not_told_and_one_that_was_refused_is() {
        let mut held = Held::new(SessionId(1));
        held.apply(FILE, &lock(Write, LockStyle::Posix, 0, 99));
        let middle = lock(Unlock, LockStyle::Posix, 40, 59);
        let before = held.doubt(FILE, &middle);
        assert_eq!(told(&held), [(Write, 0, 39), (Write, 60, 99)]);
        held.was_not_done(FILE, &middle, before);
        assert_eq!(told(&held), [(Write, 0, 99)]);
    }

    #[test]
    fn of_a_downgrade_in_doubt_the_weaker_is_told_and_of_an_upgrade_too() {
        let mut held = Held::new(SessionId(1));
        held.apply(FILE, &lock(Write, LockStyle::Posix, 0, 9));
        held.doubt(FILE, &lock(Read, LockStyle::Posix, 5, 20));
        assert_eq!(told(&held), [(Write, 0, 4), (Read, 5, 9)]);
        held.doubt(FILE, &lock(Write, LockStyle::Posix, 0, 20));
        assert_eq!(told(&held), [(Write, 0, 4), (Read, 5, 9)]);
    }

    #[test]
    fn a_flock_that_is_converted_is_let_go_whatever_comes_of_it() {
        let mut held = Held::new(SessionId(1));
        held.apply(FILE, &lock(Read, LockStyle::Flock, 0, LOCK_END));
        let more = lock(Write, LockStyle::Flock, 0, LOCK_END);
        let before = held.doubt(FILE, &more);
        held.was_not_done(FILE, &more, before);
        assert_eq!(told(&held), []);
    }

    #[test]
    fn a_release_takes_the_owners_locks_of_both_styles() {
        let mut held = Held::new(SessionId(1));
        held.apply(FILE, &lock(Read, LockStyle::Flock, 0, LOCK_END));
        held.apply(FILE, &lock(Write, LockStyle::Posix, 0, 9));
        held.apply(FILE, &Lock { owner: LockOwner(6), ..lock(Write, LockStyle::Posix, 20, 29) });
        held.release(FILE, LockOwner(5));
        assert_eq!(told(&held), [(Write, 20, 29)]);
    }
}
