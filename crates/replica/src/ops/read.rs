//! Ops that change nothing, answered by the leader from its copy.

use crate::ops::seek::{next_shard, seek, seek_shard};
use crate::ops::step::{Ask, Stepped, Stop};
use crate::ops::tree::Tree;
use crate::ops::{keys, objects};
use bytes::{Bytes, BytesMut};
use hekate_brick::Brick;
use hekate_proto::*;

/// Names in one answer at most, even if the client requests more.
pub(crate) const LIST_MAX: u32 = 4096;

/// Answers a read from the leader's copy. The caller checks that all members have what it shows (`requests/reads.rs`).
///
/// # Errors
///
/// `Stop::Wait` if an op holds what the read shows; `Stop::Error` with the client's error.
pub fn answer(brick: &Brick, ask: &Ask, at: PartitionNumber, op: &Op) -> Stepped<Reply> {
    let tree = Tree::new(brick, ask, at);
    match op {
        Op::Name { op: NameOp::Lookup { dir, name } } => lookup(&tree, *dir, name),
        Op::Name { op: NameOp::List { dir, after, limit, attributes, .. } } => {
            list(brick, &tree, (*dir, 1), after.as_ref(), *limit, *attributes)
        }
        Op::Name { op: NameOp::ListPart { dir, spread, after, limit, attributes } } => {
            list(brick, &tree, (*dir, *spread), after.as_ref(), *limit, *attributes)
        }
        Op::Name { op: NameOp::ListKeys { dir, spread, prefix, after, limit } } => {
            keys::list(brick, &tree, (*dir, *spread), prefix, after, *limit)
        }
        Op::Name { op: NameOp::Fetch { dir, name, alternate, attribute, content } } => {
            objects::fetch_name(&tree, (*dir, name), alternate.as_ref(), attribute, *content)
        }
        Op::Inode { op: InodeOp::Fetch { inode, attribute, content } } => {
            objects::fetch(&tree, *inode, attribute, *content, false)
        }
        Op::Name { op: NameOp::Stub { dir, spread } } => {
            Ok(Reply::Stub { stub: stub_view(&shared_by(tree.open_stub(*dir)?, *spread)?) })
        }
        Op::Inode { op: InodeOp::GetAttr { inode } | InodeOp::Accessed { inode } } => Ok(node(tree.attr(*inode)?)),
        Op::Inode { op: InodeOp::Parent { inode } } => match tree.inode(*inode)? {
            InodeRecord { kind: NodeKind::Directory, parent, .. } => {
                found_node(&tree, &NameRecord { inode: parent, kind: NodeKind::Directory })
            }
            _ => Err(Error::NotDirectory.into()),
        },
        Op::Inode { op: InodeOp::ReadLink { inode, .. } } => match tree.inode(*inode)?.kind {
            NodeKind::Symlink => Ok(Reply::Bytes { bytes: tree.content(*inode)? }),
            _ => Err(Error::invalid("not a symbolic link").into()),
        },
        Op::Inode { op: InodeOp::GetXattr { inode, name } } => {
            if !tree.inode(*inode)?.has_xattrs {
                return Err(Error::NoAttribute.into());
            }
            let value = brick.get(&Key::xattr(ask.ring, ask.volume, *inode, name))?;
            Ok(Reply::Bytes { bytes: value.ok_or(Error::NoAttribute)? })
        }
        Op::Inode { op: InodeOp::ListXattr { inode } } => {
            let record = tree.inode(*inode)?;
            Ok(Reply::Names { names: tree.xattrs(*inode, &record)?.into_iter().map(|(name, _)| name).collect() })
        }
        Op::Data { op: DataOp::Read { inode, offset, length, .. } } => read(&tree, *inode, *offset, *length),
        Op::Data { op: DataOp::Seek { inode, offset, hole } } => seek(&tree, *inode, *offset, *hole),
        Op::Data { op: DataOp::SeekShard { data, index, offset, hole } } => {
            let shard = ShardId { volume: ask.volume, data: *data, index: *index };
            seek_shard(brick, ask, shard, *offset, *hole)
        }
        Op::Data { op: DataOp::NextShard { data, from, to } } => next_shard(brick, ask, at, *data, *from, *to),
        Op::Data { op: DataOp::ReadShard { data, index, offset, length } } => {
            if *length as usize > IO_BYTES_MAX {
                return Err(Error::invalid("a read of over 4 MiB; read less at once").into());
            }
            let shard = ShardId { volume: ask.volume, data: *data, index: *index };
            Ok(Reply::Data { bytes: brick.read_shard(ask.ring, shard, *offset, *length)? })
        }
        _ => Err(Error::bug("an op that is no read was passed to `answer`").into()),
    }
}

