//! What a brick asks of a file system. Small, so that tests run a brick on memory, on faults and through power cuts.
//!
//! Assumptions about the medium: what `sync` returned for survives a power cut; of the rest any part may; a write that a
//! power cut tears leaves each 512-byte sector old or new; a failed `sync` means that nothing unsynced can be trusted.

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

/// A directory tree.
pub trait Storage: Send + Sync {
    /// Opens a file; makes it (and, durably with the next `sync_directory`, its name) if asked.
    fn open(&self, path: &str, create: bool) -> Result<Arc<dyn StorageFile>>;
    /// Makes a directory and its parents; it may be there.
    fn create_directory(&self, path: &str) -> Result<()>;
    /// Removes a file; it may be missing.
    fn remove(&self, path: &str) -> Result<()>;
    /// Names in a directory.
    fn list(&self, path: &str) -> Result<Vec<String>>;
    /// Makes names in a directory durable.
    fn sync_directory(&self, path: &str) -> Result<()>;
    /// Room in the file system.
    fn space(&self) -> Result<Space>;
}

/// Room in a file system, as far as this process may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes of the whole file system, or of the quota if that is less.
    pub total: u64,
    /// Bytes that nothing uses, those that only root may take included: `total - free` is in use.
    pub free: u64,
    /// Bytes that this process may take.
    pub available: u64,
    /// Files that the file system can hold; 0: it does not count them (btrfs).
    pub files: u64,
    /// Files that this process may make; `u64::MAX` if they are not counted.
    pub files_available: u64,
}

impl Space {
    /// Of a file system that does not count files and keeps nothing for root.
    pub const fn of_bytes(total: u64, free: u64) -> Self {
        Self { total, free, available: free, files: 0, files_available: u64::MAX }
    }
}

/// Whether a call failed because the file system has no room of some kind: blocks, inodes, a quota, the greatest file.
/// Repeating the call can succeed once there is room.
pub fn is_no_room(error: &std::io::Error) -> bool {
    const EFBIG: i32 = 27;
    const ENOSPC: i32 = 28;
    const EDQUOT: i32 = 122;
    error.raw_os_error().is_some_and(|errno| [EFBIG, ENOSPC, EDQUOT].contains(&errno))
}

/// Whether a call failed because this process, or the machine, has no file descriptor left.
pub fn is_no_descriptor(error: &std::io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    error.raw_os_error().is_some_and(|errno| [ENFILE, EMFILE].contains(&errno))
}

/// Whether a read failed since the medium is damaged there, and not for want of descriptors, memory or leave: what the block layer
/// and file systems say of sectors and of their own sums.
pub fn is_damage(error: &std::io::Error) -> bool {
    const EIO: i32 = 5;
    const ENODATA: i32 = 61;
    const EBADMSG: i32 = 74;
    const EILSEQ: i32 = 84;
    const EUCLEAN: i32 = 117;
    error.raw_os_error().is_some_and(|errno| [EIO, ENODATA, EBADMSG, EILSEQ, EUCLEAN].contains(&errno))
}

/// How often, and after how long each time, an open is tried again that found no file descriptor: 30 s, in tests 200 ms.
const DESCRIPTOR_TRIES: u32 = if cfg!(test) { 20 } else { 3000 };
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(10);

/// Opens something. While there is no file descriptor for it, `close_others` is called and the open is tried again, for
/// 30 s.
pub fn patiently<T>(open: impl Fn() -> Result<T>, close_others: impl Fn()) -> Result<T> {
    for _ in 0..DESCRIPTOR_TRIES {
        match open() {
            Err(error) if is_no_descriptor(&error) => {
                close_others();
                std::thread::sleep(DESCRIPTOR_PAUSE);
            }
            settled => return settled,
        }
    }
    open()
}

/// An open file.
pub trait StorageFile: Send + Sync {
    /// Reads at most `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all of `parts`, one after the other.
    fn write_at(&self, parts: &[&[u8]], offset: u64) -> Result<()>;
    /// Bytes in the file.
    fn length(&self) -> Result<u64>;
    /// Cuts or extends (with zeros) the file.
    fn set_length(&self, length: u64) -> Result<()>;
    /// Takes a range's space where it has none; what it reads as stays. Best effort where a file system cannot.
    fn allocate(&self, offset: u64, length: u64) -> Result<()>;
    /// Gives a range's space back; it reads as zeros.
    fn punch(&self, offset: u64, length: u64) -> Result<()>;
    /// Makes the content durable.
    fn sync(&self) -> Result<()>;
    /// Lets go of what is cached and need not be written: reads come from the medium.
    fn forget_cached(&self) -> Result<()> {
        Ok(())
    }
}
