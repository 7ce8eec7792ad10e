//! The reserve: a file of bytes that are really allocated, and empty files, which are only there to be given up.
//!
//! When the file system is nearly full, a checkpoint gives them up before it writes, so that it never fails for want of
//! room, and takes them back afterwards. `machine::Room` promises no more than that. The bytes are worth nothing on a
//! file system that compresses or does not allocate zeros, the files on one that does not count them
//! (`docs/format/brick.md`).

use crate::journal::write_zeros;
use crate::machine::Amount;
use crate::storage::{Storage, is_no_descriptor, is_no_room};
use hekate_proto::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const FILE: &str = "reserve";
const OPENING_FILE: &str = "reserve.opening";
const SPARE_DIRECTORY: &str = "spare";

/// An opening writes a few pages of the index. What it may need for them rests in a file of its own, which checkpoints
/// leave alone.
const OPENING_BYTES_MAX: u64 = 128 << 10;

/// Bytes of the reserve for which it has one spare file: a checkpoint of so many bytes seldom makes more.
const BYTES_PER_SPARE_FILE: u64 = 128 << 10;

/// The share of a file system's inodes that spare files may take.
const SPARE_SHARE: u64 = 8;

/// Spare files that are given up at a time: another user of the file system may take them first.
const SPARE_AT_ONCE: u64 = 32;

/// The bytes and the files of a brick that are kept to be given up.
pub struct Reserve {
    storage: Arc<dyn Storage>,
    wanted: Amount,
    /// Bytes and files that are there; they can be read while the file is written.
    bytes: AtomicU64,
    files: AtomicU64,
    /// The file system has refused bytes that it says are free: a quota that statvfs(3) does not know.
    limited: AtomicBool,
    writing: Mutex<()>,
}

impl Reserve {
    /// Makes the file of a new brick.
    pub fn create(storage: &dyn Storage, bytes: u64) -> Result<()> {
        let make = |path, bytes| {
            let file = storage.open(path, true)?;
            write_zeros(&*file, 0, bytes).and_then(|()| file.sync())
        };
        let made = make(FILE, bytes).and_then(|()| make(OPENING_FILE, opening_bytes(bytes)));
        made.map_err(|e| Error::io("make the reserve", e))
    }

    /// Of a brick that is opened; [`Reserve::restore`] finds out what there is.
    pub fn new(storage: Arc<dyn Storage>, bytes: u64) -> Self {
        let wanted = Amount { bytes, files: bytes / BYTES_PER_SPARE_FILE };
        let (bytes, files, limited) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        Self { storage, wanted, bytes, files, limited, writing: Mutex::new(()) }
    }

    /// What can be given up.
    pub fn has(&self) -> Amount {
        Amount { bytes: self.bytes.load(Ordering::Relaxed), files: self.files.load(Ordering::Relaxed) }
    }

    /// What the brick may count on beside the reserve: nothing, while the file system refuses what it says is free.
    pub fn free(&self) -> std::io::Result<Amount> {
        let space = self.storage.space()?;
        let bytes = if self.limited.load(Ordering::Relaxed) { 0 } else { space.available };
        Ok(Amount { bytes, files: space.files_available })
    }

    /// Gives the bytes to a checkpoint.
    pub fn give_up_bytes(&self) -> Result<()> {
        let _alone = self.writing.lock();
        let cut = || self.storage.open(FILE, true)?.set_length(0);
        // A file system that copies on write may want room for that too (btrfs with a quota), and less for a removal. A
        // removal needs no file descriptor either.
        let outcome = match cut() {
            Err(error) if is_wanting(&error) => self.storage.remove(FILE),
            outcome => outcome,
        };
        match outcome {
            Err(error) if !is_no_room(&error) => return Err(Error::io("give up the reserve", error)),
            _ => self.bytes.store(0, Ordering::Relaxed),
        }
        Ok(())
    }

