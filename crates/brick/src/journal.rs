//! The journal: every change, in the order in which the brick took it.
//!
//! A log position (LSN) is `segment number * segment bytes + offset`. Segments are files written with zeros when the
//! brick is made and used in turn, so appending never changes file-system metadata and a sync waits for the data alone.
//! Invariants: records do not cross segments; a segment is used again only when a checkpoint has covered all of it;
//! after a failed write or sync nothing is appended and nothing is acknowledged.
//! `docs/format/journal.md` is the document.

pub mod format;
pub mod read;

use crate::storage::{Storage, StorageFile};
use bytes::Bytes;
use format::{EntryKind, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use hekate_proto::{BrickId, Error, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A position in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// Size and number of segments.
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
    /// Bytes of the greatest body.
    pub fn body_bytes_max(&self) -> usize {
        (self.segment_bytes - SEGMENT_HEADER_BYTES) as usize - 2 * RECORD_HEADER_BYTES
    }
}

/// The log's end, where records are appended.
pub struct Journal {
    geometry: Geometry,
    storage: Arc<dyn Storage>,
    generation: u32,
    tail: Mutex<Tail>,
    room: Condvar,
    sync: Mutex<SyncState>,
}

struct Tail {
    file: Arc<dyn StorageFile>,
    end: Lsn,
    stable: Lsn,
    /// Segments with records that no sync has covered yet, but for the current one.
    unsynced: Vec<Arc<dyn StorageFile>>,
    /// The first segment that recovery still needs.
    oldest: u64,
    failed: Option<Error>,
}

struct SyncState {
    stable: Lsn,
    running: bool,
    failed: Option<Error>,
    waiting: Vec<Arc<Ticket>>,
}

/// A thread that waits for a sync: woken once, either because it is covered or to lead the next
/// (`docs/adr/0003-runtime.md`: waking all of them at once costs more than the sync).
struct Ticket {
    upto: Lsn,
    thread: std::thread::Thread,
    turn: AtomicU8,
}

const WAIT: u8 = 0;
const LEAD: u8 = 1;
const DONE: u8 = 2;

impl Ticket {
    fn wake(&self, turn: u8) {
        self.turn.store(turn, Ordering::Release);
        self.thread.unpark();
    }
}

impl Journal {
    /// Makes the segments of a new brick, written with zeros.
    pub fn create(storage: &dyn Storage, geometry: Geometry) -> Result<()> {
        let failed = |e| Error::io("make the journal", e);
        storage.create_directory("journal").map_err(failed)?;
        let zeros = vec![0u8; 1 << 20];
        for number in 0..geometry.segments {
            let file = storage.open(&geometry.path_of(number), true).map_err(failed)?;
            let mut at = 0;
            while at < geometry.segment_bytes {
                let count = (geometry.segment_bytes - at).min(zeros.len() as u64);
                file.write_at(&[&zeros[..count as usize]], at).map_err(failed)?;
                at += count;
            }
            file.sync().map_err(failed)?;
        }
        begin_segment(storage, geometry, 1)?.sync().map_err(failed)?;
        storage.sync_directory("journal").map_err(failed)
    }

    /// Goes on at `end`, which recovery found; everything before it is on stable storage when this returns.
    pub fn resume(
        storage: Arc<dyn Storage>,
        geometry: Geometry,
        end: Lsn,
        oldest: Lsn,
        generation: u32,
    ) -> Result<Self> {
        let failed = |e| Error::io("open the journal", e);
        for number in geometry.number_of(oldest)..=geometry.number_of(end) {
            storage.open(&geometry.path_of(number), false).and_then(|file| file.sync()).map_err(failed)?;
        }
        let file = storage.open(&geometry.path_of(geometry.number_of(end)), false).map_err(failed)?;
        // As `recycle` kept it, if the checkpoint was not the brick's first.
        let kept = geometry.number_of(oldest) - 1;
        let oldest = if segment_number(&*storage, geometry, kept)? == Some(kept) { kept } else { kept + 1 };
        let tail = Tail { file, end, stable: end, unsynced: Vec::new(), oldest, failed: None };
        Ok(Self {
            geometry,
            storage,
            generation,
            tail: Mutex::new(tail),
            room: Condvar::new(),
            sync: Mutex::new(SyncState { stable: end, running: false, failed: None, waiting: Vec::new() }),
        })
    }

    /// Appends a record and calls `then` before any other is appended, so that what it changes keeps the log's order.
    /// Waits while the journal is full. -> where the record ends: it is durable once the log is stable up to there.
    pub fn append<T>(
        &self,
        kind: EntryKind,
        body: &Bytes,
        checksum: u32,
        then: impl FnOnce(Lsn) -> T,
    ) -> Result<(Lsn, T)> {
        if body.len() > self.geometry.body_bytes_max() {
            let max = self.geometry.body_bytes_max();
            return Err(Error::invalid(format!("a change of {} bytes; this brick's journal takes {max}", body.len())));
        }
        let mut tail = self.tail.lock();
        let needed = (body.len() + 2 * RECORD_HEADER_BYTES) as u64;
        // Others wait for room as well: whoever goes on first may have filled the next segment by now.
        while tail.failed.is_none() && self.geometry.offset_of(tail.end) + needed > self.geometry.segment_bytes {
            self.next_segment(&mut tail)?;
        }
        if let Some(error) = &tail.failed {
            return Err(error.clone());
        }
        self.write(&mut tail, kind, body, checksum)?;
        let end = tail.end;
        let value = then(end);
        Ok((end, value))
    }

    fn write(&self, tail: &mut Tail, kind: EntryKind, body: &[u8], body_checksum: u32) -> Result<()> {
        let header = RecordHeader {
            kind,
            body_bytes: body.len() as u32,
            body_checksum,
            lsn: tail.end,
            stable: tail.stable,
            generation: self.generation,
        };
        let offset = self.geometry.offset_of(tail.end);
        if let Err(error) = tail.file.write_at(&[&header.encode(), body], offset) {
            let error = Error::Poisoned { what: format!("writing the journal: {error}") };
            tail.failed = Some(error.clone());
            return Err(error);
        }
        tail.end = Lsn(tail.end.0 + (RECORD_HEADER_BYTES + body.len()) as u64);
        Ok(())
    }

    fn next_segment(&self, tail: &mut parking_lot::MutexGuard<'_, Tail>) -> Result<()> {
        let next = self.geometry.number_of(tail.end) + 1;
        while tail.failed.is_none() && next - tail.oldest >= self.geometry.segments {
            self.room.wait(tail);
        }
        // Others may have gone on meanwhile, or the brick stopped.
        if tail.failed.is_some() || self.geometry.number_of(tail.end) >= next {
            return Ok(());
        }
        // The next segment first: an end without it would hide what is appended after a failure.
        let file = begin_segment(&*self.storage, self.geometry, next)?;
        self.write(tail, EntryKind::End, &[], crc32c::crc32c(&[]))?;
        let full = std::mem::replace(&mut tail.file, file);
        tail.unsynced.push(full);
        tail.end = self.geometry.start_of(next);
        Ok(())
    }

    /// Returns once everything before `upto` is on stable storage. The first caller syncs for itself; who comes
    /// meanwhile waits, and one of those whom that sync did not cover leads the next, for all of them.
    pub fn sync(&self, upto: Lsn) -> Result<()> {
        let ticket = {
            let mut state = self.sync.lock();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.stable >= upto {
                return Ok(());
            }
            if !state.running {
                state.running = true;
                None
            } else {
                let ticket = Arc::new(Ticket { upto, thread: std::thread::current(), turn: AtomicU8::new(WAIT) });
                state.waiting.push(ticket.clone());
                Some(ticket)
            }
        };
        if let Some(ticket) = ticket {
            loop {
                match ticket.turn.load(Ordering::Acquire) {
                    WAIT => std::thread::park(),
                    LEAD => break,
                    _ => return self.sync.lock().failed.clone().map_or(Ok(()), Err),
                }
            }
        }
        let outcome = self.sync_now();
        let mut state = self.sync.lock();
        match &outcome {
            Ok(stable) => state.stable = *stable,
            Err(error) => {
                state.failed.get_or_insert_with(|| error.clone());
            }
        }
        let (covered, waiting) = std::mem::take(&mut state.waiting)
            .into_iter()
            .partition(|ticket| state.failed.is_some() || ticket.upto <= state.stable);
        state.waiting = waiting;
        let next = state.waiting.pop();
        state.running = next.is_some();
        drop(state);
        if let Some(next) = next {
            next.wake(LEAD);
        }
        covered.into_iter().for_each(|ticket| ticket.wake(DONE));
        outcome.map(|_| ())
    }

    fn sync_now(&self) -> Result<Lsn> {
        let (target, files) = {
            let mut tail = self.tail.lock();
            if let Some(error) = &tail.failed {
                return Err(error.clone());
            }
            let mut files = std::mem::take(&mut tail.unsynced);
            files.push(tail.file.clone());
            (tail.end, files)
        };
        for file in &files {
            if let Err(error) = file.sync() {
                let error = Error::Poisoned { what: format!("syncing the journal: {error}") };
                self.fail(&error);
                return Err(error);
            }
        }
        let mut tail = self.tail.lock();
        tail.stable = tail.stable.max(target);
        Ok(target)
    }

    /// Nothing is appended or acknowledged from now on.
    pub fn fail(&self, error: &Error) {
        self.tail.lock().failed.get_or_insert_with(|| error.clone());
        self.sync.lock().failed.get_or_insert_with(|| error.clone());
        self.room.notify_all();
    }

    /// Why the journal stopped.
    pub fn failure(&self) -> Option<Error> {
        self.tail.lock().failed.clone()
    }

    /// Segments that lie wholly before `upto` may be used again, but for the last of them: a record near `upto` may
    /// still be on its way to another replica, which finds it here after a power cut.
    pub fn recycle(&self, upto: Lsn) {
        let mut tail = self.tail.lock();
        tail.oldest = tail.oldest.max(self.geometry.number_of(upto).saturating_sub(1));
        self.room.notify_all();
    }

    /// Where the next record goes.
    pub fn end(&self) -> Lsn {
        self.tail.lock().end
    }

    /// Runs `then` while nothing is appended.
    pub fn at_rest<T>(&self, then: impl FnOnce(Lsn) -> T) -> T {
        let tail = self.tail.lock();
        then(tail.end)
    }

    /// The oldest position that is kept.
    pub fn oldest(&self) -> Lsn {
        self.geometry.start_of(self.tail.lock().oldest)
    }

    /// Bytes in use and in all.
    pub fn fill(&self) -> (u64, u64) {
        let tail = self.tail.lock();
        let used = tail.end.0 - tail.oldest * self.geometry.segment_bytes;
        (used, self.geometry.segments * self.geometry.segment_bytes)
    }
}

/// The number that the file of a segment has now.
fn segment_number(storage: &dyn Storage, geometry: Geometry, number: u64) -> Result<Option<u64>> {
    let failed = |e| Error::io("read the journal", e);
    let mut header = [0u8; 64];
    storage.open(&geometry.path_of(number), false).map_err(failed)?.read_at(&mut header, 0).map_err(failed)?;
    Ok(SegmentHeader::decode(&header).ok().map(|header| header.number))
}

fn begin_segment(storage: &dyn Storage, geometry: Geometry, number: u64) -> Result<Arc<dyn StorageFile>> {
    let header = SegmentHeader { brick: geometry.brick, number, segment_bytes: geometry.segment_bytes };
    let failed = |e| Error::Poisoned { what: format!("begin segment {number} of the journal: {e}") };
    let file = storage.open(&geometry.path_of(number), false).map_err(failed)?;
    file.write_at(&[&header.encode()], 0).map_err(failed)?;
    Ok(file)
}
