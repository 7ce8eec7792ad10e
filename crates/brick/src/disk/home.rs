//! Data files, where blocks are home: one file for each shard. `docs/format/data.md` describes them.

use crate::storage::{Storage, StorageFile, is_damage, is_no_descriptor, is_no_room, patiently};
use hekate_proto::{BLOCK_BYTES, DataId, Error, Result, ShardId, VolumeId};
use hekate_threads::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Data files kept open at most. A process has 1,024 file descriptors by default (getrlimit(2)).
const OPEN_FILES_MAX: usize = 256;
/// The path of a shard's data file, relative to the brick's directory.
pub fn data_file_path(shard: ShardId) -> String {
    Home::path(shard)
}

/// The data files of a brick.
pub struct Home {
    storage: Arc<dyn Storage>,
    open: Mutex<OpenFiles>,
}

#[derive(Default)]
struct OpenFiles {
    files: HashMap<ShardId, (Arc<dyn StorageFile>, u64)>,
    clock: u64,
    /// Number of files that this process has made, by directory.
    files_made: HashMap<u32, u64>,
    /// Value of `files_made` when the directory was last synced. Missing: not yet by this process, and an earlier one
    /// may have died before it synced the directory.
    files_made_at_sync: HashMap<u32, u64>,
}

impl Home {
    /// Number of directories that data files are spread over.
    pub const DIRECTORIES: u32 = 256;

