//! Until when a session may use what partitions have pledged (rules C1, C2 and C7 of `docs/coherence.md`).

use super::Cache;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{GivenPledges, PLEDGE_LEASE, PartitionNumber};
use std::time::Duration;

/// A partition, and the moment of the cache at which its present lease began.
pub(in crate::pledges) type LeaseOf = (PartitionNumber, u64);

/// The right to answer by what a partition pledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub term: u64,
    /// What earlier terms pledged is forgotten, here and where doors have passed it on.
    pub is_forgotten: bool,
    pub until: Duration,
    /// Replies to requests from before this moment are not taken.
    pub since: u64,
}

impl Cache {
    /// True if what this partition pledged may be used.
    pub(super) fn is_valid(&self, partition: PartitionNumber, now: Duration) -> bool {
        let is_over = |lease: &Lease| now >= lease.until && !is_planted(Bug::PledgeOutlivesLease);
        self.leases.get(&partition).is_some_and(|lease| !is_over(lease))
    }

    /// True if a pledge of this leader's term may be used.
    pub fn is_leased(&self, partition: PartitionNumber, term: u64, now: Duration) -> bool {
        let is_of_term = |lease: &Lease| lease.term == term || is_planted(Bug::PledgeOutlivesLeader);
        self.leases.get(&partition).is_some_and(is_of_term) && self.is_valid(partition, now)
    }

    /// True if the pledge is of the term that is renewed, and was asked for since then.
    pub(in crate::pledges) fn is_current(&self, asked: u64, given: &GivenPledges, now: Duration) -> bool {
        let lease = self.leases.get(&given.partition);
        asked >= self.too_old
            && lease.is_some_and(|lease| lease.term == given.term && asked >= lease.since && now < lease.until)
    }

    /// Takes the terms in the reply to a `Renew` that was sent at `sent`. Returns true if doors have to forget what
    /// earlier terms pledged; `doors_forgot` is called then.
    pub fn renew(&mut self, sent: Duration, now: Duration, terms: &[(PartitionNumber, u64)]) -> bool {
        let mut is_any_new = false;
        for (partition, term) in terms {
            let known = self.leases.get(partition).copied();
            // A late answer of a leader before: terms begin with epochs.
            if known.is_some_and(|lease| lease.term > *term) {
                continue;
            }
            let is_same = known.is_some_and(|lease| lease.term == *term) || is_planted(Bug::PledgeOutlivesLeader);
            let is_kept = |lease: Lease| now < lease.until || is_planted(Bug::PledgeOutlivesLease);
            let lease = match known.filter(|lease| is_same && is_kept(*lease)) {
                Some(lease) => Lease { term: *term, until: lease.until.max(sent + PLEDGE_LEASE), ..lease },
                None => {
                    self.forget_partition(*partition, *term);
                    let is_forgotten = known.is_some_and(|lease| is_same && lease.is_forgotten);
                    Lease { term: *term, is_forgotten, until: sent + PLEDGE_LEASE, since: self.moment }
                }
            };
            is_any_new |= !lease.is_forgotten;
            self.leases.insert(*partition, lease);
        }
        is_any_new
    }

    /// Doors have forgotten what was passed on before these terms were known.
    pub fn doors_forgot(&mut self, terms: &[(PartitionNumber, u64)]) {
        for (partition, term) in terms {
            if let Some(lease) = self.leases.get_mut(partition).filter(|lease| lease.term == *term) {
                lease.is_forgotten = true;
            }
        }
    }

    /// Drops all that a partition has pledged.
    fn forget_partition(&mut self, partition: PartitionNumber, term: u64) {
        self.moment += 1;
        self.names.retain(|_, known| known.partition != partition);
        self.attributes.retain(|_, known| known.partition != partition);
        self.shards.forget_partition(partition);
        self.grants.forget_partition(partition, term);
        self.mappings.lose_partition(partition);
    }

    /// The terms before which nothing is remembered any more, here and where doors have passed it on.
    pub fn forgot(&self) -> Vec<(PartitionNumber, u64)> {
        let terms = self.leases.iter().filter(|(_, lease)| lease.is_forgotten);
        let mut terms: Vec<_> = terms.map(|(partition, lease)| (*partition, lease.term)).collect();
        terms.sort_unstable();
        terms
    }
}
