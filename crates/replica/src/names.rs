//! Names: create, mkdir, link, unlink, rmdir.

use crate::execute::{Ask, Commit, Multi, Partitions, Stop};
use crate::read::found_node;
use crate::tree::{Tree, attr_of, drop_link, new_directory, new_inode};
use hekate_proto::*;

/// Who will own a new inode.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
}

const SET_GROUP_ID: u16 = 0o2000;
/// Bytes of a symlink's target: PATH_MAX of Linux with its NUL.
const TARGET_BYTES_MAX: usize = 4095;

impl Owner {
    /// In a directory with set-group-id the group is the directory's, and directories keep the bit (inode(7)).
    fn inherit(mut self, stub: &StubRecord, directory: bool) -> Self {
        if stub.mode & SET_GROUP_ID != 0 {
            self.gid = stub.gid;
            self.mode |= if directory { SET_GROUP_ID } else { 0 };
        }
        self
    }
}

/// A name is new in the directory.
fn add_name(
    ask: &Ask,
    tree: &Tree,
    commit: &mut Commit,
    dir: (InodeId, StubRecord),
    name: &Name,
    child: (InodeId, NodeKind),
    now: Time,
) {
    let ((dir, mut stub), (inode, kind)) = (dir, child);
    commit.put(Key::name(ask.name_place(dir, name), dir, name.as_bytes()), &NameRecord { inode, kind });
    stub.entries += 1;
    stub.directories += u32::from(kind == NodeKind::Directory);
    touch(tree, commit, dir, stub, now);
}

/// A name is gone from the directory.
fn remove_name(
    ask: &Ask,
    tree: &Tree,
    commit: &mut Commit,
    dir: (InodeId, StubRecord),
    name: &Name,
    kind: NodeKind,
    now: Time,
) {
    let (dir, mut stub) = dir;
    commit.delete(Key::name(ask.name_place(dir, name), dir, name.as_bytes()));
    stub.entries -= 1;
    stub.directories -= u32::from(kind == NodeKind::Directory);
    touch(tree, commit, dir, stub, now);
}

/// The directory's names changed.
pub fn touch(tree: &Tree, commit: &mut Commit, dir: InodeId, mut stub: StubRecord, now: Time) {
    stub.mtime = now;
    stub.change += 1;
    commit.put(tree.key(dir, Kind::Stub), &stub);
}

#[allow(clippy::too_many_arguments, reason = "the fields of the op")]
pub fn create(
    parts: &mut dyn Partitions,
    ask: &Ask,
    dir: InodeId,
    name: &Name,
    node: &NewNode,
    owner: Owner,
    exclusive: bool,
    seed: u64,
) -> std::result::Result<Reply, Stop> {
    let position = ask.name_place(dir, name).position;
    let home = ask.partition(position);
    let tree = Tree::new(parts.brick(home)?, ask);
    let stub = tree.stub(dir)?;
    if let Some(found) = tree.name(ask.name_place(dir, name), dir, name)? {
        return match found.kind {
            _ if exclusive => Err(Error::Exists.into()),
            NodeKind::Directory => Err(Error::IsDirectory.into()),
            _ => found_node(&tree, ask, dir, &found),
        };
    }
    let owner = owner.inherit(&stub, false);
    let mut commit = Commit::default();
    let leader = parts.leader(home)?;
    let now = leader.time(ask.now);
    let id = InodeId::new(position.0, seed as u32, leader.next_number(&mut commit.changes));
    let tree = Tree::new(parts.brick(home)?, ask);
    let mut inode = new_inode(node.kind(), owner.mode, owner.uid, owner.gid, now);
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
    add_name(ask, &tree, &mut commit, (dir, stub), name, (id, node.kind()), now);
    let reply = Reply::Node { attr: attr_of(id, &inode, None), created: true };
    commit.reply = Some(reply.clone());
    parts.commit(home, commit)?;
    Ok(reply)
}

pub fn mkdir(
    parts: &mut dyn Partitions,
    ask: &Ask,
    dir: InodeId,
    name: &Name,
    owner: Owner,
    seed: u64,
) -> std::result::Result<Reply, Stop> {
    let home = ask.partition(ask.name_place(dir, name).position);
    let position = Position((seed >> 32) as u32);
    let there = ask.partition(position);
    let tree = Tree::new(parts.brick(home)?, ask);
    let stub = tree.stub(dir)?;
    if tree.name(ask.name_place(dir, name), dir, name)?.is_some() {
        return Err(Error::Exists.into());
    }
    parts.brick(there)?;
    let Owner { mode, uid, gid } = owner.inherit(&stub, true);
    let mut commit = Commit::default();
    let now = parts.leader(home)?.time(ask.now);
    // The number is the driver's to give: unique whichever partition it comes from.
    let number = parts.leader(home)?.next_number(&mut commit.changes);
    let id = InodeId::new(position.0, seed as u32, number);
    let (records, attr) = new_directory(ask, id, dir, (mode, uid, gid), now);
    let reply = Reply::Node { attr, created: true };
    commit.reply = Some(reply.clone());
    let tree = Tree::new(parts.brick(home)?, ask);
    add_name(ask, &tree, &mut commit, (dir, stub), name, (id, NodeKind::Directory), now);
    if there == home {
        commit.changes.extend(records);
        parts.commit(home, commit)?;
        return Ok(reply);
    }
    let make = Leg::MakeDirectory { inode: id, parent: dir, mode, uid, gid };
    let mut op = Multi::begin(parts, ask, home, "mkdir")?;
    op.before(&[(position, make, Leg::UnmakeDirectory { inode: id })])?;
    op.commit(commit, Vec::new())?;
    Ok(reply)
}

