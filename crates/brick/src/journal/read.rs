//! Reads the journal: for recovery, and for replicas that lack records.

use super::format::*;
use super::{Geometry, Lsn};
use crate::index::meta::Meta;
use crate::storage::{Storage, StorageFile, is_damage};
use bytes::Bytes;
use hekate_proto::{Error, Result, Wire};
use std::sync::Arc;

/// Bytes read at a time where a larger read failed: a page of the page cache.
const PAGE_BYTES: usize = 4096;

/// A record in the journal.
#[derive(Debug, Clone)]
pub struct Found {
    pub kind: EntryKind,
    pub end: Lsn,
    pub generation: u32,
    pub body: Bytes,
}

/// Reads the log from a position on.
pub struct Reader<'a> {
    storage: &'a dyn Storage,
    geometry: Geometry,
    at: Lsn,
    generation: u32,
    /// The least generation that this opening can have: records of it or of a later one are damage.
    opening: u32,
    /// Position and generation of the last opening: from there on records of earlier generations are ignored.
    resumed: (Lsn, u32),
    current: Option<(u64, Arc<dyn StorageFile>)>,
}

impl<'a> Reader<'a> {
    pub fn new(storage: &'a dyn Storage, geometry: Geometry, from: Lsn) -> Self {
        Self { storage, geometry, at: from, generation: 0, opening: u32::MAX, resumed: (Lsn(0), 0), current: None }
    }

    /// Ignores records of earlier generations from where the last opening resumed. One that was torn there may have
    /// been completed by bytes that were written over it.
    pub fn ignoring_stale(mut self, meta: &Meta) -> Self {
        self.resumed = (Lsn(meta.resumed), meta.generation);
        self
    }

    fn is_stale(&self, lsn: Lsn, generation: u32) -> bool {
        lsn >= self.resumed.0 && generation < self.resumed.1
    }

    /// Sets the least generation that this opening can have. A record of it, or of a later one, is damage.
    pub fn for_opening(mut self, generation: u32) -> Self {
        self.opening = generation;
        self
    }

    /// Ignores records older than the one in front of the position. A power cut may have left such a record beyond the
    /// log's end, and it may begin exactly at a position that the log reached later.
    pub fn ignoring_older_than_predecessor(mut self) -> Result<Self> {
        let (number, offset) = (self.geometry.number_of(self.at), self.geometry.offset_of(self.at));
        let first = if offset > SEGMENT_HEADER_BYTES { number } else { number.saturating_sub(1).max(1) };
        let mut before = Self::new(self.storage, self.geometry, self.geometry.start_of(first));
        while before.at < self.at && if_readable(before.next())?.is_some() {}
        self.generation = before.generation;
        Ok(self)
    }

    /// The position of the next record; the log's end, once `next` has returned `None`.
    pub fn position(&self) -> Lsn {
        self.at
    }

    /// The next record; `None` at the end of the log.
    ///
    /// # Errors
    /// `Damaged`: a segment of another brick or size, or a record that breaks journal invariant 4 or 5. `Io`: the disk
    /// cannot read it.
    pub fn next(&mut self) -> Result<Option<Found>> {
        loop {
            let Some(file) = self.segment(self.geometry.number_of(self.at))? else { return Ok(None) };
            let Some(found) = self.record_at(&*file, self.at)? else { return Ok(None) };
            // A record that a power cut left beyond an earlier end is of an older generation than what was appended
            // later.
            if found.generation < self.generation || self.is_stale(self.at, found.generation) {
                return Ok(None);
            }
            self.check_generation(found.generation)?;
            self.generation = found.generation;
            if found.kind != EntryKind::End {
                self.at = found.end;
                return Ok(Some(found));
            }
            let next = self.geometry.number_of(self.at) + 1;
            if self.segment(next)?.is_none() {
                // The end record was written, and the next segment was not begun: the log ends before the end record.
                return Ok(None);
            }
            self.at = self.geometry.start_of(next);
        }
    }

    /// Skips a place that cannot be read: to the next record, if this one's header is whole; else to the first of the
    /// `known` positions in this segment, at which records begin; else to the next segment.
    pub fn skip_damage(&mut self, known: &[Lsn]) -> Result<()> {
        let (number, at) = (self.geometry.number_of(self.at), self.at);
        let next = self.geometry.start_of(number + 1);
        let is_here = |lsn: &Lsn| *lsn > at && *lsn < next;
        let known = known.iter().copied().filter(is_here).min().unwrap_or(next);
        self.at = if_readable(self.end_by_header())?.filter(|end| *end < known).unwrap_or(known);
        Ok(())
    }

