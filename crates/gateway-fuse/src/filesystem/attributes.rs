//! Attributes, extended attributes, and the volume's space.

use super::locks::{is_kept_handle, is_quiet_handle};
use super::{Caller, Filesystem};
use crate::abi::*;
use crate::encode::{Outcome, attr_reply, bytes_of, join, joined, sized};
use crate::kept_pages::Reader;
use bytes::Bytes;
use hekate_client::SetXattr;
use hekate_proto::{AttrChanges, Error, InodeId, NodeKind, SetTime, VolumeSpace};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Unit of statfs(2), in bytes.
const STATFS_BLOCK_BYTES: u64 = 4096;
const NAME_BYTES_MAX: u32 = 255;
/// The attribute that holds a program's capabilities (capabilities(7)).
const CAPABILITY: &[u8] = b"security.capability";

impl Filesystem {
    /// `handle`: the open file for which the kernel asks, before it reads pages of it or its end is looked for.
    pub(super) fn getattr(&self, caller: &Caller, handle: Option<u64>) -> Outcome {
        if let Some((attr, left)) = self.recent.get(caller.inode, self.cache) {
            self.nodes.note_attr(&attr);
            return Ok(attr_reply(&attr, left));
        }
        let attr = match self.volume.getattr(&caller.context, caller.inode) {
            Err(Error::Stale) => self.nodes.with_removed(caller.inode, |gone| gone.attr.clone()).ok_or(Error::Stale)?,
            found => found?,
        };
        // Pages that the kernel has are read without a READ, and so is the end of a file. If there are none, the READ moves
        // the time of access.
        let moves_access = handle.is_some_and(|handle| {
            is_kept_handle(handle)
                && !is_quiet_handle(handle)
                && !(attr.size > 0 && self.pages.has_none(caller.inode.number()))
                && self.volume.moves_access(&attr)
        });
        let attr = if moves_access {
            // Asked for again, since the reply to a change carries no pledge.
            self.volume.accessed(&caller.context, caller.inode)?;
            self.volume.getattr(&caller.context, caller.inode)?
        } else {
            attr
        };
        match handle {
            Some(handle) => {
                self.attributes_before_pages(&attr, Reader { thread: caller.thread, handle, request: caller.request })
            }
            None => self.attributes(&attr),
        }
    }

    /// A SETATTR that sets nothing precedes a buffered write to a file with set-id bits; it requests the attributes.
    pub(super) fn setattr(&self, caller: &Caller, set: &SetAttrIn) -> Outcome {
        let kind = self.nodes.get(caller.inode.number()).map(|(_, kind)| kind);
        let mut changes = changes(set, kind != Some(NodeKind::Directory));
        if changes == AttrChanges::default() {
            return self.getattr(caller, None);
        }
        if changes.mode.is_none() && (changes.uid.is_some() || changes.gid.is_some()) {
            changes.mode = self.mode_after_chown(caller)?;
        }
        let attr = match self.volume.setattr(&caller.context, caller.inode, changes.clone()) {
            Err(Error::Stale) => {
                self.nodes.with_removed(caller.inode, |gone| gone.change(&changes)).ok_or(Error::Stale)?
            }
            found => found?,
        };
        let after = match changes.size.is_some() && changes.drop_set_id {
            true => self.without_group_bit(caller, &attr)?,
            false => None,
        };
        self.attributes(after.as_ref().unwrap_or(&attr))
    }

    pub(super) fn readlink(&self, caller: &Caller) -> Outcome {
        Ok(self.volume.readlink(&caller.context, caller.inode)?)
    }

    pub(super) fn setxattr(
        &self,
        caller: &Caller,
        name: Bytes,
        value: Bytes,
        flags: u32,
        drop_set_group: bool,
    ) -> Outcome {
        may_have(&name)?;
        let (create, replace) = (XattrFlags::CREATE.bits(), XattrFlags::REPLACE.bits());
        let how = SetXattr { create: flags & create != 0, replace: flags & replace != 0, drop_set_group };
        self.nodes.note_xattr_set(caller.inode.number());
        match self.volume.setxattr(&caller.context, caller.inode, name.clone(), value.clone(), how) {
            Err(Error::Stale) => {
                self.nodes
                    .with_removed(caller.inode, |gone| gone.set_xattr(name, value, how))
                    .ok_or(Error::Stale)??;
            }
            done => done?,
        }
        Ok(Bytes::new())
    }

