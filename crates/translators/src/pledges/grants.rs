//! What a session may write by grants, and what it has written under them. Pure: the time comes in.
//!
//! Invariant: a write that was acknowledged under a grant is in `Grant::wrote_at` or in `untold` until the leader that
//! gave the grant has been told, or another leader has begun, which moves the times of all such files by itself.

use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_threads::HashMap;
use std::time::Duration;

/// Grants that a session uses at a time.
const GRANTS_MAX: usize = 1024;
/// A grant that was not used for so long is returned.
const IDLE: Duration = Duration::from_secs(1);
/// A grant under which fewer writes are made before the session itself looks at the attributes is returned: it saves
/// too little.
const WRITES_MIN: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub partition: PartitionNumber,
    pub term: u64,
    pub number: u64,
    pub layout_version: u32,
    /// Writes that are to be on stable storage may use it.
    pub durable: bool,
}

#[derive(Debug)]
struct Held {
    grant: Grant,
    used_at: Duration,
    /// The last write of which the leader was not told.
    wrote_at: Option<Duration>,
    /// Writes since the leader was told.
    writes: u32,
    is_retired: bool,
}

/// Writes of which a leader was not told yet, under a grant that the session no longer uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Untold {
    pub inode: InodeId,
    pub grant: Grant,
    pub wrote_at: Duration,
}

/// A grant that the session no longer uses, with what was written under it.
pub(crate) type EndedGrant = (InodeId, Grant, Option<Untold>);

#[derive(Debug, Default)]
pub(crate) struct Grants {
    held: HashMap<InodeId, Held>,
    untold: HashMap<InodeId, Untold>,
}

impl Grants {
    /// True if the session would use a grant on this file.
    pub fn wants(&self, inode: InodeId) -> bool {
        !self.held.contains_key(&inode) && self.held.len() < GRANTS_MAX
    }

    /// Takes a grant. Replies to two writes may bring two, and come in any order: the later one counts.
    pub fn take(&mut self, inode: InodeId, grant: Grant, now: Duration) {
        let known = self.held.remove(&inode);
        let later =
            known.as_ref().map_or(grant, |known| if known.grant.number > grant.number { known.grant } else { grant });
        let (wrote_at, writes) = known.map_or((None, 0), |known| (known.wrote_at, known.writes));
        self.held.insert(inode, Held { grant: later, used_at: now, wrote_at, writes, is_retired: false });
    }

    /// The grant under which a write may be made.
    pub fn get(&self, inode: InodeId, layout_version: u32, durable: bool) -> Option<Grant> {
        let held = self.held.get(&inode).filter(|held| !held.is_retired)?;
        let is_fit = held.grant.layout_version == layout_version && (held.grant.durable || !durable);
        is_fit.then_some(held.grant)
    }

    /// A write under this grant has been made. False if the grant is not the session's any more: then the leader has to
    /// be told.
    pub fn wrote(&mut self, inode: InodeId, number: u64, now: Duration) -> bool {
        let held = self.held.get_mut(&inode).filter(|held| held.grant.number == number);
        let Some(held) = held else { return is_planted(Bug::GrantUsedAfterRecall) };
        (held.used_at, held.wrote_at) = (now, held.wrote_at.max(Some(now)));
        held.writes += 1;
        true
    }

    /// The writes to this file, or to any, of which the leader is to be told before the session looks at attributes.
    pub fn untold_of(&mut self, inode: Option<InodeId>) -> Vec<Untold> {
        if self.held.is_empty() && self.untold.is_empty() || is_planted(Bug::GrantedWriteNotTold) {
            return Vec::new();
        }
        let is_wanted = |one: &InodeId| inode.is_none_or(|inode| inode == *one);
        let mut all: Vec<Untold> = self.untold.values().filter(|one| is_wanted(&one.inode)).copied().collect();
        for (inode, held) in self.held.iter_mut().filter(|(inode, _)| is_wanted(inode)) {
            let Some(wrote_at) = held.wrote_at else { continue };
            held.is_retired |= held.writes < WRITES_MIN;
            all.push(Untold { inode: *inode, grant: held.grant, wrote_at });
        }
        all.sort_unstable_by_key(|one| one.inode);
        all
    }

    /// The leader has been told, or its word is not needed any more.
    pub fn told(&mut self, told: &[Untold]) {
        for one in told {
            if self.untold.get(&one.inode).is_some_and(|untold| untold.wrote_at <= one.wrote_at) {
                self.untold.remove(&one.inode);
            }
            if let Some(held) = self.held.get_mut(&one.inode).filter(|held| held.wrote_at <= Some(one.wrote_at)) {
                (held.wrote_at, held.writes) = (None, 0);
            }
        }
    }

    /// The leader recalls its grant on a file. Returns what was written under it, as far as it was not told.
    pub fn recalled(&mut self, inode: InodeId, partition: PartitionNumber, number: u64) -> Option<Untold> {
        let is_meant = |grant: &Grant| grant.partition == partition && grant.number <= number;
        if self.held.get(&inode).is_some_and(|held| is_meant(&held.grant)) {
            self.end(inode);
        }
        let untold = self.untold.get(&inode).filter(|untold| untold.grant.partition == partition).copied();
        untold.filter(|_| !is_planted(Bug::GrantReturnedWithoutReport))
    }

