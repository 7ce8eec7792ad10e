//! Inodes without a name that a session may still have open. Housekeeping collects one when no session has it open.
//!
//! Invariant: before that, the sessions have been read since the inode was found to have no name. A session that
//! another server has opened may have the file open, and this server may not know of it. Sessions that begin later do
//! not find the file.

use crate::request::sessions::ReadsBegun;
use hekate_proto::{InodeId, RingId, VolumeId};
use hekate_threads::Mutex;
use std::collections::BTreeMap;

/// An inode without a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Orphan {
    pub ring: RingId,
    pub volume: VolumeId,
    pub inode: InodeId,
}

/// The orphans of the partitions that are led here, and when each was found.
#[derive(Default)]
pub struct Orphans(Mutex<BTreeMap<Orphan, ReadsBegun>>);

impl Orphans {
    /// Adds orphans that a leader has found at this moment.
    pub fn add(&self, orphans: impl Iterator<Item = Orphan>, found: ReadsBegun) {
        self.0.lock().extend(orphans.map(|orphan| (orphan, found)));
    }

    pub fn remove(&self, orphan: &Orphan) {
        self.0.lock().remove(orphan);
    }

    /// At most `count` orphans for which `is_chosen` is true.
    pub fn choose(&self, count: usize, is_chosen: impl Fn(&Orphan, ReadsBegun) -> bool) -> Vec<Orphan> {
        let all = self.0.lock();
        all.iter().filter(|(orphan, found)| is_chosen(orphan, **found)).map(|(orphan, _)| *orphan).take(count).collect()
    }

    /// Gives a volume's orphans to `look`. The lock is held meanwhile, so that none of them is collected.
    pub fn of_volume<T>(&self, volume: VolumeId, look: impl FnOnce(&mut dyn Iterator<Item = InodeId>) -> T) -> T {
        let all = self.0.lock();
        look(&mut all.keys().filter(|orphan| orphan.volume == volume).map(|orphan| orphan.inode))
    }

    pub fn count(&self) -> usize {
        self.0.lock().len()
    }
}
