//! Names that the kernel may use without a request.
//!
//! Invariant: a name is in the table from before the reply that lets the kernel use it until the kernel cannot use it
//! any more. The table has hashes only: two names with one hash are told apart by nobody, and the later time counts for
//! both.

use bytes::Bytes;
use hekate_client::NameAt;
use hekate_proto::{InodeId, Name};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// How long the kernel may use a name without a request: the longest time for which a recall waits when the kernel
/// cannot be told, because a request holds the directory's lock.
pub(crate) const NAMES_PASSED_MAX: Duration = Duration::from_millis(500);
/// Time from the noting of a name until the thread that asked for it has taken the reply. The kernel counts the time for
/// which it may use the name from then on, and a thread that only renews a known name takes no lock.
pub(crate) const TAKEN_WITHIN: Duration = Duration::from_millis(50);

/// Time after the recall of a name for which the kernel is given no names of its directory: two mounts that change one
/// directory would wait for each other's locks name by name.
const SHARED_FOR: Duration = Duration::from_secs(2);
/// Time for which the kernel is given no names at all after a recall that met a held lock: mounts fight about the same
/// directories then, and each that is new would cost another wait.
const FIGHT_FOR: Duration = Duration::from_secs(5);
/// Directories that are known as shared.
const SHARED_MAX: usize = 4096;

/// The table, in two generations: an older one, of which the kernel cannot use anything any more, is dropped.
#[derive(Debug)]
pub(crate) struct PassedNames {
    generations: Mutex<Generations>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Generations {
    newer: Generation,
    older: Generation,
    /// When the newer generation began.
    since: Instant,
    last: Option<Instant>,
    /// Directories of which names were recalled a moment ago, until when they count as shared.
    shared: HashMap<InodeId, Instant>,
    fights_until: Option<Instant>,
}

#[derive(Debug, Default)]
struct Generation {
    passed: HashMap<u64, Instant>,
    /// The last name of each inode.
    of_inodes: HashMap<InodeId, NameAt>,
}

impl Default for PassedNames {
    fn default() -> Self {
        let (newer, older, shared) = Default::default();
        let generations = Generations { newer, older, since: Instant::now(), last: None, shared, fights_until: None };
        Self { generations: Mutex::new(generations), hasher: RandomState::new() }
    }
}

impl PassedNames {
    /// Notes that the kernel is about to be told what this name leads to. False: it is not to be told.
    pub(crate) fn note(&self, name: &NameAt, target: Option<InodeId>) -> bool {
        let now = Instant::now();
        let mut generations = self.generations.lock();
        let shared_until = generations.shared.get(&name.0).max(generations.fights_until.as_ref());
        if shared_until.is_some_and(|until| *until > now) {
            return false;
        }
        self.note_at(&mut generations, name, target, now);
        true
    }

    /// Notes that the kernel is about to move what it knows of another name to this one.
    pub(crate) fn note_moved(&self, name: &NameAt, target: Option<InodeId>) {
        self.note_at(&mut self.generations.lock(), name, target, Instant::now());
    }

    fn note_at(&self, generations: &mut Generations, name: &NameAt, target: Option<InodeId>, now: Instant) {
        if now.duration_since(generations.since) > NAMES_PASSED_MAX + TAKEN_WITHIN {
            generations.older = std::mem::take(&mut generations.newer);
            generations.since = now;
        }
        generations.newer.passed.insert(self.hasher.hash_one(name), now);
        generations.last = Some(now);
        // A name that came with a request shares the request's memory.
        let own = target.and_then(|_| Name::new(Bytes::copy_from_slice(name.1.as_bytes())).ok());
        if let Some((inode, own)) = target.zip(own) {
            generations.newer.of_inodes.insert(inode, (name.0, own));
        }
    }

    /// A name in this directory was recalled.
    pub(crate) fn note_shared(&self, dir: InodeId) {
        let now = Instant::now();
        let mut generations = self.generations.lock();
        if generations.shared.len() >= SHARED_MAX {
            generations.shared.retain(|_, until| *until > now);
        }
        if generations.shared.len() < SHARED_MAX {
            generations.shared.insert(dir, now + SHARED_FOR);
        }
    }

