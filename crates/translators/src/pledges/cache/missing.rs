//! Names that are known to be missing though they are not pledged.

use super::{Cache, LeaseOf};
use hekate_proto::{InodeId, Name};
use std::time::Duration;

impl Cache {
    /// True if a look-up of the name is to be answered without a question.
    pub(super) fn is_missing(&mut self, dir: InodeId, name: &Name, now: Duration) -> bool {
        self.lacks(dir, name, now) && self.misses.answers(dir, name)
    }

    /// True if this session knows all names of the directory, since it made it or has listed it, and this is none of
    /// them.
    pub(super) fn lacks(&mut self, dir: InodeId, name: &Name, now: Duration) -> bool {
        let is_made = self.made.has(dir);
        if !is_made && !self.lists.has(dir) {
            return false;
        }
        let Some((change, lease)) = self.count_of(dir, now) else { return false };
        match is_made {
            true => self.made.lacks(dir, name, change, lease),
            false => self.lists.lacks(dir, name, change, lease),
        }
    }

    /// A server has said that a name is missing from this directory. True if the directory is to be listed now, since
    /// that would be remembered. Not beside own changes: the list would wait for these.
    pub fn wants_list(&mut self, dir: InodeId, now: Duration) -> bool {
        let Some((change, lease)) = self.count_of(dir, now).filter(|_| self.changing.0.is_empty()) else {
            return false;
        };
        self.lists.get(&(dir, None), change, lease).is_none() && self.lists.missed(dir)
    }

    /// The directory's change count, if it is pledged, and the lease.
    fn count_of(&self, dir: InodeId, now: Duration) -> Option<(u64, LeaseOf)> {
        Some((self.valid_attributes(dir, now)?.change, self.lease_of(dir)?))
    }
}
