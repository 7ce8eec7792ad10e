//! What has to be reconciled of a shard: ranges of blocks that some replica lists, and the writes behind them.

use super::holds;
use super::member_copy::Source;
use hekate_proto::*;
use std::collections::{BTreeMap, VecDeque};

/// What has to be reconciled of a shard.
#[derive(Debug, Default)]
pub(crate) struct Reconciliation {
    /// First block and number of blocks. No two overlap: one record undoes all of a write that is undone.
    pub ranges: VecDeque<(u32, u32)>,
    /// The greatest count of the listed stamps.
    pub count: u64,
    /// Writes of the replica whose bytes count, which is the leader unless it cannot read them. Their sessions may
    /// repeat them.
    pub own: Vec<FastWrite>,
    /// Lists of the other members.
    pub(super) theirs: BTreeMap<BrickId, Vec<FastWrite>>,
    pub(super) source: Source,
    /// True if some replica lists a write to the shard.
    pub is_listed: bool,
    /// True if some of it cannot be read, neither by the leader nor by a member that was asked.
    pub is_damaged: bool,
}

impl Reconciliation {
    /// Adds the ranges of a learner's list, or of any other.
    pub fn add(&mut self, writes: &[FastWrite]) {
        for write in writes {
            self.is_listed = true;
            self.count = self.count.max(write.stamp.count);
            // The list may come from another server: its ranges are checked against the size of a shard.
            if u64::from(write.first) + u64::from(write.blocks) <= SHARD_BYTES / BLOCK_BYTES as u64 {
                self.add_range((write.first, write.blocks));
            }
        }
    }

    fn add_range(&mut self, range: (u32, u32)) {
        let (mut first, mut end) = (range.0, range.0 + range.1);
        self.ranges.retain(|known| {
            let apart = !overlap(*known, (first, end - first));
            if !apart {
                (first, end) = (first.min(known.0), end.max(known.0 + known.1));
            }
            apart
        });
        self.ranges.push_back((first, end - first));
        self.ranges.make_contiguous().sort_unstable();
    }

    pub fn add_member(&mut self, brick: BrickId, writes: Vec<FastWrite>) {
        self.add(&writes);
        self.theirs.insert(brick, writes);
    }

    pub fn add_own(&mut self, writes: &[FastWrite]) {
        self.add(writes);
        self.own.extend(writes.iter().filter(|write| write.stamp.session != SYSTEM_SESSION));
    }

    pub fn forget_own(&mut self) {
        self.own.clear();
    }

    /// Cuts the ranges at the shard's last block. A replica that was away may list more, if the shard was dropped and
    /// made again in the meantime: the log brings that.
    pub fn end_at(&mut self, home_blocks: u32) {
        self.ranges.retain(|(first, _)| *first < home_blocks);
        self.ranges.iter_mut().for_each(|(first, blocks)| *blocks = (*blocks).min(home_blocks - *first));
    }

    /// The list that all replicas get when only the ranges in `left` are yet to be reconciled: these ranges, and those
    /// writes that all members had before or have by now. The next leader may answer retries of listed writes, so no
    /// others may be in it.
    pub fn rest(&self, left: &VecDeque<(u32, u32)>, others: usize) -> UnsettledRecord {
        let stamp = Stamp { count: self.count, session: SYSTEM_SESSION, op: OpId(0) };
        let is_everywhere = |write: &&FastWrite| {
            let is_left = left.iter().any(|range| overlap(*range, (write.first, write.blocks)));
            !is_left && !self.is_damaged
                || self.theirs.len() == others && self.theirs.values().all(|list| holds(list, write.stamp))
        };
        let mut writes: Vec<FastWrite> = self.own.iter().filter(is_everywhere).copied().collect();
        writes.extend(left.iter().map(|(first, blocks)| FastWrite { stamp, first: *first, blocks: *blocks }));
        UnsettledRecord { writes }
    }
}

