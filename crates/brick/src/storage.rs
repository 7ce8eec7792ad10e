//! What a brick asks of a file system. Small, so that tests run a brick on memory, on faults and through power cuts.
//!
//! Assumptions about the medium: what `sync` returned for survives a power cut; of the rest any part may; a write that a
//! power cut tears leaves each 512-byte sector old or new; a failed `sync` means that nothing unsynced can be trusted.

#[cfg(test)]
mod conformance;
mod copy_on_write;
mod faulty;
mod memory;
mod power_cut;
mod real;

pub use copy_on_write::CopyOnWriteStorage;
pub use faulty::{CallKind, Fault, FaultError, FaultyStorage};
pub use memory::MemoryStorage;
pub use power_cut::{Cuts, PowerCutStorage, Random, Recording, Survivors};
pub use real::RealStorage;

use std::io::Result;
use std::sync::Arc;

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
    /// Bytes of the whole file system and bytes free in it.
    fn space(&self) -> Result<(u64, u64)>;
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
