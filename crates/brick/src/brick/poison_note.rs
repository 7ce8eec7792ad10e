//! The file `stopped` that a brick leaves when it stops itself, for the next opening.
//!
//! After a failed fsync Linux drops the pages that it could not write, answers reads of them from the page cache all
//! the same, and reports success to the next fsync. So the opening that finds the file trusts nothing that was not
//! synced before, as after a power cut, and reads from the disk instead of the page cache (Rebello et al., "Can
//! Applications Recover from fsync Failures?", USENIX ATC 2020).

use crate::disk::home::Home;
use crate::journal::Geometry;
use crate::storage::Storage;
use hekate_proto::{Error, Result};

/// Name of the file, in the brick's directory.
pub const FILE: &str = "stopped";

/// Bytes of the file that are read: it is written for people.
const NOTE_BYTES_MAX: usize = 4096;

/// Writes the file, if the disk still takes it.
pub fn leave(storage: &dyn Storage, why: &str) {
    let write = || -> std::io::Result<()> {
        let file = storage.open(FILE, true)?;
        file.set_length(0)?;
        file.write_at(&[why.as_bytes()], 0)?;
        file.sync()?;
        storage.sync_directory("")
    };
    // The disk may have failed. Without the file the next opening is that of a killed process.
    let _ = write();
}

/// Why the brick stopped itself, if its incarnation has not been settled since.
pub fn read(storage: &dyn Storage) -> Result<Option<String>> {
    let failed = |e| Error::io(format!("read {FILE}"), e);
    let file = match storage.open(FILE, false) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let mut note = vec![0; NOTE_BYTES_MAX];
    let length = file.read_at(&mut note, 0).map_err(failed)?;
    Ok(Some(String::from_utf8_lossy(&note[..length]).into_owned()))
}

/// Drops the journal, the index and the data files from the page cache, so that reads come from the disk.
pub fn distrust_cache(storage: &dyn Storage, geometry: Geometry) -> Result<()> {
    let forget = |path: &str| {
        let forgotten = storage.open(path, false).and_then(|file| file.forget_cached());
        forgotten.map_err(|e| Error::io(format!("read {path} anew"), e))
    };
    (0..geometry.segments).try_for_each(|number| forget(&geometry.path_of(number)))?;
    forget(crate::index::FILE)?;
    forget(crate::index::SUMS_FILE)?;
    for number in 0..Home::DIRECTORIES {
        let directory = Home::directory_of(number);
        let names = storage.list(&directory).map_err(|e| Error::io(format!("list {directory}"), e))?;
        names.iter().try_for_each(|name| forget(&format!("{directory}/{name}")))?;
    }
    Ok(())
}

/// Removes the file: the brick's incarnation is settled.
pub fn clear(storage: &dyn Storage) -> Result<()> {
    storage.remove(FILE).map_err(|e| Error::io(format!("remove {FILE}"), e))
}
