//! The end of the log: where the next record goes, up to where the journal's files have it, and up to where it is
//! stable.
//!
//! All positions only grow: `start of the oldest segment <= stable <= written <= end`.

use super::{Io, invariant};
use crate::journal::format::{EntryKind, RECORD_HEADER_BYTES, RecordHeader};
use crate::journal::{Geometry, Lsn};
use bytes::Bytes;
use hekate_proto::{Error, Result};
use std::collections::VecDeque;

/// A write in flight.
#[derive(Debug, Clone, Copy)]
struct Write {
    upto: Lsn,
    /// It is the write of a segment's header.
    begins: bool,
    done: bool,
}

/// The log of a brick, as far as its end is concerned.
pub struct Log {
    pub(super) geometry: Geometry,
    pub(super) generation: u32,
    pub(super) end: Lsn,
    pub(super) written: Lsn,
    pub(super) stable: Lsn,
    /// The oldest segment that is kept.
    pub(super) oldest: u64,
    /// The first segment with records that no sync has covered.
    pub(super) unsynced: u64,
    /// Writes in flight, in log order.
    writing: VecDeque<Write>,
    pub(super) syncing: bool,
    /// A segment that cannot be read in full: the next record goes to the segment after it.
    avoided: Option<u64>,
    /// The position from which recovery replayed.
    replayed_from: Lsn,
    /// The position from which this opening appends.
    pub(super) resumed: Option<Lsn>,
}

impl Log {
    pub fn new(geometry: Geometry, end: Lsn, generation: u32) -> Self {
        let number = geometry.number_of(end);
        Self {
            geometry,
            generation,
            end,
            written: end,
            stable: end,
            oldest: number,
            unsynced: number,
            writing: VecDeque::new(),
            syncing: false,
            avoided: None,
            replayed_from: end,
            resumed: None,
        }
    }

    /// Appends continue at `end`; the log before it is stable; segments from `oldest` on are kept.
    pub fn resume(&mut self, end: Lsn, oldest: u64) {
        (self.end, self.written, self.stable, self.oldest) = (end, end, end, oldest);
        self.unsynced = self.geometry.number_of(end);
        self.resumed = Some(end);
    }

    /// Positions at which a record begins, even if what is in front of them is damaged.
    pub fn known_places(&self) -> Vec<Lsn> {
        self.resumed.into_iter().chain([self.replayed_from]).collect()
    }

