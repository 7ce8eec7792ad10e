//! The content of an object or a part on its way in.
//!
//! Up to 16 KiB are kept and become one record with the name. More are written to a file without a name, in shards of
//! 4 MiB side by side, and the file gets its name when all of them are on stable storage. Until then no reader sees it, and
//! it is removed if the upload is dropped or the session ends.

use super::error::{Error, Result};
use super::model::{Actor, Bucket, Metadata, ObjectInfo};
use super::objects::{etag_text, info_of};
use super::paths::{file_owner, path_of};
use super::pool::{Flight, Share};
use super::{DURABLE, Store, context, is_gone, record};
use crate::key::Path;
use bytes::{Bytes, BytesMut};
use hekate_client::{New, ObjectName, Owner, SetXattr};
use hekate_proto::{Attr, Condition, FILE_BYTES_MAX, INLINE_MAX, InodeId, Name, NewNode, PutSource, SHARD_BYTES};

/// The content of an object or a part, which grows at its end. Dropped without [`Upload::finish`], it leaves nothing.
pub struct Upload {
    store: Store,
    target: Target,
    owner: Owner,
    /// Announced bytes.
    length: Option<u64>,
    /// Bytes that were given.
    written: u64,
    buffer: BytesMut,
    /// Of the upload memory, for the buffer.
    share: Option<Share>,
    file: Option<InodeId>,
    flight: Flight,
}

/// What the content is for.
pub(super) enum Target {
    Object { bucket: Box<Bucket>, path: Box<Path>, key: String, actor: Actor },
    Part { directory: InodeId, name: Name, key: String },
}

impl Store {
    /// Begins an object. `length`: its bytes, if they are known.
    ///
    /// # Errors
    /// `NoSuchBucket`; `InvalidKey`, `KeyTooLong`; `EntityTooLarge`.
    pub fn begin(&self, bucket: &str, key: &str, actor: &Actor, length: Option<u64>) -> Result<Upload> {
        let bucket = self.bucket(bucket)?;
        let path = path_of(key)?;
        let owner = file_owner(&bucket.settings, actor);
        let target =
            Target::Object { bucket: Box::new(bucket), path: Box::new(path), key: key.to_owned(), actor: *actor };
        self.begin_at(target, owner, length)
    }

    pub(super) fn begin_at(&self, target: Target, owner: Owner, length: Option<u64>) -> Result<Upload> {
        if length.is_some_and(|length| length > FILE_BYTES_MAX) {
            return Err(Error::EntityTooLarge);
        }
        let flight = Flight::new(self.inner.limits.upload_writes.max(1));
        let (buffer, store) = (BytesMut::new(), self.clone());
        Ok(Upload { store, target, owner, length, written: 0, buffer, share: None, file: None, flight })
    }
}

