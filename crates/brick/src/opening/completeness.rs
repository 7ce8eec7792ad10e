//! Checks, before a brick is used, that all its segments are there.

use crate::journal::Geometry;
use crate::storage::Storage;
use hekate_proto::{Error, Result};

/// `Damaged`, with the name of the file, unless all segments are there, each of its full length. The index checks its
/// own files.
pub fn check(storage: &dyn Storage, geometry: Geometry) -> Result<()> {
    let missing = |path: &str, why: &dyn std::fmt::Display| Error::Damaged {
        what: format!("{path}: {why} (brick invariant 1); rebuild this brick from its replicas"),
    };
    for number in 0..geometry.segments {
        let path = geometry.path_of(number);
        let length = storage.open(&path, false).and_then(|file| file.length()).map_err(|e| missing(&path, &e))?;
        if length < geometry.segment_bytes {
            return Err(missing(&path, &format_args!("{length} bytes of {}", geometry.segment_bytes)));
        }
    }
    Ok(())
}
