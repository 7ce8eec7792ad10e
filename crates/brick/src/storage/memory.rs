//! A storage in memory that knows what was synced, so that tests can cut its power.

use super::{Space, Storage, StorageFile};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Files in memory. Clones share them.
#[derive(Clone)]
pub struct MemoryStorage {
    files: Arc<Mutex<BTreeMap<String, Arc<MemoryFile>>>>,
    syncs_left: Arc<AtomicI64>,
}

struct MemoryFile {
    content: Mutex<Content>,
    syncs_left: Arc<AtomicI64>,
}

#[derive(Default)]
struct Content {
    now: Vec<u8>,
    synced: Vec<u8>,
}

impl Default for MemoryStorage {
    fn default() -> Self {
        Self { files: Arc::default(), syncs_left: Arc::new(AtomicI64::new(i64::MAX)) }
    }
}

impl MemoryStorage {
    /// Empty, without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets every sync from the `count`-th on fail.
    pub fn fail_syncs_after(&self, count: i64) {
        self.syncs_left.store(count, Ordering::SeqCst);
    }

    /// The files after a power cut in which nothing unsynced had reached the medium.
    pub fn after_power_cut(&self) -> Self {
        let cut = Self::new();
        for (path, file) in self.files.lock().iter() {
            let synced = file.content.lock().synced.clone();
            let content = Mutex::new(Content { now: synced.clone(), synced });
            let file = MemoryFile { content, syncs_left: cut.syncs_left.clone() };
            cut.files.lock().insert(path.clone(), Arc::new(file));
        }
        cut
    }

    /// The files after the death of the process.
    pub fn copy(&self) -> Self {
        let copy = Self::new();
        for (path, file) in self.files.lock().iter() {
            let content = file.content.lock();
            let content = Mutex::new(Content { now: content.now.clone(), synced: content.synced.clone() });
            let file = MemoryFile { content, syncs_left: copy.syncs_left.clone() };
            copy.files.lock().insert(path.clone(), Arc::new(file));
        }
        copy
    }

    /// Flips one bit of a file, as a failing disk does.
    pub fn flip_bit(&self, path: &str, byte: usize) {
        if let Some(file) = self.files.lock().get(path)
            && let Some(byte) = file.content.lock().now.get_mut(byte)
        {
            *byte ^= 1;
        }
    }

    /// All paths.
    pub fn paths(&self) -> Vec<String> {
        self.files.lock().keys().cloned().collect()
    }
}

impl Storage for MemoryStorage {
    fn open(&self, path: &str, create: bool) -> Result<Arc<dyn StorageFile>> {
        let mut files = self.files.lock();
        if !create && !files.contains_key(path) {
            return Err(Error::new(ErrorKind::NotFound, path.to_string()));
        }
        let new = || Arc::new(MemoryFile { content: Mutex::default(), syncs_left: self.syncs_left.clone() });
        Ok(files.entry(path.into()).or_insert_with(new).clone())
    }

    fn create_directory(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.files.lock().remove(path);
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        let prefix = format!("{path}/");
        let files = self.files.lock();
        Ok(files
            .keys()
            .filter_map(|p| p.strip_prefix(&prefix))
            .filter(|p| !p.contains('/'))
            .map(str::to_string)
            .collect())
    }

    fn sync_directory(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        Ok(Space::of_bytes(1 << 40, 1 << 40))
    }
}

impl StorageFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let content = self.content.lock();
        let from = (offset as usize).min(content.now.len());
        let count = buffer.len().min(content.now.len() - from);
        buffer[..count].copy_from_slice(&content.now[from..from + count]);
        Ok(count)
    }

    fn write_at(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        let mut content = self.content.lock();
        let mut at = offset as usize;
        for part in parts {
            let end = at + part.len();
            if content.now.len() < end {
                content.now.resize(end, 0);
            }
            content.now[at..end].copy_from_slice(part);
            at = end;
        }
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.content.lock().now.len() as u64)
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.content.lock().now.resize(length as usize, 0);
        Ok(())
    }

    fn allocate(&self, _: u64, length: u64) -> Result<()> {
        if length == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "fallocate refuses a range of no bytes"));
        }
        Ok(())
    }

    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        if length == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "fallocate refuses a hole of no bytes"));
        }
        let mut content = self.content.lock();
        let end = ((offset + length) as usize).min(content.now.len());
        let from = (offset as usize).min(end);
        content.now[from..end].fill(0);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        if self.syncs_left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Err(Error::other("a sync that the test makes fail"));
        }
        let mut content = self.content.lock();
        content.synced = content.now.clone();
        Ok(())
    }
}