    /// The end of the record at the position, if its header is whole.
    fn end_by_header(&mut self) -> Result<Option<Lsn>> {
        let Some(file) = self.segment(self.geometry.number_of(self.at))? else { return Ok(None) };
        let mut header = [0u8; RECORD_HEADER_BYTES];
        file.read_at(&mut header, self.geometry.offset_of(self.at)).map_err(failed)?;
        let header = RecordHeader::decode(&header).ok().filter(|header| header.lsn == self.at);
        let header = header.filter(|header| header.kind != EntryKind::End && header.generation >= self.generation);
        self.generation = header.map_or(self.generation, |header| header.generation);
        Ok(header.map(|header| Lsn(self.at.0 + RECORD_HEADER_BYTES as u64 + u64::from(header.body_bytes))))
    }

    fn check_generation(&self, found: u32) -> Result<()> {
        if found < self.opening {
            return Ok(());
        }
        let ((path, offset), now) = (self.place(), self.opening);
        let what = format!(
            "{path} at offset {offset}: a record of opening {found}, this is opening {now} (journal invariant 5): the \
             index and the journal are from different times; was one of them restored from a copy?"
        );
        Err(Error::Damaged { what })
    }

    /// The file of a segment, if its header has that number.
    fn segment(&mut self, number: u64) -> Result<Option<Arc<dyn StorageFile>>> {
        if let Some((held, file)) = &self.current
            && *held == number
        {
            return Ok(Some(file.clone()));
        }
        let path = self.geometry.path_of(number);
        let failed = |e| failed_at(&path, e);
        let file = self.storage.open(&path, false).map_err(failed)?;
        let mut header = [0u8; 64];
        file.read_at(&mut header, 0).map_err(failed)?;
        match SegmentHeader::decode(&header) {
            Ok(header) if header.segment_bytes != self.geometry.segment_bytes => Err(Error::Damaged {
                what: format!(
                    "{path} has segments of {} bytes, brick.toml says {}",
                    header.segment_bytes, self.geometry.segment_bytes
                ),
            }),
            Ok(header) if header.number == number && header.brick == self.geometry.brick => {
                self.current = Some((number, file.clone()));
                Ok(Some(file))
            }
            Ok(header) if header.brick != self.geometry.brick => Err(Error::Damaged {
                what: format!("{path} belongs to brick {}, not to {}", header.brick.text(), self.geometry.brick.text()),
            }),
            _ => Ok(None),
        }
    }

    fn record_at(&self, file: &dyn StorageFile, lsn: Lsn) -> Result<Option<Found>> {
        let offset = self.geometry.offset_of(lsn);
        let mut header = [0u8; RECORD_HEADER_BYTES];
        file.read_at(&mut header, offset).map_err(failed)?;
        let Ok(header) = RecordHeader::decode(&header) else { return Ok(None) };
        let end = offset + RECORD_HEADER_BYTES as u64 + u64::from(header.body_bytes);
        if header.lsn != lsn || end > self.geometry.segment_bytes {
            return Ok(None);
        }
        if header.stable > lsn {
            let (path, offset) = self.place();
            let what = format!(
                "{path} at offset {offset}: a record claims that the log was stable beyond its own position (journal \
                 invariant 4)"
            );
            return Err(Error::Damaged { what });
        }
        let mut body = vec![0u8; header.body_bytes as usize];
        file.read_at(&mut body, offset + RECORD_HEADER_BYTES as u64).map_err(failed)?;
        if crc32c::crc32c(&body) != header.body_checksum {
            return Ok(None);
        }
        Ok(Some(Found {
            kind: header.kind,
            end: Lsn(lsn.0 + (RECORD_HEADER_BYTES + body.len()) as u64),
            generation: header.generation,
            body: Bytes::from(body),
        }))
    }

    /// Checks the segment in which recovery begins: `Damaged` if its header is unreadable.
    pub fn check_start(&mut self) -> Result<()> {
        let number = self.geometry.number_of(self.at);
        match self.segment(number)? {
            Some(_) => Ok(()),
            None => Err(Error::Damaged {
                what: format!(
                    "{} at offset 0: the header of segment {number}, where the last checkpoint ended, is unreadable; \
                     rebuild this brick from its replicas",
                    self.geometry.path_of(number)
                ),
            }),
        }
    }

