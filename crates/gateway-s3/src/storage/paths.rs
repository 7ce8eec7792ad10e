//! Directories on the way to a key: found, made, and removed with their last key.

use super::buckets::DIRECTORY_MODE;
use super::error::{Error, Result};
use super::model::{Actor, Bucket, BucketSettings};
use super::{DURABLE, Store, TRIES_MAX, context, is_gone};
use crate::key::{BadKey, Path, Segment, alternate_of};
use bytes::Bytes;
use hekate_client::{ObjectName, Owner};
use hekate_proto::{Attr, Condition, InodeId, Name, NodeKind, PutSource, Time};

/// Permission bits of files, unless the bucket says otherwise.
const FILE_MODE: u16 = 0o644;

/// A directory below a bucket, and the name that leads to it.
#[derive(Debug, Clone)]
pub(super) struct Step {
    parent: InodeId,
    name: Name,
    pub inode: InodeId,
}

/// Where a key leads, and the directories on the way.
pub(super) struct Place {
    pub name: ObjectName,
    pub steps: Vec<Step>,
}

/// What a walk does about a directory that is missing.
#[derive(Clone, Copy)]
pub(super) enum Missing {
    Stop,
    Make(Owner),
}

/// The path of a key.
pub(super) fn path_of(key: &str) -> Result<Path> {
    Path::of(key).map_err(|bad| match bad {
        BadKey::Empty => Error::InvalidKey,
        BadKey::TooLong => Error::KeyTooLong,
    })
}

pub(super) fn file_owner(settings: &BucketSettings, actor: &Actor) -> Owner {
    let Actor { uid, gid } = settings.owner.unwrap_or(*actor);
    Owner { mode: settings.file_mode.unwrap_or(FILE_MODE), uid, gid }
}

pub(super) fn directory_owner(settings: &BucketSettings, actor: &Actor) -> Owner {
    let mode = settings.directory_mode.unwrap_or(DIRECTORY_MODE);
    Owner { mode, ..file_owner(settings, actor) }
}

impl Store {
    /// The place of a key. `None` if a directory on the way does not exist, or was removed while others were made.
    pub(super) fn place(&self, bucket: InodeId, path: &Path, missing: Missing) -> Result<Option<Place>> {
        let Some(mut steps) = self.walk(bucket, &path.directories, missing)? else { return Ok(None) };
        let dir = steps.last().map_or(bucket, |step| step.inode);
        let Segment { cut, name, foreign, .. } = &path.file;
        if let Some(foreign) = foreign
            && self.kind_of(dir, foreign)?.is_some_and(|(_, kind)| kind != NodeKind::Directory)
        {
            return Ok(Some(Place { name: ObjectName { dir, name: foreign.clone(), alternate: None }, steps }));
        }
        for begin in cut {
            let dir = steps.last().map_or(bucket, |step| step.inode);
            let Some(step) = self.step(dir, begin, missing)? else { return Ok(None) };
            steps.push(step);
        }
        let dir = steps.last().map_or(bucket, |step| step.inode);
        Ok(Some(Place { name: ObjectName { dir, name: name.clone(), alternate: path.file.alternate() }, steps }))
    }

    /// The directories of these segments, one in the other.
    pub(super) fn walk(&self, from: InodeId, segments: &[Segment], missing: Missing) -> Result<Option<Vec<Step>>> {
        let (mut steps, mut at) = (Vec::new(), from);
        for segment in segments {
            if !self.enter(&mut steps, at, segment, missing)? {
                return Ok(None);
            }
            at = steps.last().map_or(from, |step| step.inode);
        }
        Ok(Some(steps))
    }

    /// Adds the directories of one segment. False if one is missing.
    fn enter(&self, steps: &mut Vec<Step>, from: InodeId, segment: &Segment, missing: Missing) -> Result<bool> {
        if let Some(foreign) = &segment.foreign
            && let Some(step) = self.step(from, foreign, Missing::Stop)?
        {
            steps.push(step);
            return Ok(true);
        }
        let mut at = from;
        for name in segment.cut.iter().chain([&segment.name]) {
            let Some(step) = self.step(at, name, missing)? else { return Ok(false) };
            at = step.inode;
            steps.push(step);
        }
        Ok(true)
    }

