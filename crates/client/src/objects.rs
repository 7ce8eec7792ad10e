//! Files as objects: what a door for objects does in one op each.

use crate::volume::{Volume, unexpected};
use crate::{Context, seed};
use bytes::Bytes;
use hekate_proto::*;

/// Names of a directory in the order of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPage {
    pub entries: Vec<Entry>,
    /// There are no more.
    pub end: bool,
    /// The directory has names that begin with [`ESCAPE`].
    pub escaped: bool,
    /// The directory itself.
    pub directory: Attr,
}

/// Owner and permissions of what an op makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
}

/// A file made of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Its name.
    pub name: Name,
    pub owner: Owner,
    /// Its ETag. Empty: none.
    pub etag: Bytes,
    pub attributes: Vec<(Bytes, Bytes)>,
}

/// A name with the one that is used instead if a directory has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectName {
    /// The directory.
    pub dir: InodeId,
    pub name: Name,
    /// In the same partition as `name`: [`ESCAPED_NAME`] and the name.
    pub alternate: Option<Name>,
}

impl Volume {
    /// What has a name, with the value of the extended attribute `attribute`, and with `content` the bytes of a file of
    /// up to 16 KiB: in one round trip, and as of one moment.
    ///
    /// # Errors
    /// `NotFound` if neither name exists.
    pub fn fetch(&self, context: &Context, name: &ObjectName, attribute: Bytes, content: bool) -> Result<Fetched> {
        let ObjectName { dir, name, alternate } = name.clone();
        self.fetched(context, Op::Name { op: NameOp::Fetch { dir, name, alternate, attribute, content } })
    }

    /// As [`Volume::fetch`], of an inode.
    pub fn fetch_inode(&self, context: &Context, inode: InodeId, attribute: Bytes, content: bool) -> Result<Fetched> {
        self.fetched(context, Op::Inode { op: InodeOp::Fetch { inode, attribute, content } })
    }

    fn fetched(&self, context: &Context, op: Op) -> Result<Fetched> {
        match self.call(context, op)? {
            Reply::Fetched { object } => Ok(*object),
            _ => Err(unexpected()),
        }
    }

    /// Gives a name its content, in one record: nobody sees a part of it. The second value is true if no file had the
    /// name. A file that had it is replaced, and exists while somebody has it open.
    ///
    /// # Errors
    /// `ConditionFailed` if the file under the name is not as `condition` demands; `IsDirectory` if a directory has the
    /// name and there is no alternate one; `NotFound` if the directory was removed; `Invalid` if the content is longer
    /// than [`INLINE_MAX`].
    pub fn put(
        &self,
        context: &Context,
        name: &ObjectName,
        source: PutSource,
        etag: Bytes,
        condition: Condition,
    ) -> Result<(Attr, bool)> {
        let ObjectName { dir, name, alternate } = name.clone();
        // The client does not know which file the name leads to.
        let (keep, seed) = (self.has_open(), seed()? as u32);
        let op = NameOp::Put { dir, name, alternate, source, etag, condition, keep, seed };
        self.node(context, Op::Name { op })
    }

    /// Removes the name of a file.
    ///
    /// # Errors
    /// `NotFound` if neither name exists; `ConditionFailed`; `IsDirectory` as of [`Volume::put`].
    pub fn remove_object(&self, context: &Context, name: &ObjectName, condition: Condition) -> Result<()> {
        let ObjectName { dir, name, alternate } = name.clone();
        let op = NameOp::Remove { dir, name, alternate, condition, keep: self.has_open() };
        self.call(context, Op::Name { op }).map(|_| ())
    }

    /// Makes an implied directory. A file that has the name gets the alternate one in the same record.
    ///
    /// # Errors
    /// `Exists` if a directory has the name; `NotDirectory` if something else than a file has.
    pub fn make_prefix(
        &self,
        context: &Context,
        dir: InodeId,
        name: Name,
        alternate: Name,
        owner: Owner,
    ) -> Result<Attr> {
        let Owner { mode, uid, gid } = owner;
        let op = NameOp::MakePrefix { dir, name, alternate, mode, uid, gid, seed: seed()? };
        Ok(self.node(context, Op::Name { op })?.0)
    }

    /// Removes an empty directory if it is implied.
    ///
    /// # Errors
    /// `NotEmpty` if it has names, or is an object itself; as rmdir(2).
    pub fn remove_prefix(&self, context: &Context, dir: InodeId, name: Name) -> Result<()> {
        self.call(context, Op::Name { op: NameOp::RemovePrefix { dir, name } }).map(|_| ())
    }

    /// Sets whether a directory is implied by keys, or an object itself.
    ///
    /// # Errors
    /// As [`Volume::setattr`].
    pub fn set_implied(&self, context: &Context, dir: InodeId, implied: bool) -> Result<Attr> {
        self.setattr(context, dir, AttrChanges { implied: Some(implied), ..AttrChanges::default() })
    }

    /// Joins files to a new one in their directory, in this order, which is that of their names. No byte is copied. The
    /// parts' names are gone. Each part has to have its ETag, if that is not empty.
    ///
    /// # Errors
    /// `Exists` if the new name exists, `NotFound` if a part does not; `ConditionFailed` if one has another ETag; `Invalid` if a part has other names or was not
    /// made in the directory, or if there are more than 10,000.
    pub fn join(&self, context: &Context, dir: InodeId, parts: Vec<(Name, Bytes)>, joined: Joined) -> Result<Attr> {
        let Joined { name: to, owner: Owner { mode, uid, gid }, etag, attributes } = joined;
        let seed = seed()? as u32;
        let op = NameOp::Join { dir, parts, to, mode, uid, gid, etag, attributes, seed };
        Ok(self.node(context, Op::Name { op })?.0)
    }

    /// At most `limit` names that begin with `prefix`, in the order of keys: a directory's counts as if it ended in `/`.
    /// Only those after `after`, compared in that order.
    ///
    /// # Errors
    /// `NotDirectory` if `dir` is not a directory, `NotFound` if it was removed.
    pub fn list_keys(
        &self,
        context: &Context,
        dir: InodeId,
        prefix: Bytes,
        after: Bytes,
        limit: u32,
    ) -> Result<KeyPage> {
        let op = NameOp::ListKeys { dir, spread: 1, prefix, after, limit };
        match self.call(context, Op::Name { op })? {
            Reply::Keys { entries, end, escaped, directory: Some(directory) } => {
                Ok(KeyPage { entries, end, escaped, directory: *directory })
            }
            _ => Err(unexpected()),
        }
    }
}