pub(crate) fn node(attr: Attr) -> Reply {
    Reply::Node { attr, created: false }
}

/// The stub, if the directory's names are in as many partitions as the client believes.
pub(crate) fn shared_by(stub: StubRecord, spread: u32) -> Stepped<StubRecord> {
    match stub.spread == spread {
        true => Ok(stub),
        false => Err(Error::OtherSpread { spread: stub.spread }.into()),
    }
}

/// The change count of the directory that an op lists.
pub(crate) fn listed_change(brick: &Brick, ask: &Ask, at: PartitionNumber, op: &Op) -> Option<u64> {
    let Op::Name { op: NameOp::List { dir, .. } } = op else { return None };
    Some(Tree::new(brick, ask, at).attr(*dir).ok()?.change)
}

pub(crate) fn stub_view(stub: &StubRecord) -> StubView {
    let StubRecord { spread, entries, directories, mtime, ctime, change, .. } = *stub;
    StubView { spread, entries, directories, mtime, ctime, change }
}

fn lookup(tree: &Tree, dir: InodeId, name: &Name) -> Stepped<Reply> {
    tree.stub_of(dir, name)?;
    let found = tree.name(dir, name)?.ok_or(Error::NotFound)?;
    found_node(tree, &found)
}

/// The inode under a name, or its id if another partition has the inode.
pub(crate) fn found_node(tree: &Tree, found: &NameRecord) -> Stepped<Reply> {
    if tree.is_home(found.inode) {
        return Ok(node(tree.attr(found.inode)?));
    }
    Ok(Reply::Elsewhere { inode: found.inode, kind: found.kind })
}

/// An entry of a list. With its inode's attributes if they are asked for and the inode is here.
pub(crate) fn entry(tree: &Tree, name: Name, record: NameRecord, attributes: bool) -> Stepped<Entry> {
    let here = attributes && tree.is_home(record.inode);
    let attr = match here.then(|| tree.attr(record.inode)) {
        Some(Ok(attr)) => Some(attr),
        Some(Err(Stop::Error(error))) if error != Error::Stale => return Err(error.into()),
        _ => None,
    };
    Ok(Entry { name, inode: record.inode, kind: record.kind, attr })
}

fn list(
    brick: &Brick,
    tree: &Tree,
    (dir, spread): (InodeId, u32),
    after: Option<&Name>,
    limit: u32,
    attributes: bool,
) -> Stepped<Reply> {
    shared_by(tree.stub(dir)?, spread)?;
    let all = Key::name(tree.names_prefix(dir), dir, b"");
    let from = after.map_or(all.clone(), |name| tree.name_key(dir, name).successor());
    let limit = limit.clamp(1, LIST_MAX) as usize;
    let found = brick.scan(&from, &all.prefix_end(), limit)?;
    let end = found.len() < limit;
    let mut entries = Vec::with_capacity(found.len());
    for (key, value) in found {
        entries.push(entry(tree, Name::new(key.rest())?, NameRecord::from_bytes(value)?, attributes)?);
    }
    Ok(Reply::List { entries, end })
}

fn read(tree: &Tree, id: InodeId, offset: u64, length: u32) -> Stepped<Reply> {
    let inode = tree.file(id)?;
    let attr = crate::ops::tree::attr_of(id, &inode, None);
    if !inode.layout.is_inline() {
        return Ok(node(attr));
    }
    let end = inode.size.min(offset.saturating_add(u64::from(length)));
    if end <= offset {
        return Ok(Reply::FileData { bytes: Bytes::new(), attr });
    }
    let content = tree.content(id)?;
    let have = content.slice((offset as usize).min(content.len())..(end as usize).min(content.len()));
    let wanted = (end - offset) as usize;
    let bytes = if have.len() == wanted {
        have
    } else {
        let mut padded = BytesMut::from(&have[..]);
        padded.resize(wanted, 0);
        padded.freeze()
    };
    Ok(Reply::FileData { bytes, attr })
}
