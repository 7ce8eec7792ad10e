//! What a brick must keep of its journal: a record may go only once every member of its partition has it on stable
//! storage, so that a member that a power cut robbed of its tail finds that tail in another's journal.
//!
//! One for each brick, asked and told by its host, which
//!
//! - makes it when it opens the brick, of which nothing may go from then on ([`Retention::of`]);
//! - has it look at the journal now and then, and mark its end with each checkpoint ([`Retention::look`], [`Retention::mark_end`]);
//! - while it waits, tells the partitions of [`Retention::behind`] [`Event::Stabilize`](crate::Event::Stabilize), and
//!   retains from what [`Retention::advance`] answers.
//!
//! A journal has several marks: a record that some member has no room for yet keeps what is behind it, not what is before.

use hekate_brick::{Brick, ENDS_A_JOURNAL, Ends, LogPosition, Lsn};
use hekate_proto::*;
use std::collections::VecDeque;

/// See the module.
#[derive(Debug)]
pub struct Retention {
    step: u64,
    free_to: Lsn,
    /// Evenly spread over the journal, but for the newest, which follows its end.
    marks: VecDeque<Ends>,
}

impl Retention {
    /// Of a brick that has just been opened. A long journal is marked where it would have been: with one mark at its end
    /// journals that are all full could wait for each other.
    pub fn of(brick: &Brick) -> Result<Self> {
        brick.retain_from(Lsn(0));
        let mut new = Self::new(brick.journal_bytes());
        if brick.status()?.journal.0 > brick.journal_bytes() / 2 {
            new.marks.extend(brick.earlier_ends(new.step)?);
        }
        Ok(new)
    }

    /// Of a journal of so many bytes, of which nothing may go yet.
    fn new(journal_bytes: u64) -> Self {
        Self { step: journal_bytes / ENDS_A_JOURNAL, free_to: Lsn(0), marks: VecDeque::new() }
    }

    /// Marks where the journal was while it grew, however fast: with one mark at its end journals that are all full would
    /// wait for each other for ever.
    pub fn look(&mut self, brick: &Brick) {
        brick.take_passed_ends().into_iter().for_each(|ends| self.mark(ends));
    }

    /// The same, and where it ends now.
    pub fn mark_end(&mut self, brick: &Brick) {
        self.look(brick);
        self.mark(brick.ends());
    }

    fn mark(&mut self, ends: Ends) {
        // What was passed while the end was marked may come after it.
        if ends.0 <= self.marks.back().map_or(self.free_to, |(newest, _)| *newest) {
            return;
        }
        let before = self.marks.iter().rev().nth(1).map_or(self.free_to, |(upto, _)| *upto);
        match self.marks.back_mut() {
            Some(newest) if newest.0.0 - before.0 < self.step => *newest = ends,
            _ => self.marks.push_back(ends),
        }
    }

