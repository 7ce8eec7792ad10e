//! Conversion of attributes, times, errors and directory entries to the kernel's structures.

use crate::abi::*;
use bytes::Bytes;
use hekate_proto::{Attr, Error, NodeKind, Time};
use rustix::io::Errno;
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

const NANOSECONDS: i64 = 1_000_000_000;
/// Unit of `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;
/// Value of `st_blksize`: the preferred size of reads and writes, in bytes.
const BLKSIZE: u32 = 4096;

/// The errno that the kernel returns to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed(pub Errno);

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(Errno::from_raw_os_error(error.errno()))
    }
}

/// Body of a reply, or the error.
pub(crate) type Outcome = Result<Bytes, Failed>;

/// A structure as the body of a reply.
pub(crate) fn bytes_of<T: IntoBytes + Immutable>(value: &T) -> Bytes {
    Bytes::copy_from_slice(value.as_bytes())
}

/// The type bits of `st_mode`.
pub(crate) fn type_bits(kind: NodeKind) -> u32 {
    match kind {
        NodeKind::Fifo => 0o010_000,
        NodeKind::CharDevice => 0o020_000,
        NodeKind::Directory => 0o040_000,
        NodeKind::BlockDevice => 0o060_000,
        NodeKind::File => 0o100_000,
        NodeKind::Symlink => 0o120_000,
        NodeKind::Socket => 0o140_000,
    }
}

/// Seconds (two's complement) and nanoseconds of a time.
fn split(time: Time) -> (u64, u32) {
    (time.0.div_euclid(NANOSECONDS) as u64, time.0.rem_euclid(NANOSECONDS) as u32)
}

/// Inverse of [`split`], for utimensat(2).
pub(crate) fn join(seconds: u64, nanoseconds: u32) -> Time {
    Time((seconds as i64).saturating_mul(NANOSECONDS).saturating_add(i64::from(nanoseconds)))
}

/// `fuse_attr` of an inode.
pub(crate) fn attr_out(attr: &Attr) -> AttrOut {
    let ((atime, atime_ns), (mtime, mtime_ns), (ctime, ctime_ns)) =
        (split(attr.atime), split(attr.mtime), split(attr.ctime));
    AttrOut {
        ino: attr.id.number(),
        size: attr.size,
        blocks: attr.size.div_ceil(BLOCK_BYTES),
        atime,
        mtime,
        ctime,
        atime_ns,
        mtime_ns,
        ctime_ns,
        mode: type_bits(attr.kind) | u32::from(attr.mode),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.device as u32,
        blksize: BLKSIZE,
        flags: 0,
    }
}

/// `fuse_entry_out` of an inode whose name the kernel may cache for `name`, and whose attributes for `attributes`.
pub(crate) fn entry_out(attr: &Attr, name: Duration, attributes: Duration) -> EntryOut {
    EntryOut {
        node: attr.id.number(),
        attr: attr_out(attr),
        attr_valid: attributes.as_secs(),
        attr_valid_ns: attributes.subsec_nanos(),
        ..valid_for(name)
    }
}

/// `fuse_entry_out` of a name that does not exist.
pub(crate) fn missing_out(cache: Duration) -> EntryOut {
    valid_for(cache)
}

fn valid_for(cache: Duration) -> EntryOut {
    EntryOut {
        entry_valid: cache.as_secs(),
        attr_valid: cache.as_secs(),
        entry_valid_ns: cache.subsec_nanos(),
        attr_valid_ns: cache.subsec_nanos(),
        ..Default::default()
    }
}

/// Reply to GETATTR and SETATTR.
pub(crate) fn attr_reply(attr: &Attr, cache: Duration) -> Bytes {
    let (attr_valid, attr_valid_ns) = (cache.as_secs(), cache.subsec_nanos());
    bytes_of(&AttrReply { attr_valid, attr_valid_ns, padding: 0, attr: attr_out(attr) })
}

