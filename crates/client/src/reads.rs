//! Reads of files, and when they move the time of access.

use crate::volume::{Volume, unexpected};
use bytes::Bytes;
use hekate_graph::Context;
use hekate_proto::*;
use std::sync::atomic::AtomicU64;

impl Volume {
    /// At most `length` bytes from `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// `IsDirectory` or `Invalid` if the inode is not a regular file.
    pub fn read(&self, context: &Context, inode: InodeId, offset: u64, length: u32) -> Result<Bytes> {
        self.read_range(context, inode, offset, length, self.access_times)
    }

    /// As [`Volume::read`], without changing the time of access (O_NOATIME).
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub fn read_quietly(&self, context: &Context, inode: InodeId, offset: u64, length: u32) -> Result<Bytes> {
        self.read_range(context, inode, offset, length, false)
    }

    /// True if a read of the inode with these attributes may move its time of access.
    pub fn moves_access(&self, attr: &Attr) -> bool {
        self.access_times && hekate_translators::is_access_near(attr)
    }

    /// Moves the time of access, as a read does. Returns the attributes.
    ///
    /// # Errors
    /// `Stale` if the inode does not exist.
    pub fn accessed(&self, context: &Context, inode: InodeId) -> Result<Attr> {
        Ok(self.node(context, Op::Inode { op: InodeOp::Accessed { inode } })?.0)
    }

    /// As [`Volume::read`], and what stands for the bytes ([`Pledges::content_number`]): 0 if leaders would not tell of a
    /// change, or translators may change them.
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub fn read_numbered(
        &self,
        context: &Context,
        inode: InodeId,
        offset: u64,
        length: u32,
        quietly: bool,
    ) -> Result<(Bytes, u64)> {
        let number = AtomicU64::new(0);
        let content = (!self.has_layers()).then_some(&number);
        let touch = self.access_times && !quietly;
        let bytes = self.read_range(&Context { content, ..*context }, inode, offset, length, touch)?;
        Ok((bytes, number.into_inner()))
    }

    fn read_range(&self, context: &Context, inode: InodeId, offset: u64, length: u32, touch: bool) -> Result<Bytes> {
        match self.call(context, Op::Data { op: DataOp::Read { inode, offset, length, touch } })? {
            Reply::FileData { bytes, .. } => Ok(bytes),
            _ => Err(unexpected()),
        }
    }
}