    pub(super) fn getxattr(&self, caller: &Caller, name: Bytes, size: u32) -> Outcome {
        may_have(&name)?;
        if self.nodes.has_no_xattrs(caller.inode.number()) {
            return Err(missing(&name).into());
        }
        let is_acl = name.starts_with(b"system.posix_acl_");
        let outcome = self.value_of(caller, name, size);
        if is_acl {
            self.note_acl(caller.inode);
        }
        outcome
    }

    /// The kernel keeps an ACL, also a missing one, until it looks the inode up or has to forget its attributes. If these
    /// are not pledged nobody would tell: then it must not keep it. It keeps none that it has to forget while it asks.
    fn note_acl(&self, inode: InodeId) {
        let pledges = self.volume.pledges();
        self.nodes.note_acl(inode.number());
        if pledges.is_used()
            && !pledges.has_attributes(inode)
            && let Some(forget_node) = self.forget_node.get()
        {
            self.nodes.take_acl(inode.number());
            forget_node(inode.number());
        }
    }

    fn value_of(&self, caller: &Caller, name: Bytes, size: u32) -> Outcome {
        let value = match self.volume.getxattr(&caller.context, caller.inode, name.clone()) {
            Err(Error::Stale) => match self.nodes.with_removed(caller.inode, |gone| gone.xattr(&name)) {
                Some(found) => found?,
                // The kernel sends this request before a truncate and ignores the error. The truncate that follows
                // fails with ESTALE, and that makes the kernel resolve the path again.
                None if name == CAPABILITY => return Err(Errno::NODATA.into()),
                None => return Err(Error::Stale.into()),
            },
            Err(Error::NoAttribute) => return Err(missing(&name).into()),
            found => found?,
        };
        sized(value, size)
    }

    pub(super) fn listxattr(&self, caller: &Caller, size: u32) -> Outcome {
        if self.nodes.has_no_xattrs(caller.inode.number()) {
            return sized(Bytes::new(), size);
        }
        let names = match self.volume.listxattr(&caller.context, caller.inode) {
            Err(Error::Stale) => {
                let names = self.nodes.with_removed(caller.inode, |gone| gone.xattrs.keys().cloned().collect());
                names.ok_or(Error::Stale)?
            }
            found => found?,
        };
        // Attributes of the namespace `trusted` are listed for root only (xattr(7)), those of other doors for nobody.
        let is_hidden = |name: &Bytes| name.starts_with(b"hekate.");
        let is_listed = |name: &&Bytes| !is_hidden(name) && (caller.uid == 0 || !name.starts_with(b"trusted."));
        sized(joined(names.iter().filter(is_listed).map(|name| &name[..])), size)
    }

    pub(super) fn removexattr(&self, caller: &Caller, name: Bytes) -> Outcome {
        may_have(&name)?;
        match self.volume.removexattr(&caller.context, caller.inode, name.clone()) {
            Err(Error::Stale) => {
                self.nodes.with_removed(caller.inode, |gone| gone.remove_xattr(&name)).ok_or(Error::Stale)??;
            }
            done => done?,
        }
        Ok(Bytes::new())
    }

    pub(super) fn statfs(&self, caller: &Caller) -> Outcome {
        Ok(bytes_of(&statfs_out(self.volume.statfs(&caller.context)?)))
    }
}

