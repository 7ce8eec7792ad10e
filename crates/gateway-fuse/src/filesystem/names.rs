//! Look-ups, and requests that make, move and remove names.

use super::{Caller, Filesystem};
use crate::abi::*;
use crate::encode::{Failed, Outcome, bytes_of, missing_out};
use crate::removed_directory::RemovedDirectory;
use bytes::Bytes;
use hekate_client::{Context, NameAt, New, seed};
use hekate_proto::{Attr, Error, InodeId, Name, NewNode, RenameMode, Result};
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const PERMISSIONS: u32 = 0o7777;

/// Mode of a new inode, and the caller's umask.
#[derive(Clone, Copy)]
pub(super) struct NewMode {
    pub mode: u32,
    pub umask: u32,
}

impl Filesystem {
    pub(super) fn lookup(&self, caller: &Caller, name: Name) -> Outcome {
        let found = match self.is_second_try(caller) {
            true => self.lookup_held(caller, &name),
            false => self.volume.lookup(&caller.context, caller.inode, name.clone()),
        };
        let at = (caller.inode, name);
        match found {
            Ok(attr) => {
                let name_validity = self.name_validity(&at, Some(attr.id));
                Ok(bytes_of(&self.entry_out(&attr, name_validity)))
            }
            Err(Error::NotFound) => match self.name_validity(&at, None) {
                Duration::ZERO => Err(Errno::NOENT.into()),
                name_validity => Ok(bytes_of(&missing_out(name_validity))),
            },
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn mknod(&self, caller: &Caller, name: Name, mode: NewMode, rdev: u32) -> Outcome {
        let device = u64::from(rdev);
        let node = match mode.mode & 0o170_000 {
            0o010_000 => NewNode::Fifo,
            0o020_000 => NewNode::CharDevice { device },
            0o060_000 => NewNode::BlockDevice { device },
            0o140_000 => NewNode::Socket,
            0 | 0o100_000 => NewNode::File,
            _ => return Err(Errno::INVAL.into()),
        };
        self.make(caller, name, node, mode)
    }

    pub(super) fn mkdir(&self, caller: &Caller, name: Name, mode: NewMode) -> Outcome {
        self.make(caller, name, NewNode::Directory, mode)
    }

    pub(super) fn symlink(&self, caller: &Caller, name: Name, target: Bytes) -> Outcome {
        self.make(caller, name, NewNode::Symlink { target }, NewMode { mode: 0o777, umask: 0 })
    }

    fn make(&self, caller: &Caller, name: Name, node: NewNode, mode: NewMode) -> Outcome {
        let new = new(caller, node, mode);
        let (attr, _) = self.volume.create(&caller.context, caller.inode, name.clone(), new)?;
        self.made_entry(caller, name, &attr)
    }

    /// The kernel sends CREATE only for names that it found missing, and has checked no permission of a file. If
    /// another client has made the name meanwhile, ESTALE makes the kernel look it up again and open it under its own
    /// rules.
    pub(super) fn create(&self, caller: &Caller, name: Name, create: CreateIn) -> Outcome {
        let create_it =
            |context: &Context| self.volume.create(context, caller.inode, name.clone(), new_file(caller, &create));
        let attr = match self.with_directory_attr(caller, create_it) {
            Ok((attr, _)) => attr,
            Err(Error::Exists) if create.flags & OFlags::EXCL.bits() == 0 => match self.is_second_try(caller) {
                true => self.create_or_open(caller, &name, &create)?,
                false => return Err(Errno::STALE.into()),
            },
            Err(error) => return Err(error.into()),
        };
        let entry = self.made(caller, name, &attr);
        self.mark_open(attr.id);
        self.nodes.unchanged(attr.id.number(), attr.change);
        Ok(bytes_of(&CreateOut { entry, open: self.open_out(attr.id, create.flags, false) }))
    }

    /// The library counts the file as open before it replies, since a file without a name exists only while it is
    /// open.
    pub(super) fn create_unnamed(&self, caller: &Caller, create: CreateIn) -> Outcome {
        let new = new_file(caller, &create);
        let linkable = create.flags & OFlags::EXCL.bits() == 0;
        let attr = self.volume.create_unnamed(&caller.context, caller.inode, new, linkable)?;
        let entry = self.entry_out(&attr, self.cache);
        self.nodes.opened(attr.id.number());
        self.nodes.unchanged(attr.id.number(), attr.change);
        Ok(bytes_of(&CreateOut { entry, open: self.open_out(attr.id, create.flags, false) }))
    }

    pub(super) fn link(&self, caller: &Caller, name: Name, node: u64) -> Outcome {
        let inode = self.inode(node)?;
        let attr = self.volume.link(&caller.context, caller.inode, name.clone(), inode)?;
        self.made_entry(caller, name, &attr)
    }

    /// Reply with the inode of a name that was made. The time in it replaces that for which the kernel knew the name to
    /// be missing.
    fn made_entry(&self, caller: &Caller, name: Name, attr: &Attr) -> Outcome {
        Ok(bytes_of(&self.made(caller, name, attr)))
    }

    fn made(&self, caller: &Caller, name: Name, attr: &Attr) -> EntryOut {
        let at = (caller.inode, name);
        self.names.replaced(&at);
        let name_validity = self.name_validity(&at, Some(attr.id));
        self.entry_out(attr, name_validity)
    }

    pub(super) fn unlink(&self, caller: &Caller, name: Name) -> Outcome {
        let _removal = self.removals.begin();
        let gone = match self.nodes.any_open() {
            true => self.attr_at(caller, caller.inode, &name)?,
            false => None,
        };
        let inode = gone.map(|attr| attr.id);
        self.with_directory_attr(caller, |context| self.volume.unlink(context, caller.inode, name, inode))?;
        Ok(Bytes::new())
    }

    /// Makes a change of names whose reply contains the attributes of the directory.
    fn with_directory_attr<T>(
        &self,
        caller: &Caller,
        change: impl FnOnce(&Context) -> hekate_proto::Result<T>,
    ) -> hekate_proto::Result<T> {
        if self.cache.is_zero() {
            return change(&caller.context);
        }
        let (begun, after) = (self.recent.begin(), OnceLock::new());
        let outcome = change(&Context { directory_after: Some(&after), ..caller.context });
        match after.into_inner() {
            Some(attr) => self.recent.learn(begun, attr),
            None => self.recent.forget(),
        }
        outcome
    }

    pub(super) fn rmdir(&self, caller: &Caller, name: Name) -> Outcome {
        // A process that has the directory open can still request its attributes.
        let before = match self.handles.any() {
            true => self.volume.lookup(&caller.context, caller.inode, name.clone()).ok(),
            false => None,
        };
        let before = self.if_directory_open(caller, before);
        self.volume.rmdir(&caller.context, caller.inode, name)?;
        before.into_iter().for_each(|gone| self.nodes.note_removed(gone));
        Ok(Bytes::new())
    }

    pub(super) fn rename(&self, caller: &Caller, name: Name, to_dir: u64, to_name: Name, flags: u32) -> Outcome {
        let mode = rename_mode(caller, flags)?;
        let to_dir = self.inode(to_dir)?;
        let _removal = self.removals.begin();
        let replaced = match mode {
            RenameMode::Replace | RenameMode::Whiteout { replace: true, .. }
                if self.nodes.any_open() || self.handles.any() =>
            {
                self.attr_at(caller, to_dir, &to_name)?
            }
            _ => None,
        };
        let inode = replaced.as_ref().map(|attr| attr.id);
        let replaced = self.if_directory_open(caller, replaced);
        let (from, to) = ((caller.inode, name), (to_dir, to_name));
        self.volume.rename(&caller.context, from.clone(), to.clone(), mode, inode)?;
        self.expire_moved(caller, &from, &to, mode);
        replaced.into_iter().for_each(|gone| self.nodes.note_removed(gone));
        Ok(Bytes::new())
    }

    /// The kernel moves what it knows of the old name to the new one, with the time for which it may use it, and for an
    /// exchange the other way round, too. So the names that it then uses have to be pledged, or that time has to be over
    /// when it learns of the rename.
    fn expire_moved(&self, caller: &Caller, from: &NameAt, to: &NameAt, mode: RenameMode) {
        self.expire_moved_one(caller, from, to);
        if mode == RenameMode::Exchange {
            self.expire_moved_one(caller, to, from);
        }
    }

    fn expire_moved_one(&self, caller: &Caller, from: &NameAt, to: &NameAt) {
        let Some(until) = self.names.used_until(from) else { return };
        // It was pledged with the rename, or is asked for now.
        let inode = self.volume.lookup(&caller.context, to.0, to.1.clone()).ok().map(|attr| attr.id);
        self.names.note_moved(to, inode);
        let left = until.saturating_duration_since(Instant::now());
        if inode.is_none() || self.volume.pledges().name_validity(to, inode) < left {
            std::thread::sleep(left);
        }
    }

    /// The state of a directory that may be removed, with its extended attributes, if it is open here.
    fn if_directory_open(&self, caller: &Caller, attr: Option<Attr>) -> Option<RemovedDirectory> {
        let attr = attr.filter(|attr| self.handles.is_open(attr.id))?;
        let inode = attr.id;
        let names = match attr.has_xattrs {
            true => self.volume.listxattr(&caller.context, inode).unwrap_or_default(),
            false => Vec::new(),
        };
        let value = |name: Bytes| {
            let value = self.volume.getxattr(&caller.context, inode, name.clone()).ok()?;
            Some((name, value))
        };
        Some(RemovedDirectory { attr, xattrs: names.into_iter().filter_map(value).collect() })
    }

    /// The inode of a name that is about to be removed. It matters only while an inode is open here.
    fn attr_at(&self, caller: &Caller, dir: InodeId, name: &Name) -> Result<Option<Attr>> {
        match self.volume.lookup(&caller.context, dir, name.clone()) {
            Ok(attr) => Ok(Some(attr)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The file that a CREATE makes.
pub(super) fn new_file(caller: &Caller, create: &CreateIn) -> New {
    new(caller, NewNode::File, NewMode { mode: create.mode, umask: create.umask })
}

fn new(caller: &Caller, node: NewNode, mode: NewMode) -> New {
    let (mode, umask) = ((mode.mode & PERMISSIONS) as u16, (mode.umask & PERMISSIONS) as u16);
    New { node, mode, umask, uid: caller.uid, gid: caller.gid, exclusive: true }
}

fn rename_mode(caller: &Caller, flags: u32) -> std::result::Result<RenameMode, Failed> {
    let (flags, (uid, gid)) = (RenameFlags::from_bits_retain(flags), (caller.uid, caller.gid));
    let replace = !flags.contains(RenameFlags::NOREPLACE);
    match flags.difference(RenameFlags::NOREPLACE) {
        flags if flags.is_empty() && replace => Ok(RenameMode::Replace),
        flags if flags.is_empty() => Ok(RenameMode::NoReplace),
        RenameFlags::EXCHANGE if replace => Ok(RenameMode::Exchange),
        RenameFlags::WHITEOUT => Ok(RenameMode::Whiteout { replace, uid, gid, seed: seed()? as u32 }),
        _ => Err(Errno::INVAL.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::Signals;

    #[test]
    fn rename_flags_are_taken_or_refused() {
        let signals = Signals::default();
        let (inode, context) = (InodeId::new(1, 1, 1), Context::default());
        let caller = Caller { inode, uid: 5, gid: 6, thread: 0, request: 1, context, signals: &signals };
        let mode = |flags| rename_mode(&caller, flags);
        assert_eq!(mode(0), Ok(RenameMode::Replace));
        assert_eq!(mode(1), Ok(RenameMode::NoReplace));
        assert_eq!(mode(2), Ok(RenameMode::Exchange));
        assert!(matches!(mode(4), Ok(RenameMode::Whiteout { replace: true, uid: 5, gid: 6, .. })));
        assert!(matches!(mode(5), Ok(RenameMode::Whiteout { replace: false, .. })));
        // EXCHANGE excludes NOREPLACE and WHITEOUT.
        assert!([3, 6, 7, 8].into_iter().all(|flags| mode(flags) == Err(Errno::INVAL.into())));
    }
}
