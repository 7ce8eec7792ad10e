//! INIT: the capabilities that the kernel offers, and those that are accepted.

use crate::abi::*;
use hekate_proto::{Error, Result};

/// Longest WRITE and READ, in bytes.
pub const IO_BYTES: u32 = 1 << 20;
/// Unit of the kernel's limits, in bytes.
const PAGE_BYTES: u32 = 4096;

/// Capabilities that are accepted if the kernel offers them.
///
/// Not accepted: WRITEBACK_CACHE (an acknowledged write is on the servers), CACHE_SYMLINKS, and ATOMIC_O_TRUNC (a
/// running program would be truncated before the kernel returns ETXTBSY). DONT_MASK is accepted because a default ACL
/// overrides the umask, and the servers know the ACL.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::AUTO_INVAL_DATA
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP;

/// Accepted only with a cache or with pledges: otherwise the attributes that READDIRPLUS returns would be requested
/// again.
const WANTED_WITH_CACHE: u64 = init::DO_READDIRPLUS | init::READDIRPLUS_AUTO;

/// Accepted only if file handles must outlive the kernel's cache: that needs a table that forgets nothing
/// ([`crate::nodes`]).
const WANTED_WITH_EXPORT: u64 = init::EXPORT_SUPPORT;

/// Accepted only if the memory for it exists: from the reply to INIT on the kernel keeps all requests until each of its
/// queues has an entry, or until one is refused ([`crate::ring`]).
const WANTED_WITH_RINGS: u64 = init::OVER_IO_URING;

/// Choices that depend on the mount options.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// The kernel may cache names and attributes.
    pub cache: bool,
    /// The kernel may cache names and attributes while they are pledged.
    pub pledged: bool,
    /// Inodes can be found by file handle.
    pub export: bool,
    /// Requests may come over io_uring.
    pub rings: bool,
    /// Most background requests of the kernel at once.
    pub background_max: u16,
}

/// The reply to an INIT.
///
/// # Errors
/// `NotSupported` if the kernel is older than Linux 5.4.
pub fn negotiate(init: &InitIn, offered: u64, wishes: &Wishes) -> Result<InitOut> {
    if init.major != MAJOR || init.minor < MINOR_MIN {
        return Err(Error::NotSupported {
            what: format!(
                "the kernel speaks FUSE {}.{}; Hekate needs {MAJOR}.{MINOR_MIN} or later, that is Linux 5.4",
                init.major, init.minor
            ),
        });
    }
    let asked = |wish, flags| if wish { flags } else { 0 };
    let caches = wishes.cache || wishes.pledged && init.minor >= EXPIRE_MINOR_MIN;
    let optional = asked(caches, WANTED_WITH_CACHE)
        | asked(wishes.export, WANTED_WITH_EXPORT)
        | asked(wishes.rings, WANTED_WITH_RINGS);
    let taken = offered & (WANTED | optional);
    let (max_write, max_pages) = match taken & init::MAX_PAGES {
        0 => (32 * PAGE_BYTES, 0),
        _ => (IO_BYTES, (IO_BYTES / PAGE_BYTES) as u16),
    };
    Ok(InitOut {
        major: MAJOR,
        minor: init.minor.min(MINOR_MAX),
        max_readahead: init.max_readahead,
        flags: taken as u32,
        flags2: (taken >> 32) as u32,
        max_background: wishes.background_max,
        congestion_threshold: wishes.background_max / 4 * 3,
        max_write,
        time_granularity: 1,
        max_pages,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Wishes = Wishes { cache: false, pledged: false, export: false, rings: false, background_max: 32 };

    fn init(minor: u32) -> InitIn {
        InitIn { major: 7, minor, max_readahead: 131_072, flags: 0 }
    }

    #[test]
    fn nothing_is_taken_that_was_not_offered() {
        let out = negotiate(&init(31), init::MAX_PAGES | init::ASYNC_READ, &PLAIN).unwrap();
        assert_eq!(u64::from(out.flags), init::MAX_PAGES | init::ASYNC_READ);
        assert_eq!((out.minor, out.max_write, out.max_pages, out.flags2), (31, 1 << 20, 256, 0));
        assert_eq!(negotiate(&init(31), 0, &PLAIN).unwrap().max_write, 131_072);
    }

    #[test]
    fn a_newer_kernel_is_met_at_our_version_and_the_upper_flags() {
        let out = negotiate(&init(45), u64::MAX, &PLAIN).unwrap();
        assert_eq!(out.minor, MINOR_MAX);
        assert_eq!(u64::from(out.flags2) << 32, init::DIRECT_IO_ALLOW_MMAP);
        assert_eq!(u64::from(out.flags) & init::DO_READDIRPLUS, 0);
    }

    #[test]
    fn readdirplus_comes_with_a_cache() {
        let out = negotiate(&init(40), u64::MAX, &Wishes { cache: true, ..PLAIN }).unwrap();
        assert_ne!(u64::from(out.flags) & init::DO_READDIRPLUS, 0);
    }

    #[test]
    fn readdirplus_comes_with_pledges_if_names_can_expire() {
        let flags = |minor| {
            let wishes = Wishes { pledged: true, ..PLAIN };
            u64::from(negotiate(&init(minor), u64::MAX, &wishes).unwrap().flags) & init::DO_READDIRPLUS
        };
        assert_eq!(flags(EXPIRE_MINOR_MIN - 1), 0);
        assert_ne!(flags(EXPIRE_MINOR_MIN), 0);
    }

    #[test]
    fn handles_are_an_option() {
        let flags = |wishes: &Wishes| u64::from(negotiate(&init(40), u64::MAX, wishes).unwrap().flags);
        assert_eq!(flags(&PLAIN) & init::EXPORT_SUPPORT, 0);
        assert_ne!(flags(&Wishes { export: true, ..PLAIN }) & init::EXPORT_SUPPORT, 0);
    }

    #[test]
    fn rings_are_an_option() {
        let flags = |wishes: &Wishes| u64::from(negotiate(&init(40), u64::MAX, wishes).unwrap().flags2) << 32;
        assert_eq!(flags(&PLAIN) & init::OVER_IO_URING, 0);
        assert_ne!(flags(&Wishes { rings: true, ..PLAIN }) & init::OVER_IO_URING, 0);
    }

    #[test]
    fn an_old_kernel_is_refused_in_words() {
        let refused = negotiate(&init(27), u64::MAX, &PLAIN).unwrap_err();
        assert!(refused.to_string().contains("Linux 5.4"), "{refused}");
    }
}
