//! The storage below redb, with a sum for each block: redb reads no block but as it was written.
//!
//! redb never writes over a block that its last durable commit refers to, so the sum of such a block does not change
//! before the next commit. A block that no commit refers to may differ from its sum after a power cut, and redb does
//! not read it. The exception is redb's header, which is written in place: it is shorter than a sector, and is stored
//! twice, each with a check. `docs/adr/0025-index-pages.md` has the cases.

use super::sums::{self, BLOCK_BYTES, CHECKED_BYTES, PAIR_BYTES, Pair, PairState, Sums};
use crate::storage::{Storage, StorageFile, is_no_room};
use hekate_proto::{Error, Result};
use hekate_threads::{Mutex, RwLock};
use redb::StorageBackend;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, OnceLock};

/// The file of the index, in the brick's directory.
pub const FILE: &str = "index/index.redb";

/// What a read does with a block that does not match its sum, if flipping no single bit makes it match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The read fails. For a brick in use.
    Strict,
    /// The block is reported and read as it is. For a stopped brick that is inspected or exported.
    Salvage,
}

/// What reads and writes of the index's file have found.
#[derive(Default)]
pub struct Found {
    broken: OnceLock<String>,
    repaired: Mutex<Vec<u64>>,
    wrong: Mutex<BTreeSet<u64>>,
    no_room: Mutex<Option<String>>,
}

impl Found {
    /// The first write for which the file system had no room since the last call.
    pub fn take_no_room(&self) -> Option<String> {
        self.no_room.lock().take()
    }

    fn note_no_room<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|error| {
            if is_no_room(error) {
                self.no_room.lock().get_or_insert_with(|| format!("to write {FILE}: {error}"));
            }
        })
    }

    /// Why the index can no longer be read.
    pub fn broken(&self) -> Option<String> {
        self.broken.get().cloned()
    }

    /// The error, replaced by the cause that reads or writes of the file have recorded, if any.
    pub fn explain(&self, error: Error) -> Error {
        self.broken().map_or(error, |what| Error::Damaged { what })
    }

    /// Blocks in which a flipped bit was repaired since the last call.
    pub fn take_mended(&self) -> Vec<u64> {
        std::mem::take(&mut self.repaired.lock())
    }

    /// Blocks that were read though they do not match their sums.
    pub fn wrong(&self) -> Vec<u64> {
        self.wrong.lock().iter().copied().collect()
    }
}

/// The storage below redb: the index's file and the file of sums.
pub struct Backend {
    file: Arc<dyn StorageFile>,
    sums_file: Arc<dyn StorageFile>,
    sums: RwLock<Sums>,
    reading: Reading,
    found: Arc<Found>,
}

