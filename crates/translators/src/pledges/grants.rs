//! What a session may write by grants, and what it has written under them. Pure: the time comes in.
//!
//! Invariant: a write that was acknowledged under a grant is in `Grant::wrote_at` or in `untold` until the leader that
//! gave the grant has been told, or another leader has begun, which moves the times of all such files by itself.

use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_threads::{HashMap, HashSet};
use std::time::Duration;

/// Grants that a session uses at a time.
const GRANTS_MAX: usize = 1024;
/// A grant that was not used for so long is returned.
const IDLE: Duration = Duration::from_secs(1);
/// A grant under which fewer writes are made before the session itself looks at the attributes is returned: it saves
/// too little.
const WRITES_MIN: u32 = 4;
/// Writes in succession with which the session moves the end of a file before it asks for a grant to do so.
const GROWTHS_MIN: u32 = 3;
/// Files of which such writes are counted.
const GROWING_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub partition: PartitionNumber,
    pub term: u64,
    pub number: u64,
    pub layout_version: u32,
    /// Writes that are to be on stable storage may use it.
    pub durable: bool,
    /// The offset up to which the session may move the end of the file. 0: it may not.
    pub limit: u64,
}

#[derive(Debug)]
struct Held {
    grant: Grant,
    used_at: Duration,
    /// The last write of which the leader was not told.
    wrote_at: Option<Duration>,
    /// Writes since the leader was told.
    writes: u32,
    /// The end of the file, if the session may move it.
    end: u64,
    /// The leader was not told of `end`.
    is_moved: bool,
    is_retired: bool,
}

/// Writes of which a leader was not told yet, under a grant that the session no longer uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Untold {
    pub inode: InodeId,
    pub grant: Grant,
    pub wrote_at: Duration,
    /// The end of the file to which the session has moved it. 0: it has not.
    pub end: u64,
}

/// A grant that the session no longer uses, with what was written under it.
pub(crate) type EndedGrant = (InodeId, Grant, Option<Untold>);

#[derive(Debug, Default)]
pub(crate) struct Grants {
    held: HashMap<InodeId, Held>,
    untold: HashMap<InodeId, Untold>,
    /// Writes in succession that have moved the ends of files, without a grant.
    growing: HashMap<InodeId, u32>,
    /// Files of which a thread is telling the leader. Told twice, the leader would move the times twice, the second time
    /// perhaps after the session was pledged them.
    telling: HashSet<InodeId>,
}

impl Grants {
    /// A thread wants to tell the leader of writes to this file. False if another one is doing so.
    pub fn begin_telling(&mut self, inode: InodeId) -> bool {
        self.telling.insert(inode)
    }

    pub fn end_telling(&mut self, inode: InodeId) {
        self.telling.remove(&inode);
    }

    /// True if the session would use a grant on this file.
    pub fn wants(&self, inode: InodeId) -> bool {
        !self.held.contains_key(&inode) && self.held.len() < GRANTS_MAX
    }

    /// True if the session would use a grant with which it moves the end of this file. Called with each write that moves
    /// it without one.
    pub fn wants_size(&mut self, inode: InodeId) -> bool {
        if self.growing.len() >= GROWING_MAX {
            self.growing.clear();
        }
        let writes = self.growing.entry(inode).or_default();
        *writes = writes.saturating_add(1);
        *writes >= GROWTHS_MIN && (self.held.contains_key(&inode) || self.held.len() < GRANTS_MAX)
    }

    /// Takes a grant. Replies to two writes may bring two, and come in any order: the later one counts. `end`: of the
    /// file, at the leader, when it gave the grant.
    pub fn take(&mut self, inode: InodeId, grant: Grant, end: u64, now: Duration) {
        let first =
            || Held { grant, used_at: now, wrote_at: None, writes: 0, end: 0, is_moved: false, is_retired: false };
        let held = self.held.entry(inode).or_insert_with(first);
        if held.grant.number <= grant.number {
            held.grant = grant;
        }
        (held.used_at, held.is_retired, held.end) = (now, false, held.end.max(end));
    }

    /// The leader was told that a write ends here.
    pub fn grew(&mut self, inode: InodeId, layout_version: u32, end: u64) {
        let held = self.held.get_mut(&inode).filter(|held| held.grant.layout_version == layout_version);
        if let Some(held) = held.filter(|held| held.grant.limit > 0) {
            held.end = held.end.max(end);
        }
    }

    /// The end of a file that nobody but this session can move.
    pub fn end_of(&self, inode: InodeId, layout_version: u32) -> Option<(u64, PartitionNumber)> {
        let held = self.held.get(&inode).filter(|held| !held.is_retired && held.grant.limit > 0)?;
        (held.grant.layout_version == layout_version).then_some((held.end, held.grant.partition))
    }

