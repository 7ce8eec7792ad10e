//! A storage over another one that it never writes to: writes are kept in memory until the process ends.
//!
//! So a stopped brick can be opened as usual, recovery included, while every byte of its disk stays as it is.
//! Invariant: of the storage below only `open` without `create`, `read_at`, `length`, `list` and `space` are called.

use super::{Space, Storage, StorageFile};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE_BYTES: usize = 4096;
/// Bytes of writes that are kept in memory at most. An opening writes the index's meta record and redb's allocator:
/// some pages for each GiB of index.
const WRITTEN_BYTES_MAX: usize = 256 << 20;

/// A storage whose changes stay in memory.
pub struct CopyOnWriteStorage {
    below: Arc<dyn Storage>,
    /// Files that were opened or made, by path; `None`: removed.
    files: Mutex<BTreeMap<String, Option<Arc<Mutex<Written>>>>>,
    budget: Arc<Budget>,
}

struct Budget {
    written: AtomicUsize,
    limit: usize,
}

/// What was written to a file, over the one below.
struct Written {
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
    length: u64,
    /// Bytes of the file below that still count: it was truncated here once.
    below_end: u64,
}

struct CopyOnWriteFile {
    below: Option<Arc<dyn StorageFile>>,
    written: Arc<Mutex<Written>>,
    budget: Arc<Budget>,
}

impl CopyOnWriteStorage {
    /// Over `below`, with a limit of 256 MiB of writes.
    pub fn new(below: Arc<dyn Storage>) -> Self {
        Self::with_limit(below, WRITTEN_BYTES_MAX)
    }

    /// Over `below`. A write that exceeds this limit of all writes together fails.
    pub fn with_limit(below: Arc<dyn Storage>, limit: usize) -> Self {
        Self { below, files: Mutex::default(), budget: Arc::new(Budget { written: AtomicUsize::new(0), limit }) }
    }
}

impl Storage for CopyOnWriteStorage {
    fn open(&self, path: &str, create: bool) -> Result<Arc<dyn StorageFile>> {
        let mut files = self.files.lock();
        let removed = matches!(files.get(path), Some(None));
        let below = match self.below.open(path, false) {
            Ok(_) if removed => None,
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let made = matches!(files.get(path), Some(Some(_)));
        if below.is_none() && !made && !create {
            return Err(Error::new(ErrorKind::NotFound, path.to_string()));
        }
        let length = below.as_ref().map_or(Ok(0), |file| file.length())?;
        let new = || Arc::new(Mutex::new(Written { pages: BTreeMap::new(), length, below_end: length }));
        let written = files.entry(path.into()).or_default().get_or_insert_with(new).clone();
        Ok(Arc::new(CopyOnWriteFile { below, written, budget: self.budget.clone() }))
    }

    fn create_directory(&self, _: &str) -> Result<()> {
        // Files are found by their paths; no caller lists the directory itself.
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.files.lock().insert(path.into(), None);
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        let below = match self.below.list(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let mut names: BTreeSet<String> = below.into_iter().collect();
        let prefix = format!("{path}/");
        for (file, there) in self.files.lock().iter() {
            let Some(name) = file.strip_prefix(&prefix).filter(|name| !name.contains('/')) else { continue };
            if there.is_some() {
                names.insert(name.into());
            } else {
                names.remove(name);
            }
        }
        Ok(names.into_iter().collect())
    }

    fn sync_directory(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        self.below.space()
    }
}

impl CopyOnWriteFile {
    /// The bytes of the file below; zeros where it has none.
    fn read_below(&self, written: &Written, buffer: &mut [u8], offset: u64) -> Result<()> {
        buffer.fill(0);
        let Some(below) = &self.below else { return Ok(()) };
        let count = (buffer.len() as u64).min(written.below_end.saturating_sub(offset));
        below.read_at(&mut buffer[..count as usize], offset).map(|_| ())
    }

    fn write_part(&self, written: &mut Written, mut part: &[u8], mut offset: u64) -> Result<()> {
        while !part.is_empty() {
            let (number, from) = (offset / PAGE_BYTES as u64, (offset % PAGE_BYTES as u64) as usize);
            let count = part.len().min(PAGE_BYTES - from);
            if !written.pages.contains_key(&number) {
                self.budget.take_page()?;
                let mut page = Box::new([0; PAGE_BYTES]);
                self.read_below(written, &mut page[..], number * PAGE_BYTES as u64)?;
                written.pages.insert(number, page);
            }
            if let Some(page) = written.pages.get_mut(&number) {
                page[from..from + count].copy_from_slice(&part[..count]);
            }
            part = &part[count..];
            offset += count as u64;
            written.length = written.length.max(offset);
        }
        Ok(())
    }
}

impl Budget {
    fn take_page(&self) -> Result<()> {
        let before = self.written.fetch_add(PAGE_BYTES, Ordering::Relaxed);
        if before + PAGE_BYTES > self.limit {
            self.written.fetch_sub(PAGE_BYTES, Ordering::Relaxed);
            let limit = self.limit >> 20;
            return Err(Error::other(format!("opening without writing would take over {limit} MiB of memory")));
        }
        Ok(())
    }
}

impl StorageFile for CopyOnWriteFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let written = self.written.lock();
        let count = (buffer.len() as u64).min(written.length.saturating_sub(offset)) as usize;
        let buffer = &mut buffer[..count];
        if count == 0 {
            return Ok(0);
        }
        self.read_below(&written, buffer, offset)?;
        let end = offset + count as u64;
        let page = PAGE_BYTES as u64;
        for (number, bytes) in written.pages.range(offset / page..end.div_ceil(page)) {
            let start = number * page;
            let (from, to) = (start.max(offset), (start + page).min(end));
            let inside = &bytes[(from - start) as usize..(to - start) as usize];
            buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(inside);
        }
        Ok(count)
    }

