//! Short constructors for the ops of scenarios, and readers for their answers.

use bytes::Bytes;
use hekate_proto::*;

pub fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn create(dir: InodeId, text: &str, node: NewNode, seed: u64) -> Op {
    let (mode, uid, gid, exclusive) = (0o755, 1, 1, true);
    Op::Name { op: NameOp::Create { dir, name: name(text), node, mode, uid, gid, umask: 0, exclusive, seed } }
}

/// A new file.
pub fn file(dir: InodeId, text: &str) -> Op {
    create(dir, text, NewNode::File, 7)
}

/// A new file without a name.
pub fn unnamed(dir: InodeId) -> Op {
    let (mode, uid, gid, linkable) = (0o755, 1, 1, true);
    Op::Name { op: NameOp::CreateUnnamed { dir, mode, uid, gid, umask: 0, linkable, seed: 7 } }
}

/// An exclusive lock of the whole file, without waiting.
pub fn write_lock(inode: InodeId) -> Op {
    let (kind, style, owner) = (LockKind::Write, LockStyle::Posix, LockOwner(1));
    Op::Lock {
        op: LockOp::Set { inode, lock: Lock { kind, style, start: 0, end: LOCK_END, owner, pid: 0 }, wait: false },
    }
}

/// A new directory whose inode and names rest in `partition` of `count`.
pub fn directory(dir: InodeId, text: &str, partition: u32, count: u32) -> Op {
    let position = PartitionNumber(partition).first_position(count);
    create(dir, text, NewNode::Directory, u64::from(position.0) << 32 | 7)
}

pub fn lookup(dir: InodeId, text: &str) -> Op {
    Op::Name { op: NameOp::Lookup { dir, name: name(text) } }
}

pub fn list(dir: InodeId) -> Op {
    Op::Name { op: NameOp::List { dir, after: None, limit: 100, attributes: false, touch: false } }
}

pub fn rename((dir, from): (InodeId, &str), (to_dir, to): (InodeId, &str)) -> Op {
    let (name, to_name, mode) = (name(from), name(to), RenameMode::Replace);
    Op::Name { op: NameOp::Rename { dir, name, to_dir, to_name, mode, open_here: None } }
}

pub fn attributes(inode: InodeId) -> Op {
    Op::Inode { op: InodeOp::GetAttr { inode } }
}

pub fn chmod(inode: InodeId) -> Op {
    let changes = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
    Op::Inode { op: InodeOp::SetAttr { inode, changes } }
}

pub fn truncate(inode: InodeId, size: u64) -> Op {
    let changes = AttrChanges { size: Some(size), ..AttrChanges::default() };
    Op::Inode { op: InodeOp::SetAttr { inode, changes } }
}

/// A write of `length` equal bytes.
pub fn write(inode: InodeId, offset: u64, length: usize, byte: u8) -> Op {
    Op::Data { op: DataOp::Write { inode, offset, data: Bytes::from(vec![byte; length]), drop_set_id: false } }
}

pub fn read(inode: InodeId, offset: u64, length: u32) -> Op {
    Op::Data { op: DataOp::Read { inode, offset, length, touch: false } }
}

pub fn fsync(inode: InodeId) -> Op {
    Op::Data { op: DataOp::Fsync { inode } }
}

/// The attributes in an answer.
pub fn attr_in(reply: Reply) -> Attr {
    match reply {
        Reply::Node { attr, .. } => attr,
        other => panic!("no attributes: {other:?}"),
    }
}

/// The inode that an answer is about.
pub fn inode_in(reply: Reply) -> InodeId {
    attr_in(reply).id
}

pub fn bytes_in(reply: Reply) -> Bytes {
    match reply {
        Reply::FileData { bytes, .. } => bytes,
        other => panic!("no bytes: {other:?}"),
    }
}

/// The names that a listing shows.
pub fn names_in(reply: Reply) -> Vec<Name> {
    match reply {
        Reply::List { entries, .. } => entries.into_iter().map(|entry| entry.name).collect(),
        other => panic!("no listing: {other:?}"),
    }
}
