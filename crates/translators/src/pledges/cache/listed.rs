//! Lists that are answered from memory.

use super::{Cache, LeaseOf};
use crate::pledges::lists::Page;
use crate::pledges::misses::owned;
use crate::pledges::touched::is_access_near;
use hekate_proto::*;
use std::time::Duration;

impl Cache {
    /// The answer to a list, if the directory and the attributes that it shows are pledged. Not if it moves the time of
    /// access.
    pub(super) fn list(&self, op: &NameOp, now: Duration) -> Option<Result<Reply>> {
        let NameOp::List { dir, after, limit, attributes, touch } = op else { return None };
        let is_touched = |attr: &Attr| *touch && after.is_none() && is_access_near(attr);
        let attr = self.valid_attributes(*dir, now).filter(|attr| !is_touched(attr))?;
        let page = self.lists.get(&(*dir, after.clone()), attr.change, self.lease_of(*dir)?)?;
        if !page.answers(*limit) {
            return None;
        }
        let entry = |(name, inode, kind): &(Name, InodeId, NodeKind)| {
            let attr = match *attributes {
                true => Some(self.valid_attributes(*inode, now)?.clone()),
                false => None,
            };
            Some(Entry { name: name.clone(), inode: *inode, kind: *kind, attr })
        };
        let entries = page.entries.iter().map(entry).collect::<Option<_>>()?;
        Some(Ok(Reply::List { entries, end: page.end }))
    }

    /// Remembers a list. `change`: the directory's change count when the leader made it.
    pub(super) fn take_list(&mut self, op: &NameOp, list: (&[Entry], bool), partition: PartitionNumber, change: u64) {
        let NameOp::List { dir, after, limit, .. } = op else { return };
        let Some(lease) = self.leases.get(&partition) else { return };
        let page = Page::new(*limit, list, change, (partition, lease.since));
        if let Some(page) = page {
            self.lists.remember((*dir, after.as_ref().map(owned)), page);
        }
    }

    /// The lease of the attributes that are remembered.
    pub(super) fn lease_of(&self, inode: InodeId) -> Option<LeaseOf> {
        let partition = self.attributes.get(&inode)?.partition;
        Some((partition, self.leases.get(&partition)?.since))
    }
}