pub fn link(
    parts: &mut dyn Partitions,
    ask: &Ask,
    dir: InodeId,
    name: &Name,
    id: InodeId,
) -> std::result::Result<Reply, Stop> {
    let home = ask.partition(ask.name_place(dir, name).position);
    let there = ask.partition(id.position());
    let tree = Tree::new(parts.brick(home)?, ask);
    let stub = tree.stub(dir)?;
    if tree.name(ask.name_place(dir, name), dir, name)?.is_some() {
        return Err(Error::Exists.into());
    }
    let mut inode = Tree::new(parts.brick(there)?, ask).inode(id)?;
    if inode.kind == NodeKind::Directory {
        return Err(Error::Denied { what: "hard links to directories".into() }.into());
    }
    if inode.nlink == 0 {
        return Err(Error::NotFound.into());
    }
    let now = parts.leader(home)?.time(ask.now);
    inode.nlink = inode.nlink.checked_add(1).ok_or(Error::TooManyLinks)?;
    inode.ctime = now;
    inode.change += 1;
    let tree = Tree::new(parts.brick(home)?, ask);
    let mut commit = Commit::default();
    add_name(ask, &tree, &mut commit, (dir, stub), name, (id, inode.kind), now);
    let reply = Reply::Node { attr: attr_of(id, &inode, None), created: true };
    commit.reply = Some(reply.clone());
    if there == home {
        commit.put(tree.key(id, Kind::Inode), &inode);
        parts.commit(home, commit)?;
        return Ok(reply);
    }
    let mut op = Multi::begin(parts, ask, home, "link")?;
    op.before(&[(id.position(), Leg::AddLink { inode: id }, Leg::TakeBackLink { inode: id })])?;
    op.commit(commit, Vec::new())?;
    Ok(reply)
}

pub fn unlink(
    parts: &mut dyn Partitions,
    ask: &Ask,
    dir: InodeId,
    name: &Name,
    open_here: Option<InodeId>,
) -> std::result::Result<Reply, Stop> {
    let home = ask.partition(ask.name_place(dir, name).position);
    let tree = Tree::new(parts.brick(home)?, ask);
    let stub = tree.stub(dir)?;
    let found = tree.name(ask.name_place(dir, name), dir, name)?.ok_or(Error::NotFound)?;
    if found.kind == NodeKind::Directory {
        return Err(Error::IsDirectory.into());
    }
    let there = ask.partition(found.inode.position());
    parts.brick(there)?;
    let keep = !ask.alone || open_here == Some(found.inode);
    let now = parts.leader(home)?.time(ask.now);
    let tree = Tree::new(parts.brick(home)?, ask);
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    remove_name(ask, &tree, &mut commit, (dir, stub), name, found.kind, now);
    if there == home {
        drop_link(&tree, &mut commit, found.inode, keep, now)?;
        parts.commit(home, commit)?;
    } else {
        let drop = Leg::DropLink { inode: found.inode, keep };
        Multi::begin(parts, ask, home, "unlink")?.commit(commit, vec![(found.inode.position(), drop)])?;
    }
    Ok(Reply::Done)
}

pub fn rmdir(parts: &mut dyn Partitions, ask: &Ask, dir: InodeId, name: &Name) -> std::result::Result<Reply, Stop> {
    let home = ask.partition(ask.name_place(dir, name).position);
    let tree = Tree::new(parts.brick(home)?, ask);
    let stub = tree.stub(dir)?;
    let found = tree.name(ask.name_place(dir, name), dir, name)?.ok_or(Error::NotFound)?;
    if found.kind != NodeKind::Directory {
        return Err(Error::NotDirectory.into());
    }
    let position = found.inode.position();
    let there = ask.partition(position);
    let child = Tree::new(parts.brick(there)?, ask).stub(found.inode)?;
    if child.entries > 0 {
        return Err(Error::NotEmpty.into());
    }
    let now = parts.leader(home)?.time(ask.now);
    let tree = Tree::new(parts.brick(home)?, ask);
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    remove_name(ask, &tree, &mut commit, (dir, stub), name, found.kind, now);
    if there == home {
        crate::legs::drop_directory(&tree, &mut commit, found.inode)?;
        parts.commit(home, commit)?;
        return Ok(Reply::Done);
    }
    let (close, reopen) = (Leg::CloseDirectory { inode: found.inode }, Leg::ReopenDirectory { inode: found.inode });
    let mut op = Multi::begin(parts, ask, home, "rmdir")?;
    op.before(&[(position, close, reopen)])?;
    op.commit(commit, vec![(position, Leg::DropDirectory { inode: found.inode })])?;
    Ok(Reply::Done)
}
