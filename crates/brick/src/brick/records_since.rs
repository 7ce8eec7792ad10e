//! What the journal still has: for replicas that lack it.

use crate::brick::Brick;
use crate::entry::LogEntry;
use crate::journal::Lsn;
use crate::journal::format::{EntryKind, SEGMENT_HEADER_BYTES};
use crate::journal::read::{Reader, if_readable};
use hekate_proto::*;
use std::ops::Range;

/// Records of a partition after one.
#[derive(Debug)]
pub enum Since {
    /// All that were made.
    All(Vec<LogEntry>),
    /// The journal begins later.
    GivenBack,
    /// What is here, file and offset, cannot be read, and hides some.
    Hidden(String),
}

impl Since {
    /// So, if it has.
    pub fn all(self) -> Option<Vec<LogEntry>> {
        match self {
            Self::All(records) => Some(records),
            Self::GivenBack | Self::Hidden(_) => None,
        }
    }
}

/// A record with its end, or what cannot be read.
pub(crate) type Seen = std::result::Result<(Record, Lsn), String>;

impl Brick {
    /// The records of a partition after `after`; none of a log that it does not go on with.
    pub fn records_since(&self, ring: RingId, partition: PartitionNumber, after: Sequence) -> Result<Since> {
        let last = self.position(ring, partition).sequence;
        let (mut records, mut earliest) = (Vec::<LogEntry>::new(), None);
        // The last damage that was seen, and the last one before what is in `records`.
        let (mut damaged, mut before) = (None, None);
        self.look_through(&mut |seen| {
            let record = match seen {
                Ok((record, _)) => record,
                Err(place) => return damaged = Some(place),
            };
            if record.ring != ring || record.partition != partition || record.is_fast() {
                return;
            }
            let begins = record.changes.contains(&Change::BeginLog);
            let follows = records.last().is_none_or(|entry| entry.record.sequence.0 + 1 == record.sequence.0);
            if begins || !follows {
                records.clear();
            }
            if begins {
                (earliest, damaged) = (Some(record.sequence.0 + 1), None);
            } else {
                earliest = earliest.or_else(|| damaged.is_none().then_some(record.sequence.0));
                if records.is_empty() {
                    before.clone_from(&damaged);
                }
                records.extend((record.sequence > after).then(|| LogEntry::new(record)));
            }
        })?;
        let is_first = records.first().is_some_and(|entry| entry.record.sequence.0 == after.0 + 1);
        let is_last = records.last().is_some_and(|entry| entry.record.sequence >= last);
        if after >= last || is_first && is_last {
            return Ok(Since::All(records));
        }
        // What was there before anything was damaged says whether the journal ever went back so far.
        let place = if is_last { before } else { damaged };
        let place = place.filter(|_| earliest.is_none_or(|earliest| earliest <= after.0 + 1));
        Ok(place.map_or(Since::GivenBack, Since::Hidden))
    }

    /// All records that the journal still has, in order, but for the part that a damaged or reused segment hides.
    pub fn journaled(&self, take: &mut dyn FnMut(Record)) -> Result<()> {
        self.look_through(&mut |seen| {
            if let Ok((record, _)) = seen {
                take(record);
            }
        })
    }

    /// All records of the journal. A sector that cannot be read is damage, and so is a segment that a power cut left between two uses
    /// of its file, the header of one and records of the other. If another segment is free, what is appended after damage was seen
    /// does not come behind that.
    pub(crate) fn look_through(&self, take: &mut dyn FnMut(Seen)) -> Result<()> {
        let (oldest, end, known) = {
            let machine = self.machine.read();
            (machine.log().oldest(), machine.written(), machine.log().known_places())
        };
        let mut reader = Reader::new(&*self.disk.storage, self.geometry, oldest);
        while reader.position() < end {
            match if_readable(reader.next())? {
                Some(entry) if entry.kind == EntryKind::Change => {
                    take(Ok((Record::from_bytes(entry.body)?, entry.end)));
                }
                Some(_) => {}
                None if reader.position() >= end => break,
                None => {
                    let (path, offset) = reader.place();
                    self.machine.write().leave_segment(self.geometry.number_of(reader.position()));
                    reader.skip_damage(&known)?;
                    take(Err(format!("{path} at offset {offset}")));
                }
            }
        }
        Ok(())
    }

    /// Parts of files with records that recovery has no use for, as a checkpoint has covered them, and that other replicas may ask for.
    pub fn kept_journal(&self) -> Vec<(String, Range<u64>)> {
        let (oldest, applied) = {
            let machine = self.machine.read();
            (self.geometry.number_of(machine.log().oldest()), machine.applied())
        };
        let last = self.geometry.number_of(applied);
        let part = |number: u64| {
            let end = if number < last { self.geometry.segment_bytes } else { self.geometry.offset_of(applied) };
            (self.geometry.path_of(number), SEGMENT_HEADER_BYTES..end)
        };
        (oldest..=last).map(part).filter(|(_, part)| !part.is_empty()).collect()
    }
}
