//! Completion of an upload, and its removal.
//!
//! Parts are joined to one file in the upload's directory, the file gets the key as a second name, and the directory is
//! removed. A completion that was interrupted anywhere is sent again: the joined file is found, or the key leads to it,
//! or the object at the key says that this upload made it.

use super::super::error::{Error, Result};
use super::super::model::*;
use super::super::objects::{etag_text, info_of};
use super::super::paths::{file_owner, path_of};
use super::super::upload::hex;
use super::super::{DURABLE, Store, TRIES_MAX, context, is_gone, record};
use super::{JOINED, Open, PAGE, lock_of, part_name};
use crate::key::Path;
use bytes::Bytes;
use hekate_client::{Fetched, Joined, ObjectName};
use hekate_proto::{Attr, Condition, FILE_BYTES_MAX, InodeId, Name, PutSource};
use md5::{Digest, Md5};
use std::collections::BTreeMap;

/// What a completion asks for.
struct Request<'a> {
    bucket: &'a str,
    key: &'a str,
    id: &'a str,
    parts: &'a [CompletedPart],
    checksum: Option<Checksum>,
    /// Of the object: that of S3, from those of the parts.
    etag: String,
}

impl Store {
    /// Makes the object of an upload: the parts named, in this order. `checksum`: that of the object, which the caller
    /// computes of those of the parts. The upload no longer exists afterwards.
    ///
    /// # Errors
    /// `NoSuchUpload`; `InvalidPart`, `InvalidPartOrder`, `EntityTooSmall`; `EntityTooLarge`; `PreconditionFailed`;
    /// `NoSuchKey` if the condition demands an object and there is none.
    pub fn complete(
        &self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        parts: &[CompletedPart],
        checksum: Option<Checksum>,
        condition: Condition,
    ) -> Result<ObjectInfo> {
        if parts.is_empty() {
            return Err(Error::InvalidArgument { what: "an upload is completed with one part at least".into() });
        }
        if !parts.is_sorted_by(|one, two| one.number < two.number) {
            return Err(Error::InvalidPartOrder);
        }
        let request = Request { bucket, key, id: upload_id, parts, checksum, etag: joined_etag(parts) };
        let open = match self.upload_in_progress(bucket, key, upload_id) {
            Err(Error::NoSuchUpload) => return self.completed_before(&request),
            open => open?,
        };
        let of = self.bucket(bucket)?;
        let path = path_of(key)?;
        let _no_removal = self.inner.upload_locks[lock_of(open.directory)].lock();
        let joined = match self.joined(&request, &of, &path, &open, &condition) {
            // Another gateway may have removed the parts, or all of the upload.
            Err(error @ (Error::NoSuchUpload | Error::InvalidPart { .. })) => {
                return match self.completed_before(&request) {
                    Err(Error::NoSuchUpload) => Err(error),
                    before => before,
                };
            }
            joined => joined?,
        };
        let source = PutSource::Inode { inode: joined.id };
        let etag = Bytes::from(request.etag.clone());
        let actor = &open.record.actor;
        let attr = if path.file.is_empty() {
            self.put_in_directory(&of, &path, actor, (source, etag), &condition)?
        } else {
            self.put_at(&of, &path, actor, source, etag, &condition)?
        };
        let found = self.volume().fetch_inode(&context(), attr.id, record::ATTRIBUTE, false)?;
        let info = info_of(key, &found.attr, &etag_text(&found.attr), found.attribute.as_ref())?;
        if let Some(of_bucket) = self.uploads_of(bucket)? {
            self.drop_upload(of_bucket, upload_id, open.directory)?;
        }
        Ok(info)
    }

    /// The object that the upload made before.
    fn completed_before(&self, request: &Request) -> Result<ObjectInfo> {
        let found = match self.find(request.bucket, request.key, false) {
            Err(Error::NoSuchKey) => return Err(Error::NoSuchUpload),
            found => found?,
        };
        match record::upload_of(found.fetched.attribute.as_ref())? {
            Some(id) if id == request.id => found.info(request.key),
            _ => Err(Error::NoSuchUpload),
        }
    }

