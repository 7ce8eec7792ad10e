//! Where the journal was: for who says what of it may go.

use crate::brick::Brick;
use crate::journal::Lsn;
use crate::machine::LogPosition;
use hekate_proto::*;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};

/// A place in a journal, and the last record of each partition before it.
pub type Ends = (Lsn, Vec<(RingId, PartitionNumber, LogPosition)>);

/// Ends of the journal that are remembered as it grows: so many a journal.
pub const ENDS_A_JOURNAL: u64 = 8;

/// What [`Brick::ends`] would have said as the journal grew, since it was last asked.
#[derive(Default)]
pub(crate) struct Passed(Mutex<(VecDeque<Ends>, Lsn)>);

impl Brick {
    /// Where the journal ends, and up to which record of each partition it says everything.
    pub fn ends(&self) -> Ends {
        self.machine.read().ends()
    }

    /// What that was each time when the journal had grown by an eighth, since this was last asked.
    pub fn take_passed_ends(&self) -> VecDeque<Ends> {
        std::mem::take(&mut self.passed.0.lock().0)
    }

    /// By who is the writer.
    pub(crate) fn pass(&self, end: Lsn) {
        let mut passed = self.passed.0.lock();
        let (ends, next) = &mut *passed;
        if end >= *next {
            *next = Lsn(end.0 + self.journal_bytes() / ENDS_A_JOURNAL);
            if ends.len() as u64 >= 2 * ENDS_A_JOURNAL {
                ends.pop_front();
            }
            ends.push_back(self.ends());
        }
    }

    /// What [`Brick::ends`] would have said when the journal that is still there was so many bytes long, twice as many, …
    pub fn earlier_ends(&self, step: u64) -> Result<Vec<Ends>> {
        let (mut found, mut next) = (Vec::new(), self.machine.read().log().oldest().0 + step);
        let mut known: BTreeMap<(RingId, PartitionNumber), LogPosition> = BTreeMap::new();
        self.look_through(&mut |record| {
            let Ok((record, end)) = record else { return };
            if !record.is_fast() {
                let position = LogPosition { epoch: record.epoch, sequence: record.sequence };
                known.insert((record.ring, record.partition), position);
            }
            if end.0 >= next {
                let ends = known.iter().map(|((ring, partition), position)| (*ring, *partition, *position));
                found.push((end, ends.collect()));
                next = end.0 + step;
            }
        })?;
        Ok(found)
    }
}