    /// Searches the segments behind the log's end for records: for proof that something unreadable was on stable
    /// storage, and for what a power cut tore off.
    pub fn search_behind_end(&self) -> Result<Behind> {
        let end = self.at;
        let mut behind = Behind { proof: None, dropped: 0, torn: self.torn_at_end()? };
        let last = self.geometry.number_of(end) + self.geometry.segments - 1;
        for number in self.geometry.number_of(end)..=last {
            let from = if number == self.geometry.number_of(end) { self.geometry.offset_of(end) } else { 0 };
            for header in self.headers_in(number, from as usize)? {
                let counts = header.generation >= self.generation && !self.is_stale(header.lsn, header.generation);
                if counts && header.lsn >= end {
                    behind.dropped += 1;
                    if header.stable > end && behind.proof.is_none() {
                        behind.proof = Some(header.lsn);
                    }
                }
            }
        }
        Ok(behind)
    }

    /// Headers of records that are at the position that they name, whatever the segment's own header says. A sector
    /// that cannot be read has none.
    fn headers_in(&self, number: u64, from: usize) -> Result<Vec<RecordHeader>> {
        let mut bytes = vec![0u8; self.geometry.segment_bytes as usize];
        let file = self.storage.open(&self.geometry.path_of(number), false);
        let file = file.map_err(failed)?;
        if if_readable(file.read_at(&mut bytes[from..], from as u64).map(Some).map_err(failed))?.is_none() {
            for (index, page) in bytes.chunks_mut(PAGE_BYTES).enumerate().skip(from / PAGE_BYTES) {
                let read = file.read_at(page, (index * PAGE_BYTES) as u64);
                if if_readable(read.map(Some).map_err(failed))?.is_none() {
                    page.fill(0);
                }
            }
        }
        let mut found = Vec::new();
        for offset in memchr::memmem::find_iter(&bytes[from..], &RECORD_MAGIC.to_le_bytes()).map(|at| from + at) {
            let here = number * self.geometry.segment_bytes + offset as u64;
            let lsn = bytes.get(offset + 8..offset + 16);
            if lsn == Some(&here.to_le_bytes())
                && let Ok(header) = RecordHeader::decode(&bytes[offset..])
            {
                found.push(header);
            }
        }
        Ok(found)
    }

    /// Why the bytes at the log's end are no record, if they name that position.
    fn torn_at_end(&self) -> Result<Option<&'static str>> {
        let number = self.geometry.number_of(self.at);
        let mut bytes = [0u8; RECORD_HEADER_BYTES];
        let file = self.storage.open(&self.geometry.path_of(number), false);
        let read = file.and_then(|file| file.read_at(&mut bytes, self.geometry.offset_of(self.at)));
        read.map_err(failed)?;
        if bytes[..4] != RECORD_MAGIC.to_le_bytes() || bytes[8..16] != self.at.0.to_le_bytes() {
            return Ok(None);
        }
        Ok(match RecordHeader::decode(&bytes) {
            Err(_) => Some("its header does not match its checksum"),
            Ok(header) if header.generation < self.generation => None,
            Ok(header) if self.is_stale(header.lsn, header.generation) => None,
            Ok(header) if header.kind == EntryKind::End => Some("the segment that it leads to was not begun"),
            Ok(_) => Some("its body does not match its checksum"),
        })
    }

    /// File and offset of [`Reader::position`].
    pub fn place(&self) -> (String, u64) {
        (self.geometry.path_of(self.geometry.number_of(self.at)), self.geometry.offset_of(self.at))
    }
}

fn failed(error: std::io::Error) -> Error {
    failed_at("the journal", error)
}

fn failed_at(what: &str, error: std::io::Error) -> Error {
    match is_damage(&error) {
        true => Error::io(format!("read {what}"), error),
        false => Error::Unavailable { what: format!("{what} cannot be read: {error}") },
    }
}

/// An unreadable sector as `None`: a disk answers EIO for a sector that it knows to be damaged, and wrong bytes for one
/// that it does not.
pub fn if_readable<T>(read: Result<Option<T>>) -> Result<Option<T>> {
    match read {
        Err(Error::Io { .. }) => Ok(None),
        other => other,
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// Position of a record that says that the log was stable beyond its end: what is unreadable at the end had been
    /// synced.
    pub proof: Option<Lsn>,
    /// Number of record headers at and behind the end: these records are dropped.
    pub dropped: u64,
    /// Why the bytes at the end are no record.
    pub torn: Option<&'static str>,
}

impl Found {
    /// Decodes the body as a mark.
    pub fn mark(&self) -> Result<Mark> {
        Ok(Mark::from_bytes(self.body.clone())?)
    }
}