    fn write_at(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        let mut written = self.written.lock();
        let mut at = offset;
        for part in parts {
            self.write_part(&mut written, part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.written.lock().length)
    }

    fn set_length(&self, length: u64) -> Result<()> {
        let mut written = self.written.lock();
        if length < written.length {
            written.below_end = written.below_end.min(length);
            let gone = written.pages.split_off(&length.div_ceil(PAGE_BYTES as u64));
            self.budget.written.fetch_sub(gone.len() * PAGE_BYTES, Ordering::Relaxed);
            let kept = (length % PAGE_BYTES as u64) as usize;
            if kept > 0
                && let Some(page) = written.pages.get_mut(&(length / PAGE_BYTES as u64))
            {
                page[kept..].fill(0);
            }
        }
        written.length = length;
        Ok(())
    }

    fn allocate(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        let mut written = self.written.lock();
        let end = (offset + length).min(written.length);
        let mut at = offset;
        while at < end {
            let count = (end - at).min(PAGE_BYTES as u64);
            self.write_part(&mut written, &[0; PAGE_BYTES][..count as usize], at)?;
            at += count;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;

    fn below() -> (MemoryStorage, CopyOnWriteStorage) {
        let below = MemoryStorage::new();
        let file = below.open("d/old", true).unwrap();
        file.write_at(&[&[7u8; 10_000]], 0).unwrap();
        let over = CopyOnWriteStorage::with_limit(Arc::new(below.clone()), 64 << 10);
        (below, over)
    }

    fn content(storage: &dyn Storage, path: &str) -> Vec<u8> {
        let file = storage.open(path, false).unwrap();
        let mut bytes = vec![1; file.length().unwrap() as usize + 5];
        let count = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn writes_are_read_again_and_nothing_below_changes() {
        let (below, over) = below();
        let mut model = vec![7u8; 10_000];
        let file = over.open("d/old", false).unwrap();
        // Inside a page, over a border, behind the end with a gap.
        for (offset, bytes) in [(5usize, vec![1u8; 10]), (4090, vec![2; 12]), (12_000, vec![3; 5000])] {
            file.write_at(&[&bytes[..3], &bytes[3..]], offset as u64).unwrap();
            model.resize(model.len().max(offset + bytes.len()), 0);
            model[offset..offset + bytes.len()].copy_from_slice(&bytes);
            assert_eq!(content(&over, "d/old"), model, "{offset}");
        }
        file.set_length(4093).unwrap();
        file.set_length(9000).unwrap();
        file.punch(100, 200).unwrap();
        file.sync().unwrap();
        model.resize(4093, 0);
        model.resize(9000, 0);
        model[100..300].fill(0);
        assert_eq!(content(&over, "d/old"), model, "cut, grown, punched");
        over.open("d/new", true).unwrap().write_at(&[b"new"], 0).unwrap();
        over.create_directory("d").unwrap();
        over.sync_directory("d").unwrap();
        assert_eq!(
            (over.list("d").unwrap(), content(&over, "d/new")),
            (vec!["new".into(), "old".into()], b"new".into())
        );
        over.remove("d/old").unwrap();
        assert_eq!(over.open("d/old", false).err().unwrap().kind(), ErrorKind::NotFound);
        assert_eq!(over.list("d").unwrap(), ["new"]);
        over.open("d/old", true).unwrap();
        assert_eq!(content(&over, "d/old"), b"", "made anew");
        assert_eq!((below.paths(), content(&below, "d/old")), (vec!["d/old".into()], vec![7u8; 10_000]));
    }

    #[test]
    fn writes_beyond_the_limit_are_refused() {
        let (_, over) = below();
        let file = over.open("d/new", true).unwrap();
        assert!(file.write_at(&[&[0; 128 << 10]], 0).is_err());
        file.set_length(0).unwrap();
        file.write_at(&[&[0; 64 << 10]], 0).unwrap();
    }
}