    /// The file that the parts were joined to, now or before.
    fn joined(
        &self,
        request: &Request,
        bucket: &Bucket,
        path: &Path,
        open: &Open,
        condition: &Condition,
    ) -> Result<Attr> {
        let name = ObjectName { dir: open.directory, name: joined_name()?, alternate: None };
        for _ in 0..TRIES_MAX {
            match self.volume().fetch(&context(), &name, record::ATTRIBUTE, false) {
                Ok(Fetched { attr, .. }) if etag_text(&attr) == request.etag => return Ok(attr),
                // Another completion has joined other parts.
                Ok(_) => return Err(Error::InvalidPart { number: request.parts[0].number }),
                Err(hekate_proto::Error::NotFound) => {}
                Err(error) if is_gone(&error) => return Err(Error::NoSuchUpload),
                Err(error) => return Err(error.into()),
            }
            // The parts are gone after the join, so a completion that is refused is refused before it.
            self.check_key(bucket, path, condition)?;
            let sizes = self.check_parts(request, open)?;
            match self.join_parts(request, bucket, open, sizes) {
                Err(Error::Volume(hekate_proto::Error::Exists)) => {}
                Err(Error::Volume(error)) if is_gone(&error) => {}
                // A part was replaced since it was checked.
                Err(Error::PreconditionFailed) => {}
                joined => return joined,
            }
        }
        Err(Error::OperationAborted)
    }

    fn check_key(&self, bucket: &Bucket, path: &Path, condition: &Condition) -> Result<()> {
        if *condition == Condition::Always {
            return Ok(());
        }
        let place = self.place(bucket.inode, path, super::super::paths::Missing::Stop)?;
        let found = match place {
            Some(place) if path.file.is_empty() => self.find_directory(&place, false)?,
            Some(place) => self.find_file(&place, false)?,
            None => None,
        };
        match (condition, found) {
            (Condition::Absent, None) | (Condition::Exists, Some(_)) => Ok(()),
            (Condition::Matches { etag }, Some(found)) if found.etag.as_bytes() == *etag => Ok(()),
            (Condition::Exists | Condition::Matches { .. }, None) => Err(Error::NoSuchKey),
            _ => Err(Error::PreconditionFailed),
        }
    }

    /// Checks the parts that a completion names, and returns them as the object's.
    fn check_parts(&self, request: &Request, open: &Open) -> Result<Vec<ObjectPart>> {
        let reads_checksums =
            open.record.algorithm.is_some() || request.parts.iter().any(|part| part.checksum.is_some());
        let (mut named, mut after, mut sizes) = (request.parts.iter().peekable(), 0, Vec::new());
        while let Some(first) = named.peek() {
            let mut found = self.parts_after(open.directory, after.max(first.number - 1), PAGE)?;
            let Some((last, _)) = found.last() else { return Err(Error::InvalidPart { number: first.number }) };
            after = *last;
            found.retain(|(number, _)| request.parts.binary_search_by_key(number, |part| part.number).is_ok());
            let infos: BTreeMap<u16, PartInfo> = match reads_checksums {
                true => self.with_checksums(found)?.into_iter().map(|part| (part.number, part)).collect(),
                false => {
                    let part = |(number, attr)| Ok((number, super::part_info(number, &attr, None)?));
                    found.into_iter().map(part).collect::<Result<_>>()?
                }
            };
            while let Some(wanted) = named.next_if(|wanted| wanted.number <= after) {
                sizes.push(self.check_part(wanted, infos.get(&wanted.number), named.peek().is_none())?);
            }
        }
        let total = sizes.iter().try_fold(0u64, |sum, part| sum.checked_add(part.size));
        match total {
            Some(total) if total <= FILE_BYTES_MAX => Ok(sizes),
            _ => Err(Error::EntityTooLarge),
        }
    }

    fn check_part(&self, wanted: &CompletedPart, found: Option<&PartInfo>, is_last: bool) -> Result<ObjectPart> {
        let number = wanted.number;
        let Some(found) = found.filter(|found| found.etag == wanted.etag) else {
            return Err(Error::InvalidPart { number });
        };
        let checksum = found.checksum.as_ref().map(|checksum| checksum.value.clone());
        if wanted.checksum.is_some() && wanted.checksum != checksum {
            return Err(Error::InvalidPart { number });
        }
        if !is_last && found.size < self.inner.limits.part_bytes_min {
            return Err(Error::EntityTooSmall { number, size: found.size });
        }
        Ok(ObjectPart { number, size: found.size, checksum })
    }

