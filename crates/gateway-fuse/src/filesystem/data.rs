//! Opening, reading, writing and syncing files.

use super::locks::{HandleKind, is_kept_handle};
use super::mappings::is_mappable;
use super::{APPEND_LOCKS, Caller, Filesystem};
use crate::abi::*;
use crate::encode::{Outcome, bytes_of};
use crate::kept_pages::Reader;
use bytes::Bytes;
use hekate_client::Context;
use hekate_proto::{InodeId, Result};
use rustix::fs::OFlags;
use std::sync::atomic::Ordering;

impl Filesystem {
    /// Replies ESTALE if the file was removed meanwhile; the kernel then looks its name up again.
    pub(super) fn open(&self, caller: &Caller, open: OpenIn) -> Outcome {
        self.mark_open(caller.inode);
        self.removals.wait(&caller.signals.fatal);
        match self.volume.getattr(&caller.context, caller.inode) {
            Ok(attr) => {
                self.nodes.note_attr(&attr);
                let unchanged = self.nodes.unchanged(caller.inode.number(), attr.change);
                if self.may_keep_pages(&attr, open.flags) {
                    return Ok(bytes_of(&self.open_kept(&attr, open.flags)));
                }
                Ok(bytes_of(&self.open_out(caller.inode, open.flags, unchanged && !self.cache.is_zero())))
            }
            Err(error) => {
                self.unmark_open(caller.inode);
                Err(error.into())
            }
        }
    }

    /// The handle is a number for the locks of the open file; everything else is kept by inode.
    pub(super) fn open_out(&self, inode: InodeId, flags: u32, keep_cache: bool) -> OpenOut {
        self.prepare_mapping(inode, flags);
        let pages =
            Pages { strict: self.cache.is_zero(), keep: keep_cache, can_map: self.can_map.load(Ordering::Relaxed) };
        let kind = HandleKind {
            durable: is_durable(flags),
            quiet: is_quiet(flags),
            kept: false,
            mappable: is_mappable(flags),
        };
        let handle = self.locks.new_handle(kind);
        self.losses.opened(inode, handle);
        OpenOut { handle, flags: pages.open_flags(flags), padding: 0 }
    }

    pub(super) fn mark_open(&self, inode: InodeId) {
        self.volume.opened(inode);
        self.nodes.opened(inode.number());
    }

    fn unmark_open(&self, inode: InodeId) {
        self.nodes.closed(inode.number());
        self.volume.closed(inode);
    }

    pub(super) fn release(&self, caller: &Caller, release: &ReleaseIn) -> Outcome {
        if is_kept_handle(release.handle) {
            self.pages.closed(caller.inode.number());
        }
        self.release_open(caller, release);
        self.end_mapping(caller.inode, release.handle);
        self.unmark_open(caller.inode);
        if !self.volume.is_open(caller.inode) {
            self.losses.closed(caller.inode);
        }
        Ok(Bytes::new())
    }

    /// `is_page`: the kernel keeps the bytes in its page cache.
    pub(super) fn read(
        &self,
        caller: &Caller,
        handle: u64,
        (offset, size): (u64, u32),
        flags: u32,
        is_page: bool,
    ) -> Outcome {
        let (node, quietly) = (caller.inode.number(), is_quiet(flags));
        self.pages.note_taken(node, Reader { thread: caller.thread, handle, request: caller.request });
        if is_page {
            self.fault(caller)?;
        }
        let (bytes, number) = self.volume.read_numbered(&caller.context, caller.inode, offset, size, quietly)?;
        if self.pages.note_read(node, number) {
            self.forget_passed(node);
        }
        Ok(bytes)
    }

    /// Pages that are written back (`WRITE_CACHE`) carry no flags of an open; FSYNC makes them durable. The kernel
    /// has no write-back cache for write(2) on this mount (`negotiate.rs`), so these are pages that programs changed
    /// through shared mappings.
    pub(super) fn write(&self, caller: &Caller, offset: u64, write_flags: u32, flags: u32, data: Bytes) -> Outcome {
        let written = WriteOut { size: data.len() as u32, padding: 0 };
        let is_mapped = write_flags & WRITE_CACHE != 0;
        let flags = if is_mapped { 0 } else { flags };
        if is_mapped {
            self.begin_write_back(caller)?;
        }
        let context = Context { durable: is_durable(flags), ..caller.context };
        let drop_set_id = write_flags & WRITE_KILL_SUIDGID != 0;
        if flags & OFlags::APPEND.bits() != 0 {
            self.append(caller, &context, data, drop_set_id)?;
        } else {
            self.volume.write(&context, caller.inode, offset, data, drop_set_id)?;
        }
        if drop_set_id {
            self.drop_group_bit(caller, caller.inode)?;
        }
        Ok(bytes_of(&written))
    }