    /// The grant under which a write may be made.
    pub fn get(&self, inode: InodeId, layout_version: u32, durable: bool) -> Option<Grant> {
        let held = self.held.get(&inode).filter(|held| !held.is_retired)?;
        let is_fit = held.grant.layout_version == layout_version && (held.grant.durable || !durable);
        is_fit.then_some(held.grant)
    }

    /// A write under this grant has been made. False if the grant is not the session's any more: then the leader has to
    /// be told.
    /// `end`: of the write.
    pub fn wrote(&mut self, inode: InodeId, number: u64, end: u64, now: Duration) -> bool {
        let held = self.held.get_mut(&inode).filter(|held| held.grant.number == number);
        let Some(held) = held else { return is_planted(Bug::GrantUsedAfterRecall) };
        (held.used_at, held.wrote_at) = (now, held.wrote_at.max(Some(now)));
        held.writes += 1;
        if held.grant.limit > 0 && end > held.end {
            (held.end, held.is_moved) = (end, true);
        }
        true
    }

    /// The writes to this file, or to any, of which the leader is to be told before the session looks at attributes.
    pub fn untold_of(&mut self, inode: Option<InodeId>) -> Vec<Untold> {
        if self.held.is_empty() && self.untold.is_empty() && self.growing.is_empty()
            || is_planted(Bug::GrantedWriteNotTold)
        {
            return Vec::new();
        }
        let is_wanted = |one: &InodeId| inode.is_none_or(|inode| inode == *one);
        inode.into_iter().for_each(|inode| _ = self.growing.remove(&inode));
        let mut all: Vec<Untold> = self.untold.values().filter(|one| is_wanted(&one.inode)).copied().collect();
        for (inode, held) in self.held.iter_mut().filter(|(inode, _)| is_wanted(inode)) {
            let Some(wrote_at) = held.wrote_at else { continue };
            held.is_retired |= held.writes < WRITES_MIN;
            all.push(held.untold(*inode, wrote_at));
        }
        all.sort_unstable_by_key(|one| one.inode);
        all
    }

    /// The files of which the leader was not told all.
    pub fn all_untold(&self) -> Vec<InodeId> {
        if is_planted(Bug::GrantedWriteNotTold) {
            return Vec::new();
        }
        let held = self.held.iter().filter(|(_, held)| held.wrote_at.is_some()).map(|(inode, _)| *inode);
        self.untold.keys().copied().chain(held).collect()
    }

    /// True if the leader was not told of a write to the file.
    pub fn has_untold(&self, inode: InodeId) -> bool {
        self.untold.contains_key(&inode) || self.held.get(&inode).is_some_and(|held| held.wrote_at.is_some())
    }

