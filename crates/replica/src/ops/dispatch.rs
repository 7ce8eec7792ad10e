//! Selects the function that takes an op's next step.

use crate::ops::names::Maker;
use crate::ops::step::{Here, Next, Stepped, Stop};
use crate::ops::{acl, allocate, copy, data, ends, inodes, names, objects, rename, shards, truncate};
use hekate_proto::*;

/// The next step of a change. [`crate::answer`] answers reads.
pub fn step(here: &mut Here, op: &Op) -> Stepped<Next> {
    match op {
        Op::Name { op } => names_step(here, op),
        Op::Inode { op } => match op {
            InodeOp::SetAttr { inode, changes } => match changes.size {
                Some(size) => truncate::truncate(here, *inode, changes, size),
                None => inodes::setattr(here, *inode, changes),
            },
            InodeOp::SetXattr { inode, name, value, drop_set_group, .. } if acl::is_acl(name) => {
                acl::set(here, *inode, name, Some(value), *drop_set_group)
            }
            InodeOp::RemoveXattr { inode, name } if acl::is_acl(name) => acl::set(here, *inode, name, None, false),
            InodeOp::SetXattr { inode, name, value, create, replace, .. } => {
                inodes::setxattr(here, *inode, name, Some(value), *create, *replace)
            }
            InodeOp::RemoveXattr { inode, name } => inodes::setxattr(here, *inode, name, None, false, true),
            _ => Err(not_a_change()),
        },
        Op::Data { op } => data_step(here, op),
        Op::Lock { .. } | Op::Leg { .. } | Op::Volume { .. } => Err(not_a_change()),
    }
}

fn data_step(here: &mut Here, op: &DataOp) -> Stepped<Next> {
    match op {
        DataOp::Write { inode, offset, data, drop_set_id } => data::write(here, *inode, *offset, data, *drop_set_id),
        DataOp::Spill { inode } => data::spill(here, *inode),
        DataOp::WriteShard { data, index, offset, bytes, follow, fast } => {
            let shard = ShardId { volume: here.ask.volume, data: *data, index: *index };
            data::write_shard(here, shard, *offset, bytes, (*follow, *fast))
        }
        DataOp::Wrote { inode, layout_version, end, reach, drop_set_id, fast, age } => {
            data::wrote(here, *inode, *layout_version, (*end, *reach), (*drop_set_id, *fast, *age))
        }
        DataOp::FindEnd { inode } => ends::find_end(here, *inode),
        DataOp::Append { inode, data, drop_set_id } => data::append(here, *inode, data, *drop_set_id),
        DataOp::Allocate { inode, offset, length, mode, drop_set_id } => {
            allocate::allocate(here, *inode, (*offset, *length), *mode, *drop_set_id)
        }
        DataOp::AllocateShard { data, index, offset, length, fill } => {
            let shard = ShardId { volume: here.ask.volume, data: *data, index: *index };
            allocate::allocate_shard(here, shard, *offset, *length, *fill)
        }
        DataOp::CopyShard { from, data, index, offset } => {
            let shard = ShardId { volume: here.ask.volume, data: *data, index: *index };
            copy::copy_shard(here, *from, shard, *offset)
        }
        DataOp::EmptyShards { data, from, to } => shards::empty_shards(here, *data, *from, *to),
        _ => Err(not_a_change()),
    }
}

fn names_step(here: &mut Here, op: &NameOp) -> Stepped<Next> {
    match op {
        NameOp::Create { node: NewNode::Directory, dir, name, mode, uid, gid, umask, seed, .. } => {
            let maker = Maker { mode: *mode, umask: *umask, uid: *uid, gid: *gid };
            names::mkdir(here, *dir, name, maker, *seed)
        }
        NameOp::Create { dir, name, node, mode, uid, gid, umask, exclusive, seed } => {
            let maker = Maker { mode: *mode, umask: *umask, uid: *uid, gid: *gid };
            names::create(here, *dir, name, node, maker, *exclusive, *seed)
        }
        NameOp::CreateUnnamed { dir, mode, uid, gid, umask, linkable, seed } => {
            let maker = Maker { mode: *mode, umask: *umask, uid: *uid, gid: *gid };
            names::create_unnamed(here, *dir, maker, *linkable, *seed)
        }
        NameOp::Link { dir, name, inode } => names::link(here, *dir, name, *inode),
        NameOp::Unlink { dir, name, open_here } => names::unlink(here, *dir, name, *open_here),
        NameOp::Rmdir { dir, name } => names::rmdir(here, *dir, name, false),
        NameOp::RemovePrefix { dir, name } => names::rmdir(here, *dir, name, true),
        NameOp::Rename { dir, name, to_dir, to_name, mode, open_here } => {
            let ends = rename::Ends { dir: *dir, name, to_dir: *to_dir, to_name };
            rename::rename(here, &ends, *mode, *open_here)
        }
        NameOp::Put { .. } | NameOp::Remove { .. } | NameOp::MakePrefix { .. } | NameOp::Join { .. } => {
            objects::step(here, op)
        }
        NameOp::Lookup { .. }
        | NameOp::List { .. }
        | NameOp::ListPart { .. }
        | NameOp::Stub { .. }
        | NameOp::Fetch { .. }
        | NameOp::ListKeys { .. } => Err(not_a_change()),
    }
}

pub fn not_a_change() -> Stop {
    Stop::Error(Error::bug("an op that is no change was passed to `step`"))
}
