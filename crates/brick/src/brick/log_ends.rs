//! Ends that the log had: a position, and the last record of each partition before it.
//!
//! The host decides from them which segments other bricks still need ([`Brick::retain_from`]).

use crate::brick::Brick;
use crate::journal::Lsn;
use crate::machine::LogPosition;
use hekate_proto::*;
use hekate_threads::Mutex;
use std::collections::{BTreeMap, VecDeque};

/// A position in the log, and the last record of each partition before it.
pub type Ends = (Lsn, Vec<(RingId, PartitionNumber, LogPosition)>);

/// Ends remembered while the log grows by the size of the journal: one for each eighth.
pub const ENDS_A_JOURNAL: u64 = 8;

/// Ends that [`Brick::take_passed_ends`] has not returned yet.
#[derive(Default)]
pub(crate) struct LogEnds(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    ends: VecDeque<Ends>,
    /// The log's end from which the next one is remembered.
    next: Lsn,
}

impl Brick {
    /// Where the log ends, and the last record of each partition.
    pub fn ends(&self) -> Ends {
        self.machine.read().ends()
    }

    /// The log's end each time that it had grown by an eighth of the journal since the last call.
    pub fn take_passed_ends(&self) -> VecDeque<Ends> {
        std::mem::take(&mut self.log_ends.0.lock().ends)
    }

    /// Remembers the log's end, if it has grown far enough. Called with the writer lock held.
    pub(super) fn remember_end(&self, end: Lsn) {
        let mut remembered = self.log_ends.0.lock();
        let Remembered { ends, next } = &mut *remembered;
        if end >= *next {
            *next = Lsn(end.0 + self.journal_bytes() / ENDS_A_JOURNAL);
            if ends.len() as u64 >= 2 * ENDS_A_JOURNAL {
                ends.pop_front();
            }
            ends.push_back(self.ends());
        }
    }

    /// Ends of the part of the log that is still in the journal, one for each `step` bytes.
    ///
    /// # Errors
    /// `Unavailable`: the journal's files cannot be opened.
    pub fn earlier_ends(&self, step: u64) -> Result<Vec<Ends>> {
        let (mut found, mut next) = (Vec::new(), self.machine.read().log().oldest().0 + step);
        let mut known: BTreeMap<(RingId, PartitionNumber), LogPosition> = BTreeMap::new();
        self.visit_journal(&mut |record| {
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
