//! Which part of a brick's journal is retained. A record is discarded once every member of its partition has it on
//! stable storage: a member that loses the tail of its journal in a power cut then finds it in another member's.
//!
//! The host has one [`Retention`] for each brick. It
//!
//! - makes it when it opens the brick, whose journal is retained in full from then on ([`Retention::of`]);
//! - calls [`Retention::look`] regularly, and [`Retention::mark_end`] with each checkpoint;
//! - while it waits, sends the partitions of [`Retention::behind`] the event
//!   [`Event::Stabilize`](crate::Event::Stabilize), and has the brick retain its journal from where
//!   [`Retention::advance`] returns.
//!
//! A journal has several marks. A record that some member has no room for retains what follows it, not what precedes
//! it.

use hekate_brick::{Brick, ENDS_A_JOURNAL, Ends, LogPosition, Lsn};
use hekate_proto::*;
use std::collections::VecDeque;

/// The marks of one brick's journal, and where it may be discarded up to.
#[derive(Debug)]
pub struct Retention {
    step: u64,
    free_to: Lsn,
    /// Positions in the journal, oldest first, at least `step` bytes apart. Only the newest moves, with the journal's
    /// end.
    marks: VecDeque<Ends>,
}

impl Retention {
    /// The retention of a brick that was just opened. A journal that is more than half full gets marks where it would
    /// have got them while it grew: with a single mark at their ends, full journals of several bricks could wait for
    /// each other.
    ///
    /// # Errors
    ///
    /// The brick's error if its status or journal cannot be read.
    pub fn of(brick: &Brick) -> Result<Self> {
        brick.retain_from(Lsn(0));
        let mut new = Self::new(brick.journal_bytes());
        if brick.status()?.journal.0 > brick.journal_bytes() / 2 {
            new.marks.extend(brick.earlier_ends(new.step)?);
        }
        Ok(new)
    }

    /// The retention of a journal of `journal_bytes` bytes, which is retained in full.
    fn new(journal_bytes: u64) -> Self {
        Self { step: journal_bytes / ENDS_A_JOURNAL, free_to: Lsn(0), marks: VecDeque::new() }
    }

    /// Takes over the marks that the brick set while its journal grew. The brick sets them itself, so that a journal
    /// that grows fast has more than one.
    pub fn look(&mut self, brick: &Brick) {
        brick.take_passed_ends().into_iter().for_each(|ends| self.mark(ends));
    }

    /// Takes over the brick's marks, and marks the current end of the journal.
    pub fn mark_end(&mut self, brick: &Brick) {
        self.look(brick);
        self.mark(brick.ends());
    }

    fn mark(&mut self, ends: Ends) {
        // A mark that the brick set meanwhile may lie before the end that was marked last.
        if ends.0 <= self.marks.back().map_or(self.free_to, |(newest, _)| *newest) {
            return;
        }
        let before = self.marks.iter().rev().nth(1).map_or(self.free_to, |(upto, _)| *upto);
        match self.marks.back_mut() {
            Some(newest) if newest.0.0 - before.0 < self.step => *newest = ends,
            _ => self.marks.push_back(ends),
        }
    }

    /// True if the journal is retained from some mark on.
    pub fn is_waiting(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Partitions with a marked record that is not known to be on stable storage of all members. `stable` returns the
    /// last record for which that is known, or `None` for a partition that is not on this server any more and needs
    /// nothing.
    pub fn behind(
        &self,
        stable: impl Fn(RingId, PartitionNumber) -> Option<Sequence>,
    ) -> Vec<(RingId, PartitionNumber)> {
        let newest = self.marks.back().map(|(_, ends)| ends.as_slice()).unwrap_or_default();
        newest.iter().filter(|end| !is_stable(end, &stable)).map(|(ring, partition, _)| (*ring, *partition)).collect()
    }

    /// The position before which the journal may be discarded, once a checkpoint has covered it. `None` if it has not
    /// moved. `stable`: see [`Retention::behind`].
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
        assert_eq!(retention.advance(|_, _| None), Some(Lsn(300)), "nothing is retained for a partition that has left");
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

    /// Appends 150 records, which fill three quarters of the journal.
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

    /// With one mark at its end the journal would be retained until the last record is stable.
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
