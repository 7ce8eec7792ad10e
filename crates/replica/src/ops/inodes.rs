//! Attributes: chmod, chown, times, extended attributes.

use crate::ops::acl;
use crate::ops::read::node;
use crate::ops::step::{Commit, Here, Next, Stepped};
use crate::ops::stubs;
use crate::ops::tree::{Tree, attr_of, later};
use bytes::Bytes;
use hekate_proto::*;

const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
/// Limits of Linux's VFS: XATTR_NAME_MAX and XATTR_SIZE_MAX.
const XATTR_NAME_BYTES_MAX: usize = 255;
const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// Attributes of one inode at most: one scan reads all of them.
const XATTRS_MAX: usize = 128;

/// Checks an extended attribute against the limits.
fn check_xattr(name: &Bytes, value: Option<&Bytes>) -> Stepped<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Error::invalid("the name of an extended attribute has 1 to 255 bytes").into());
    }
    if value.is_some_and(|value| value.len() > XATTR_VALUE_BYTES_MAX) {
        return Err(Error::AttributeTooLarge.into());
    }
    Ok(())
}

/// Gives a new inode its extended attributes.
pub fn born_with(
    tree: &Tree,
    commit: &mut Commit,
    (id, inode): (InodeId, &mut InodeRecord),
    attributes: &[(Bytes, Bytes)],
) -> Stepped<()> {
    if attributes.len() > XATTRS_MAX - 2 {
        return Err(Error::AttributeTooLarge.into());
    }
    for (name, value) in attributes {
        check_xattr(name, Some(value))?;
        if acl::is_acl(name) || &name[..] == CAPABILITY {
            return Err(Error::invalid("an ACL or a capability is set with setxattr").into());
        }
        inode.has_xattrs = true;
        commit.changes.push(Change::Put { key: tree.xattr_key(id, name), value: value.clone() });
    }
    Ok(())
}

/// Clears set-user-id, and set-group-id if the group may execute: otherwise it means mandatory locking (inode(7)).
pub fn drop_set_id_bits(inode: &mut InodeRecord) {
    inode.mode &= !SET_USER_ID;
    if inode.mode & GROUP_EXECUTE != 0 {
        inode.mode &= !SET_GROUP_ID;
    }
}

/// The attribute that holds file capabilities (capabilities(7)).
const CAPABILITY: &[u8] = b"security.capability";

/// The change that removes a program's file capabilities, if it has any: each change of content or owner does, also by
/// root.
pub fn drop_capability(tree: &Tree, id: InodeId, inode: &mut InodeRecord) -> Option<Change> {
    let had = std::mem::take(&mut inode.has_capability);
    had.then(|| Change::Delete { key: tree.xattr_key(id, CAPABILITY) })
}

/// The changes that go with a change of content: what was recorded of the former content is removed.
pub fn forget_content(tree: &Tree, id: InodeId, inode: &mut InodeRecord) -> Option<Change> {
    inode.etag = Bytes::new();
    drop_capability(tree, id, inode)
}

/// Applies all changes but the size.
pub fn apply_changes(inode: &mut InodeRecord, changes: &AttrChanges, now: Time) {
    let now = later(now, inode.ctime);
    let at = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At { time } => time,
    };
    inode.mode = changes.mode.map_or(inode.mode, |mode| mode & 0o7777);
    inode.uid = changes.uid.unwrap_or(inode.uid);
    inode.gid = changes.gid.unwrap_or(inode.gid);
    inode.atime = changes.atime.map_or(inode.atime, at);
    inode.mtime = changes.mtime.map_or(inode.mtime, at);
    if changes.drop_set_id {
        drop_set_id_bits(inode);
    }
    if let Some(implied) = changes.implied
        && inode.kind == NodeKind::Directory
    {
        inode.implied = implied;
    }
    inode.ctime = now;
    inode.change += 1;
}

pub fn setattr(here: &mut Here, id: InodeId, changes: &AttrChanges) -> Stepped<Next> {
    let (tree, now) = (here.tree(), here.now);
    let mut inode = tree.inode(id)?;
    apply_changes(&mut inode, changes, now);
    let (mut commit, mut legs) = (Commit::default(), Vec::new());
    let is_chown = changes.uid.is_some() || changes.gid.is_some();
    if is_chown && inode.kind != NodeKind::Directory {
        commit.changes.extend(drop_capability(&tree, id, &mut inode));
    }
    if changes.mode.is_some() && inode.has_xattrs {
        acl::follow_mode(&tree, &mut commit, id, inode.mode)?;
    }
    let stub = match inode.kind {
        NodeKind::Directory => {
            let mut stub = tree.open_stub(id)?;
            (stub.mode, stub.uid, stub.gid) = (inode.mode, inode.uid, inode.gid);
            // A directory shows the later of its own time and its stubs' times. A time that is set has to show.
            let mtime = changes.mtime.map(|_| inode.mtime);
            stub.mtime = mtime.unwrap_or(stub.mtime);
            if stub.spread > 1 && is_in_stubs(changes) {
                stubs::hold(here, id, stub.spread)?;
                legs = stubs::set(id, &stub, mtime);
            }
            commit.put(tree.stub_key(id), &stub);
            Some(stub)
        }
        _ => None,
    };
    commit.put(tree.key(id, Kind::Inode), &inode);
    commit.reply = Some(node(attr_of(id, &inode, stub.as_ref())));
    Ok(Next::Commit(commit, legs))
}

/// True if the stubs hold a copy of something that changes.
fn is_in_stubs(changes: &AttrChanges) -> bool {
    let AttrChanges { mode, uid, gid, mtime, drop_set_id, size: _, atime: _, implied: _ } = changes;
    mode.is_some() || uid.is_some() || gid.is_some() || mtime.is_some() || *drop_set_id
}

/// Sets an extended attribute to `value`, or removes it if that is `None`.
pub fn setxattr(
    here: &mut Here,
    id: InodeId,
    name: &Bytes,
    value: Option<&Bytes>,
    create: bool,
    replace: bool,
) -> Stepped<Next> {
    check_xattr(name, value)?;
    let (ask, tree, now) = (here.ask, here.tree(), here.now);
    let mut inode = tree.inode(id)?;
    let existing = tree.xattrs(id, &inode)?;
    let exists = existing.iter().any(|(known, _)| known == name);
    match exists {
        true if create => return Err(Error::Exists.into()),
        false if replace => return Err(Error::NoAttribute.into()),
        false if existing.len() >= XATTRS_MAX => return Err(Error::AttributeTooLarge.into()),
        _ => {}
    }
    if &name[..] == CAPABILITY {
        inode.has_capability = value.is_some();
    }
    inode.has_xattrs = value.is_some() || existing.len() > 1;
    inode.ctime = later(now, inode.ctime);
    inode.change += 1;
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    commit.put(tree.key(id, Kind::Inode), &inode);
    let key = Key::xattr(ask.ring, ask.volume, id, name);
    match value {
        Some(value) => commit.changes.push(Change::Put { key, value: value.clone() }),
        None => commit.delete(key),
    }
    Ok(Next::record(commit))
}

/// The record that updates the access time, if that is due.
pub fn accessed(tree: &Tree, id: InodeId, now: Time) -> Stepped<Option<Commit>> {
    let attr = tree.attr(id)?;
    if !attr.is_access_due(now) {
        return Ok(None);
    }
    let inode = InodeRecord { atime: now, ..tree.inode(id)? };
    let mut commit = Commit::default();
    commit.put(tree.key(id, Kind::Inode), &inode);
    Ok(Some(commit))
}