    /// Whether something is kept that was marked.
    pub fn is_waiting(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Partitions of which a marked record is not known to be on stable storage everywhere. `stable`: up to which record
    /// that is known; `None` of a partition that is not here any more, and needs nothing.
    pub fn behind(
        &self,
        stable: impl Fn(RingId, PartitionNumber) -> Option<Sequence>,
    ) -> Vec<(RingId, PartitionNumber)> {
        let newest = self.marks.back().map(|(_, ends)| ends.as_slice()).unwrap_or_default();
        newest.iter().filter(|end| !is_stable(end, &stable)).map(|(ring, partition, _)| (*ring, *partition)).collect()
    }

    /// Everything before this may go, once a checkpoint has covered it; none: no more than before. `stable`: see
    /// [`Retention::behind`].
    pub fn advance(&mut self, stable: impl Fn(RingId, PartitionNumber) -> Option<Sequence>) -> Option<Lsn> {
        let before = self.free_to;
        while self.marks.front().is_some_and(|(_, ends)| ends.iter().all(|end| is_stable(end, &stable))) {
            self.free_to = self.marks.pop_front().map_or(self.free_to, |(upto, _)| upto);
        }
        (self.free_to > before).then_some(self.free_to)
    }
}

fn is_stable(
    (ring, partition, end): &(RingId, PartitionNumber, LogPosition),
    stable: impl Fn(RingId, PartitionNumber) -> Option<Sequence>,
) -> bool {
    stable(*ring, *partition).is_none_or(|stable| end.sequence <= stable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use hekate_brick::storage::MemoryStorage;
    use hekate_brick::{BrickSettings, Identity, LogEntry};
    use std::sync::Arc;

    const AT: (RingId, PartitionNumber) = (RingId(1), PartitionNumber(0));

    fn ends(upto: u64, sequence: u64) -> Ends {
        (Lsn(upto), vec![(AT.0, AT.1, LogPosition { epoch: Epoch(1), sequence: Sequence(sequence) })])
    }

    #[test]
    fn a_journal_goes_only_up_to_what_every_member_has_stable() {
        let mut retention = Retention::new(800);
        let known = |upto| move |_, _| Some(Sequence(upto));
        retention.mark(ends(100, 5));
        assert_eq!(retention.advance(known(4)), None);
        assert!(retention.is_waiting());
        assert_eq!(retention.behind(known(4)), vec![AT]);
        assert_eq!(retention.advance(known(6)), Some(Lsn(100)));
        assert!(!retention.is_waiting() && retention.behind(known(6)).is_empty());
        retention.mark(ends(200, 6));
        assert_eq!(retention.advance(known(6)), Some(Lsn(200)), "what is known to be stable is not waited for");
        retention.mark(ends(300, 7));
        assert_eq!(retention.advance(|_, _| None), Some(Lsn(300)), "a partition that has gone keeps nothing");
    }

    #[test]
    fn what_comes_before_a_record_that_a_member_lacks_may_go() {
        let mut retention = Retention::new(800);
        for end in 1..=40 {
            retention.mark(ends(end * 25, end));
        }
        assert!(retention.marks.len() <= ENDS_A_JOURNAL as usize + 3, "{} marks", retention.marks.len());
        let free_to = retention.advance(|_, _| Some(Sequence(20))).unwrap();
        assert!(free_to.0 <= 500 && free_to.0 > 500 - 2 * retention.step, "{free_to:?}");
        assert_eq!(retention.advance(|_, _| Some(Sequence(40))), Some(Lsn(1000)));
    }

    fn open(storage: &MemoryStorage) -> Brick {
        let settings = BrickSettings {
            journal_segments: 4,
            segment_bytes: 512 << 10,
            index_cache_bytes: 1 << 20,
            reserve_bytes: 0,
        };
        let identity = Identity::new(BrickId(1), "c", settings);
        if storage.paths().is_empty() {
            Brick::create_on(storage, &identity).unwrap();
        }
        Brick::open_on(Arc::new(storage.clone()), &identity, Incarnation(1), false).unwrap().0
    }

    /// 150 records, three quarters of the journal.
    fn fill(brick: &Brick) {
        let (ring, partition) = AT;
        for sequence in (1..=150).map(Sequence) {
            let key = Key::session(ring, Position(0), SessionId(1), 1);
            let changes = vec![Change::Put { key, value: Bytes::from(vec![7; 10_000]) }];
            let (epoch, session, op_id) = (Epoch(1), SYSTEM_SESSION, OpId(0));
            let record = Record { ring, partition, epoch, sequence, session, op_id, changes };
            brick.append(&LogEntry::new(record)).unwrap();
        }
    }

    /// Marked at its end only, it would wait for others that wait for it.
    #[test]
    fn of_a_long_journal_the_first_half_may_go_before_the_second() {
        let storage = MemoryStorage::new();
        let brick = open(&storage);
        let mut growing = Retention::of(&brick).unwrap();
        fill(&brick);
        growing.look(&brick);
        let end = brick.end();
        drop(brick);
        for mut retention in [growing, Retention::of(&open(&storage)).unwrap()] {
            let free_to = retention.advance(|_, _| Some(Sequence(75)));
            assert!(free_to.is_some_and(|upto| upto < end) && retention.is_waiting(), "{free_to:?} of {end:?}");
        }
    }
}
