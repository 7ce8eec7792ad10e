//! What an op is about: names, directories, inodes, shards. Who waits for what is decided by these.

use crate::partition::Place;
use crate::step::Ask;
use hekate_proto::*;

/// The directory that an op lists.
pub fn listed_by(op: &Op) -> Option<InodeId> {
    match op {
        Op::Name { op: NameOp::List { dir, .. } | NameOp::ListPart { dir, .. } } => Some(*dir),
        _ => None,
    }
}

/// The directory whose names an op counts or lists.
pub fn counted_by(op: &Op) -> Option<InodeId> {
    match op {
        Op::Name { op: NameOp::Stub { dir, .. } } | Op::Inode { op: InodeOp::GetAttr { inode: dir } } => Some(*dir),
        _ => listed_by(op),
    }
}

/// Names that an op changes or looks up, by directory.
pub fn names_of(op: &Op) -> [Option<(InodeId, &Name)>; 2] {
    let Op::Name { op } = op else { return [None, None] };
    match op {
        NameOp::Lookup { dir, name }
        | NameOp::Create { dir, name, .. }
        | NameOp::Link { dir, name, .. }
        | NameOp::Unlink { dir, name, .. }
        | NameOp::Rmdir { dir, name } => [Some((*dir, name)), None],
        NameOp::Rename { dir, name, to_dir, to_name, .. } => [Some((*dir, name)), Some((*to_dir, to_name))],
        NameOp::CreateUnnamed { .. } | NameOp::List { .. } | NameOp::ListPart { .. } | NameOp::Stub { .. } => {
            [None, None]
        }
    }
}

pub fn name_key(at: &Place, ask: &Ask, dir: InodeId, name: &Name) -> Key {
    Key::name(ask.names_place(at.own.partition, dir), dir, name.as_bytes())
}

/// The data id whose shard an op writes.
pub fn written_data(op: &Op) -> Option<DataId> {
    match op {
        Op::Data {
            op: DataOp::WriteShard { data, .. } | DataOp::AllocateShard { data, .. } | DataOp::CopyShard { data, .. },
        } => Some(*data),
        _ => None,
    }
}

/// What a change holds, or finds held, in this partition. A name that rests elsewhere holds nothing: nobody asks for it here.
pub fn keys_of(at: &Place, ask: &Ask, op: &Op) -> Vec<Key> {
    let inode_key = |inode: InodeId| Key::inode(ask.ring, ask.volume, inode, Kind::Inode);
    match op {
        Op::Inode { op } => vec![inode_key(op.inode())],
        Op::Data {
            op:
                DataOp::Write { inode, .. }
                | DataOp::Append { inode, .. }
                | DataOp::Allocate { inode, .. }
                | DataOp::Spill { inode }
                | DataOp::Wrote { inode, .. },
        } => vec![inode_key(*inode)],
        Op::Name { .. } => names_of(op).into_iter().flatten().map(|(dir, name)| name_key(at, ask, dir, name)).collect(),
        _ => Vec::new(),
    }
}
