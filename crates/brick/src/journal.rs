//! The journal's files: every change, in the order in which the brick took it.
//!
//! A log position (LSN) is `segment number * segment bytes + offset`. Segments are files that are written with zeros
//! when the brick is created and reused in turn, so an append does not change file-system metadata and a sync waits for
//! the data alone. `machine::Log` decides where records go; this module writes and syncs them, and [`read`] reads them.
//! `docs/format/journal.md` describes the bytes.

pub mod format;
pub mod read;

use crate::storage::{Storage, StorageFile, is_no_descriptor, is_no_room, patiently};
use format::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader};
use hekate_proto::{BrickId, Error, Result};
use hekate_threads::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// A position in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// Number and size of a brick's segments.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    pub brick: BrickId,
    pub segments: u64,
    pub segment_bytes: u64,
}

impl Geometry {
    pub fn start_of(&self, number: u64) -> Lsn {
        Lsn(number * self.segment_bytes + SEGMENT_HEADER_BYTES)
    }
    pub fn number_of(&self, lsn: Lsn) -> u64 {
        lsn.0 / self.segment_bytes
    }
    pub fn offset_of(&self, lsn: Lsn) -> u64 {
        lsn.0 % self.segment_bytes
    }
    pub fn path_of(&self, number: u64) -> String {
        format!("journal/segment-{:03}", number % self.segments)
    }
    /// Bytes of the longest body that a segment holds, beside its header and an end record.
    pub fn body_bytes_max(&self) -> usize {
        (self.segment_bytes - SEGMENT_HEADER_BYTES) as usize - 2 * RECORD_HEADER_BYTES
    }
}

/// Makes the segments of a new brick and writes them with zeros.
pub fn create(storage: &dyn Storage, geometry: Geometry) -> Result<()> {
    let failed = |e| Error::io("make the journal", e);
    storage.create_directory("journal").map_err(failed)?;
    for number in 0..geometry.segments {
        let file = storage.open(&geometry.path_of(number), true).map_err(failed)?;
        write_zeros(&*file, 0, geometry.segment_bytes).and_then(|()| file.sync()).map_err(failed)?;
    }
    let segments = Segments::new(geometry);
    segments.begin(storage, 1)?;
    segments.sync(storage, &[1])?;
    storage.sync_directory("journal").map_err(failed)
}

/// Writes zeros over `from..to`, so that the file system allocates the range.
pub fn write_zeros(file: &dyn StorageFile, from: u64, to: u64) -> std::io::Result<()> {
    let zeros = vec![0u8; (to - from).min(1 << 20) as usize];
    let mut at = from;
    while at < to {
        let count = (to - at).min(zeros.len() as u64);
        file.write_at(&[&zeros[..count as usize]], at)?;
        at += count;
    }
    Ok(())
}

/// Segments kept open at most.
const OPEN_MAX: usize = 8;
/// A page of the page cache: the kernel reads it from the disk before a part of it is written.
const PAGE_BYTES: usize = 4096;
static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// The files of the segments.
pub struct Segments {
    geometry: Geometry,
    open: Mutex<VecDeque<(u64, Arc<dyn StorageFile>)>>,
    /// Nothing was written at or behind this position since the brick was opened.
    frontier: Mutex<Lsn>,
}

impl Segments {
    pub fn new(geometry: Geometry) -> Self {
        Self { geometry, open: Mutex::default(), frontier: Mutex::default() }
    }

    fn file(&self, storage: &dyn Storage, number: u64) -> std::io::Result<Arc<dyn StorageFile>> {
        let slot = number % self.geometry.segments;
        let mut open = self.open.lock();
        if let Some((_, file)) = open.iter().find(|(held, _)| *held == slot) {
            return Ok(file.clone());
        }
        let path = self.geometry.path_of(number);
        // The others are opened again when they are needed.
        let file = match storage.open(&path, false) {
            Err(error) if is_no_descriptor(&error) => {
                open.clear();
                patiently(|| storage.open(&path, false), || {})?
            }
            opened => opened?,
        };
        open.truncate(OPEN_MAX - 1);
        open.push_front((slot, file.clone()));
        Ok(file)
    }

    /// Writes the header of a segment.
    pub fn begin(&self, storage: &dyn Storage, number: u64) -> Result<()> {
        let header = SegmentHeader { brick: self.geometry.brick, number, segment_bytes: self.geometry.segment_bytes };
        let write = || self.file(storage, number)?.write_at(&[&header.encode()], 0);
        write().map_err(|e| failed(format!("begin segment {number} of the journal"), e))
    }

    /// Writes a record. If it is the first to reach into a page, zeros fill the rest of that page, so that the kernel
    /// need not read the page from the disk; the next record overwrites them.
    pub fn write(&self, storage: &dyn Storage, number: u64, record: [&[u8]; 2], offset: u64) -> Result<()> {
        let end = offset + record.iter().map(|part| part.len() as u64).sum::<u64>();
        let page_end = end.next_multiple_of(PAGE_BYTES as u64).min(self.geometry.segment_bytes);
        let is_first_in_page = page_end.saturating_sub(PAGE_BYTES as u64) >= offset;
        let lsn = |offset| Lsn(number * self.geometry.segment_bytes + offset);
        // Held during the write, so that zeros never overwrite a record that another thread has written behind this
        // one.
        let mut frontier = self.frontier.lock();
        let zeros = match *frontier <= lsn(offset) && is_first_in_page {
            true => &ZEROS[..(page_end - end) as usize],
            false => &[],
        };
        *frontier = (*frontier).max(lsn(end));
        let write = || self.file(storage, number)?.write_at(&[record[0], record[1], zeros], offset);
        write().map_err(|e| failed(format!("writing {}", self.geometry.path_of(number)), e))
    }

    /// Syncs segments, oldest first.
    ///
    /// # Errors
    /// `Poisoned`: a sync failed, and what it covered must not be trusted.
    pub fn sync(&self, storage: &dyn Storage, numbers: &[u64]) -> Result<()> {
        for number in numbers {
            let sync = || self.file(storage, *number)?.sync();
            sync().map_err(|e| Error::Poisoned { what: format!("syncing {}: {e}", self.geometry.path_of(*number)) })?;
        }
        Ok(())
    }

    /// The segment number in the header of the file that segment `number` uses; `None`: the header is damaged.
    pub fn number_in_file(&self, storage: &dyn Storage, number: u64) -> Result<Option<u64>> {
        let mut header = [0u8; 64];
        let read = self.file(storage, number).and_then(|file| file.read_at(&mut header, 0));
        read.map_err(|e| Error::io(format!("read {}", self.geometry.path_of(number)), e))?;
        Ok(SegmentHeader::decode(&header).ok().map(|header| header.number))
    }
}

/// A segment has its space, except on a file system that copies on write: there a write that found no room can be
/// repeated.
fn failed(doing: String, error: std::io::Error) -> Error {
    match is_no_room(&error) {
        true => Error::NoSpace { what: format!("{doing}: {error}") },
        false => Error::Poisoned { what: format!("{doing}: {error}") },
    }
}
