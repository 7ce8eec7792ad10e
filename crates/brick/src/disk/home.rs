//! Data files: one plain file for each shard. `docs/format/data.md` is the document.

use crate::storage::{Storage, StorageFile, is_damage, is_no_descriptor, is_no_room, patiently};
use hekate_proto::{BLOCK_BYTES, DataId, Error, Result, ShardId, VolumeId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Open data files kept; a process has 1,024 descriptors unless told otherwise.
const OPEN_FILES_MAX: usize = 256;
/// The path of a shard's data file in its brick.
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
    /// Files that this process has made, by directory.
    made: HashMap<u32, u64>,
    /// How many of them had been made when the directory was last synced. None: an earlier process may have died before
    /// it did.
    named: HashMap<u32, u64>,
}

impl Home {
    /// Directories that data files are spread over.
    pub const DIRECTORIES: u32 = 256;

    pub fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, open: Mutex::default() }
    }

    /// Makes the directories of a new brick.
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

    /// The path of a directory of data files.
    pub fn directory_of(number: u32) -> String {
        format!("data/{number:02x}")
    }

    /// The shard whose data file has this name; `None`: it is not one of ours.
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

    /// The path of a shard's data file in its brick.
    pub fn path(shard: ShardId) -> String {
        let directory = Self::directory_of(Self::directory_number(shard));
        format!("{directory}/{:08x}-{:032x}-{:08x}", shard.volume.0, shard.data.0, shard.index)
    }

    /// The open data file. For want of a file descriptor all others are closed, and the open is tried again for a while.
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
                *open.made.entry(Self::directory_number(shard)).or_default() += 1;
                self.storage.open(&Self::path(shard), true)?
            }
            other => other?,
        };
        if open.files.len() >= OPEN_FILES_MAX {
            // The older half goes at once, so that finding it costs little on average.
            let mut uses: Vec<u64> = open.files.values().map(|(_, used)| *used).collect();
            let (_, middle, _) = uses.select_nth_unstable(OPEN_FILES_MAX / 2);
            let middle = *middle;
            open.files.retain(|_, (_, used)| *used > middle);
        }
        open.files.insert(shard, (file.clone(), clock));
        Ok(file)
    }

    /// Writes whole blocks.
    pub fn write(&self, shard: ShardId, first_block: u32, bytes: &[&[u8]]) -> Result<()> {
        let offset = u64::from(first_block) * BLOCK_BYTES as u64;
        self.file(shard, true).and_then(|file| file.write_at(bytes, offset)).map_err(|e| failed("write", shard, e))
    }

    /// Reads whole blocks into `buffer`; what the file does not have is left as it is.
    pub fn read(&self, shard: ShardId, first_block: u32, buffer: &mut [u8]) -> Result<()> {
        self.try_read(shard, first_block, buffer).map_err(|e| failed("read", shard, e))
    }

    fn try_read(&self, shard: ShardId, first_block: u32, buffer: &mut [u8]) -> std::io::Result<()> {
        let offset = u64::from(first_block) * BLOCK_BYTES as u64;
        match self.file(shard, false) {
            Ok(file) => file.read_at(buffer, offset).map(|_| ()),
            // The checksums tell whether something was to be there.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// So many blocks as they are, unchecked, with zeros for those that are damaged in a way that the disk knows of: checksums tell.
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
    pub fn sync(&self, shard: ShardId) -> Result<()> {
        let file = match self.file(shard, false) {
            // A power cut may have taken the file with its only blocks; whether any is missed, checksums tell.
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

    /// Returns once the file's name is on stable storage, whoever made it and whoever syncs it at the same time.
    fn sync_name(&self, shard: ShardId) -> std::io::Result<()> {
        let number = Self::directory_number(shard);
        let made = {
            let open = self.open.lock();
            let made = open.made.get(&number).copied().unwrap_or(0);
            if open.named.get(&number).is_some_and(|named| *named >= made) {
                return Ok(());
            }
            made
        };
        // No sync is tried again here: only the open before it can want a file descriptor.
        patiently(|| self.storage.sync_directory(&Self::directory_of(number)), || self.open.lock().files.clear())?;
        // A file that was made during the sync may not be covered.
        let mut open = self.open.lock();
        let named = open.named.entry(number).or_default();
        *named = (*named).max(made);
        Ok(())
    }

    /// Gives so many blocks from `first` on their space, without bytes.
    pub fn allocate(&self, shard: ShardId, first: u32, count: u32) -> Result<()> {
        let (offset, length) = (u64::from(first) * BLOCK_BYTES as u64, u64::from(count) * BLOCK_BYTES as u64);
        self.file(shard, true)
            .and_then(|file| file.allocate(offset, length))
            .map_err(|e| failed("make room in", shard, e))
    }

    /// Gives back the space of the blocks `from..to`.
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

/// The error for a file that could not be opened because the process, or the machine, has too many open.
pub(crate) fn no_descriptor(error: &std::io::Error) -> Error {
    let fix = "give the server more of them (`LimitNOFILE=` in its unit, `ulimit -n`; /proc/sys/fs/file-max)";
    Error::Unavailable { what: format!("no file descriptor is free ({error}); {fix}") }
}
