//! Inodes without a name that a session may still have open. Housekeeping collects one when no session has it open.

use hekate_proto::{InodeId, RingId, VolumeId};
use hekate_threads::Mutex;
use std::collections::BTreeSet;

/// An inode without a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Orphan {
    pub ring: RingId,
    pub volume: VolumeId,
    pub inode: InodeId,
}

/// The orphans of the partitions that are led here.
#[derive(Default)]
pub struct Orphans(Mutex<BTreeSet<Orphan>>);

impl Orphans {
    pub fn add(&self, orphans: impl Iterator<Item = Orphan>) {
        self.0.lock().extend(orphans);
    }

    pub fn remove(&self, orphan: &Orphan) {
        self.0.lock().remove(orphan);
    }

    /// At most `count` orphans for which `is_chosen` is true.
    pub fn choose(&self, count: usize, is_chosen: impl Fn(&Orphan) -> bool) -> Vec<Orphan> {
        self.0.lock().iter().filter(|orphan| is_chosen(orphan)).take(count).copied().collect()
    }

    /// Gives a volume's orphans to `look`. The lock is held meanwhile, so that none of them is collected.
    pub fn of_volume<T>(&self, volume: VolumeId, look: impl FnOnce(&mut dyn Iterator<Item = InodeId>) -> T) -> T {
        let all = self.0.lock();
        look(&mut all.iter().filter(|orphan| orphan.volume == volume).map(|orphan| orphan.inode))
    }

    pub fn count(&self) -> usize {
        self.0.lock().len()
    }
}