    /// Checks that a segment holds a body of this length.
    pub fn check_size(&self, body_bytes: usize) -> Result<()> {
        let max = self.geometry.body_bytes_max();
        if body_bytes <= max {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a change of {body_bytes} bytes is longer than the journal's maximum of {max} bytes"
        )))
    }

    /// If the segment is the last one, the next record goes to another segment.
    pub fn avoid_segment(&mut self, number: u64) {
        if number == self.geometry.number_of(self.end) {
            self.avoided = Some(number);
        }
    }

    /// Whether the last segment holds the record, and an end record behind it.
    fn fits_segment(&self, body_bytes: usize) -> bool {
        let number = self.geometry.number_of(self.end);
        // If no other segment is free, appends stay in this one.
        if self.avoided == Some(number) && number + 1 - self.oldest < self.geometry.segments {
            return false;
        }
        let needed = (body_bytes + 2 * RECORD_HEADER_BYTES) as u64;
        self.geometry.offset_of(self.end) + needed <= self.geometry.segment_bytes
    }

    /// Whether the last segment holds the record, or the next segment is free.
    pub fn has_room(&self, body_bytes: usize) -> bool {
        let next = self.geometry.number_of(self.end) + 1;
        self.fits_segment(body_bytes) || next - self.oldest < self.geometry.segments
    }

    /// Appends a record. Returns its end, and the writes, each with the position up to which it writes the log.
    pub fn append(&mut self, kind: EntryKind, body: &Bytes, checksum: u32) -> (Lsn, Vec<(Io, Lsn)>) {
        let resumed = self.resumed;
        invariant!(
            "journal invariant 9",
            resumed.is_some_and(|at| self.stable >= at),
            "stable {:?}, {resumed:?}",
            self.stable
        );
        let mut writes = Vec::with_capacity(1);
        if !self.fits_segment(body.len()) {
            let next = self.geometry.number_of(self.end) + 1;
            invariant!(
                "journal invariant 3",
                next - self.oldest < self.geometry.segments,
                "segment {next} would take the file of one from {} on",
                self.oldest
            );
            // The next segment's header is written before the end record: if that fails, no end record leads to a
            // segment that was not begun.
            let end_record = self.record(EntryKind::End, &Bytes::new(), crc32c::crc32c(&[]));
            self.end = self.geometry.start_of(next);
            writes.push((Io::BeginSegment { number: next }, end_record.1));
            writes.push((end_record.0, self.end));
        }
        writes.push(self.record(kind, body, checksum));
        let begins = |io: &Io| matches!(io, Io::BeginSegment { .. });
        self.writing.extend(writes.iter().map(|(io, upto)| Write { upto: *upto, begins: begins(io), done: false }));
        (self.end, writes)
    }

    fn record(&mut self, kind: EntryKind, body: &Bytes, body_checksum: u32) -> (Io, Lsn) {
        let (number, offset) = (self.geometry.number_of(self.end), self.geometry.offset_of(self.end));
        let room_behind = if kind == EntryKind::End { 0 } else { RECORD_HEADER_BYTES };
        invariant!(
            "journal invariant 2",
            offset + (RECORD_HEADER_BYTES + body.len() + room_behind) as u64 <= self.geometry.segment_bytes,
            "{} bytes at offset {offset} of segment {number}",
            body.len()
        );
        let (lsn, stable, generation) = (self.end, self.stable, self.generation);
        invariant!("journal invariant 4", stable <= lsn, "stable up to {stable:?} at {lsn:?}");
        let header = RecordHeader { kind, body_bytes: body.len() as u32, body_checksum, lsn, stable, generation };
        self.end = Lsn(self.end.0 + (RECORD_HEADER_BYTES + body.len()) as u64);
        (Io::WriteJournal { number, offset, header: header.encode(), body: body.clone() }, self.end)
    }

    /// The write up to `upto` has ended.
    pub fn written(&mut self, upto: Lsn) {
        if let Some(write) = self.writing.iter_mut().find(|write| write.upto == upto && !write.done) {
            write.done = true;
        }
        while let Some(write) = self.writing.front().copied().filter(|write| write.done) {
            self.writing.pop_front();
            let (end, written) = (write.upto, self.written);
            invariant!("journal invariant 1", end > written, "{end:?} behind {written:?}");
            assert!(end <= self.end, "the log is written up to {end:?} and ends at {:?}", self.end);
            // The log goes beyond a segment only once both the next header and the end record are written.
            if !write.begins {
                self.written = end;
            }
        }
    }

    /// Begins a sync of what is written and not stable. Returns the sync, and the arguments of [`Log::synced`] for when
    /// it has ended.
    pub fn sync(&mut self) -> Option<(Io, Lsn, u64)> {
        if self.stable >= self.written {
            return None;
        }
        invariant!("journal invariant 10", !self.syncing, "a second sync beside one of the segments before it");
        self.syncing = true;
        let last = self.geometry.number_of(self.written);
        Some((Io::SyncJournal { numbers: (self.unsynced..=last).collect() }, self.written, last))
    }

    /// A sync has ended.
    pub fn synced(&mut self, target: Lsn, covered: u64) {
        assert!(self.syncing && target <= self.written, "a sync up to {target:?}, written up to {:?}", self.written);
        self.syncing = false;
        self.stable = self.stable.max(target);
        self.unsynced = self.unsynced.max(covered);
    }

    /// Frees the segments that are wholly before `applied`, except for the last of them: a record near its end may be
    /// on its way to another replica, which asks for it here after a power cut.
    pub fn recycle(&mut self, applied: Lsn) {
        assert!(applied <= self.end, "segments before {applied:?} are freed, and the log ends at {:?}", self.end);
        self.oldest = self.oldest.max(self.geometry.number_of(applied).saturating_sub(1));
    }

    /// Whether a checkpoint up to `upto` would free a segment.
    pub fn could_recycle(&self, upto: Lsn) -> bool {
        self.geometry.number_of(upto.min(self.end)).saturating_sub(1) > self.oldest
    }

    /// The position of the next record.
    pub fn end(&self) -> Lsn {
        self.end
    }
    /// The journal's files have the log up to here.
    pub fn written_end(&self) -> Lsn {
        self.written
    }
    /// The log is on stable storage up to here.
    pub fn stable(&self) -> Lsn {
        self.stable
    }
    /// The generation of this opening, and the position from which it appends.
    pub fn opening(&self) -> (u32, Lsn) {
        (self.generation, self.resumed.unwrap_or(self.end))
    }
    /// The generation of this opening.
    pub fn generation(&self) -> u32 {
        self.generation
    }
    /// The start of the oldest segment that is kept.
    pub fn oldest(&self) -> Lsn {
        self.geometry.start_of(self.oldest)
    }
    /// Bytes from the oldest segment to the end, and bytes of all segments.
    pub fn fill(&self) -> (u64, u64) {
        let used = self.end.0 - self.oldest * self.geometry.segment_bytes;
        (used, self.geometry.segments * self.geometry.segment_bytes)
    }
}
