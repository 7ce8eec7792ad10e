//! Multipart uploads: directories of the system directory, `uploads/BUCKET/ID`, whose attribute `hekate.s3` says the key
//! and the metadata of the object to be. A part is a file in it, put as an object is: a part that is sent again replaces
//! the former one.

mod complete;

use super::error::{Error, Result};
use super::model::*;
use super::objects::{Object, etag_text};
use super::paths::{file_owner, path_of};
use super::record::{self, UploadRecord};
use super::upload::{Target, Upload};
use super::{DURABLE, Store, UPLOAD_LOCKS, context, copy, is_gone};
use bytes::Bytes;
use hekate_client::{New, ObjectName, SetXattr};
use hekate_proto::{Attr, Condition, Entry, InodeId, Name, NewNode, NodeKind, PutSource, SYSTEM};
use std::collections::BTreeMap;
use std::ops::Range;

/// Highest number of a part.
pub(super) const PARTS_MAX: u16 = 10_000;
/// The directory of all uploads.
const UPLOADS: &str = "uploads";
/// Begin of the names of parts.
const PART: &str = "part-";
/// The file that the parts become.
const JOINED: &str = "joined";
/// Names in one round trip.
const PAGE: u32 = 1000;

/// An upload in progress.
#[derive(Clone)]
pub(super) struct Open {
    directory: InodeId,
    initiated: hekate_proto::Time,
    record: UploadRecord,
}

impl Store {
    /// Begins an upload of parts. Returns its id. `algorithm`: the additional checksum that its parts have.
    ///
    /// # Errors
    /// `NoSuchBucket`; `InvalidKey`, `KeyTooLong`; `MetadataTooLarge`.
    pub fn create_upload(
        &self,
        bucket: &str,
        key: &str,
        actor: &Actor,
        metadata: Metadata,
        algorithm: Option<(Algorithm, ChecksumKind)>,
    ) -> Result<String> {
        self.bucket(bucket)?;
        path_of(key)?;
        let value = UploadRecord::new(key, actor, algorithm, metadata).encode()?;
        let top = self.make_hidden(SYSTEM, UPLOADS)?;
        let of_bucket = self.make_hidden(top, bucket)?;
        let id = format!("{:016x}{:016x}", hekate_client::seed()?, hekate_client::seed()?);
        let directory = self.make_hidden(of_bucket, &id)?;
        self.volume().setxattr(DURABLE, directory, record::ATTRIBUTE, value, SetXattr::default())?;
        Ok(id)
    }

    /// A directory in the system directory.
    fn make_hidden(&self, parent: InodeId, name: &str) -> Result<InodeId> {
        let name = Name::try_from(name).map_err(hekate_proto::Error::from)?;
        let new = New { node: NewNode::Directory, mode: 0o700, uid: 0, gid: 0, umask: 0, exclusive: true };
        match self.volume().create(DURABLE, parent, name.clone(), new) {
            Err(hekate_proto::Error::Exists) => Ok(self.volume().lookup(&context(), parent, name)?.id),
            made => Ok(made?.0.id),
        }
    }

    /// The directory of a bucket's uploads. `None` if it never had one.
    pub(super) fn uploads_of(&self, bucket: &str) -> Result<Option<InodeId>> {
        let Some(top) = self.uploads_top()? else { return Ok(None) };
        self.hidden(top, bucket)
    }

    /// The directory of all uploads. `None` if there never was one.
    pub(super) fn uploads_top(&self) -> Result<Option<InodeId>> {
        self.hidden(SYSTEM, UPLOADS)
    }

