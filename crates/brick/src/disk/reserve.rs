//! The reserve: a file whose bytes are allocated, and empty files, which exist only to be released.
//!
//! When the file system is nearly full, a checkpoint releases them before it writes, so that it does not fail for want
//! of room, and restores them afterwards. `machine::Room` promises no more than that. On a file system that compresses
//! or does not allocate zeros the bytes reserve no room, and on one that does not count inodes the empty files reserve
//! none (`docs/format/brick.md`).

use crate::journal::write_zeros;
use crate::machine::Amount;
use crate::storage::{Storage, is_no_descriptor, is_no_room};
use hekate_proto::{Error, Result};
use hekate_threads::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const FILE: &str = "reserve";
const OPENING_FILE: &str = "reserve.opening";
const SPARE_DIRECTORY: &str = "spare";

/// Bytes that are reserved for an opening, which commits a few pages of the index. They are in a separate file, which
/// no checkpoint releases.
const OPENING_BYTES_MAX: u64 = 128 << 10;

/// Bytes of the reserve for each spare file: a checkpoint that writes 128 KiB seldom makes more than one data file.
const BYTES_PER_SPARE_FILE: u64 = 128 << 10;

/// Spare files take at most one eighth of the inodes.
const SPARE_SHARE: u64 = 8;

/// Spare files that are released at a time. More than one, since another user of the file system may take an inode
/// first.
const SPARE_AT_ONCE: u64 = 32;

/// The reserve of a brick.
pub struct Reserve {
    storage: Arc<dyn Storage>,
    full: Amount,
    /// What the reserve holds now. Atomic, so that reading it does not wait for a write of the file.
    bytes: AtomicU64,
    files: AtomicU64,
    /// The file system has refused bytes that statvfs(3) reports as free: a quota that statvfs does not know.
    limited: AtomicBool,
    writing: Mutex<()>,
}

impl Reserve {
    /// Makes the reserve's files of a new brick.
    pub fn create(storage: &dyn Storage, bytes: u64) -> Result<()> {
        let make = |path, bytes| {
            let file = storage.open(path, true)?;
            write_zeros(&*file, 0, bytes).and_then(|()| file.sync())
        };
        let made = make(FILE, bytes).and_then(|()| make(OPENING_FILE, opening_bytes(bytes)));
        made.map_err(|e| Error::io("make the reserve", e))
    }

    /// The reserve of a brick that is being opened, counted as empty until [`Reserve::restore`] has looked at its
    /// files.
    pub fn new(storage: Arc<dyn Storage>, bytes: u64) -> Self {
        let full = Amount { bytes, files: bytes / BYTES_PER_SPARE_FILE };
        let (bytes, files, limited) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        Self { storage, full, bytes, files, limited, writing: Mutex::new(()) }
    }

    /// What the reserve holds.
    pub fn held(&self) -> Amount {
        Amount { bytes: self.bytes.load(Ordering::Relaxed), files: self.files.load(Ordering::Relaxed) }
    }

    /// What the file system has free beside the reserve: no bytes, while it refuses bytes that it reports as free.
    pub fn free(&self) -> std::io::Result<Amount> {
        let space = self.storage.space()?;
        let bytes = if self.limited.load(Ordering::Relaxed) { 0 } else { space.available };
        Ok(Amount { bytes, files: space.files_available })
    }

    /// Releases the bytes.
    pub fn release_bytes(&self) -> Result<()> {
        let _alone = self.writing.lock();
        let cut = || self.storage.open(FILE, true)?.set_length(0);
        // A file system that copies on write may need room for the truncation too (btrfs with a quota), and less for a
        // removal. A removal needs no file descriptor either.
        let outcome = match cut() {
            Err(error) if is_shortage(&error) => self.storage.remove(FILE),
            outcome => outcome,
        };
        if let Err(error) = outcome
            && !is_no_room(&error)
        {
            return Err(Error::io("release the reserve", error));
        }
        if self.bytes.swap(0, Ordering::Relaxed) > 0 {
            self.settle_removals();
        }
        Ok(())
    }

