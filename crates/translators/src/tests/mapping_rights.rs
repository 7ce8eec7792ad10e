//! What becomes of mapping rights and leases when others begin.

use crate::pledges::cache::Cache;
use crate::pledges::mappings::{Next, Right};
use hekate_proto::*;
use std::time::Duration;

const PARTITION: PartitionNumber = PartitionNumber(0);
const TERM: u64 = 9;
const FILE: InodeId = super::support::inode(0, 6);
const START: Duration = Duration::from_secs(100);
const MOMENT: Duration = Duration::from_millis(1);

/// Nothing ran on this machine from before the end of the lease until after the leader had given the right away.
#[test]
fn a_right_whose_lease_has_begun_anew_is_asked_for_before_pages_are_written_back() {
    for (silence, next) in [(PLEDGE_LEASE - MOMENT, Next::Go), (PLEDGE_LEASE + MOMENT, Next::Ask)] {
        let mut cache = Cache::default();
        cache.renew(START, START, &[(PARTITION, TERM)]);
        assert!(cache.mappings.opened(FILE));
        cache.mappings.settled(FILE);
        cache.mappings.take(FILE, Right { partition: PARTITION, term: TERM, number: 4 }, 4, START);
        let after = START + silence;
        cache.renew(after, after, &[(PARTITION, TERM)]);
        assert_eq!(cache.mappings.kept().len(), 1, "the leader is told that the session had it");
        assert!(cache.is_leased(PARTITION, TERM, after));
        assert_eq!(cache.mappings.write_back(FILE, |_| true), next, "after {silence:?}");
    }
}

#[test]
fn a_late_answer_of_an_earlier_leader_ends_nothing() {
    let mut cache = Cache::default();
    cache.renew(START, START, &[(PARTITION, TERM)]);
    cache.renew(START, START + MOMENT, &[(PARTITION, TERM - 1)]);
    assert!(cache.is_leased(PARTITION, TERM, START + MOMENT));
    cache.renew(START, START + MOMENT, &[(PARTITION, TERM + 1)]);
    assert!(cache.is_leased(PARTITION, TERM + 1, START + MOMENT));
}
