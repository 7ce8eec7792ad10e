//! Pages of files that may be written through mappings: the kernel gets them, and writes them back, under the mapping
//! right of the file (`docs/coherence.md`, rules W1 to W10).
//!
//! Files that are opened to be written are read and written past the page cache, so a READ for the page cache is a fault
//! of a mapping, and a WRITE from it brings what was stored through one.

use super::locks::is_mappable_handle;
use super::{Caller, Filesystem};
use crate::encode::Failed;
use hekate_proto::InodeId;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// True if a file that is opened with these flags may be written through a mapping, which reads it, too.
pub(super) fn is_mappable(flags: u32) -> bool {
    flags & OFlags::ACCMODE.bits() == OFlags::RDWR.bits()
}

impl Filesystem {
    /// True if this mount asks for mapping rights. Kernels that cannot map a file past the page cache (Linux before 6.6)
    /// read pages for every read(2).
    fn has_rights(&self) -> bool {
        self.volume.pledges().is_used() && self.cache.is_zero() && self.can_map.load(Ordering::Relaxed)
    }

    /// A file is about to be opened with these flags, past the page cache.
    pub(super) fn prepare_mapping(&self, inode: InodeId, flags: u32) {
        let pledges = self.volume.pledges();
        if !is_mappable(flags) || !self.has_rights() || !pledges.opened_to_write(inode) {
            return;
        }
        // From now on no page is read without the right. Mappings that only read may have some.
        if self.pages.is_open(inode.number())
            && let Some(drop_pages) = self.drop_pages.get()
        {
            drop_pages(inode.number());
        }
        pledges.pages_are_dropped(inode);
    }

    /// A file is closed.
    pub(super) fn end_mapping(&self, inode: InodeId, handle: u64) {
        if is_mappable_handle(handle) && self.has_rights() {
            self.volume.pledging().closed_to_write(inode);
        }
    }

    /// The kernel wants a page.
    pub(super) fn fault(&self, caller: &Caller) -> Result<(), Failed> {
        if self.has_rights() && self.volume.pledges().has_writers(caller.inode) {
            self.volume.pledging().fault(&caller.context, caller.inode)?;
        }
        Ok(())
    }

    /// The kernel writes back a page. EIO if another mount has had the right since it got the page: it is older than what
    /// the other has stored.
    pub(super) fn begin_write_back(&self, caller: &Caller) -> Result<(), Failed> {
        if !self.has_rights() {
            // The servers warn of a file that two such mounts map.
            self.volume.wrote_mapped(caller.inode);
            return Ok(());
        }
        if self.volume.pledging().may_write_back(&caller.context, caller.inode)? {
            return Ok(());
        }
        let number = caller.inode.number();
        log::warn!(
            "inode {number} (find MOUNT -inum {number}): a page that was stored through a mapping is dropped, since \
             another mount has stored to the file meanwhile; this mount did not answer its leader in time"
        );
        Err(Errno::IO.into())
    }

    /// True if the right of a file decides how long the kernel has pages of it.
    pub(crate) fn are_pages_by_right(&self, inode: InodeId) -> bool {
        self.has_rights() && self.volume.pledges().are_pages_by_right(inode)
    }
}