    /// A recall could not have the lock of a directory.
    pub(crate) fn note_fight(&self) {
        self.generations.lock().fights_until = Some(Instant::now() + FIGHT_FOR);
    }

    /// The kernel is about to be told that it may not use the name without a request. Only for a reply that nobody else
    /// can overtake: to a request that makes the name, and has the directory's lock.
    pub(crate) fn replaced(&self, name: &NameAt) {
        let hash = self.hasher.hash_one(name);
        let mut generations = self.generations.lock();
        generations.newer.passed.remove(&hash);
        generations.older.passed.remove(&hash);
    }

    /// When the kernel was last told of the name, if it may still use it.
    pub(crate) fn passed_at(&self, name: &NameAt) -> Option<Instant> {
        let hash = self.hasher.hash_one(name);
        let generations = self.generations.lock();
        let passed = &generations.newer.passed;
        let passed_at = passed.get(&hash).or_else(|| generations.older.passed.get(&hash)).copied()?;
        (used_until(passed_at) > Instant::now()).then_some(passed_at)
    }

    /// The name that the kernel was told last of those that lead to the inode, and when, if it may still use it.
    pub(crate) fn name_of(&self, inode: InodeId) -> Option<(NameAt, Instant)> {
        let generations = self.generations.lock();
        let name = generations.newer.of_inodes.get(&inode).or_else(|| generations.older.of_inodes.get(&inode))?.clone();
        drop(generations);
        self.passed_at(&name).map(|at| (name, at))
    }

    /// Until when the kernel may use the name.
    pub(crate) fn used_until(&self, name: &NameAt) -> Option<Instant> {
        self.passed_at(name).map(used_until)
    }

    /// Until when the kernel may use any name that it was told of so far.
    pub(crate) fn all_used_until(&self) -> Option<Instant> {
        self.generations.lock().last.map(used_until)
    }
}

/// Until when the kernel may use a name of which it was told then.
pub(crate) fn used_until(passed_at: Instant) -> Instant {
    passed_at + NAMES_PASSED_MAX + TAKEN_WITHIN
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: InodeId = InodeId::new(1, 1, 9);

    fn at(text: &str) -> NameAt {
        (InodeId::new(1, 1, 1), Name::new(bytes::Bytes::copy_from_slice(text.as_bytes())).unwrap())
    }

    #[test]
    fn a_name_is_known_until_the_kernel_cannot_use_it_any_more() {
        let names = PassedNames::default();
        assert!(names.all_used_until().is_none());
        names.note(&at("a"), Some(INODE));
        let passed_at = names.passed_at(&at("a")).unwrap();
        assert_eq!(names.name_of(INODE), Some((at("a"), passed_at)));
        assert_eq!(names.used_until(&at("a")), Some(used_until(passed_at)));
        assert_eq!(names.all_used_until(), Some(used_until(passed_at)));
        assert!(names.passed_at(&at("b")).is_none());
        let mut generations = names.generations.lock();
        let early = Instant::now() - NAMES_PASSED_MAX - 2 * TAKEN_WITHIN;
        generations.newer.passed.values_mut().for_each(|passed_at| *passed_at = early);
        generations.since = early;
        drop(generations);
        assert!(names.passed_at(&at("a")).is_none() && names.name_of(INODE).is_none());
        names.note(&at("b"), None);
        assert_eq!(names.generations.lock().older.passed.len(), 1);
        assert!(names.passed_at(&at("b")).is_some());
        names.note_shared(at("b").0);
        assert!(!names.note(&at("c"), None) && names.passed_at(&at("c")).is_none());
        names.note_moved(&at("c"), Some(INODE));
        assert_eq!(names.name_of(INODE).map(|(name, _)| name), Some(at("c")), "its name is another one now");
        names.replaced(&at("b"));
        let elsewhere = (InodeId::new(1, 1, 2), at("c").1);
        assert!(names.note(&elsewhere, None));
        names.note_fight();
        assert!(!names.note(&elsewhere, None));
        assert!(names.passed_at(&at("b")).is_none());
    }
}
