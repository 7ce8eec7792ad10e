//! What own ops under way rely on (rule C3a of `docs/coherence.md`).

use super::{Cache, LeaseOf};
use crate::pledges::NameAt;
use crate::pledges::dropped::Dropped;
use hekate_proto::*;
use std::time::Duration;

/// An op of this session changes the inode of a name, and which one that is, or that there is none, was known. The
/// leader changes it for this session without a recall. If the name leads elsewhere by then, the pledge on another inode
/// ends: so nothing that it may be is answered from memory once what was relied on is recalled.
#[derive(Debug)]
pub(super) struct Relied {
    /// The op.
    pub op: u64,
    /// The pledge on the name, or on the attributes of its directory, whose change count says that it is missing.
    on: Pledged,
    /// The lease under which it was pledged.
    lease: LeaseOf,
    is_lost: bool,
    /// What the inode may be then.
    pub any: Dropped,
}

impl Cache {
    /// The inode that a name leads to, and what the op relies on for that. `None` if it is not known.
    pub(super) fn rely(
        &mut self,
        (op, any): (u64, &Dropped),
        (dir, name): &NameAt,
        now: Duration,
    ) -> Option<(Option<InodeId>, Relied)> {
        let known = self.names.get(&(*dir, name.clone())).filter(|known| self.is_valid(known.partition, now));
        let (target, on, lease) = match known.map(|known| (known.value, known.partition)) {
            Some((target, partition)) => {
                let on = Pledged::Name { dir: *dir, name: name.clone() };
                (target.map(|(inode, _)| inode), on, (partition, self.leases.get(&partition)?.since))
            }
            None if self.lacks(*dir, name, now) => (None, Pledged::Attributes { inode: *dir }, self.lease_of(*dir)?),
            None => return None,
        };
        Some((target, Relied { op, on, lease, is_lost: false, any: any.clone() }))
    }

    /// These are recalled, or own ops change them: then the leader ends the pledges without a word. Returns true if ops
    /// under way rely on any.
    pub(super) fn lose(&mut self, changed: &[Dropped]) -> bool {
        let mut loses = false;
        let is_changed = |on: &Pledged| changed.iter().any(|one| one.covers(on, Some(NodeKind::Directory)));
        for relied in self.relied.iter_mut().filter(|relied| is_changed(&relied.on)) {
            relied.is_lost = true;
            loses = true;
        }
        loses
    }

    /// True if an op under way may change the attributes of this inode.
    pub(super) fn is_unsure(&self, attr: &Attr, now: Duration) -> bool {
        let about = Pledged::Attributes { inode: attr.id };
        let may_change = |relied: &Relied| relied.any.covers(&about, Some(attr.kind)) && self.is_lost(relied, now);
        self.relied.iter().any(may_change)
    }

    pub(super) fn is_lost(&self, relied: &Relied, now: Duration) -> bool {
        let (partition, since) = relied.lease;
        let lease = self.leases.get(&partition);
        relied.is_lost || !lease.is_some_and(|lease| lease.since == since && now < lease.until)
    }
}