impl Backend {
    /// Opens the two files of an index, and makes them if `create` is set.
    ///
    /// # Errors
    /// `Damaged`: the file of sums is missing. `Io`: a file cannot be opened or read.
    pub fn open(storage: &dyn Storage, create: bool, reading: Reading, found: Arc<Found>) -> Result<Self> {
        let file = storage.open(FILE, create).map_err(|e| Error::io("open the index", e))?;
        let sums_file = storage.open(sums::FILE, create).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Error::Damaged {
                what: format!("{}: {e} (brick invariant 1); rebuild this brick from its replicas", sums::FILE),
            },
            _ => Error::io(format!("open {}", sums::FILE), e),
        })?;
        let length = file.length().map_err(|e| Error::io("open the index", e))?;
        let sums = Sums::read(&*sums_file, length).map_err(|e| Error::io(format!("read {}", sums::FILE), e))?;
        Ok(Self { file, sums_file, sums: RwLock::new(sums), reading, found })
    }

    fn read_all(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        match self.file.read_at(out, offset)? {
            count if count < out.len() => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Reads redb's header, which is shorter than a sector and alone in its block.
    fn read_header(&self, out: &mut [u8]) -> io::Result<()> {
        let mut stored = [0; PAIR_BYTES];
        self.read_all(&mut stored, 0)?;
        let (pair, state) = Pair::read(Pair::HEADER_SEED, stored);
        match state {
            PairState::Whole => {}
            // The half that was not used must not be read later.
            PairState::Differing => self.found.note_no_room(self.file.write_at(&[pair.bytes()], 0))?,
            PairState::Repaired => self.repair(0, pair.bytes()),
            PairState::Damaged => self.refuse(0)?,
        }
        out.copy_from_slice(&pair.content()[..out.len()]);
        Ok(())
    }

    /// Writes the repaired block. If that fails, the next read repairs it again.
    fn repair(&self, block: u64, bytes: &[u8]) {
        let _ = self.file.write_at(&[bytes], block * BLOCK_BYTES as u64);
        self.found.repaired.lock().push(block);
    }

    fn refuse(&self, block: u64) -> io::Result<()> {
        if self.reading == Reading::Salvage {
            self.found.wrong.lock().insert(block);
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("block {block} of {FILE} does not match its sum")))
    }

    /// Checks what was read of a block, and repairs it if one bit is wrong.
    fn check(&self, block: u64, bytes: &mut [u8], is_right: impl Fn(&[u8]) -> bool) -> io::Result<()> {
        if is_right(bytes) {
            return Ok(());
        }
        if sums::repair_bit(bytes, is_right) {
            self.repair(block, bytes);
            return Ok(());
        }
        self.refuse(block)
    }

    fn read_checked(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset == 0 && out.len() <= CHECKED_BYTES {
            return self.read_header(out);
        }
        self.check_aligned(offset, out.len())?;
        self.read_all(out, offset)?;
        for (block, bytes) in (offset / BLOCK_BYTES as u64..).zip(out.chunks_exact_mut(BLOCK_BYTES)) {
            let sum = self.sums.read().of(block);
            self.check(block, bytes, |bytes| sum == Some(sums::sum_of(block, bytes)))?;
        }
        Ok(())
    }

    /// Whole blocks only, and not block 0, which has the header.
    fn check_aligned(&self, offset: u64, length: usize) -> io::Result<()> {
        let is_aligned = offset > 0 && offset.is_multiple_of(BLOCK_BYTES as u64) && length.is_multiple_of(BLOCK_BYTES);
        let what = || format!("{length} bytes at offset {offset} of {FILE} are no blocks (index invariant 5)");
        is_aligned.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, what()))
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(FILE)
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_checked(offset, out).inspect_err(|error| {
            // After an error redb reads nothing more from the file.
            let what = match error.kind() {
                io::ErrorKind::InvalidData => format!("{error}; the brick is to be replaced"),
                _ => format!("{FILE} cannot be read at offset {offset}: {error}"),
            };
            self.found.broken.get_or_init(|| what);
        })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.found.note_no_room(self.set_length(length))
    }

    /// The order of the two syncs does not matter: no commit refers to the blocks before both have ended.
    fn sync_data(&self) -> io::Result<()> {
        let changed = self.sums.write().take_changed();
        for (offset, run) in &changed {
            self.found.note_no_room(self.sums_file.write_at(&[run], *offset))?;
        }
        if !changed.is_empty() {
            self.sums_file.sync()?;
        }
        self.file.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.found.note_no_room(self.write_summed(offset, data))
    }
}

impl Backend {
    fn set_length(&self, length: u64) -> io::Result<()> {
        self.file.set_length(length)?;
        self.sums.write().resize(length);
        // Space for the sums is allocated before a commit needs it.
        let (has, needs) = (self.sums_file.length()?, sums::file_bytes(length));
        if needs > has {
            self.sums_file.set_length(needs)?;
            self.sums_file.allocate(has, needs - has)?;
        }
        Ok(())
    }

    fn write_summed(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset == 0 && data.len() <= CHECKED_BYTES {
            return self.file.write_at(&[Pair::new(Pair::HEADER_SEED, data).bytes()], 0);
        }
        self.check_aligned(offset, data.len())?;
        let mut sums = self.sums.write();
        for (block, bytes) in (offset / BLOCK_BYTES as u64..).zip(data.chunks_exact(BLOCK_BYTES)) {
            sums.put(block, bytes);
        }
        drop(sums);
        self.file.write_at(&[data], offset)
    }
}