    /// Appends at the end of the file as the servers have it. The kernel's offset is the size that it has cached, and
    /// the file may have grown through another mount. Appends of this mount wait for each other here, not at the
    /// server.
    fn append(&self, caller: &Caller, context: &Context, data: Bytes, drop_set_id: bool) -> Result<()> {
        let _alone = self.appends[caller.inode.number() as usize % APPEND_LOCKS].lock();
        self.volume.append(context, caller.inode, data, drop_set_id)
    }
}

/// State of the page cache when a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pages {
    /// The mount caches nothing.
    strict: bool,
    /// The file has not changed since its pages were read.
    keep: bool,
    /// Files that bypass the page cache can be mapped (Linux 6.6).
    can_map: bool,
}

impl Pages {
    /// Flags of the reply to an open.
    ///
    /// Through the page cache the kernel splits reads and writes at pages that it lacks. Past it each is one request,
    /// executed at one moment, and writes to different ranges of a file can run at once. So a strict mount bypasses
    /// the cache unless programs could then not map their files, and an append always does. An older kernel bypasses
    /// it by itself for O_DIRECT. A durable write is two requests through the cache, WRITE and FSYNC, and one past
    /// it.
    fn open_flags(self, flags: u32) -> u32 {
        let is = |flag: OFlags| flags & flag.bits() != 0;
        let bypass = is(OFlags::APPEND) || self.can_map && (self.strict || is(OFlags::DIRECT) || is_durable(flags));
        match (bypass, self.keep) {
            (true, _) => FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES,
            (false, true) => FOPEN_KEEP_CACHE,
            (false, false) => 0,
        }
    }
}

/// True if reads do not change the time of access.
pub(super) fn is_quiet(flags: u32) -> bool {
    flags & OFlags::NOATIME.bits() != 0
}

/// True if the flags of an open require every write to be on stable storage. O_SYNC contains the bit of O_DSYNC.
pub(super) fn is_durable(flags: u32) -> bool {
    flags & (OFlags::DSYNC | OFlags::SYNC).bits() != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_direct_durable_and_appending_opens_bypass_the_page_cache() {
        let bypassed = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;
        let cached = Pages { strict: false, keep: true, can_map: true };
        let strict = Pages { strict: true, keep: false, can_map: true };
        for pages in [cached, strict, Pages { can_map: false, ..cached }, Pages { can_map: false, ..strict }] {
            assert_eq!(pages.open_flags((OFlags::APPEND | OFlags::WRONLY).bits()), bypassed, "{pages:?}");
        }
        assert_eq!(cached.open_flags((OFlags::DIRECT | OFlags::RDWR).bits()), bypassed);
        assert_eq!(cached.open_flags((OFlags::DSYNC | OFlags::RDWR).bits()), bypassed);
        assert_eq!(strict.open_flags(OFlags::RDWR.bits()), bypassed);
        assert_eq!(cached.open_flags(OFlags::RDONLY.bits()), FOPEN_KEEP_CACHE);
        assert_eq!(Pages { keep: false, ..cached }.open_flags(OFlags::RDWR.bits()), 0);
    }

    #[test]
    fn a_kernel_that_could_not_map_the_file_keeps_the_page_cache() {
        let strict = Pages { strict: true, keep: false, can_map: false };
        assert_eq!(strict.open_flags(OFlags::RDWR.bits()), 0);
        assert_eq!(strict.open_flags((OFlags::DIRECT | OFlags::RDWR).bits()), 0);
    }

    #[test]
    fn o_sync_and_o_dsync_make_a_write_durable() {
        // As WRITE carries them (docs/adr/0001-fuse.md).
        assert!([0x1000, 0x10_1000].into_iter().all(is_durable));
        assert!(!is_durable(OFlags::RDWR.bits() | OFlags::APPEND.bits() | OFlags::DIRECT.bits()));
    }
}
