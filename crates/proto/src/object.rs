//! What makes a file an object: its ETag, and names for keys that cannot be names.

use crate::attr::Attr;
use bytes::Bytes;

/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// All names that stand for something else than themselves begin with these bytes.
pub const ESCAPE: &[u8] = b"%~";
/// Begin of a name that stands for a segment of a key which cannot have its own name.
pub const ESCAPED_NAME: &[u8] = b"%~-";

/// The file's ETag, without quotes: the recorded one, or one made of the inode's id and change counter, which no content
/// of this or another file had before. It does not have the form of an MD5 sum or of a joined upload's ETag.
pub fn etag_of(attr: &Attr) -> Bytes {
    if attr.etag.is_empty() {
        return Bytes::from(format!("h-{:032x}-{:x}", attr.id.bits(), attr.change));
    }
    attr.etag.clone()
}

/// The part of a name that decides its partition: a name and the escaped name of the same segment are in one partition.
pub(crate) fn hashed_part(name: &[u8]) -> &[u8] {
    name.strip_prefix(ESCAPED_NAME).filter(|rest| !rest.is_empty()).unwrap_or(name)
}