fn overlap((one, blocks): (u32, u32), (other, others): (u32, u32)) -> bool {
    one < other + others && other < one + blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(op: u64, first: u32, blocks: u32) -> FastWrite {
        FastWrite { stamp: Stamp { count: op, session: SessionId(1), op: OpId(op) }, first, blocks }
    }

    #[test]
    fn what_not_all_have_is_a_range_only_until_all_is_even() {
        let mut reconciliation = Reconciliation::default();
        reconciliation.add_own(&[write(5, 0, 2), write(6, 4, 3)]);
        reconciliation.add_member(BrickId(1), vec![write(5, 0, 2), write(7, 9, 1)]);
        let left = |first, blocks| {
            let stamp = Stamp { count: 7, session: SYSTEM_SESSION, op: OpId(0) };
            FastWrite { stamp, first, blocks }
        };
        let rest = |reconciliation: &Reconciliation, ranges: &[(u32, u32)], others| {
            reconciliation.rest(&ranges.iter().copied().collect(), others)
        };
        let after = [(4, 3), (9, 1)];
        assert_eq!(rest(&reconciliation, &after, 1).writes, [write(5, 0, 2), left(4, 3), left(9, 1)]);
        let part = [(1, 1), (4, 3), (9, 1)];
        let all_left = [left(1, 1), left(4, 3), left(9, 1)];
        assert_eq!(rest(&reconciliation, &part, 2).writes, all_left, "a member without a list may lack the writes");
        assert_eq!(
            rest(&reconciliation, &after, 2).writes,
            [write(5, 0, 2), left(4, 3), left(9, 1)],
            "all have what is reconciled"
        );
        let mut next = Reconciliation::default();
        next.add_own(&rest(&reconciliation, &[(5, 1)], 1).writes);
        assert_eq!((next.own, next.ranges, next.count), (vec![write(5, 0, 2)], VecDeque::from([(0, 2), (5, 1)]), 7));
    }

    #[test]
    fn what_is_far_into_a_shard_is_a_range_and_behind_its_end_is_none() {
        let last = (SHARD_BYTES / BLOCK_BYTES as u64) as u32;
        let mut reconciliation = Reconciliation::default();
        reconciliation.add_own(&[write(5, last - 16, 16), write(6, last - 1, 2), write(7, u32::MAX, 1)]);
        assert_eq!(reconciliation.ranges, [(last - 16, 16)]);
    }

    /// The write's session may repeat it.
    #[test]
    fn the_id_of_a_write_is_kept_where_all_have_it_though_it_lies_beside_what_is_left() {
        let mut reconciliation = Reconciliation::default();
        reconciliation.add_own(&[write(5, 0, 2), write(6, 1, 1)]);
        reconciliation.add_member(BrickId(1), vec![write(6, 1, 1)]);
        let kept = |reconciliation: &Reconciliation, left: &[(u32, u32)], others: usize| -> Vec<u64> {
            let rest = reconciliation.rest(&left.iter().copied().collect(), others).writes;
            rest.iter().filter(|write| write.stamp.session != SYSTEM_SESSION).map(|write| write.stamp.op.0).collect()
        };
        assert_eq!(kept(&reconciliation, &[(1, 1)], 1), [5, 6], "it lists what followed it, so it has it");
        let mut reconciliation = Reconciliation::default();
        reconciliation.add_own(&[write(5, 0, 2)]);
        assert_eq!(kept(&reconciliation, &[(2, 1)], 2), [5], "what is left begins behind it");
        assert_eq!(kept(&reconciliation, &[(1, 1)], 2), [0u64; 0], "no other member lists it");
    }

    #[test]
    fn nothing_is_even_behind_the_end_of_a_shard() {
        let mut reconciliation = Reconciliation::default();
        reconciliation.add_own(&[write(5, 1, 2), write(6, 4, 4), write(7, 9, 1)]);
        reconciliation.end_at(6);
        assert_eq!(reconciliation.ranges, [(1, 2), (4, 2)]);
    }

    #[test]
    fn who_lists_only_what_followed_a_write_has_it() {
        let mut reconciliation = Reconciliation::default();
        reconciliation.add_own(&[write(5, 0, 1), write(6, 1, 1)]);
        reconciliation.add_member(BrickId(1), vec![write(6, 1, 1)]);
        let own = |writes: Vec<FastWrite>| writes.into_iter().filter(|write| write.stamp.session != SYSTEM_SESSION);
        assert_eq!(
            own(reconciliation.rest(&VecDeque::from([(1, 1)]), 1).writes).collect::<Vec<_>>(),
            [write(5, 0, 1), write(6, 1, 1)]
        );
    }

    /// Otherwise a write that one replica has could be undone in part.
    #[test]
    fn ranges_that_overlap_are_one() {
        let mut reconciliation = Reconciliation::default();
        reconciliation.add_own(&[write(5, 4, 2), write(6, 1, 2), write(7, 8, 1)]);
        reconciliation.add_member(BrickId(1), vec![write(8, 2, 3), write(9, 9, 2)]);
        assert_eq!(reconciliation.ranges, [(1, 5), (8, 1), (9, 2)]);
    }

    #[test]
    fn a_range_that_begins_where_the_shard_ends_is_none() {
        let mut reconciliation = Reconciliation::default();
        reconciliation.add_own(&[write(5, 4, 2)]);
        reconciliation.end_at(4);
        assert_eq!(reconciliation.ranges, []);
    }
}