    /// Gives up what a write lacked: some files if the file system has none, else the bytes, else files. False: nothing
    /// was left.
    pub fn give_up_some(&self) -> Result<bool> {
        let space = self.storage.space().map_err(|e| Error::io("statvfs of the brick", e))?;
        let has = self.has();
        if has.bytes > 0 && (space.files_available > 0 || has.files == 0) {
            self.give_up_bytes()?;
            return Ok(true);
        }
        let _alone = self.writing.lock();
        let files = self.files.load(Ordering::Relaxed);
        for number in files.saturating_sub(SPARE_AT_ONCE)..files {
            self.storage.remove(&spare(number)).map_err(|e| Error::io("give up a spare file", e))?;
        }
        self.files.store(files.saturating_sub(SPARE_AT_ONCE), Ordering::Relaxed);
        Ok(files > 0)
    }

    /// Gives all of it up to an opening, which does not know yet how much it is.
    pub fn give_up_all(&self) -> Result<()> {
        self.give_up_bytes()?;
        let cut = self.storage.open(OPENING_FILE, true).and_then(|file| file.set_length(0));
        cut.or_else(|e| if is_wanting(&e) { Ok(()) } else { Err(e) })
            .map_err(|e| Error::io("give up the reserve", e))?;
        let _alone = self.writing.lock();
        for name in self.storage.list(SPARE_DIRECTORY).unwrap_or_default() {
            let removed = self.storage.remove(&format!("{SPARE_DIRECTORY}/{name}"));
            removed.map_err(|e| Error::io("give up a spare file", e))?;
        }
        self.files.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Takes back what the file system has twice. Best effort: what it gets counts.
    pub fn restore(&self) -> Result<()> {
        let _alone = self.writing.lock();
        let (has, failed) = (self.has(), |e| Error::io("restore the reserve", e));
        if has == self.wanted {
            return Ok(());
        }
        let space = self.storage.space().map_err(failed)?;
        self.restore_opening(space.available).map_err(failed)?;
        if has.bytes < self.wanted.bytes {
            let file = match self.storage.open(FILE, true) {
                Err(error) if is_wanting(&error) => return Ok(()),
                opened => opened.map_err(failed)?,
            };
            let has = file.length().map_err(failed)?.min(self.wanted.bytes);
            let missing = self.wanted.bytes - has;
            let has_room = space.available / 2 >= missing;
            let restored = missing == 0 || has_room && write_zeros(&*file, has, self.wanted.bytes).is_ok();
            self.limited.store(has_room && !restored, Ordering::Relaxed);
            let bytes =
                if restored { self.wanted.bytes } else { file.length().map_err(failed)?.min(self.wanted.bytes) };
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        if has.files < self.wanted.files && space.files > 0 {
            let wanted = self.wanted.files.min(space.files / SPARE_SHARE);
            self.restore_files(has.files..wanted, space.files_available / 2).map_err(failed)?;
        }
        Ok(())
    }

    fn restore_opening(&self, available: u64) -> std::io::Result<()> {
        let wanted = opening_bytes(self.wanted.bytes);
        let file = match self.storage.open(OPENING_FILE, true) {
            Err(error) if is_wanting(&error) => return Ok(()),
            opened => opened?,
        };
        let has = file.length()?.min(wanted);
        if has < wanted && available / 2 >= wanted - has {
            // What it gets counts.
            let _ = write_zeros(&*file, has, wanted);
        }
        Ok(())
    }

    fn restore_files(&self, missing: std::ops::Range<u64>, count_max: u64) -> std::io::Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        match self.storage.create_directory(SPARE_DIRECTORY) {
            Err(error) if is_wanting(&error) => return Ok(()),
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
                Err(error) if is_wanting(&error) => break,
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

/// Whether the file system has no room for it, or the process no file descriptor.
fn is_wanting(error: &std::io::Error) -> bool {
    is_no_room(error) || is_no_descriptor(error)
}

fn spare(number: u64) -> String {
    format!("{SPARE_DIRECTORY}/{number:04}")
}
