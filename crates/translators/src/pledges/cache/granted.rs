//! Grants, which are taken and used under the leases of pledges.

use super::{Cache, Dropped};
use crate::pledges::grants::{EndedGrant, Grant, Untold};
use hekate_proto::{GivenFor, GivenPledges, InodeId, PartitionNumber, Pledged};
use std::time::Duration;

impl Cache {
    /// The moment of a write that asks for a grant on its file, if the session would use one.
    pub fn ask_grant(&self, inode: InodeId) -> Option<u64> {
        self.grants.wants(inode).then_some(self.moment)
    }

    /// As `ask_grant`, for a write that moves the end of the file.
    pub fn ask_size(&mut self, inode: InodeId) -> Option<u64> {
        self.grants.wants_size(inode).then_some(self.moment)
    }

    /// Takes the grant in the reply to a write that ends at `end`.
    pub fn take_grant(
        &mut self,
        asked: u64,
        (inode, layout_version, end): (InodeId, u32, u64),
        durable: bool,
        given: &GivenPledges,
        now: Duration,
    ) {
        let about = Pledged::Times { inode };
        let is_recalled = !self.may_take(asked, |dropped| *dropped == Dropped::About(about.clone()));
        let (limit, end) = match given.given_for {
            GivenFor::Times => (0, 0),
            GivenFor::Size { limit } => (limit, end),
            _ => return,
        };
        if self.is_current(asked, given, now) && !is_recalled {
            let GivenPledges { partition, term, number, .. } = *given;
            self.grants.take(inode, Grant { partition, term, number, layout_version, durable, limit }, end, now);
        }
    }

    /// The grant under which a write may be made now.
    pub fn grant(&self, inode: InodeId, layout_version: u32, durable: bool, now: Duration) -> Option<Grant> {
        self.grants.get(inode, layout_version, durable).filter(|grant| self.is_valid(grant.partition, now))
    }

    /// Ends grants of these partitions that were not used lately. Replies that are on their way bring no others.
    pub fn end_idle_grants(&mut self, now: Duration, of: impl Fn(PartitionNumber) -> bool) -> Vec<EndedGrant> {
        let ended = self.grants.end_idle(now, of);
        ended.iter().for_each(|(inode, ..)| self.note_dropped(Dropped::About(Pledged::Times { inode: *inode })));
        ended
    }

    /// A write under this grant, which ends at `end`, has been made. False if the grant is over: then the leader has to
    /// be told.
    pub fn wrote(&mut self, inode: InodeId, grant: &Grant, end: u64, now: Duration) -> bool {
        self.is_valid(grant.partition, now) && self.grants.wrote(inode, grant.number, end, now)
    }

    /// The leader has been told of these writes. What it answered before that is older, and it recalls nothing of it
    /// from the session that told it.
    pub fn told(&mut self, one: &Untold) {
        self.grants.told(&[*one]);
        self.note_dropped(Dropped::About(Pledged::Attributes { inode: one.inode }));
    }

    /// The end of a file that nobody but this session can move.
    pub fn end_of(&self, inode: InodeId, layout_version: u32, now: Duration) -> Option<u64> {
        let (end, partition) = self.grants.end_of(inode, layout_version)?;
        self.is_valid(partition, now).then_some(end)
    }
}