/// Reply to READDIR or READDIRPLUS: entries up to a length.
pub(crate) struct Listing {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Listing {
    /// A listing of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u32) -> Self {
        let bytes_max = bytes_max.min(crate::negotiate::IO_BYTES) as usize;
        Self { bytes: Vec::with_capacity(bytes_max.min(32 << 10)), bytes_max }
    }

    /// Appends an entry, for READDIRPLUS with the attributes of its inode. `next` is the offset of the entry after
    /// it. False if there is no room, and nothing was appended.
    pub(crate) fn push(&mut self, entry: &ListingEntry, next: u64) -> bool {
        let plus = entry.plus.map_or(0, |_| size_of::<EntryOut>());
        let length = (plus + size_of::<Dirent>() + entry.name.len()).next_multiple_of(8);
        if self.bytes.len() + length > self.bytes_max {
            return false;
        }
        let end = self.bytes.len() + length;
        if let Some(known) = &entry.plus {
            self.bytes.extend_from_slice(known.as_bytes());
        }
        let (name_length, kind) = (entry.name.len() as u32, type_bits(entry.kind) >> 12);
        self.bytes.extend_from_slice(Dirent { ino: entry.ino, offset: next, name_length, kind }.as_bytes());
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(end, 0);
        true
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }
}

/// One entry for [`Listing::push`].
pub(crate) struct ListingEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: u64,
    pub(crate) kind: NodeKind,
    pub(crate) plus: Option<EntryOut>,
}

/// The value of an extended attribute, or its size, for a caller's buffer of `size` bytes.
pub(crate) fn sized(value: Bytes, size: u32) -> Outcome {
    match size {
        0 => Ok(bytes_of(&XattrSizeOut { size: value.len() as u32, padding: 0 })),
        size if (size as usize) < value.len() => Err(Errno::RANGE.into()),
        _ => Ok(value),
    }
}

/// Names as listxattr(2) returns them, each followed by a NUL.
pub(crate) fn joined<'a>(names: impl Iterator<Item = &'a [u8]>) -> Bytes {
    names.flat_map(|name| [name, b"\0"]).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds_positive() {
        assert_eq!(split(Time(-1)), ((-1i64) as u64, 999_999_999));
        assert_eq!(join((-1i64) as u64, 999_999_999), Time(-1));
        assert_eq!(join(u64::MAX >> 1, 5), Time(i64::MAX));
    }

    #[test]
    fn a_listing_stops_before_it_is_too_long_and_aligns_its_entries() {
        let entry = |plus| ListingEntry { name: b"abc", ino: 5, kind: NodeKind::File, plus };
        let mut listing = Listing::new(70);
        assert!(listing.push(&entry(None), 1) && listing.push(&entry(None), 2));
        assert!(!listing.push(&entry(None), 3));
        let bytes = listing.into_bytes();
        assert_eq!(bytes.len(), 64);
        assert_eq!(
            (&bytes[16..20], &bytes[20..24], &bytes[24..27]),
            (&[3, 0, 0, 0][..], &[8, 0, 0, 0][..], &b"abc"[..])
        );
        let mut plus = Listing::new(160);
        assert!(plus.push(&entry(Some(EntryOut::default())), 1));
        assert_eq!(plus.into_bytes().len(), 160);
    }

    #[test]
    fn xattr_sizes_are_probed_and_too_small_buffers_refused() {
        let value = Bytes::from_static(b"value");
        assert_eq!(sized(value.clone(), 0).unwrap()[..4], [5, 0, 0, 0]);
        assert_eq!(sized(value.clone(), 4), Err(Failed(Errno::RANGE)));
        assert_eq!(sized(value.clone(), 5).unwrap(), value);
        assert_eq!(&joined([&b"user.a"[..], b"user.b"].into_iter())[..], b"user.a\0user.b\0");
    }

    #[test]
    fn an_error_keeps_its_errno() {
        assert_eq!(Failed::from(Error::NotEmpty).0, Errno::NOTEMPTY);
        assert_eq!(Failed::from(Error::Stale).0, Errno::STALE);
    }
}
