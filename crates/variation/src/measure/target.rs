//! The target of a measurement: a file in a directory, an existing file or device, or nothing at all.
//!
//! A file made here has a special name and a lock, and is removed when it is dropped. The file of a killed process has
//! no lock any more, and the next measurement in the directory removes it.

use crate::error::{Error, Kind, Result};
use crate::random::Random;
use crate::series::record::{Access, Job, Sync};
use rustix::fs::{FlockOperation, OFlags, flock, statvfs};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const PREFIX: &str = ".hekate-variation-";
/// Block size in which a file is filled, in bytes.
const FILL_BYTES: usize = 1 << 20;
/// Alignment of memory and offsets for direct I/O, in bytes; more than any disk requires.
const ALIGNMENT: usize = 4096;
/// Share of the file system that stays free: a full one is slow, and others use it too.
const FREE_SHARE: f64 = 0.05;
/// Bytes that stay free at most.
const FREE_BYTES: u64 = 1 << 30;

/// A target of operations.
pub trait Target: std::marker::Sync {
    /// The worker of one thread.
    fn worker(&self, index: u32) -> Result<Box<dyn Worker>>;

    /// Removes what was made for it, and reports once what cannot be removed. Dropping the target does the same without
    /// a report.
    fn clean(&mut self) -> Result<()> {
        Ok(())
    }
}

/// One thread's access to the target.
pub trait Worker: Send {
    /// Reads into or writes the bytes at this block.
    fn operate(&mut self, number: u64, bytes: &mut [u8]) -> std::io::Result<()>;
}

/// Bytes that do not compress, aligned for direct I/O.
pub struct Block {
    raw: Vec<u8>,
    start: usize,
    length: usize,
}

impl Block {
    pub fn random(length: usize, random: &mut Random) -> Self {
        let mut raw = vec![0; length + ALIGNMENT];
        let start = raw.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        raw.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.bits().to_le_bytes()[..chunk.len()]));
        Self { raw, start, length }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.raw[self.start..self.start + self.length]
    }

    /// Makes the block differ from all other blocks, for stores that keep equal ones once.
    pub fn stamp(&mut self, thread: u64, turn: u64) {
        let stamp = [thread.to_le_bytes(), turn.to_le_bytes()].concat();
        self.bytes().iter_mut().zip(stamp).for_each(|(to, byte)| *to = byte);
    }
}

/// The kind of a target, from its name on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Directory,
    File,
    Device,
    S3,
    /// No store: measures the cost of measuring itself.
    Nothing,
}

impl Which {
    pub fn name(self) -> &'static str {
        match self {
            Which::Directory => "directory",
            Which::File => "file",
            Which::Device => "device",
            Which::S3 => "s3",
            Which::Nothing => "nothing",
        }
    }

    /// Finds the kind from the name and the file system.
    ///
    /// # Errors
    ///
    /// The name is neither a directory nor a file nor a block device.
    pub fn of(target: &str) -> Result<Self> {
        if target == "nothing" {
            return Ok(Which::Nothing);
        }
        if target.starts_with("s3://") {
            return Ok(Which::S3);
        }
        let path = Path::new(target);
        let kind = std::fs::metadata(path).map_err(|error| Error::file("open", path, error))?.file_type();
        if kind.is_dir() {
            Ok(Which::Directory)
        } else if kind.is_block_device() {
            Ok(Which::Device)
        } else if kind.is_file() {
            Ok(Which::File)
        } else {
            Err(Error::wrong_use(format!("{target} is neither a directory nor a file nor a block device")))
        }
    }
}

/// The size of an existing file or device, in bytes.
///
/// # Errors
///
/// The file cannot be opened.
pub fn size_of(path: &Path) -> Result<u64> {
    use std::io::Seek;
    let mut file = File::open(path).map_err(|error| Error::file("open", path, error))?;
    file.seek(std::io::SeekFrom::End(0)).map_err(|error| Error::file("read", path, error))
}

/// No store: an operation returns at once.
pub struct Nothing;

impl Target for Nothing {
    fn worker(&self, _: u32) -> Result<Box<dyn Worker>> {
        Ok(Box::new(Nothing))
    }
}

impl Worker for Nothing {
    fn operate(&mut self, _: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        std::hint::black_box(bytes);
        Ok(())
    }
}

/// A file or device.
pub struct FileTarget {
    path: PathBuf,
    access: Access,
    sync: Sync,
    direct: bool,
    /// A locked file that was made here, and is removed with this value.
    made: Option<File>,
}

impl Drop for FileTarget {
    fn drop(&mut self) {
        // A caller that wants the error has called `clean` before.
        let _ = self.clean();
    }
}

impl FileTarget {
    /// An existing file or device. Writing to it destroys its content, so `overwrite` must confirm that.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, is in use, or would be overwritten without `overwrite`.
    pub fn existing(path: &Path, which: Which, job: &Job, overwrite: bool) -> Result<Self> {
        if job.access == Access::Write && !overwrite {
            let text = format!("{}: writing destroys its content; to do so, add --overwrite", path.display());
            return Err(Error::wrong_use(text));
        }
        let target = Self { path: path.into(), access: job.access, sync: job.sync, direct: job.direct, made: None };
        // The kernel refuses this for a device that is mounted or has another exclusive user.
        let exclusive =
            if which == Which::Device && job.access == Access::Write { OFlags::EXCL } else { OFlags::empty() };
        target.open(exclusive)?;
        Ok(target)
    }

