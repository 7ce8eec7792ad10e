//! Records that are still in the journal, for replicas that lack them.

use crate::brick::Brick;
use crate::entry::LogEntry;
use crate::journal::Lsn;
use crate::journal::format::{EntryKind, SEGMENT_HEADER_BYTES};
use crate::journal::read::{Reader, if_readable};
use hekate_proto::*;
use std::ops::Range;

/// The records of a partition behind a given one.
#[derive(Debug)]
pub enum Since {
    /// All of them, up to the partition's last record.
    All(Vec<LogEntry>),
    /// The first of them was discarded: its segment was freed.
    GivenBack,
    /// Some cannot be read: file and offset of the damage that hides them.
    Hidden(String),
}

impl Since {
    /// The records, if the journal has all of them.
    pub fn all(self) -> Option<Vec<LogEntry>> {
        match self {
            Self::All(records) => Some(records),
            Self::GivenBack | Self::Hidden(_) => None,
        }
    }
}

/// A record and its end, or file and offset of damage.
pub(crate) type Seen = std::result::Result<(Record, Lsn), String>;

impl Brick {
    /// The records of a partition behind `after`. Records of an earlier log of the partition, before a `BeginLog`, are
    /// left out.
    ///
    /// # Errors
    /// `Unavailable`: the journal's files cannot be opened. Damage is no error, but [`Since::Hidden`].
    pub fn records_since(&self, ring: RingId, partition: PartitionNumber, after: Sequence) -> Result<Since> {
        let last = self.position(ring, partition).sequence;
        // The records behind `after` without a gap up to here; a gap, or another log, empties it.
        let mut records = Vec::<LogEntry>::new();
        // The number of the partition's first record, if no damage is in front of it.
        let mut earliest = None;
        // The last damage so far, and the last one in front of the first of `records`.
        let (mut damaged, mut before) = (None, None);
        self.visit_journal(&mut |seen| {
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
        // A record in front of all damage shows how far the journal goes back: if not to `after`, the records were
        // freed.
        let place = if is_last { before } else { damaged };
        let place = place.filter(|_| earliest.is_none_or(|earliest| earliest <= after.0 + 1));
        Ok(place.map_or(Since::GivenBack, Since::Hidden))
    }

    /// Calls `take` with each record that is still in the journal, in log order, except for those that damage hides.
    pub fn journaled(&self, take: &mut dyn FnMut(Record)) -> Result<()> {
        self.visit_journal(&mut |seen| {
            if let Ok((record, _)) = seen {
                take(record);
            }
        })
    }

    /// Calls `take` with each record of the journal and each place of damage. A sector that cannot be read is damage,
    /// and so is a segment that a power cut left with the header of one use and records of another. After damage was
    /// seen in the last segment, appends go on in the next one, if one is free: so that records behind the damage can
    /// be read.
    pub(crate) fn visit_journal(&self, take: &mut dyn FnMut(Seen)) -> Result<()> {
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
                    self.machine.write().avoid_segment(self.geometry.number_of(reader.position()));
                    reader.skip_damage(&known)?;
                    take(Err(format!("{path} at offset {offset}")));
                }
            }
        }
        Ok(())
    }

    /// Ranges of the journal's files with records that a checkpoint has covered and that other replicas may still need:
    /// file, and offsets in it.
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
