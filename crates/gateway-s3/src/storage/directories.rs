//! Keys that end in `/`. An object without bytes is the directory itself, which is then not implied. One with bytes is
//! a file in the directory, whose segment is empty; it comes before the directory.

use super::error::{Error, Result};
use super::model::{Actor, Bucket, Metadata, ObjectInfo};
use super::objects::{Found, absent, info_of};
use super::paths::{Missing, Place, directory_owner};
use super::{DURABLE, Store, TRIES_MAX, context, is_gone, record};
use crate::key::Path;
use bytes::Bytes;
use hekate_client::{Fetched, SetXattr};
use hekate_proto::{Attr, Condition, PutSource};

/// ETag of a directory: the MD5 sum of no bytes.
pub(super) const DIRECTORY_ETAG: &str = "d41d8cd98f00b204e9800998ecf8427e";

/// What there is of a key that ends in `/`.
struct State {
    /// The directory. `None` if it was removed.
    directory: Option<Fetched>,
    file: Option<Found>,
}

impl State {
    /// The object's ETag.
    fn etag(&self) -> Option<&str> {
        let directory = self.directory.as_ref().filter(|directory| !directory.attr.implied);
        self.file.as_ref().map(|file| &file.etag[..]).or(directory.map(|_| DIRECTORY_ETAG))
    }

    /// # Errors
    /// `PreconditionFailed`, `NoSuchKey`.
    fn check(&self, condition: &Condition) -> Result<()> {
        match (condition, self.etag()) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Exists, Some(_)) => Ok(()),
            (Condition::Matches { etag }, Some(found)) if *etag == found.as_bytes() => Ok(()),
            (Condition::Exists | Condition::Matches { .. }, None) => Err(Error::NoSuchKey),
            _ => Err(Error::PreconditionFailed),
        }
    }
}

impl Store {
    /// The object of a place that ends in `/`.
    pub(super) fn find_directory(&self, place: &Place, content: bool) -> Result<Option<Found>> {
        if let Some(file) = self.find_file(place, content)? {
            return Ok(Some(file));
        }
        let directory = self.directory(place)?.filter(|directory| !directory.attr.implied);
        Ok(directory.map(|fetched| Found { fetched, etag: DIRECTORY_ETAG.to_owned() }))
    }

    fn directory(&self, place: &Place) -> Result<Option<Fetched>> {
        match self.volume().fetch_inode(&context(), place.name.dir, record::ATTRIBUTE, false) {
            Ok(directory) => Ok(Some(directory)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn state(&self, place: &Place) -> Result<State> {
        Ok(State { directory: self.directory(place)?, file: self.find_file(place, false)? })
    }

    /// Makes the directory of a key an object without bytes.
    pub(super) fn put_directory(
        &self,
        bucket: &Bucket,
        (key, path): (&str, &Path),
        actor: &Actor,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<ObjectInfo> {
        let value = record::of_object(metadata, DIRECTORY_ETAG, None)?;
        let missing = Missing::Make(directory_owner(&bucket.settings, actor));
        for _ in 0..TRIES_MAX {
            let Some(place) = self.place(bucket.inode, path, missing)? else { continue };
            let _records = self.inner.records.lock();
            let state = self.state(&place)?;
            state.check(condition)?;
            match self.make_object(&place, state, value.clone()) {
                Err(Error::Volume(error)) if is_gone(&error) => {}
                Err(other) => return Err(other),
                Ok(attr) => return info_of(key, &attr, DIRECTORY_ETAG, value.as_ref()),
            }
        }
        Err(Error::OperationAborted)
    }

    fn make_object(&self, place: &Place, state: State, value: Option<Bytes>) -> Result<Attr> {
        let (directory, volume) = (place.name.dir, self.volume());
        let found = state.directory.ok_or(hekate_proto::Error::Stale)?;
        match value {
            Some(value) => volume.setxattr(DURABLE, directory, record::ATTRIBUTE, value, SetXattr::default())?,
            None if found.attribute.is_some() => self.drop_record(directory)?,
            None => {}
        }
        let attr = volume.set_implied(DURABLE, directory, false)?;
        if state.file.is_some() {
            match volume.remove_object(DURABLE, &place.name, Condition::Exists) {
                Err(hekate_proto::Error::ConditionFailed) => {}
                Err(error) if is_gone(&error) => {}
                done => done?,
            }
        }
        Ok(attr)
    }

    fn drop_record(&self, directory: hekate_proto::InodeId) -> Result<()> {
        match self.volume().removexattr(DURABLE, directory, record::ATTRIBUTE) {
            Err(hekate_proto::Error::NoAttribute) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Puts an object with bytes at a key that ends in `/`.
    pub(super) fn put_in_directory(
        &self,
        bucket: &Bucket,
        path: &Path,
        actor: &Actor,
        (source, etag): (PutSource, Bytes),
        condition: &Condition,
    ) -> Result<Attr> {
        let _records = self.inner.records.lock();
        let state = match self.place(bucket.inode, path, Missing::Stop)? {
            Some(place) => self.state(&place)?,
            None => State { directory: None, file: None },
        };
        state.check(condition)?;
        // The server knows only the file.
        let left = if state.file.is_some() { condition.clone() } else { Condition::Absent };
        let left = if *condition == Condition::Always { Condition::Always } else { left };
        self.put_at(bucket, path, actor, source, etag, &left)
    }

    /// Removes the object of a key that ends in `/`. The directory remains while it has other names.
    pub(super) fn delete_directory(&self, place: Place, condition: &Condition) -> Result<()> {
        let records = self.inner.records.lock();
        let state = self.state(&place)?;
        state.check(condition)?;
        if state.etag().is_none() {
            return absent(condition);
        }
        if let Some(file) = &state.file {
            let demanded = match condition {
                Condition::Always => Condition::Exists,
                _ => Condition::Matches { etag: Bytes::from(file.etag.clone()) },
            };
            match self.volume().remove_object(DURABLE, &place.name, demanded) {
                Err(hekate_proto::Error::ConditionFailed) if *condition == Condition::Always => {}
                Err(error) if is_gone(&error) => {}
                done => done?,
            }
        }
        if let Some(directory) = state.directory.filter(|directory| !directory.attr.implied) {
            match self.make_implied(directory) {
                Err(Error::Volume(error)) if is_gone(&error) => {}
                done => done?,
            }
        }
        drop(records);
        self.prune(&place.steps)
    }

    fn make_implied(&self, directory: Fetched) -> Result<()> {
        self.volume().set_implied(DURABLE, directory.attr.id, true)?;
        if directory.attribute.is_some() { self.drop_record(directory.attr.id) } else { Ok(()) }
    }
}