    /// A new file of the job's size, filled with random bytes; `report_bytes` receives the bytes written. None: it
    /// was stopped.
    ///
    /// # Errors
    ///
    /// There is no room, or the file cannot be made or filled.
    pub fn in_directory(
        directory: &Path,
        job: &Job,
        stop: &AtomicBool,
        report_bytes: &mut dyn FnMut(u64),
    ) -> Result<Option<Self>> {
        remove_left_behind(directory)?;
        check_room(directory, job.size_bytes)?;
        let path = directory.join(format!("{PREFIX}{}.tmp", std::process::id()));
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = made.map_err(|error| Error::file("make", &path, error))?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        let writer = file.try_clone().map_err(|error| Error::file("make", &path, error))?;
        let target = Self { path, access: job.access, sync: job.sync, direct: job.direct, made: Some(file) };
        locked.map_err(|error| Error::file("lock", &target.path, error.into()))?;
        let filled = target.fill(&writer, job.size_bytes, stop, report_bytes);
        filled.map_err(|error| Error::file("write", &target.path, error))?;
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        target.open(OFlags::empty())?;
        Ok(Some(target))
    }

    fn fill(
        &self,
        file: &File,
        size: u64,
        stop: &AtomicBool,
        report_bytes: &mut dyn FnMut(u64),
    ) -> std::io::Result<()> {
        let mut random = Random::seeded(super::now_ms());
        let mut block = Block::random(FILL_BYTES, &mut random);
        let mut written = 0;
        while written < size && !stop.load(Ordering::Relaxed) {
            block.stamp(u64::MAX, written);
            let part = FILL_BYTES.min((size - written) as usize);
            file.write_all_at(&block.bytes()[..part], written)?;
            written += part as u64;
            report_bytes(written);
        }
        file.sync_all()?;
        // The new bytes would be read from memory otherwise; some file systems do not support the call.
        let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, more: OFlags) -> Result<File> {
        let is_write = self.access == Access::Write;
        let mut flags = more;
        if self.direct {
            flags |= OFlags::DIRECT;
        }
        match self.sync {
            Sync::Dsync if is_write => flags |= OFlags::DSYNC,
            Sync::Sync if is_write => flags |= OFlags::SYNC,
            _ => (),
        }
        let opened =
            OpenOptions::new().read(!is_write).write(is_write).custom_flags(flags.bits() as i32).open(&self.path);
        opened.map_err(|error| {
            let path = self.path.display();
            match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::INVAL) if self.direct => Error::wrong_use(format!(
                    "{path}: this file system does not support direct I/O; leave --direct out"
                )),
                Some(rustix::io::Errno::BUSY) => {
                    Error::new(Kind::Unavailable, format!("{path} is in use, perhaps mounted; unmount it first"))
                }
                _ => Error::file("open", &self.path, error),
            }
        })
    }
}

impl Target for FileTarget {
    fn worker(&self, _: u32) -> Result<Box<dyn Worker>> {
        Ok(Box::new(FileWorker { file: self.open(OFlags::empty())?, access: self.access, sync: self.sync }))
    }

    fn clean(&mut self) -> Result<()> {
        match self.made.take() {
            None => Ok(()),
            Some(_) => match std::fs::remove_file(&self.path) {
                // Another process removed it.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                other => other.map_err(|error| Error::file("remove", &self.path, error)),
            }
            // A process that was killed just before this one began may have held its lock until its last operation
            // ended.
            .and_then(|()| self.path.parent().map_or(Ok(()), remove_left_behind)),
        }
    }
}

struct FileWorker {
    file: File,
    access: Access,
    sync: Sync,
}

impl Worker for FileWorker {
    fn operate(&mut self, number: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        let place = number * bytes.len() as u64;
        if self.access == Access::Read {
            return self.file.read_exact_at(bytes, place);
        }
        self.file.write_all_at(bytes, place)?;
        match self.sync {
            Sync::Fdatasync => self.file.sync_data(),
            Sync::Fsync => self.file.sync_all(),
            Sync::None | Sync::Dsync | Sync::Sync => Ok(()),
        }
    }
}

/// Removes files of killed processes: their locks are free.
fn remove_left_behind(directory: &Path) -> Result<()> {
    let entries = std::fs::read_dir(directory).map_err(|error| Error::file("open", directory, error))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        if let Ok(file) = File::open(entry.path())
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            std::fs::remove_file(entry.path()).map_err(|error| Error::file("remove", &entry.path(), error))?;
        }
    }
    Ok(())
}

/// Refuses to fill the file system.
///
/// # Errors
///
/// Less than the required share would stay free, or the file system cannot be asked.
pub fn check_room(directory: &Path, bytes: u64) -> Result<()> {
    let found = statvfs(directory).map_err(|error| Error::file("ask for the room of", directory, error.into()))?;
    let (total, free) = (found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize);
    let kept = ((total as f64 * FREE_SHARE) as u64).min(FREE_BYTES);
    if bytes.saturating_add(kept) > free {
        let mib = |bytes: u64| bytes >> 20;
        let text = format!(
            "{}: {} MiB are free and {} MiB would be written, but {} MiB (5 % of it, at most 1 GiB) must stay free; choose a smaller --size",
            directory.display(),
            mib(free),
            mib(bytes),
            mib(kept)
        );
        return Err(Error::new(Kind::CannotCreate, text));
    }
    Ok(())
}