    fn join_parts(&self, request: &Request, bucket: &Bucket, open: &Open, parts: Vec<ObjectPart>) -> Result<Attr> {
        let named = |part: &CompletedPart| Ok((part_name(part.number)?, Bytes::from(part.etag.clone())));
        let names = request.parts.iter().map(named).collect::<Result<_>>()?;
        let metadata = Metadata { checksum: request.checksum.clone(), parts, ..open.record.metadata() };
        let value = record::of_object(&metadata, &request.etag, Some(request.id))?;
        let joined = Joined {
            name: joined_name()?,
            owner: file_owner(&bucket.settings, &open.record.actor),
            etag: Bytes::from(request.etag.clone()),
            attributes: value.map(|value| (record::ATTRIBUTE, value)).into_iter().collect(),
        };
        Ok(self.volume().join(DURABLE, open.directory, names, joined)?)
    }

    /// Removes what is left of an upload. The joined file remains if a key leads to it.
    pub(in super::super) fn drop_upload(&self, of_bucket: InodeId, id: &str, directory: InodeId) -> Result<()> {
        let name = Name::try_from(id).map_err(hekate_proto::Error::from)?;
        for _ in 0..TRIES_MAX {
            self.empty(directory)?;
            match self.volume().rmdir(DURABLE, of_bucket, name.clone()) {
                // A part arrived meanwhile.
                Err(hekate_proto::Error::NotEmpty) => {}
                Err(error) if is_gone(&error) => return Ok(()),
                done => return Ok(done?),
            }
        }
        Err(Error::OperationAborted)
    }

    /// Removes all files of a directory.
    fn empty(&self, directory: InodeId) -> Result<()> {
        loop {
            let (entries, end) = match self.volume().list_quietly(&context(), directory, None, PAGE, false) {
                Err(error) if is_gone(&error) => return Ok(()),
                listed => listed?,
            };
            let volume = self.inner.volume.clone();
            let removed = self.inner.pool.map(entries, move |entry| {
                match volume.unlink(&context(), directory, entry.name, Some(entry.inode)) {
                    Err(error) if !is_gone(&error) => Err(Error::from(error)),
                    _ => Ok(()),
                }
            });
            removed.into_iter().collect::<Result<()>>()?;
            if end {
                return Ok(());
            }
        }
    }
}

fn joined_name() -> Result<Name> {
    Ok(Name::try_from(JOINED).map_err(hekate_proto::Error::from)?)
}

/// The ETag of an upload's object: the MD5 sum of the parts' MD5 sums, a hyphen, and the number of parts.
fn joined_etag(parts: &[CompletedPart]) -> String {
    let mut sum = Md5::new();
    for part in parts {
        match md5_of(&part.etag) {
            Some(of_part) => sum.update(of_part),
            None => sum.update(&part.etag),
        }
    }
    format!("{}-{}", hex(&sum.finalize()), parts.len())
}

/// The sum that an ETag of 32 hexadecimal digits is.
fn md5_of(etag: &str) -> Option<[u8; 16]> {
    let digits = etag.bytes().all(|byte| byte.is_ascii_hexdigit()) && etag.len() == 32;
    u128::from_str_radix(etag, 16).ok().filter(|_| digits).map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_etag_of_an_upload_is_that_of_s3() {
        let part = |number, etag: &str| CompletedPart { number, etag: etag.into(), checksum: None };
        let one = hex(&Md5::digest(b"one"));
        let two = hex(&Md5::digest(b"two"));
        let sum = Md5::digest([Md5::digest(b"one"), Md5::digest(b"two")].concat());
        assert_eq!(joined_etag(&[part(1, &one), part(2, &two)]), format!("{}-2", hex(&sum)));
        assert_ne!(joined_etag(&[part(1, "h-1-2")]), joined_etag(&[part(1, "h-1-3")]));
    }
}