    fn hidden(&self, parent: InodeId, name: &str) -> Result<Option<InodeId>> {
        let Ok(name) = Name::try_from(name) else { return Ok(None) };
        match self.volume().lookup(&context(), parent, name) {
            Ok(attr) => Ok(Some(attr.id)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The upload of this id, if it is of this key.
    ///
    /// # Errors
    /// `NoSuchUpload`; `NoSuchBucket` if the bucket does not exist either.
    fn upload_in_progress(&self, bucket: &str, key: &str, id: &str) -> Result<Open> {
        match self.find_upload(bucket, key, id) {
            Err(Error::NoSuchUpload) => self.bucket(bucket).and(Err(Error::NoSuchUpload)),
            found => found,
        }
    }

    fn find_upload(&self, bucket: &str, key: &str, id: &str) -> Result<Open> {
        if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Error::NoSuchUpload);
        }
        let of_bucket = self.uploads_of(bucket)?.ok_or(Error::NoSuchUpload)?;
        let name = Name::try_from(id).map_err(|_| Error::NoSuchUpload)?;
        let open = self.open_upload(of_bucket, name)?.ok_or(Error::NoSuchUpload)?;
        if open.record.key == key { Ok(open) } else { Err(Error::NoSuchUpload) }
    }

    fn open_upload(&self, of_bucket: InodeId, name: Name) -> Result<Option<Open>> {
        let name = ObjectName { dir: of_bucket, name, alternate: None };
        let found = match self.volume().fetch(&context(), &name, record::ATTRIBUTE, false) {
            Err(error) if is_gone(&error) => return Ok(None),
            found => found?,
        };
        // A directory without a record is one whose upload was never begun.
        let Some(value) = found.attribute else { return Ok(None) };
        let record = UploadRecord::decode(&value)?;
        Ok(Some(Open { directory: found.attr.id, initiated: found.attr.btime, record }))
    }

    /// Key, metadata and state of an upload.
    ///
    /// # Errors
    /// `NoSuchUpload`.
    pub fn upload(&self, bucket: &str, key: &str, upload_id: &str) -> Result<UploadInfo> {
        Ok(info(self.upload_in_progress(bucket, key, upload_id)?, upload_id))
    }

    /// Begins a part. Of the metadata that [`Upload::finish`] is given only the checksum is kept.
    ///
    /// # Errors
    /// `NoSuchBucket`, `NoSuchUpload`; `InvalidArgument` if the number is not 1 to 10,000.
    pub fn begin_part(&self, bucket: &str, key: &str, upload_id: &str, number: u16) -> Result<Upload> {
        let name = part_name(number)?;
        let settings = self.bucket(bucket)?.settings;
        let open = self.upload_in_progress(bucket, key, upload_id)?;
        let owner = file_owner(&settings, &open.record.actor);
        self.begin_at(Target::Part { directory: open.directory, name, key: key.to_owned() }, owner, None)
    }

    /// Makes a part of bytes of an object that is open. Its ETag has the form of an MD5 sum, but is none: the bytes do
    /// not come here. A caller that needs a checksum of them reads them and sends them as a part.
    ///
    /// # Errors
    /// `InvalidRange`; those of [`Store::begin_part`].
    pub fn copy_part(
        &self,
        from: &Object,
        range: Range<u64>,
        bucket: &str,
        key: &str,
        upload_id: &str,
        number: u16,
    ) -> Result<PartInfo> {
        if range.start > range.end || range.end > from.info().size {
            return Err(Error::InvalidRange);
        }
        let Some(inode) = from.inode() else {
            let bytes = from.read(range.start, (range.end - range.start) as usize)?;
            let etag_md5 = <md5::Md5 as md5::Digest>::digest(&bytes).into();
            let mut upload = self.begin_part(bucket, key, upload_id, number)?;
            upload.write(bytes)?;
            let made = upload.finish(etag_md5, Metadata::default(), Condition::Always)?;
            let ObjectInfo { size, etag, modified, .. } = made;
            return Ok(PartInfo { number, size, etag, modified, checksum: None });
        };
        let name = part_name(number)?;
        let owner = file_owner(&self.bucket(bucket)?.settings, &self.upload(bucket, key, upload_id)?.actor);
        let open = self.upload_in_progress(bucket, key, upload_id)?;
        let copied = self.copy_range(inode, range.clone(), open.directory, owner)?;
        self.settle(copied.inode, None)?;
        let etag = copy::etag_of_range(from, &range, copied.inode);
        let name = ObjectName { dir: open.directory, name, alternate: None };
        let source = PutSource::Inode { inode: copied.inode };
        let attr = self.put_part(&name, source, Bytes::from(etag))?;
        Ok(PartInfo { number, size: attr.size, etag: etag_text(&attr), modified: attr.mtime, checksum: None })
    }

    /// At most `max` parts with numbers greater than `after`.
    ///
    /// # Errors
    /// `NoSuchUpload`.
    pub fn parts(&self, bucket: &str, key: &str, upload_id: &str, after: u16, max: usize) -> Result<PartsPage> {
        let open = self.upload_in_progress(bucket, key, upload_id)?;
        let max = max.min(PAGE as usize);
        if max == 0 {
            return Ok(PartsPage::default());
        }
        let mut found = self.parts_after(open.directory, after, max as u32 + 1)?;
        let is_more = found.len() > max;
        found.truncate(max);
        let parts = match open.record.algorithm {
            Some(_) => self.with_checksums(found)?,
            None => found.into_iter().map(|(number, attr)| part_info(number, &attr, None)).collect::<Result<_>>()?,
        };
        let next = parts.last().filter(|_| is_more).map(|part| part.number);
        Ok(PartsPage { parts, next })
    }

    /// Parts with numbers greater than `after`, in order: up to `limit`.
    fn parts_after(&self, directory: InodeId, after: u16, limit: u32) -> Result<Vec<(u16, Attr)>> {
        let (mut parts, mut after) = (Vec::new(), Bytes::from(format!("{PART}{after:05}")));
        loop {
            let left = limit - parts.len() as u32;
            let page = self.volume().list_keys(&context(), directory, Bytes::from(PART), after, left);
            let page = match page {
                Err(error) if is_gone(&error) => return Err(Error::NoSuchUpload),
                page => page?,
            };
            let Some(last) = page.entries.last() else { return Ok(parts) };
            after = last.name.bytes();
            for entry in page.entries {
                let number = number_of(&entry.name);
                let (Some(number), Some(attr)) = (number, self.attr_of(entry)?) else { continue };
                parts.push((number, attr));
            }
            if page.end || parts.len() as u32 >= limit {
                return Ok(parts);
            }
        }
    }

    /// The attributes of an entry. `None` if its inode was removed.
    fn attr_of(&self, entry: Entry) -> Result<Option<Attr>> {
        if let Some(attr) = entry.attr {
            return Ok(Some(attr));
        }
        match self.volume().getattr(&context(), entry.inode) {
            Ok(attr) => Ok(Some(attr)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The parts with their checksums. A part that was replaced meanwhile is the new one.
    fn with_checksums(&self, parts: Vec<(u16, Attr)>) -> Result<Vec<PartInfo>> {
        let volume = self.inner.volume.clone();
        let read = move |(number, attr): (u16, Attr)| {
            let found = volume.fetch_inode(&context(), attr.id, record::ATTRIBUTE, false);
            match found {
                Ok(found) => part_info(number, &found.attr, found.attribute.as_ref()).map(Some),
                Err(error) if is_gone(&error) => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        self.inner.pool.map(parts, read).into_iter().filter_map(Result::transpose).collect()
    }

    /// Uploads of a bucket in the order of their keys, and of their ids for one key. [`ListQuery::after`] and
    /// `upload_id_marker` name the last upload of the page before; without an id, uploads of that key are left out.
    ///
    /// Every call reads the records of all uploads of the bucket in progress, and holds as many as it returns.
    ///
    /// # Errors
    /// `NoSuchBucket`.
    pub fn uploads(&self, bucket: &str, query: &ListQuery, upload_id_marker: &str) -> Result<UploadsPage> {
        self.bucket(bucket)?;
        let max = query.max.min(PAGE as usize);
        let Some(of_bucket) = self.uploads_of(bucket)?.filter(|_| max > 0) else { return Ok(UploadsPage::default()) };
        let mut first = BTreeMap::new();
        self.each_upload(of_bucket, |found| {
            for (id, open) in found {
                if let Some((at, shown)) = shown(query, upload_id_marker, id, open) {
                    first.insert(at, shown);
                    if first.len() > max + 1 {
                        first.pop_last();
                    }
                }
            }
            Ok(())
        })?;
        let mut page = UploadsPage::default();
        if first.len() > max {
            first.pop_last();
            page.next = first.keys().next_back().cloned();
        }
        for ((text, _), shown) in first {
            match shown {
                Some(upload) => page.uploads.push(upload),
                None => page.prefixes.push(text),
            }
        }
        Ok(page)
    }

    /// All uploads of a bucket, a page at a time.
    fn each_upload(&self, of_bucket: InodeId, mut each: impl FnMut(Vec<(String, Open)>) -> Result<()>) -> Result<()> {
        let mut after = None;
        loop {
            let (entries, end) = match self.volume().list_quietly(&context(), of_bucket, after, PAGE, false) {
                Err(error) if is_gone(&error) => return Ok(()),
                listed => listed?,
            };
            after = entries.last().map(|entry| entry.name.clone());
            let names = entries.into_iter().filter(|entry| entry.kind == NodeKind::Directory);
            let store = self.clone();
            let read = move |name: Name| {
                let id = String::from_utf8_lossy(name.as_bytes()).into_owned();
                Ok(store.open_upload(of_bucket, name)?.map(|open| (id, open)))
            };
            let found = self.inner.pool.map(names.map(|entry| entry.name).collect(), read);
            each(found.into_iter().filter_map(Result::transpose).collect::<Result<_>>()?)?;
            if end {
                return Ok(());
            }
        }
    }

    /// Removes an upload with its parts.
    ///
    /// # Errors
    /// `NoSuchUpload`.
    pub fn abort(&self, bucket: &str, key: &str, upload_id: &str) -> Result<()> {
        let open = self.upload_in_progress(bucket, key, upload_id)?;
        let of_bucket = self.uploads_of(bucket)?.ok_or(Error::NoSuchUpload)?;
        let _no_completion = self.inner.upload_locks[lock_of(open.directory)].lock();
        self.drop_upload(of_bucket, upload_id, open.directory)
    }
}

/// An upload's place in a page of uploads: the upload itself, or a prefix.
type Shown = ((String, String), Option<UploadInfo>);

/// What a page of uploads shows of an upload. `None`: it is on another page.
fn shown(query: &ListQuery, id_marker: &str, id: String, open: Open) -> Option<Shown> {
    let key = open.record.key.clone();
    let rest = key.strip_prefix(&query.prefix[..])?;
    let delimiter = query.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
    if let Some(delimiter) = delimiter
        && let Some(at) = rest.find(delimiter)
    {
        let prefix = format!("{}{}", query.prefix, &rest[..at + delimiter.len()]);
        return (prefix > query.after).then(|| ((prefix, String::new()), None));
    }
    let is_after = match key.cmp(&query.after) {
        std::cmp::Ordering::Equal => !id_marker.is_empty() && id[..] > *id_marker,
        order => order.is_gt(),
    };
    is_after.then(|| ((key, id.clone()), Some(info(open, &id))))
}

fn info(open: Open, id: &str) -> UploadInfo {
    let Open { initiated, record, .. } = open;
    let metadata = record.metadata();
    let UploadRecord { key, actor, algorithm, .. } = record;
    UploadInfo { key, id: id.to_owned(), initiated, metadata, algorithm, actor }
}

fn part_info(number: u16, attr: &Attr, value: Option<&Bytes>) -> Result<PartInfo> {
    let etag = etag_text(attr);
    let checksum = record::metadata(value, &etag)?.checksum;
    Ok(PartInfo { number, size: attr.size, etag, modified: attr.mtime, checksum })
}

fn part_name(number: u16) -> Result<Name> {
    if !(1..=PARTS_MAX).contains(&number) {
        let what = format!("part number {number}; parts have the numbers 1 to {PARTS_MAX}");
        return Err(Error::InvalidArgument { what });
    }
    Ok(Name::try_from(&format!("{PART}{number:05}")[..]).map_err(hekate_proto::Error::from)?)
}

fn number_of(name: &Name) -> Option<u16> {
    let digits = std::str::from_utf8(name.as_bytes()).ok()?.strip_prefix(PART)?;
    digits.parse().ok().filter(|_| digits.len() == 5)
}

/// The lock of an upload.
pub(super) fn lock_of(directory: InodeId) -> usize {
    directory.number() as usize % UPLOAD_LOCKS
}