    /// Releases what a write lacked: some files if the file system has no inodes, else the bytes, else files. False:
    /// nothing was left.
    pub fn release_some(&self) -> Result<bool> {
        let space = self.storage.space().map_err(|e| Error::io("statvfs of the brick", e))?;
        let has = self.held();
        if has.bytes > 0 && (space.files_available > 0 || has.files == 0) {
            self.release_bytes()?;
            return Ok(true);
        }
        let _alone = self.writing.lock();
        let files = self.files.load(Ordering::Relaxed);
        for number in files.saturating_sub(SPARE_AT_ONCE)..files {
            self.storage.remove(&spare(number)).map_err(|e| Error::io("release a spare file", e))?;
        }
        self.files.store(files.saturating_sub(SPARE_AT_ONCE), Ordering::Relaxed);
        Ok(files > 0)
    }

    /// Releases everything, for an opening, which does not know yet what the reserve holds.
    pub fn release_all(&self) -> Result<()> {
        self.release_bytes()?;
        let cut = self.storage.open(OPENING_FILE, true).and_then(|file| file.set_length(0));
        cut.or_else(|e| if is_shortage(&e) { Ok(()) } else { Err(e) })
            .map_err(|e| Error::io("release the reserve", e))?;
        let _alone = self.writing.lock();
        for name in self.storage.list(SPARE_DIRECTORY).unwrap_or_default() {
            let removed = self.storage.remove(&format!("{SPARE_DIRECTORY}/{name}"));
            removed.map_err(|e| Error::io("release a spare file", e))?;
        }
        self.files.store(0, Ordering::Relaxed);
        self.settle_removals();
        Ok(())
    }

    /// If this fails, there is less room than there will be, which the caller finds out by its write.
    fn settle_removals(&self) {
        let _ = self.storage.settle_removals();
    }

    /// Restores the reserve as far as the file system has twice of what is missing. What it cannot restore is no error.
    ///
    /// # Errors
    /// `Io`: the reserve's files cannot be opened or measured for another reason than want of room.
    pub fn restore(&self) -> Result<()> {
        let _alone = self.writing.lock();
        let (has, failed) = (self.held(), |e| Error::io("restore the reserve", e));
        if has == self.full {
            return Ok(());
        }
        let space = self.storage.space().map_err(failed)?;
        self.restore_opening(space.available).map_err(failed)?;
        if has.bytes < self.full.bytes {
            let file = match self.storage.open(FILE, true) {
                Err(error) if is_shortage(&error) => return Ok(()),
                opened => opened.map_err(failed)?,
            };
            let has = file.length().map_err(failed)?.min(self.full.bytes);
            let missing = self.full.bytes - has;
            let has_room = space.available / 2 >= missing;
            let restored = missing == 0 || has_room && write_zeros(&*file, has, self.full.bytes).is_ok();
            self.limited.store(has_room && !restored, Ordering::Relaxed);
            let bytes = if restored { self.full.bytes } else { file.length().map_err(failed)?.min(self.full.bytes) };
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        if has.files < self.full.files && space.files > 0 {
            let wanted = self.full.files.min(space.files / SPARE_SHARE);
            self.restore_files(has.files..wanted, space.files_available / 2).map_err(failed)?;
        }
        Ok(())
    }

    fn restore_opening(&self, available: u64) -> std::io::Result<()> {
        let wanted = opening_bytes(self.full.bytes);
        let file = match self.storage.open(OPENING_FILE, true) {
            Err(error) if is_shortage(&error) => return Ok(()),
            opened => opened?,
        };
        let has = file.length()?.min(wanted);
        if has < wanted && available / 2 >= wanted - has {
            // The next call continues from the length that the file has then.
            let _ = write_zeros(&*file, has, wanted);
        }
        Ok(())
    }

    fn restore_files(&self, missing: std::ops::Range<u64>, count_max: u64) -> std::io::Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        match self.storage.create_directory(SPARE_DIRECTORY) {
            Err(error) if is_shortage(&error) => return Ok(()),
            made => made?,
        }
        let mut made = 0;
        for number in missing {
            let path = spare(number);
            let is_there = self.storage.open(&path, false).is_ok();
            if !is_there && made == count_max {
                break;
            }
            match self.storage.open(&path, true) {
                Err(error) if is_shortage(&error) => break,
                opened => drop(opened?),
            }
            made += u64::from(!is_there);
            self.files.store(number + 1, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn opening_bytes(reserve_bytes: u64) -> u64 {
    reserve_bytes.min(OPENING_BYTES_MAX)
}

/// Whether a call failed for want of room or of a file descriptor.
fn is_shortage(error: &std::io::Error) -> bool {
    is_no_room(error) || is_no_descriptor(error)
}

fn spare(number: u64) -> String {
    format!("{SPARE_DIRECTORY}/{number:04}")
}
