//! Copies within the volume: no byte of a large object comes here.

use super::error::{Error, Result};
use super::model::{Actor, Metadata, ObjectInfo};
use super::objects::{Object, etag_text, info_of};
use super::paths::{file_owner, path_of};
use super::pool::Flight;
use super::upload::hex;
use super::{DURABLE, Store, context, is_gone, record};
use bytes::Bytes;
use hekate_client::{FilePosition, New, Owner, SetXattr};
use hekate_proto::{Condition, InodeId, NewNode, PutSource, SHARD_BYTES, etag_of};
use md5::{Digest, Md5};
use std::ops::Range;

/// Bytes that one thread copies before it takes others: 4 shards.
const RUN_BYTES: u64 = 4 * SHARD_BYTES;

/// A file without a name that a copy fills. It is removed unless it gets a name before this is dropped.
pub(super) struct Copied {
    store: Store,
    pub inode: InodeId,
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.store.volume().closed(self.inode);
    }
}

impl Store {
    /// Copies an object that is open to a key. The ETag of the copy is that of the object, since the bytes are; an
    /// object that a program wrote as a file has no ETag that lasts, and its copy neither.
    ///
    /// # Errors
    /// As [`super::Upload::finish`].
    pub fn copy(
        &self,
        from: &Object,
        bucket: &str,
        key: &str,
        actor: &Actor,
        metadata: Metadata,
        condition: Condition,
    ) -> Result<ObjectInfo> {
        let Some(inode) = from.inode() else {
            let bytes = from.read(0, from.info().size as usize)?;
            let etag_md5 = Md5::digest(&bytes).into();
            let mut upload = self.begin(bucket, key, actor, Some(bytes.len() as u64))?;
            upload.write(bytes)?;
            return upload.finish(etag_md5, metadata, condition);
        };
        let bucket = self.bucket(bucket)?;
        let path = path_of(key)?;
        let directory = self.deepest(bucket.inode, &path)?;
        let copied = self.copy_range(inode, 0..from.info().size, directory, file_owner(&bucket.settings, actor))?;
        let etag = if self.is_unchanged(from)? { from.attr.etag.clone() } else { Bytes::new() };
        let value = record::of_object(&metadata, &String::from_utf8_lossy(&etag), None)?;
        self.settle(copied.inode, value.as_ref())?;
        let source = PutSource::Inode { inode: copied.inode };
        let attr = if path.file.is_empty() {
            self.put_in_directory(&bucket, &path, actor, (source, etag), &condition)?
        } else {
            self.put_at(&bucket, &path, actor, source, etag, &condition)?
        };
        info_of(key, &attr, &etag_text(&attr), value.as_ref())
    }

    /// True if the bytes of an object that is open are still those of its opening.
    fn is_unchanged(&self, object: &Object) -> Result<bool> {
        let now = self.volume().getattr(&context(), object.attr.id)?;
        Ok(etag_of(&now) == etag_of(&object.attr) && now.mtime == object.attr.mtime)
    }

    /// A new file in the partition of `directory` with these bytes of another one.
    pub(super) fn copy_range(
        &self,
        from: InodeId,
        range: Range<u64>,
        directory: InodeId,
        owner: Owner,
    ) -> Result<Copied> {
        let Owner { mode, uid, gid } = owner;
        let new = New { node: NewNode::File, mode, uid, gid, umask: 0, exclusive: true };
        let made = match self.volume().create_unnamed(&context(), directory, new, true) {
            Err(error) if is_gone(&error) => return Err(Error::OperationAborted),
            made => made?,
        };
        let copied = Copied { store: self.clone(), inode: made.id };
        let flight = Flight::new(self.inner.limits.upload_writes.max(1));
        let mut started = Ok(());
        for begin in range.clone().step_by(RUN_BYTES as usize) {
            let run = begin..range.end.min(begin + RUN_BYTES);
            let (store, to) = (self.clone(), FilePosition { inode: made.id, offset: begin - range.start });
            started = flight.start(&self.inner.pool, move || store.copy_run(from, run, to));
            if started.is_err() {
                break;
            }
        }
        flight.land()?;
        started?;
        Ok(copied)
    }

    fn copy_run(&self, from: InodeId, run: Range<u64>, to: FilePosition) -> Result<()> {
        let mut done = 0;
        while done < run.end - run.start {
            let source = FilePosition { inode: from, offset: run.start + done };
            let target = FilePosition { inode: to.inode, offset: to.offset + done };
            match self.volume().copy(&context(), source, target, run.end - run.start - done, false, false)? {
                // A program truncated the file while it was copied.
                0 => return Err(Error::OperationAborted),
                bytes => done += bytes,
            }
        }
        Ok(())
    }

    /// Gives a file its record, and puts it on stable storage.
    pub(super) fn settle(&self, inode: InodeId, value: Option<&Bytes>) -> Result<()> {
        if let Some(value) = value {
            let how = SetXattr::default();
            self.volume().setxattr(&context(), inode, record::ATTRIBUTE, value.clone(), how)?;
        }
        Ok(self.volume().fsync(DURABLE, inode)?)
    }
}

/// An ETag in the form of an MD5 sum for bytes that were not read here: the sum of what names them.
pub(super) fn etag_of_range(object: &Object, range: &Range<u64>, inode: InodeId) -> String {
    let mut sum = Md5::new();
    sum.update(etag_of(&object.attr));
    sum.update(range.start.to_le_bytes());
    sum.update(range.end.to_le_bytes());
    sum.update(inode.bits().to_le_bytes());
    hex(&sum.finalize())
}