    /// Ends grants that were not used lately. Returns them, each with what was written under it.
    pub fn end_idle(&mut self, now: Duration, of: impl Fn(PartitionNumber) -> bool) -> Vec<EndedGrant> {
        let is_idle = |held: &Held| held.used_at + IDLE <= now && of(held.grant.partition);
        let mut idle: Vec<(InodeId, Grant)> =
            self.held.iter().filter(|(_, held)| is_idle(held)).map(|(inode, held)| (*inode, held.grant)).collect();
        idle.sort_unstable_by_key(|(inode, _)| *inode);
        let ended = idle.into_iter().map(|(inode, grant)| {
            self.end(inode);
            (inode, grant, self.untold.get(&inode).copied())
        });
        ended.collect()
    }

    /// The lease of a partition is over, or another leader has begun. What was written under its grants is told to the
    /// same leader when it recalls them, or when the session looks.
    pub fn forget_partition(&mut self, partition: PartitionNumber, term: u64) {
        let mut lost: Vec<InodeId> =
            self.held.iter().filter(|(_, held)| held.grant.partition == partition).map(|(inode, _)| *inode).collect();
        lost.sort_unstable();
        lost.into_iter().for_each(|inode| self.end(inode));
        // A leader that has begun since has moved the times by itself, before anybody may see them.
        self.untold.retain(|_, untold| untold.grant.partition != partition || untold.grant.term == term);
    }

    fn end(&mut self, inode: InodeId) {
        let Some(Held { grant, wrote_at: Some(wrote_at), .. }) = self.held.remove(&inode) else { return };
        let earlier = self.untold.get(&inode).map_or(wrote_at, |untold| untold.wrote_at);
        self.untold.insert(inode, Untold { inode, grant, wrote_at: wrote_at.max(earlier) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId::from_bits(7);
    const PARTITION: PartitionNumber = PartitionNumber(1);
    const GRANT: Grant = Grant { partition: PARTITION, term: 3, number: 10, layout_version: 1, durable: false };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn granted() -> Grants {
        let mut grants = Grants::default();
        grants.take(FILE, GRANT, at(1));
        grants
    }

    #[test]
    fn a_write_counts_only_under_the_grant_that_it_began_with() {
        let mut grants = granted();
        assert_eq!(grants.get(FILE, 1, false), Some(GRANT));
        assert_eq!(grants.get(FILE, 2, false), None, "another layout");
        assert_eq!(grants.get(FILE, 1, true), None, "the marker may not be on stable storage");
        assert!(grants.wrote(FILE, 10, at(2)));
        assert_eq!(grants.recalled(FILE, PARTITION, 10).map(|untold| untold.wrote_at), Some(at(2)));
        assert!(!grants.wrote(FILE, 10, at(3)));
        grants.take(FILE, Grant { number: 11, ..GRANT }, at(4));
        assert!(!grants.wrote(FILE, 10, at(5)), "a later grant is another one");
    }

    #[test]
    fn of_two_grants_on_a_file_the_later_one_counts_whichever_reply_comes_first() {
        let mut grants = granted();
        grants.take(FILE, Grant { number: 9, ..GRANT }, at(1));
        assert_eq!(grants.get(FILE, 1, false), Some(GRANT));
        grants.take(FILE, Grant { number: 12, ..GRANT }, at(1));
        assert_eq!(grants.get(FILE, 1, false).map(|grant| grant.number), Some(12));
    }

    #[test]
    fn what_was_written_is_told_until_the_leader_knows_it() {
        let mut grants = granted();
        assert!(grants.wrote(FILE, 10, at(2)));
        let first = grants.recalled(FILE, PARTITION, 10);
        assert_eq!(grants.recalled(FILE, PARTITION, 10), first, "the recall comes again if the return is lost");
        assert_eq!(grants.untold_of(Some(FILE)), Vec::from_iter(first));
        grants.told(&Vec::from_iter(first));
        assert_eq!(grants.recalled(FILE, PARTITION, 10), None);
        assert!(grants.untold_of(None).is_empty());
    }

    #[test]
    fn a_write_after_the_word_is_told_later() {
        let mut grants = granted();
        assert!(grants.wrote(FILE, 10, at(2)));
        let told = grants.untold_of(None);
        assert!(grants.wrote(FILE, 10, at(3)));
        grants.told(&told);
        assert_eq!(grants.untold_of(None).first().map(|untold| untold.wrote_at), Some(at(3)));
    }

    #[test]
    fn an_older_recall_leaves_a_newer_grant() {
        let mut grants = granted();
        assert_eq!(grants.recalled(FILE, PARTITION, 9), None);
        assert!(grants.wrote(FILE, 10, at(2)));
    }

    #[test]
    fn grants_end_with_the_lease_and_what_was_written_with_the_leader() {
        let mut grants = granted();
        assert!(grants.wrote(FILE, 10, at(2)));
        grants.forget_partition(PARTITION, 3);
        assert!(!grants.wrote(FILE, 10, at(7)));
        assert_eq!(grants.untold_of(None).len(), 1, "the same leader is told");
        grants.forget_partition(PARTITION, 4);
        assert!(grants.untold_of(None).is_empty());
    }

    #[test]
    fn a_grant_that_is_not_used_is_returned_and_one_that_saves_little_is_not_used() {
        let mut grants = granted();
        assert!(grants.wrote(FILE, 10, at(2)));
        assert!(grants.end_idle(at(2), |_| true).is_empty());
        assert_eq!(grants.untold_of(Some(FILE)).len(), 1);
        assert_eq!(grants.get(FILE, 1, false), None, "one write between two looks");
        assert!(!grants.wants(FILE));
        assert!(grants.end_idle(at(9), |_| false).is_empty(), "of another server");
        let [(FILE, GRANT, Some(untold))] = grants.end_idle(at(9), |_| true)[..] else { panic!("not returned") };
        assert_eq!(untold.wrote_at, at(2));
        assert!(grants.wants(FILE));
    }
}