impl Upload {
    /// Appends bytes. They are collected into shards, which other threads write; the caller waits while as many writes
    /// are in flight as an upload may have ([`super::Limits::upload_writes`]). The caller's thread writes what the
    /// upload memory has no room for, and the last announced bytes if no other write is in flight. The first bytes
    /// beyond 16 KiB create the file.
    ///
    /// # Errors
    /// `EntityTooLarge`; `NoSuchBucket` or `NoSuchUpload` if the place was removed; those of this and of earlier writes.
    /// The upload can only be dropped then.
    pub fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        let end = self.written + bytes.len() as u64;
        if end > FILE_BYTES_MAX {
            return Err(Error::EntityTooLarge);
        }
        if self.file.is_none() && end <= INLINE_MAX {
            self.buffer.extend_from_slice(&bytes);
            self.written = end;
            return Ok(());
        }
        if self.file.is_none() {
            self.file = Some(self.make_file()?);
            let begin = self.buffer.split().freeze();
            self.written = 0;
            self.append(begin)?;
        }
        while !bytes.is_empty() {
            let room = SHARD_BYTES - self.written % SHARD_BYTES;
            let piece = bytes.split_to(bytes.len().min(room as usize));
            self.append(piece)?;
        }
        Ok(())
    }

    fn make_file(&self) -> Result<InodeId> {
        let Owner { mode, uid, gid } = self.owner;
        let new = New { node: NewNode::File, mode, uid, gid, umask: 0, exclusive: true };
        let directory = match &self.target {
            // In the partition of its name, if the directory exists.
            Target::Object { bucket, path, .. } => self.store.deepest(bucket.inode, path)?,
            Target::Part { directory, .. } => *directory,
        };
        let made = match self.store.volume().create_unnamed(&context(), directory, new.clone(), true) {
            Err(error) if is_gone(&error) => match &self.target {
                Target::Object { bucket, .. } => {
                    self.store.volume().create_unnamed(&context(), bucket.inode, new, true)
                }
                Target::Part { .. } => return Err(Error::NoSuchUpload),
            },
            made => made,
        };
        match made {
            Err(error) if is_gone(&error) => Err(Error::NoSuchBucket),
            made => Ok(made?.id),
        }
    }

    /// Appends bytes of one shard.
    fn append(&mut self, piece: Bytes) -> Result<()> {
        let at = self.written;
        self.written += piece.len() as u64;
        if self.buffer.is_empty() {
            let expected = self.length.and_then(|length| length.checked_sub(at)).filter(|left| *left > 0);
            let left = expected.unwrap_or(SHARD_BYTES).min(SHARD_BYTES - at % SHARD_BYTES);
            self.share = self.store.inner.memory.take(left.max(piece.len() as u64));
            if self.share.is_none() {
                return write_shard(&self.store, self.file, at, piece);
            }
            if piece.len() as u64 >= left {
                return self.send(at, piece);
            }
            self.buffer.reserve(left as usize);
        }
        self.buffer.extend_from_slice(&piece);
        let is_full = self.share.as_ref().is_none_or(|share| self.buffer.len() as u64 >= share.bytes());
        if is_full || self.written.is_multiple_of(SHARD_BYTES) { self.flush() } else { Ok(()) }
    }

    /// Writes what is in the buffer.
    fn flush(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.buffer).freeze();
        self.send(self.written - bytes.len() as u64, bytes)
    }

    /// Starts a write. The last one is this thread's if no other is in flight: nothing is left to do beside it.
    fn send(&mut self, at: u64, bytes: Bytes) -> Result<()> {
        if self.length == Some(self.written) && self.flight.is_idle() {
            let written = write_shard(&self.store, self.file, at, bytes);
            self.share = None;
            return written;
        }
        let (store, file, share) = (self.store.clone(), self.file, self.share.take());
        self.flight.start(&self.store.inner.pool, move || {
            let written = write_shard(&store, file, at, bytes);
            drop(share);
            written
        })
    }

    /// Gives the content its name. `etag_md5`: the MD5 sum of the content. Returns once content, metadata and name are
    /// on stable storage of all copies.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NoSuchKey` if the condition demands an object and there is none; `MetadataTooLarge`;
    /// `NoSuchUpload` if the upload of this part was completed or aborted; those of earlier writes.
    pub fn finish(mut self, etag_md5: [u8; 16], metadata: Metadata, condition: Condition) -> Result<ObjectInfo> {
        let etag = hex(&etag_md5);
        let value = record::of_object(&metadata, &etag, None)?;
        let source = self.source(value.as_ref())?;
        let attr = match &self.target {
            Target::Object { bucket, path, key, actor } if path.file.is_empty() => {
                if self.written == 0 {
                    return self.store.put_directory(bucket, (key, path), actor, &metadata, &condition);
                }
                let source = (source, Bytes::from(etag));
                self.store.put_in_directory(bucket, path, actor, source, &condition)?
            }
            Target::Object { bucket, path, actor, .. } => {
                self.store.put_at(bucket, path, actor, source, Bytes::from(etag), &condition)?
            }
            Target::Part { directory, name, .. } => {
                let name = ObjectName { dir: *directory, name: name.clone(), alternate: None };
                self.store.put_part(&name, source, Bytes::from(etag))?
            }
        };
        let (Target::Object { key, .. } | Target::Part { key, .. }) = &self.target;
        info_of(key, &attr, &etag_text(&attr), value.as_ref())
    }

    /// The content as a put takes it, on stable storage if it is in a file.
    fn source(&mut self, value: Option<&Bytes>) -> Result<PutSource> {
        let Some(inode) = self.file else {
            let Owner { mode, uid, gid } = self.owner;
            let content = self.buffer.split().freeze();
            let attributes = value.map(|value| (record::ATTRIBUTE, value.clone())).into_iter().collect();
            return Ok(PutSource::Bytes { content, mode, uid, gid, attributes });
        };
        self.flush()?;
        self.flight.land()?;
        if let Some(value) = value {
            let how = SetXattr::default();
            self.store.volume().setxattr(&context(), inode, record::ATTRIBUTE, value.clone(), how)?;
        }
        self.store.volume().fsync(&context(), inode)?;
        Ok(PutSource::Inode { inode })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Writes to a file that was removed would leave shards.
        let _ = self.flight.land();
        if let Some(inode) = self.file {
            self.store.volume().closed(inode);
        }
    }
}

fn write_shard(store: &Store, file: Option<InodeId>, at: u64, bytes: Bytes) -> Result<()> {
    let inode = file.ok_or_else(|| hekate_proto::Error::bug("a write of an upload without a file"))?;
    Ok(store.volume().write(&context(), inode, at, bytes, false)?)
}

impl Store {
    pub(super) fn put_part(&self, name: &ObjectName, source: PutSource, etag: Bytes) -> Result<Attr> {
        match self.volume().put(DURABLE, name, source, etag, Condition::Always) {
            Err(error) if is_gone(&error) => Err(Error::NoSuchUpload),
            put => Ok(put?.0),
        }
    }
}

/// Hexadecimal digits, as ETags have them.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
