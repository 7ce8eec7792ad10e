//! A storage that counts and times every call: of all threads, and of the calling thread.

use hekate_brick::storage::{Storage, StorageFile};
use std::cell::Cell;
use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Calls of one kind to one part of a brick.
#[derive(Default)]
pub struct Calls {
    calls: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
}

/// The values of [`Calls`] at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of calls.
    pub calls: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Time in them, summed over the threads.
    pub nanos: u64,
}

/// The parts of a brick, by the directory that a file is in.
pub const PARTS: [&str; 3] = ["journal", "index", "data"];

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Read,
    Write,
    Sync,
}

/// All calls of a brick.
#[derive(Default)]
pub struct Counts {
    of: [[Calls; 3]; 3],
    began: LastSync,
}

/// When the journal's last sync returned: from then on its waiters are woken.
struct LastSync {
    epoch: Instant,
    nanos: AtomicU64,
}

impl Default for LastSync {
    fn default() -> Self {
        Self { epoch: Instant::now(), nanos: AtomicU64::new(0) }
    }
}

/// The values of [`Counts`] at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Snapshot([[Tally; 3]; 3]);

impl Snapshot {
    /// Calls of a kind to a part.
    pub fn of(&self, part: usize, sort: Sort) -> Tally {
        self.0[part][sort as usize]
    }

    /// Bytes written to all parts.
    pub fn written(&self) -> u64 {
        (0..PARTS.len()).map(|part| self.of(part, Sort::Write).bytes).sum()
    }

    /// Calls of all kinds to all parts.
    pub fn calls(&self) -> u64 {
        self.0.iter().flatten().map(|tally| tally.calls).sum()
    }

    /// The difference to an earlier snapshot.
    pub fn since(&self, before: &Self) -> Self {
        let mut out = *self;
        for (now, before) in out.0.iter_mut().flatten().zip(before.0.iter().flatten()) {
            now.calls -= before.calls;
            now.bytes -= before.bytes;
            now.nanos -= before.nanos;
        }
        out
    }

    /// The sum.
    pub fn plus(&self, other: &Self) -> Self {
        let mut out = *self;
        for (now, other) in out.0.iter_mut().flatten().zip(other.0.iter().flatten()) {
            now.calls += other.calls;
            now.bytes += other.bytes;
            now.nanos += other.nanos;
        }
        out
    }
}

impl Counts {
    /// The values now.
    pub fn snapshot(&self) -> Snapshot {
        let tally = |calls: &Calls| Tally {
            calls: calls.calls.load(Relaxed),
            bytes: calls.bytes.load(Relaxed),
            nanos: calls.nanos.load(Relaxed),
        };
        Snapshot(std::array::from_fn(|part| std::array::from_fn(|sort| tally(&self.of[part][sort]))))
    }

    /// Nanoseconds since a sync of the journal last returned.
    pub fn since_journal_sync(&self) -> u64 {
        let now = self.began.epoch.elapsed().as_nanos() as u64;
        now.saturating_sub(self.began.nanos.load(Relaxed))
    }

    fn timed<T>(&self, part: usize, sort: Sort, bytes: usize, call: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let value = call();
        let nanos = begun.elapsed().as_nanos() as u64;
        let calls = &self.of[part][sort as usize];
        calls.calls.fetch_add(1, Relaxed);
        calls.bytes.fetch_add(bytes as u64, Relaxed);
        calls.nanos.fetch_add(nanos, Relaxed);
        OWN.with(|own| {
            let mut now = own.get();
            let tally = &mut now.0[part][sort as usize];
            *tally = Tally { calls: tally.calls + 1, bytes: tally.bytes + bytes as u64, nanos: tally.nanos + nanos };
            own.set(now);
        });
        if part == 0 && sort == Sort::Sync {
            self.began.nanos.store(self.began.epoch.elapsed().as_nanos() as u64, Relaxed);
        }
        value
    }
}

thread_local! {
    static OWN: Cell<Snapshot> = const { Cell::new(Snapshot([[Tally { calls: 0, bytes: 0, nanos: 0 }; 3]; 3])) };
}

/// Calls of the calling thread, on any brick.
pub fn own() -> Snapshot {
    OWN.with(Cell::get)
}

/// A storage that counts calls.
pub struct Counted<S> {
    inner: S,
    counts: Arc<Counts>,
}

impl<S: Storage> Counted<S> {
    /// Counts the calls to `inner`.
    pub fn new(inner: S, counts: Arc<Counts>) -> Self {
        Self { inner, counts }
    }
}

struct CountedFile {
    inner: Arc<dyn StorageFile>,
    counts: Arc<Counts>,
    part: usize,
}

fn part_of(path: &str) -> usize {
    PARTS.iter().position(|part| path.starts_with(part)).unwrap_or(PARTS.len() - 1)
}

impl<S: Storage> Storage for Counted<S> {
    fn open(&self, path: &str, create: bool) -> Result<Arc<dyn StorageFile>> {
        let inner = self.inner.open(path, create)?;
        Ok(Arc::new(CountedFile { inner, counts: self.counts.clone(), part: part_of(path) }))
    }
    fn create_directory(&self, path: &str) -> Result<()> {
        self.inner.create_directory(path)
    }
    fn remove(&self, path: &str) -> Result<()> {
        self.inner.remove(path)
    }
    fn list(&self, path: &str) -> Result<Vec<String>> {
        self.inner.list(path)
    }
    fn sync_directory(&self, path: &str) -> Result<()> {
        self.counts.timed(part_of(path), Sort::Sync, 0, || self.inner.sync_directory(path))
    }
    fn space(&self) -> Result<hekate_brick::storage::Space> {
        self.inner.space()
    }
}

impl StorageFile for CountedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.counts.timed(self.part, Sort::Read, buffer.len(), || self.inner.read_at(buffer, offset))
    }
    fn write_at(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.counts.timed(self.part, Sort::Write, bytes, || self.inner.write_at(parts, offset))
    }
    fn length(&self) -> Result<u64> {
        self.inner.length()
    }
    fn set_length(&self, length: u64) -> Result<()> {
        self.inner.set_length(length)
    }
    fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.allocate(offset, length)
    }
    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.punch(offset, length)
    }
    fn sync(&self) -> Result<()> {
        self.counts.timed(self.part, Sort::Sync, 0, || self.inner.sync())
    }
}