    fn step(&self, parent: InodeId, name: &Name, missing: Missing) -> Result<Option<Step>> {
        let to = |inode| Ok(Some(Step { parent, name: name.clone(), inode }));
        for _ in 0..TRIES_MAX {
            if let Some((inode, NodeKind::Directory)) = self.kind_of(parent, name)? {
                return to(inode);
            }
            let Missing::Make(owner) = missing else { return Ok(None) };
            match self.volume().make_prefix(DURABLE, parent, name.clone(), alternate_of(name), owner) {
                Ok(made) => return to(made.id),
                Err(hekate_proto::Error::Exists) => {}
                Err(error) if is_gone(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::OperationAborted)
    }

    fn kind_of(&self, dir: InodeId, name: &Name) -> Result<Option<(InodeId, NodeKind)>> {
        match self.volume().lookup(&context(), dir, name.clone()) {
            Ok(attr) => Ok(Some((attr.id, attr.kind))),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The deepest directory of a path that exists.
    pub(super) fn deepest(&self, bucket: InodeId, path: &Path) -> Result<InodeId> {
        let (mut steps, mut at) = (Vec::new(), bucket);
        for segment in &path.directories {
            if !self.enter(&mut steps, at, segment, Missing::Stop)? {
                break;
            }
            at = steps.last().map_or(at, |step| step.inode);
        }
        Ok(at)
    }

    /// Gives a key its content. Directories that are missing are made, also if they are removed meanwhile.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NoSuchKey` if the condition demands an object and there is none; `OperationAborted` if
    /// directories are removed as fast as they are made.
    pub(super) fn put_at(
        &self,
        bucket: &Bucket,
        path: &Path,
        actor: &Actor,
        source: PutSource,
        etag: Bytes,
        condition: &Condition,
    ) -> Result<Attr> {
        let missing = Missing::Make(directory_owner(&bucket.settings, actor));
        for _ in 0..TRIES_MAX {
            let Some(place) = self.place(bucket.inode, path, missing)? else {
                self.volume().getattr(&context(), bucket.inode).map_err(|error| missing_bucket(error.into()))?;
                continue;
            };
            match self.volume().put(DURABLE, &place.name, source.clone(), etag.clone(), condition.clone()) {
                Ok((attr, _)) => return Ok(attr),
                Err(hekate_proto::Error::ConditionFailed) => return Err(self.refused(&place.name, condition)?),
                Err(error) if is_gone(&error) || error == hekate_proto::Error::IsDirectory => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::OperationAborted)
    }

    /// The error of an object that is not as a condition demands.
    pub(super) fn refused(&self, name: &ObjectName, condition: &Condition) -> Result<Error> {
        if !matches!(condition, Condition::Exists | Condition::Matches { .. }) {
            return Ok(Error::PreconditionFailed);
        }
        match self.volume().fetch(&context(), name, Bytes::new(), false) {
            Ok(found) if found.attr.kind == NodeKind::File => Ok(Error::PreconditionFailed),
            Ok(_) => Ok(Error::NoSuchKey),
            Err(error) if is_gone(&error) => Ok(Error::NoSuchKey),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes directories that no key needs any more, the deepest first.
    pub(super) fn prune(&self, steps: &[Step]) -> Result<()> {
        for step in steps.iter().rev() {
            if !self.prune_one(step, None)? {
                break;
            }
        }
        Ok(())
    }

    /// Removes a directory if it is implied, empty, and was changed last before `before`. True if it is gone.
    pub(super) fn prune_one(&self, step: &Step, before: Option<Time>) -> Result<bool> {
        let listed = self.volume().list_keys(&context(), step.inode, Bytes::new(), Bytes::new(), 1);
        let page = match listed {
            Err(error) if is_gone(&error) => return Ok(true),
            page => page?,
        };
        let is_old = before.is_none_or(|before| page.directory.ctime < before);
        if !page.entries.is_empty() || !page.end || !page.directory.implied || !is_old {
            return Ok(false);
        }
        match self.volume().remove_prefix(&context(), step.parent, step.name.clone()) {
            Ok(()) => Ok(true),
            Err(hekate_proto::Error::NotEmpty | hekate_proto::Error::NotDirectory) => Ok(false),
            Err(error) if is_gone(&error) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

impl Step {
    pub(super) fn new(parent: InodeId, name: Name, inode: InodeId) -> Self {
        Self { parent, name, inode }
    }
}

/// The error of an operation whose bucket was removed meanwhile.
fn missing_bucket(error: Error) -> Error {
    match error {
        Error::Volume(error) if is_gone(&error) => Error::NoSuchBucket,
        other => other,
    }
}