    /// The leader has been told, or its word is not needed any more.
    pub fn told(&mut self, told: &[Untold]) {
        for one in told {
            let is_told = |wrote_at: Duration, end: u64| wrote_at <= one.wrote_at && end <= one.end;
            if self.untold.get(&one.inode).is_some_and(|untold| is_told(untold.wrote_at, untold.end)) {
                self.untold.remove(&one.inode);
            }
            let is_all_told = |held: &&mut Held| {
                held.wrote_at.is_some_and(|wrote_at| is_told(wrote_at, if held.is_moved { held.end } else { 0 }))
            };
            if let Some(held) = self.held.get_mut(&one.inode).filter(is_all_told) {
                (held.wrote_at, held.writes, held.is_moved) = (None, 0, false);
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
            // Who writes now and then would return each grant that it asks for.
            if self.held.get(&inode).is_some_and(|held| held.writes < WRITES_MIN) {
                self.growing.remove(&inode);
            }
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
        let Some(held @ Held { wrote_at: Some(wrote_at), .. }) = self.held.remove(&inode) else { return };
        let mut untold = held.untold(inode, wrote_at);
        if let Some(earlier) = self.untold.get(&inode) {
            untold.wrote_at = untold.wrote_at.max(earlier.wrote_at);
            if earlier.grant.layout_version == untold.grant.layout_version {
                untold.end = untold.end.max(earlier.end);
            }
        }
        self.untold.insert(inode, untold);
    }
}

impl Held {
    fn untold(&self, inode: InodeId, wrote_at: Duration) -> Untold {
        let end = if self.is_moved { self.end } else { 0 };
        Untold { inode, grant: self.grant, wrote_at, end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId::from_bits(7);
    const PARTITION: PartitionNumber = PartitionNumber(1);
    const GRANT: Grant =
        Grant { partition: PARTITION, term: 3, number: 10, layout_version: 1, durable: false, limit: 0 };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn granted() -> Grants {
        let mut grants = Grants::default();
        grants.take(FILE, GRANT, 0, at(1));
        grants
    }

    #[test]
    fn a_write_counts_only_under_the_grant_that_it_began_with() {
        let mut grants = granted();
        assert_eq!(grants.get(FILE, 1, false), Some(GRANT));
        assert_eq!(grants.get(FILE, 2, false), None, "another layout");
        assert_eq!(grants.get(FILE, 1, true), None, "the marker may not be on stable storage");
        assert!(grants.wrote(FILE, 10, 0, at(2)));
        assert_eq!(grants.recalled(FILE, PARTITION, 10).map(|untold| untold.wrote_at), Some(at(2)));
        assert!(!grants.wrote(FILE, 10, 0, at(3)));
        grants.take(FILE, Grant { number: 11, ..GRANT }, 0, at(4));
        assert!(!grants.wrote(FILE, 10, 0, at(5)), "a later grant is another one");
    }

    #[test]
    fn of_two_grants_on_a_file_the_later_one_counts_whichever_reply_comes_first() {
        let mut grants = granted();
        grants.take(FILE, Grant { number: 9, ..GRANT }, 0, at(1));
        assert_eq!(grants.get(FILE, 1, false), Some(GRANT));
        grants.take(FILE, Grant { number: 12, ..GRANT }, 0, at(1));
        assert_eq!(grants.get(FILE, 1, false).map(|grant| grant.number), Some(12));
    }

    #[test]
    fn what_was_written_is_told_until_the_leader_knows_it() {
        let mut grants = granted();
        assert!(grants.wrote(FILE, 10, 0, at(2)));
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
        assert!(grants.wrote(FILE, 10, 0, at(2)));
        let told = grants.untold_of(None);
        assert!(grants.wrote(FILE, 10, 0, at(3)));
        grants.told(&told);
        assert_eq!(grants.untold_of(None).first().map(|untold| untold.wrote_at), Some(at(3)));
    }

    #[test]
    fn the_end_is_that_of_the_last_write_told_or_not() {
        let mut grants = Grants::default();
        let sized = Grant { limit: 1000, ..GRANT };
        grants.take(FILE, sized, 100, at(1));
        assert_eq!(grants.end_of(FILE, 1), Some((100, PARTITION)));
        assert!(grants.wrote(FILE, 10, 200, at(2)));
        grants.grew(FILE, 1, 300);
        assert_eq!(grants.end_of(FILE, 1), Some((300, PARTITION)));
        assert_eq!(grants.end_of(FILE, 2), None, "another layout");
        let untold = grants.recalled(FILE, PARTITION, 10).unwrap();
        assert_eq!((untold.end, grants.end_of(FILE, 1)), (300, None));
    }

    #[test]
    fn a_grant_to_move_the_end_is_wanted_by_who_goes_on_moving_it() {
        let mut grants = Grants::default();
        let wanted: Vec<bool> = (0..4).map(|_| grants.wants_size(FILE)).collect();
        assert_eq!(wanted, [false, false, true, true]);
        assert!(grants.untold_of(Some(FILE)).is_empty());
        assert!(!grants.wants_size(FILE), "it looks at the file in between");
        grants.wants_size(FILE);
        assert!(grants.wants_size(FILE));
        grants.take(FILE, Grant { limit: 1000, ..GRANT }, 100, at(1));
        assert_eq!(grants.end_idle(at(2), |_| true).len(), 1);
        assert!(!grants.wants_size(FILE), "it writes too seldom");
    }

    #[test]
    fn an_older_recall_leaves_a_newer_grant() {
        let mut grants = granted();
        assert_eq!(grants.recalled(FILE, PARTITION, 9), None);
        assert!(grants.wrote(FILE, 10, 0, at(2)));
    }

    #[test]
    fn grants_end_with_the_lease_and_what_was_written_with_the_leader() {
        let mut grants = granted();
        assert!(grants.wrote(FILE, 10, 0, at(2)));
        grants.forget_partition(PARTITION, 3);
        assert!(!grants.wrote(FILE, 10, 0, at(7)));
        assert_eq!(grants.untold_of(None).len(), 1, "the same leader is told");
        grants.forget_partition(PARTITION, 4);
        assert!(grants.untold_of(None).is_empty());
    }

    #[test]
    fn a_grant_that_is_not_used_is_returned_and_one_that_saves_little_is_not_used() {
        let mut grants = granted();
        assert!(grants.wrote(FILE, 10, 0, at(2)));
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