    pub fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, open: Mutex::default() }
    }

    /// Makes the directories of data files of a new brick.
    pub fn create(storage: &dyn Storage) -> Result<()> {
        let failed = |e| Error::io("make the data directories", e);
        for number in 0..Self::DIRECTORIES {
            storage.create_directory(&Self::directory_of(number)).map_err(failed)?;
        }
        storage.sync_directory("data").map_err(failed)
    }

    fn directory_number(shard: ShardId) -> u32 {
        shard.position().0 % Self::DIRECTORIES
    }

    /// The path of a directory of data files, relative to the brick's directory.
    pub fn directory_of(number: u32) -> String {
        format!("data/{number:02x}")
    }

    /// The shard whose data file has this name; `None` if no data file has such a name.
    pub fn shard_of(name: &str) -> Option<ShardId> {
        let mut parts = name.split('-');
        let (volume, data, index) = (parts.next()?, parts.next()?, parts.next()?);
        let shard = ShardId {
            volume: VolumeId(u32::from_str_radix(volume, 16).ok()?),
            data: DataId(u128::from_str_radix(data, 16).ok()?),
            index: u64::from_str_radix(index, 16).ok()?,
        };
        Self::path(shard).ends_with(&format!("/{name}")).then_some(shard)
    }

    /// The path of a shard's data file, relative to the brick's directory.
    pub fn path(shard: ShardId) -> String {
        let directory = Self::directory_of(Self::directory_number(shard));
        format!("{directory}/{:08x}-{:032x}-{:08x}", shard.volume.0, shard.data.0, shard.index)
    }

    /// The open data file. If no file descriptor is free, all other data files are closed, and the open is tried again
    /// for 30 s.
    fn file(&self, shard: ShardId, create: bool) -> std::io::Result<Arc<dyn StorageFile>> {
        patiently(|| self.open_file(shard, create), || self.open.lock().files.clear())
    }

    fn open_file(&self, shard: ShardId, create: bool) -> std::io::Result<Arc<dyn StorageFile>> {
        let mut open = self.open.lock();
        open.clock += 1;
        let clock = open.clock;
        if let Some((file, used)) = open.files.get_mut(&shard) {
            *used = clock;
            return Ok(file.clone());
        }
        let file = match self.storage.open(&Self::path(shard), false) {
            Err(error) if create && error.kind() == std::io::ErrorKind::NotFound => {
                *open.files_made.entry(Self::directory_number(shard)).or_default() += 1;
                self.storage.open(&Self::path(shard), true)?
            }
            other => other?,
        };
        if open.files.len() >= OPEN_FILES_MAX {
            // The half that was used longest ago is closed at once, so that finding it costs little on average.
            let mut uses: Vec<u64> = open.files.values().map(|(_, used)| *used).collect();
            let (_, middle, _) = uses.select_nth_unstable(OPEN_FILES_MAX / 2);
            let middle = *middle;
            open.files.retain(|_, (_, used)| *used > middle);
        }
        open.files.insert(shard, (file.clone(), clock));
        Ok(file)
    }

    /// Writes whole blocks from `first_block` on, and makes the file if it is missing.
    pub fn write(&self, shard: ShardId, first_block: u32, bytes: &[&[u8]]) -> Result<()> {
        let offset = u64::from(first_block) * BLOCK_BYTES as u64;
        self.file(shard, true).and_then(|file| file.write_at(bytes, offset)).map_err(|e| failed("write", shard, e))
    }

    /// Reads whole blocks into `buffer`. Bytes behind the end of the file, or of a file that is missing, are left as
    /// they are.
    pub fn read(&self, shard: ShardId, first_block: u32, buffer: &mut [u8]) -> Result<()> {
        self.try_read(shard, first_block, buffer).map_err(|e| failed("read", shard, e))
    }

    fn try_read(&self, shard: ShardId, first_block: u32, buffer: &mut [u8]) -> std::io::Result<()> {
        let offset = u64::from(first_block) * BLOCK_BYTES as u64;
        match self.file(shard, false) {
            Ok(file) => file.read_at(buffer, offset).map(|_| ()),
            // Checksums show whether blocks are missing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Appends whole blocks to `buffer`. Bytes behind the end of the file, or of a file that is missing, are zeros.
    pub fn append(&self, shard: ShardId, first_block: u32, count: usize, buffer: &mut Vec<u8>) -> Result<()> {
        let (length, offset) = (count * BLOCK_BYTES, u64::from(first_block) * BLOCK_BYTES as u64);
        let appended = match self.file(shard, false) {
            Ok(file) => file.append_to(buffer, length, offset),
            // Checksums show whether blocks are missing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                buffer.resize(buffer.len() + length, 0);
                Ok(())
            }
            Err(error) => Err(error),
        };
        appended.map_err(|e| failed("read", shard, e))
    }

    /// `count` blocks, not checked; zeros for those that the disk cannot read (EIO).
    pub fn readable(&self, shard: ShardId, first_block: u32, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count * BLOCK_BYTES];
        let read = self.try_read(shard, first_block, &mut bytes);
        if !matches!(&read, Err(error) if is_damage(error)) {
            return read.map(|()| bytes).map_err(|e| failed("read", shard, e));
        }
        for (number, block) in (first_block..).zip(bytes.chunks_mut(BLOCK_BYTES)) {
            match self.try_read(shard, number, block) {
                Err(error) if is_damage(&error) => block.fill(0),
                read => read.map_err(|e| failed("read", shard, e))?,
            }
        }
        Ok(bytes)
    }

    /// Puts the file's bytes and its name on stable storage.
    ///
    /// # Errors
    /// `Unavailable`: no file descriptor is free, and nothing was synced; the caller may try again. `Poisoned`: the
    /// sync failed.
    pub fn sync(&self, shard: ShardId) -> Result<()> {
        let file = match self.file(shard, false) {
            // A power cut may have taken the file with its only blocks. Checksums show whether blocks are missing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if is_no_descriptor(&error) => return Err(failed("open", shard, error)),
            file => file,
        };
        let poisoned = |e| Error::Poisoned { what: format!("syncing {}: {e}", Self::path(shard)) };
        file.and_then(|file| file.sync()).map_err(poisoned)?;
        self.sync_name(shard).map_err(|e| match is_no_descriptor(&e) {
            true => failed("open the directory of", shard, e),
            false => poisoned(e),
        })
    }

    /// Returns once the file's name is on stable storage, whichever thread made the file, and whichever syncs the
    /// directory meanwhile.
    fn sync_name(&self, shard: ShardId) -> std::io::Result<()> {
        let number = Self::directory_number(shard);
        let made = {
            let open = self.open.lock();
            let made = open.files_made.get(&number).copied().unwrap_or(0);
            if open.files_made_at_sync.get(&number).is_some_and(|named| *named >= made) {
                return Ok(());
            }
            made
        };
        // A failed sync is not repeated here: only the open of the directory can want a file descriptor.
        patiently(|| self.storage.sync_directory(&Self::directory_of(number)), || self.open.lock().files.clear())?;
        // The sync may not cover a file that was made while it ran.
        let mut open = self.open.lock();
        let named = open.files_made_at_sync.entry(number).or_default();
        *named = (*named).max(made);
        Ok(())
    }

    /// Allocates space for `count` blocks from `first` on, without bytes.
    pub fn allocate(&self, shard: ShardId, first: u32, count: u32) -> Result<()> {
        let (offset, length) = (u64::from(first) * BLOCK_BYTES as u64, u64::from(count) * BLOCK_BYTES as u64);
        self.file(shard, true)
            .and_then(|file| file.allocate(offset, length))
            .map_err(|e| failed("allocate space in", shard, e))
    }

    /// Frees the space of the blocks `from..to`. They read as zeros.
    pub fn punch(&self, shard: ShardId, from: u32, to: u32) -> Result<()> {
        let block = BLOCK_BYTES as u64;
        let punch = |file: Arc<dyn StorageFile>| file.punch(u64::from(from) * block, u64::from(to - from) * block);
        match self.file(shard, false) {
            Ok(file) => punch(file).map_err(|e| failed("punch", shard, e)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("open", shard, error)),
        }
    }

    /// Removes the file.
    pub fn remove(&self, shard: ShardId) -> Result<()> {
        let mut open = self.open.lock();
        open.files.remove(&shard);
        drop(open);
        self.storage.remove(&Self::path(shard)).map_err(|e| failed("remove", shard, e))
    }
}

fn failed(doing: &str, shard: ShardId, error: std::io::Error) -> Error {
    if is_no_room(&error) {
        return Error::NoSpace { what: format!("to {doing} {}: {error}", Home::path(shard)) };
    }
    if is_no_descriptor(&error) {
        return no_descriptor(&error);
    }
    Error::io(format!("{doing} {}", Home::path(shard)), error)
}

/// The error for a file that could not be opened because the process, or the system, has too many open.
pub(crate) fn no_descriptor(error: &std::io::Error) -> Error {
    let fix = "give the server more of them (`LimitNOFILE=` in its unit, `ulimit -n`; /proc/sys/fs/file-max)";
    Error::Unavailable { what: format!("no file descriptor is free ({error}); {fix}") }
}
