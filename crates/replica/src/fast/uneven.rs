//! What is to be made even of a shard: ranges of blocks that somebody lists, and whose writes are remembered.

use super::holds;
use hekate_proto::*;
use std::collections::{BTreeMap, VecDeque};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Uneven {
    /// First block, and how many.
    pub ranges: VecDeque<(u32, u32)>,
    /// The greatest of the stamps.
    pub count: u64,
    /// Writes that the leader has: their sessions may ask for them again.
    pub own: Vec<FastWrite>,
    /// Writes of the members that list some.
    theirs: BTreeMap<BrickId, Vec<FastWrite>>,
    /// Some replica lists it.
    pub is_listed: bool,
    /// Some of it cannot be read here.
    pub is_damaged: bool,
}

impl Uneven {
    /// Of a replica that learns, or of any.
    pub fn add(&mut self, writes: &[FastWrite]) {
        for write in writes {
            self.is_listed = true;
            self.count = self.count.max(write.stamp.count);
            let range = (write.first, write.blocks);
            if !self.ranges.contains(&range) {
                self.ranges.push_back(range);
            }
        }
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

    /// What is to be made even first of a shard that has so many blocks. Who was away may list more: it was dropped
    /// meanwhile, and made anew, which the log brings.
    pub fn next_range(&mut self, home_blocks: u32) -> Option<(u32, u32)> {
        self.ranges.retain(|(first, _)| *first < home_blocks);
        let (first, blocks) = self.ranges.front_mut()?;
        *blocks = (*blocks).min(home_blocks - *first);
        Some((*first, *blocks))
    }

    /// So many blocks are even.
    pub fn evened(&mut self, blocks: u32) {
        if let Some((first, left)) = self.ranges.pop_front().filter(|(_, left)| *left > blocks) {
            self.ranges.push_front((first + blocks, left - blocks));
        }
    }

    /// What is listed everywhere when so many blocks more are even: the ranges that are left, and of the writes only those that all
    /// members have. Others are undone in part, and whoever leads next must not take them for done.
    pub fn rest(&self, evened: u32, others: usize) -> UnsettledRecord {
        let is_everywhere = |write: &&FastWrite| {
            self.theirs.len() == others && self.theirs.values().all(|list| holds(list, write.stamp))
        };
        let mut writes: Vec<FastWrite> = self.own.iter().filter(is_everywhere).copied().collect();
        let stamp = Stamp { count: self.count, session: SYSTEM_SESSION, op: OpId(0) };
        let mut left = Self { ranges: self.ranges.clone(), ..Self::default() };
        left.evened(evened);
        writes.extend(left.ranges.into_iter().map(|(first, blocks)| FastWrite { stamp, first, blocks }));
        UnsettledRecord { writes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(op: u64, first: u32, blocks: u32) -> FastWrite {
        FastWrite { stamp: Stamp { count: op, session: SessionId(1), op: OpId(op) }, first, blocks }
    }

    #[test]
    fn what_not_all_have_is_a_range_only_until_all_is_even() {
        let mut uneven = Uneven::default();
        uneven.add_own(&[write(5, 0, 2), write(6, 4, 3)]);
        uneven.add_member(BrickId(1), vec![write(5, 0, 2), write(7, 9, 1)]);
        let left = |first, blocks| {
            let stamp = Stamp { count: 7, session: SYSTEM_SESSION, op: OpId(0) };
            FastWrite { stamp, first, blocks }
        };
        assert_eq!(uneven.rest(2, 1).writes, [write(5, 0, 2), left(4, 3), left(9, 1)]);
        assert_eq!(uneven.rest(2, 2).writes, [left(4, 3), left(9, 1)], "a member that lists nothing may have nothing");
        assert_eq!(uneven.next_range(6), Some((0, 2)));
        uneven.evened(2);
        assert_eq!(uneven.next_range(6), Some((4, 2)), "no further than the shard");
        assert_eq!(uneven.rest(1, 1).writes, [write(5, 0, 2), left(5, 1)]);
        let mut next = Uneven::default();
        next.add_own(&uneven.rest(1, 1).writes);
        assert_eq!((next.own, next.ranges, next.count), (vec![write(5, 0, 2)], VecDeque::from([(0, 2), (5, 1)]), 7));
    }

    #[test]
    fn who_lists_only_what_followed_a_write_has_it() {
        let mut uneven = Uneven::default();
        uneven.add_own(&[write(5, 0, 1), write(6, 1, 1)]);
        uneven.add_member(BrickId(1), vec![write(6, 1, 1)]);
        let own = |writes: Vec<FastWrite>| writes.into_iter().filter(|write| write.stamp.session != SYSTEM_SESSION);
        assert_eq!(own(uneven.rest(1, 1).writes).collect::<Vec<_>>(), [write(5, 0, 1), write(6, 1, 1)]);
    }

    /// A range of no blocks would pass for one that cannot be read, and the writes of the shard not be remembered.
    #[test]
    fn a_range_that_begins_where_the_shard_ends_is_none() {
        let mut uneven = Uneven::default();
        uneven.add_own(&[write(5, 4, 2)]);
        assert_eq!(uneven.next_range(4), None);
    }
}
