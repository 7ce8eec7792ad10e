//! Objects: read, removed, and their records changed.

use super::error::{Error, Result};
use super::model::{CannedAcl, Metadata, ObjectInfo};
use super::paths::{Missing, Place, path_of};
use super::{DURABLE, Store, TRIES_MAX, context, is_gone, record};
use bytes::{Bytes, BytesMut};
use hekate_client::{Fetched, SetXattr};
use hekate_proto::{Attr, Condition, IO_BYTES_MAX, InodeId, NodeKind, etag_of};

/// An object that is open. Its bytes remain while this exists, also if the key is removed or gets others.
pub struct Object {
    store: Store,
    info: ObjectInfo,
    /// Attributes as of the opening.
    pub(super) attr: Attr,
    content: Content,
}

enum Content {
    /// All of it: it came with the attributes.
    Here(Bytes),
    /// In the inode, which is counted as open.
    Inode(InodeId),
}

impl Object {
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// `length` bytes from `offset`; fewer only at the end of the object.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn read(&self, offset: u64, length: usize) -> Result<Bytes> {
        let inode = match &self.content {
            Content::Here(bytes) => {
                let from = (offset.min(bytes.len() as u64)) as usize;
                return Ok(bytes.slice(from..from.saturating_add(length).min(bytes.len())));
            }
            Content::Inode(inode) => *inode,
        };
        let read = |at: u64, length: usize| {
            self.store.volume().read_quietly(&context(), inode, at, length.min(IO_BYTES_MAX) as u32)
        };
        let first = read(offset, length)?;
        if first.len() == length || first.is_empty() {
            return Ok(first);
        }
        let mut all = BytesMut::from(&first[..]);
        while all.len() < length {
            let next = read(offset + all.len() as u64, length - all.len())?;
            if next.is_empty() {
                break;
            }
            all.extend_from_slice(&next);
        }
        Ok(all.freeze())
    }

    /// The inode with the bytes. `None` if they are here.
    pub(super) fn inode(&self) -> Option<InodeId> {
        match self.content {
            Content::Here(_) => None,
            Content::Inode(inode) => Some(inode),
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if let Content::Inode(inode) = self.content {
            self.store.volume().closed(inode);
        }
    }
}

/// What a key leads to.
pub(super) struct Found {
    pub fetched: Fetched,
    pub etag: String,
}

impl Found {
    pub fn info(&self, key: &str) -> Result<ObjectInfo> {
        info_of(key, &self.fetched.attr, &self.etag, self.fetched.attribute.as_ref())
    }
}

pub(super) fn etag_text(attr: &Attr) -> String {
    String::from_utf8_lossy(&etag_of(attr)).into_owned()
}

pub(super) fn info_of(key: &str, attr: &Attr, etag: &str, value: Option<&Bytes>) -> Result<ObjectInfo> {
    let metadata = record::metadata(value, etag)?;
    let size = if attr.kind == NodeKind::Directory { 0 } else { attr.size };
    Ok(ObjectInfo { key: key.to_owned(), size, modified: attr.mtime, etag: etag.to_owned(), metadata })
}

impl Store {
    /// Opens an object.
    ///
    /// # Errors
    /// `NoSuchBucket`, `NoSuchKey`; `InvalidKey` and `KeyTooLong` for what is no key.
    pub fn open(&self, bucket: &str, key: &str) -> Result<Object> {
        for _ in 0..TRIES_MAX {
            let found = self.find(bucket, key, true)?;
            if let Some(object) = self.opened(key, found)? {
                return Ok(object);
            }
        }
        Err(Error::OperationAborted)
    }

    /// The object that was found, with its bytes held. `None` if it was removed meanwhile.
    fn opened(&self, key: &str, found: Found) -> Result<Option<Object>> {
        let info = found.info(key)?;
        let Found { fetched: Fetched { attr, content, .. }, .. } = found;
        let store = self.clone();
        let here = if attr.kind == NodeKind::Directory { Some(Bytes::new()) } else { content };
        if let Some(bytes) = here {
            return Ok(Some(Object { store, info, attr, content: Content::Here(bytes) }));
        }
        let inode = attr.id;
        self.volume().opened(inode);
        let mut object = Object { store, info, attr, content: Content::Inode(inode) };
        // An inode that exists after it was counted as open exists until it is closed.
        match self.volume().fetch_inode(&context(), inode, record::ATTRIBUTE, false) {
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(now) => {
                object.info = info_of(key, &now.attr, &etag_text(&now.attr), now.attribute.as_ref())?;
                object.attr = now.attr;
                Ok(Some(object))
            }
        }
    }

