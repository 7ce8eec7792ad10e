//! The log's end: where the next record goes, how far the journal's files have it, and how far it is stable.
//!
//! Positions only grow: `oldest segment <= stable <= written <= end`.

use super::{Io, invariant};
use crate::journal::format::{EntryKind, RECORD_HEADER_BYTES, RecordHeader};
use crate::journal::{Geometry, Lsn};
use bytes::Bytes;
use hekate_proto::{Error, Result};
use std::collections::VecDeque;

/// A write that was asked for.
#[derive(Debug, Clone, Copy)]
struct Write {
    upto: Lsn,
    /// Of a segment's header.
    begins: bool,
    done: bool,
}

/// See the module.
pub struct Log {
    pub(super) geometry: Geometry,
    pub(super) generation: u32,
    pub(super) end: Lsn,
    pub(super) written: Lsn,
    pub(super) stable: Lsn,
    /// The first segment whose records a reader may still need.
    pub(super) oldest: u64,
    /// The first segment with records that no sync covers.
    pub(super) unsynced: u64,
    /// Writes in flight, in log order.
    writing: VecDeque<Write>,
    pub(super) syncing: bool,
    /// A segment in which something cannot be read.
    left: Option<u64>,
    /// Where recovery began.
    recovered: Lsn,
    /// Where this opening went on.
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
            left: None,
            recovered: end,
            resumed: None,
        }
    }

    /// See [`super::Machine::resume`].
    pub fn resume(&mut self, end: Lsn, oldest: u64) {
        (self.end, self.written, self.stable, self.oldest) = (end, end, end, oldest);
        self.unsynced = self.geometry.number_of(end);
        self.resumed = Some(end);
    }

    /// Where records begin, whatever is damaged before.
    pub fn known_places(&self) -> Vec<Lsn> {
        self.resumed.into_iter().chain([self.recovered]).collect()
    }

    /// Whether a body fits a segment at all.
    pub fn check_size(&self, body_bytes: usize) -> Result<()> {
        let max = self.geometry.body_bytes_max();
        if body_bytes <= max {
            return Ok(());
        }
        Err(Error::invalid(format!("a change of {body_bytes} bytes; this brick's journal takes {max}")))
    }

    /// If it is the last one, the next record begins another.
    pub fn leave_segment(&mut self, number: u64) {
        if number == self.geometry.number_of(self.end) {
            self.left = Some(number);
        }
    }

    /// A record leaves room for an end record behind it.
    fn fits_segment(&self, body_bytes: usize) -> bool {
        let number = self.geometry.number_of(self.end);
        // Without another one this must do.
        if self.left == Some(number) && number + 1 - self.oldest < self.geometry.segments {
            return false;
        }
        let needed = (body_bytes + 2 * RECORD_HEADER_BYTES) as u64;
        self.geometry.offset_of(self.end) + needed <= self.geometry.segment_bytes
    }

    /// Whether there is a segment for it that no reader needs.
    pub fn has_room(&self, body_bytes: usize) -> bool {
        let next = self.geometry.number_of(self.end) + 1;
        self.fits_segment(body_bytes) || next - self.oldest < self.geometry.segments
    }

    /// Puts a record at the end. -> where it ends, and the writes, each with where it ends.
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
            // The header first: if that fails, the log has no end record that leads nowhere.
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

    /// The write that ends at `upto` has ended.
    pub fn written(&mut self, upto: Lsn) {
        if let Some(write) = self.writing.iter_mut().find(|write| write.upto == upto && !write.done) {
            write.done = true;
        }
        while let Some(write) = self.writing.front().copied().filter(|write| write.done) {
            self.writing.pop_front();
            let (end, written) = (write.upto, self.written);
            invariant!("journal invariant 1", end > written, "{end:?} behind {written:?}");
            // The end record that leads to the segment comes next: the log goes beyond only with both.
            if !write.begins {
                self.written = end;
            }
        }
    }

    /// What is written and not stable. -> the sync, and what [`Log::synced`] is told when it has returned.
    pub fn sync(&mut self) -> Option<(Io, Lsn, u64)> {
        if self.stable >= self.written {
            return None;
        }
        invariant!("journal invariant 10", !self.syncing, "a second sync beside one of the segments before it");
        self.syncing = true;
        let last = self.geometry.number_of(self.written);
        Some((Io::SyncJournal { numbers: (self.unsynced..=last).collect() }, self.written, last))
    }

    /// A sync has returned.
    pub fn synced(&mut self, target: Lsn, covered: u64) {
        self.syncing = false;
        self.stable = self.stable.max(target);
        self.unsynced = self.unsynced.max(covered);
    }

    /// Segments wholly before `applied` may be used again, but for the last of them: a record near it may still be on
    /// its way to another replica, which finds it here after a power cut.
    pub fn recycle(&mut self, applied: Lsn) {
        self.oldest = self.oldest.max(self.geometry.number_of(applied).saturating_sub(1));
    }

    /// Whether a checkpoint up to there would free a segment.
    pub fn could_recycle(&self, upto: Lsn) -> bool {
        self.geometry.number_of(upto.min(self.end)).saturating_sub(1) > self.oldest
    }

    /// Where the next record goes.
    pub fn end(&self) -> Lsn {
        self.end
    }
    /// See [`super::Machine::written`].
    pub fn written_end(&self) -> Lsn {
        self.written
    }
    /// See [`super::Machine::stable`].
    pub fn stable(&self) -> Lsn {
        self.stable
    }
    /// The journal's writer, and where it went on.
    pub fn opening(&self) -> (u32, Lsn) {
        (self.generation, self.resumed.unwrap_or(self.end))
    }
    /// Of the journal's writer.
    pub fn generation(&self) -> u32 {
        self.generation
    }
    /// The oldest position that is kept.
    pub fn oldest(&self) -> Lsn {
        self.geometry.start_of(self.oldest)
    }
    /// Bytes in use and in all.
    pub fn fill(&self) -> (u64, u64) {
        let used = self.end.0 - self.oldest * self.geometry.segment_bytes;
        (used, self.geometry.segments * self.geometry.segment_bytes)
    }
}
