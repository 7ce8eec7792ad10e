//! Changes of names: create, mkdir, link, unlink, rmdir.

use crate::ops::acl::{self, Birth};
use crate::ops::read::found_node;
use crate::ops::step::{Commit, Here, Next, Stepped};
use crate::ops::stubs;
use crate::ops::tree::{Owner, Tree, attr_of, drop_link, new_inode};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

const SET_GROUP_ID: u16 = 0o2000;
/// Bytes of a symbolic link's target at most: PATH_MAX of Linux without its NUL.
const TARGET_BYTES_MAX: usize = 4095;

/// The user that makes an inode, and the mode that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Maker {
    pub mode: u16,
    pub umask: u16,
    pub uid: u32,
    pub gid: u32,
}

impl Maker {
    /// The owner of a new inode. In a directory with set-group-id the group is the directory's, and new directories get
    /// the bit (inode(7)). If the directory has a default ACL, that applies instead of the umask (acl(5)).
    pub fn owner(self, stub: &StubRecord, kind: NodeKind) -> Stepped<Owner> {
        let is_directory = kind == NodeKind::Directory;
        let mut birth = match kind {
            NodeKind::Symlink => Birth { mode: self.mode, ..Birth::default() },
            _ => acl::birth(&stub.default_acl, self.mode, self.umask, is_directory)?,
        };
        let mut gid = self.gid;
        if stub.mode & SET_GROUP_ID != 0 {
            gid = stub.gid;
            birth.mode |= if is_directory { SET_GROUP_ID } else { 0 };
        }
        Ok(Owner { uid: self.uid, gid, birth, implied: false })
    }
}

/// Adds a name to a directory.
pub fn add_name(
    tree: &Tree,
    commit: &mut Commit,
    dir: (InodeId, StubRecord),
    name: &Name,
    child: (InodeId, NodeKind),
    now: Time,
) {
    let ((dir, mut stub), (inode, kind)) = (dir, child);
    commit.put(tree.name_key(dir, name), &NameRecord { inode, kind });
    stub.entries += 1;
    stub.directories += u32::from(kind == NodeKind::Directory);
    touch(tree, commit, dir, stub, now);
}

/// Removes a name from a directory.
pub fn remove_name(
    tree: &Tree,
    commit: &mut Commit,
    dir: (InodeId, StubRecord),
    name: &Name,
    kind: NodeKind,
    now: Time,
) {
    let (dir, mut stub) = dir;
    stub.entries += u64::from(is_planted(Bug::RemovedNameCounted));
    commit.delete(tree.name_key(dir, name));
    stub.entries -= 1;
    stub.directories -= u32::from(kind == NodeKind::Directory);
    touch(tree, commit, dir, stub, now);
}

/// Updates the times of a directory's stub after a change of its names.
pub fn touch(tree: &Tree, commit: &mut Commit, dir: InodeId, mut stub: StubRecord, now: Time) {
    stub.renamed(now);
    commit.put(tree.stub_key(dir), &stub);
}

pub fn create(
    here: &mut Here,
    dir: InodeId,
    name: &Name,
    node: &NewNode,
    maker: Maker,
    exclusive: bool,
    seed: u64,
) -> Stepped<Next> {
    let tree = here.tree();
    let stub = tree.stub_of(dir, name)?;
    if let Some(found) = tree.name(dir, name)? {
        return match found.kind {
            _ if exclusive => Err(Error::Exists.into()),
            NodeKind::Directory => Err(Error::IsDirectory.into()),
            _ => Ok(Next::Reply(found_node(&tree, &found)?)),
        };
    }
    let owner = maker.owner(&stub, node.kind())?;
    let mut commit = Commit::default();
    let id = InodeId::new(tree.names_prefix(dir).position.0, seed as u32, here.number(0));
    let mut inode = new_inode(node.kind(), owner.birth.mode, owner.uid, owner.gid, here.now);
    inode.has_xattrs = owner.birth.has_acl();
    match node {
        NewNode::Symlink { target } => {
            if target.is_empty() || target.len() > TARGET_BYTES_MAX {
                return Err(Error::NameTooLong.into());
            }
            inode.size = target.len() as u64;
            commit.changes.push(Change::Put { key: tree.key(id, Kind::Content), value: target.clone() });
        }
        NewNode::CharDevice { device } | NewNode::BlockDevice { device } => inode.device = *device,
        NewNode::File | NewNode::Directory | NewNode::Fifo | NewNode::Socket => {}
    }
    commit.put(tree.key(id, Kind::Inode), &inode);
    commit.changes.extend(acl::born(here.ask, id, &owner.birth));
    add_name(&tree, &mut commit, (dir, stub), name, (id, node.kind()), here.now);
    commit.reply = Some(Reply::Node { attr: attr_of(id, &inode, None), created: true });
    Ok(Next::record(commit))
}