    /// What is known of an object.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn head(&self, bucket: &str, key: &str) -> Result<ObjectInfo> {
        self.find(bucket, key, false)?.info(key)
    }

    /// The object of a key, with its bytes if they rest beside the inode and `content` asks for them.
    pub(super) fn find(&self, bucket: &str, key: &str, content: bool) -> Result<Found> {
        let bucket = self.bucket(bucket)?;
        let path = path_of(key)?;
        let place = self.place(bucket.inode, &path, Missing::Stop)?.ok_or(Error::NoSuchKey)?;
        if path.file.is_empty() {
            return self.find_directory(&place, content)?.ok_or(Error::NoSuchKey);
        }
        self.find_file(&place, content)?.ok_or(Error::NoSuchKey)
    }

    /// The file of a place.
    pub(super) fn find_file(&self, place: &Place, content: bool) -> Result<Option<Found>> {
        match self.volume().fetch(&context(), &place.name, record::ATTRIBUTE, content) {
            Ok(fetched) if fetched.attr.kind == NodeKind::File => {
                let etag = etag_text(&fetched.attr);
                Ok(Some(Found { fetched, etag }))
            }
            Ok(_) => Ok(None),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces the tags of an object.
    ///
    /// # Errors
    /// As [`Store::open`]; `MetadataTooLarge`.
    pub fn set_tags(&self, bucket: &str, key: &str, tags: Vec<(String, String)>) -> Result<()> {
        self.change_record(bucket, key, |metadata| metadata.tags = tags)
    }

    /// Replaces the ACL of an object.
    ///
    /// # Errors
    /// As [`Store::set_tags`].
    pub fn set_acl(&self, bucket: &str, key: &str, acl: CannedAcl) -> Result<()> {
        self.change_record(bucket, key, |metadata| metadata.acl = Some(acl))
    }

    fn change_record(&self, bucket: &str, key: &str, change: impl FnOnce(&mut Metadata)) -> Result<()> {
        let _records = self.inner.records.lock();
        let found = self.find(bucket, key, false)?;
        let value = record::changed(found.fetched.attribute.as_ref(), &found.etag, change)?;
        let inode = found.fetched.attr.id;
        match self.volume().setxattr(DURABLE, inode, record::ATTRIBUTE, value, SetXattr::default()) {
            // The object was replaced or removed since: the tags were those of the former one.
            Err(error) if is_gone(&error) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Removes an object, and the directories that only its key needed. No error if there is none, unless the
    /// condition demands one.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NoSuchKey` if the condition demands an object and there is none; `NoSuchBucket`.
    pub fn delete(&self, bucket: &str, key: &str, condition: Condition) -> Result<()> {
        let bucket = self.bucket(bucket)?;
        let path = path_of(key)?;
        let Some(place) = self.place(bucket.inode, &path, Missing::Stop)? else { return absent(&condition) };
        if path.file.is_empty() {
            return self.delete_directory(place, &condition);
        }
        if condition == Condition::Absent {
            return match self.find_file(&place, false)? {
                Some(_) => Err(Error::PreconditionFailed),
                None => Ok(()),
            };
        }
        // A symbolic link or a device is no object, so it is not removed.
        let demanded = if condition == Condition::Always { Condition::Exists } else { condition.clone() };
        match self.volume().remove_object(DURABLE, &place.name, demanded) {
            Ok(()) => self.prune(&place.steps),
            Err(error) if is_gone(&error) => absent(&condition),
            Err(hekate_proto::Error::ConditionFailed) if condition == Condition::Always => Ok(()),
            Err(hekate_proto::Error::ConditionFailed) => Err(self.refused(&place.name, &condition)?),
            // A file whose segment is escaped has no alternate name, and a directory of others took its name.
            Err(hekate_proto::Error::IsDirectory) => absent(&condition),
            Err(error) => Err(error.into()),
        }
    }
}

/// The outcome of a removal for which there is no object.
pub(super) fn absent(condition: &Condition) -> Result<()> {
    match condition {
        Condition::Always | Condition::Absent => Ok(()),
        Condition::Exists | Condition::Matches { .. } => Err(Error::NoSuchKey),
    }
}
