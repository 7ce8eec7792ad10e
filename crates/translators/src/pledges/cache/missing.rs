//! Names that are missing from directories which this session made.

use super::Cache;
use hekate_proto::{InodeId, Name};
use std::time::Duration;

impl Cache {
    /// True if this session made the directory, knows all its names, and this is none of them.
    pub(super) fn is_missing(&mut self, dir: InodeId, name: &Name, now: Duration) -> bool {
        if !self.made.has(dir) || !self.has_attributes(dir, now) {
            return false;
        }
        let Some(known) = self.attributes.get(&dir) else { return false };
        let Some(lease) = self.leases.get(&known.partition) else { return false };
        self.made.lacks(dir, name, known.value.change, (known.partition, lease.since))
    }
}