/// Makes a file without a name (O_TMPFILE). It is removed once no session has it open, unless it got a name.
pub fn create_unnamed(here: &mut Here, dir: InodeId, maker: Maker, linkable: bool, seed: u64) -> Stepped<Next> {
    let tree = here.tree();
    let owner = maker.owner(&tree.stub(dir)?, NodeKind::File)?;
    let mut commit = Commit::default();
    let id = InodeId::new(tree.names_prefix(dir).position.0, seed as u32, here.number(0));
    let inode = new_inode(NodeKind::File, owner.birth.mode, owner.uid, owner.gid, here.now);
    let inode = InodeRecord { nlink: 0, has_xattrs: owner.birth.has_acl(), ..inode };
    commit.put(tree.key(id, Kind::Inode), &inode);
    commit.put(Key::orphan(here.ask.ring, here.ask.volume, id), &u8::from(linkable));
    commit.changes.extend(acl::born(here.ask, id, &owner.birth));
    commit.reply = Some(Reply::Node { attr: attr_of(id, &inode, None), created: true });
    Ok(Next::record(commit))
}

pub fn node_of(reply: Reply) -> Stepped<Attr> {
    match reply {
        Reply::Node { attr, .. } => Ok(attr),
        _ => Err(Error::bug("a leg that makes or links an inode answers with it").into()),
    }
}

pub fn mkdir(here: &mut Here, dir: InodeId, name: &Name, maker: Maker, seed: u64) -> Stepped<Next> {
    let tree = here.tree();
    let stub = tree.stub_of(dir, name)?;
    if tree.name(dir, name)?.is_some() {
        return Err(Error::Exists.into());
    }
    let id = InodeId::new((seed >> 32) as u32, seed as u32, here.number(0));
    let mut commit = Commit::default();
    let owner = here.one_owner(maker.owner(&stub, NodeKind::Directory)?)?;
    let attr = stubs::make(here, (id, dir), &owner, &mut commit)?;
    add_name(&tree, &mut commit, (dir, stub), name, (id, NodeKind::Directory), here.now);
    commit.reply = Some(Reply::Node { attr, created: true });
    Ok(Next::record(commit))
}

pub fn link(here: &mut Here, dir: InodeId, name: &Name, id: InodeId) -> Stepped<Next> {
    let tree = here.tree();
    let stub = tree.stub_of(dir, name)?;
    if tree.name(dir, name)?.is_some() {
        return Err(Error::Exists.into());
    }
    let mut commit = Commit::default();
    let attr = if here.owns(id.position()) {
        let inode = crate::transactions::legs::add_link(&tree, &mut commit, id, None, here.now)?;
        attr_of(id, &inode, None)
    } else {
        let undo = Some(Leg::TakeBackLink { inode: id });
        node_of(here.leg(id.position(), Leg::AddLink { inode: id }, undo)?)?
    };
    add_name(&tree, &mut commit, (dir, stub), name, (id, attr.kind), here.now);
    commit.reply = Some(Reply::Node { attr, created: true });
    Ok(Next::record(commit))
}

pub fn unlink(here: &mut Here, dir: InodeId, name: &Name, open_here: Option<InodeId>) -> Stepped<Next> {
    let (ask, tree) = (here.ask, here.tree());
    let stub = tree.stub_of(dir, name)?;
    let found = tree.name(dir, name)?.ok_or(Error::NotFound)?;
    if found.kind == NodeKind::Directory {
        return Err(Error::IsDirectory.into());
    }
    let keep = !ask.alone || open_here == Some(found.inode);
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    remove_name(&tree, &mut commit, (dir, stub), name, found.kind, here.now);
    if here.owns(found.inode.position()) {
        drop_link(&tree, &mut commit, found.inode, keep, here.now)?;
        return Ok(Next::record(commit));
    }
    let drop = Leg::DropLink { inode: found.inode, keep };
    Ok(Next::Commit(commit, vec![(found.inode.position(), drop)]))
}

/// `implied`: only if the directory is implied.
pub fn rmdir(here: &mut Here, dir: InodeId, name: &Name, implied: bool) -> Stepped<Next> {
    let tree = here.tree();
    let stub = tree.stub_of(dir, name)?;
    let found = tree.name(dir, name)?.ok_or(Error::NotFound)?;
    if found.kind != NodeKind::Directory {
        return Err(Error::NotDirectory.into());
    }
    let closed = stubs::close(here, found.inode, implied)?;
    let (mut commit, mut legs) = (Commit { reply: Some(Reply::Done), ..Commit::default() }, Vec::new());
    remove_name(&tree, &mut commit, (dir, stub), name, found.kind, here.now);
    stubs::drop_closed(here, found.inode, closed, &mut commit, &mut legs)?;
    Ok(Next::Commit(commit, legs))
}
