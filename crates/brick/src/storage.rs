//! The storage below a brick: two small traits, so that tests run a brick in memory, with faults and through power
//! cuts.
//!
//! Assumptions about the medium. What a successful `sync` covered survives a power cut; of the rest any part may. A
//! write that a power cut interrupts leaves each 512-byte sector old or new. After a failed `sync` nothing that was
//! unsynced can be trusted.

mod copy_on_write;
mod faulty;
mod memory;
mod power_cut;
mod quota;
mod real;

pub use copy_on_write::CopyOnWriteStorage;
pub use faulty::{CallKind, Fault, FaultError, FaultyStorage};
pub use memory::MemoryStorage;
pub use power_cut::{Cuts, PowerCutStorage, Random, Recording, Survivors};
pub use real::RealStorage;

use std::io::Result;
use std::sync::Arc;
use std::time::Duration;

/// A directory tree. Paths are relative to its root.
///
/// # Errors
/// Those of the operating system, whose kinds [`is_no_room`], [`is_no_descriptor`] and [`is_damage`] distinguish.
pub trait Storage: Send + Sync {
    /// Opens a file; if `create` is set, makes it if it is missing. Its name is durable after the next
    /// `sync_directory`.
    fn open(&self, path: &str, create: bool) -> Result<Arc<dyn StorageFile>>;
    /// Makes a directory and its parents, if they are missing.
    fn create_directory(&self, path: &str) -> Result<()>;
    /// Removes a file, if it exists.
    fn remove(&self, path: &str) -> Result<()>;
    /// The names in a directory.
    fn list(&self, path: &str) -> Result<Vec<String>>;
    /// Puts the names in a directory on stable storage.
    fn sync_directory(&self, path: &str) -> Result<()>;
    /// The room in the file system.
    fn space(&self) -> Result<Space>;
    /// Returns once what was removed or cut off is room again. btrfs counts it against a quota until its transaction
    /// ends, which can take 30 s.
    fn settle_removals(&self) -> Result<()> {
        Ok(())
    }
}

/// Room in a file system, for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes of the whole file system, or of the quota if that is less.
    pub total: u64,
    /// Bytes that are not in use, also those that only root may use: `total - free` are in use.
    pub free: u64,
    /// Bytes that this process may use.
    pub available: u64,
    /// Inodes of the file system; 0 if it does not count them (btrfs).
    pub files: u64,
    /// Inodes that this process may use; `u64::MAX` if they are not counted.
    pub files_available: u64,
}

impl Space {
    /// Room in a file system that does not count inodes and keeps nothing for root.
    pub const fn of_bytes(total: u64, free: u64) -> Self {
        Self { total, free, available: free, files: 0, files_available: u64::MAX }
    }
}

/// Whether a call failed because the file system lacks room of some kind: blocks, inodes, a quota, the length limit of
/// a file. It can succeed once there is room.
pub fn is_no_room(error: &std::io::Error) -> bool {
    const EFBIG: i32 = 27;
    const ENOSPC: i32 = 28;
    const EDQUOT: i32 = 122;
    error.raw_os_error().is_some_and(|errno| [EFBIG, ENOSPC, EDQUOT].contains(&errno))
}

/// Whether a call failed because this process or the system has no file descriptor left.
pub fn is_no_descriptor(error: &std::io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    error.raw_os_error().is_some_and(|errno| [ENFILE, EMFILE].contains(&errno))
}

/// Whether a read failed because the medium is damaged there, and not for want of descriptors, memory or permission:
/// the errors that block layer and file systems give for unreadable sectors and failed checks of their own.
pub fn is_damage(error: &std::io::Error) -> bool {
    const EIO: i32 = 5;
    const ENODATA: i32 = 61;
    const EBADMSG: i32 = 74;
    const EILSEQ: i32 = 84;
    const EUCLEAN: i32 = 117;
    error.raw_os_error().is_some_and(|errno| [EIO, ENODATA, EBADMSG, EILSEQ, EUCLEAN].contains(&errno))
}

/// Tries of an open that finds no file descriptor, with a pause after each: 30 s in total, 200 ms in tests.
const DESCRIPTOR_TRIES: u32 = if cfg!(test) { 20 } else { 3000 };
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(10);

/// Calls `open`. While it fails for want of a file descriptor, calls `close_others` and tries again, for 30 s.
///
/// # Errors
/// That of the last call of `open`.
pub fn patiently<T>(open: impl Fn() -> Result<T>, close_others: impl Fn()) -> Result<T> {
    for _ in 0..DESCRIPTOR_TRIES {
        match open() {
            Err(error) if is_no_descriptor(&error) => {
                close_others();
                std::thread::sleep(DESCRIPTOR_PAUSE);
            }
            outcome => return outcome,
        }
    }
    open()
}

/// An open file. Offsets and lengths are in bytes.
///
/// # Errors
/// As for [`Storage`]. After a failed `sync` the bytes that it should have covered must not be trusted.
pub trait StorageFile: Send + Sync {
    /// Reads at most `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Appends the `length` bytes from `offset` on to `buffer`; those behind the end of the file are zeros.
    fn append_to(&self, buffer: &mut Vec<u8>, length: usize, offset: u64) -> Result<()> {
        let begin = buffer.len();
        buffer.resize(begin + length, 0);
        self.read_at(&mut buffer[begin..], offset).map(|_| ())
    }
    /// Writes all of `parts`, one behind the other.
    fn write_at(&self, parts: &[&[u8]], offset: u64) -> Result<()>;
    /// The length of the file, in bytes.
    fn length(&self) -> Result<u64>;
    /// Truncates the file, or extends it with zeros.
    fn set_length(&self, length: u64) -> Result<()>;
    /// Allocates space for a range where it has none, without changing what it reads as. Does nothing where a file
    /// system cannot.
    fn allocate(&self, offset: u64, length: u64) -> Result<()>;
    /// Frees the space of a range, which reads as zeros then.
    fn punch(&self, offset: u64, length: u64) -> Result<()>;
    /// Puts the content on stable storage.
    fn sync(&self) -> Result<()>;
    /// Drops clean cached pages, so that reads come from the medium.
    fn forget_cached(&self) -> Result<()> {
        Ok(())
    }
}