/// Checks the namespace of an attribute (xattr(7)). Of the namespace `system` only ACLs are allowed.
fn may_have(name: &[u8]) -> Result<(), Errno> {
    let namespaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if namespaces.contains(&name) {
        return Err(Errno::INVAL);
    }
    let is_known = namespaces.iter().any(|space| name.starts_with(space));
    let is_acl = matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default");
    if is_known || is_acl { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

/// The errno for an attribute that an inode does not have. With SELinux the kernel answers requests for labels
/// itself; without it `ls -l` requests the label of each file, until a file system replies that it supports none.
fn missing(name: &[u8]) -> Errno {
    if name == b"security.selinux" { Errno::OPNOTSUPP } else { Errno::NODATA }
}

/// The changes that a SETATTR asks for. A change of owner or group clears set-id bits of everything but directories,
/// for every caller (chown(2)); with HANDLE_KILLPRIV_V2 the kernel leaves that to the server.
fn changes(set: &SetAttrIn, drops_on_chown: bool) -> AttrChanges {
    let has = |bit| set.valid & bit != 0;
    let time = |bit, now, seconds, nanoseconds| match (has(bit), has(now)) {
        (false, _) => None,
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At { time: join(seconds, nanoseconds) }),
    };
    AttrChanges {
        mode: has(fattr::MODE).then_some((set.mode & 0o7777) as u16),
        uid: has(fattr::UID).then_some(set.uid),
        gid: has(fattr::GID).then_some(set.gid),
        size: has(fattr::SIZE).then_some(set.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, set.atime, set.atime_ns),
        // truncate, ftruncate and O_TRUNC change the time even if the size stays the same (POSIX truncate); the
        // kernel leaves that to the server.
        mtime: match has(fattr::SIZE) {
            true => Some(SetTime::Now),
            false => time(fattr::MTIME, fattr::MTIME_NOW, set.mtime, set.mtime_ns),
        },
        drop_set_id: has(fattr::KILL_SUIDGID) || drops_on_chown && has(fattr::UID | fattr::GID),
        implied: None,
    }
}

fn statfs_out(space: VolumeSpace) -> StatFsOut {
    StatFsOut {
        blocks: space.total / STATFS_BLOCK_BYTES,
        blocks_free: space.free / STATFS_BLOCK_BYTES,
        blocks_available: space.available / STATFS_BLOCK_BYTES,
        files: space.files,
        files_free: space.files_available,
        block_size: STATFS_BLOCK_BYTES as u32,
        name_max: NAME_BYTES_MAX,
        fragment_size: STATFS_BLOCK_BYTES as u32,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::Time;

    #[test]
    fn only_what_is_valid_is_changed() {
        assert_eq!(changes(&SetAttrIn { mode: 7, uid: 5, ..Default::default() }, true), AttrChanges::default());
        let set = SetAttrIn {
            valid: fattr::MODE | fattr::ATIME | fattr::MTIME | fattr::MTIME_NOW,
            mode: 0o104_755,
            atime: 3,
            atime_ns: 5,
            ..Default::default()
        };
        let wanted = AttrChanges {
            mode: Some(0o4755),
            atime: Some(SetTime::At { time: Time(3_000_000_005) }),
            mtime: Some(SetTime::Now),
            ..Default::default()
        };
        assert_eq!(changes(&set, true), wanted);
    }

    #[test]
    fn set_id_bits_go_with_chown_except_on_directories_and_when_the_kernel_says_so() {
        let chown = SetAttrIn { valid: fattr::GID, gid: 5, ..Default::default() };
        assert!(changes(&chown, true).drop_set_id);
        assert!(!changes(&chown, false).drop_set_id);
        let truncate = SetAttrIn { valid: fattr::SIZE | fattr::KILL_SUIDGID, ..Default::default() };
        let wanted = AttrChanges { size: Some(0), mtime: Some(SetTime::Now), drop_set_id: true, ..Default::default() };
        assert_eq!(changes(&truncate, true), wanted);
    }

    #[test]
    fn attributes_are_of_a_namespace_that_linux_has() {
        assert!(
            [&b"user.a"[..], b"trusted.a", b"security.capability", b"system.posix_acl_access"]
                .map(may_have)
                .iter()
                .all(Result::is_ok)
        );
        assert_eq!(may_have(b"user."), Err(Errno::INVAL));
        assert!(
            [&b""[..], b"trusted", b"nothing.a", b"system.a"]
                .map(may_have)
                .iter()
                .all(|no| *no == Err(Errno::OPNOTSUPP))
        );
    }

    #[test]
    fn space_is_counted_in_blocks() {
        let (total, free, available) = (1 << 30, 1 << 21, 1 << 20);
        let out = statfs_out(VolumeSpace { total, free, available, files: 10, files_available: 4 });
        assert_eq!((out.blocks, out.blocks_free, out.blocks_available), (262_144, 512, 256));
        assert_eq!((out.files, out.files_free, out.name_max), (10, 4, 255));
    }
}
