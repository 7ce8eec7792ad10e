//! The names, directories, inodes and shards that an op reads or changes. Conflicts between ops are decided by these.

use crate::membership::Membership;
use crate::ops::step::Ask;
use hekate_proto::*;

/// The directory that an op lists.
pub fn listed_by(op: &Op) -> Option<InodeId> {
    match op {
        Op::Name { op: NameOp::List { dir, .. } | NameOp::ListPart { dir, .. } | NameOp::ListKeys { dir, .. } } => {
            Some(*dir)
        }
        _ => None,
    }
}

/// The directory whose names an op counts or lists: attributes count directories as links of their parent.
pub fn counted_by(op: &Op) -> Option<InodeId> {
    match op {
        Op::Name { op: NameOp::Stub { dir, .. } }
        | Op::Inode {
            op:
                InodeOp::GetAttr { inode: dir }
                | InodeOp::Accessed { inode: dir }
                | InodeOp::Fetch { inode: dir, .. }
                | InodeOp::SetAttr { inode: dir, .. },
        } => Some(*dir),
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
        | NameOp::Rmdir { dir, name }
        | NameOp::RemovePrefix { dir, name } => [Some((*dir, name)), None],
        NameOp::Rename { dir, name, to_dir, to_name, .. } => [Some((*dir, name)), Some((*to_dir, to_name))],
        NameOp::Put { dir, name, alternate, .. }
        | NameOp::Remove { dir, name, alternate, .. }
        | NameOp::Fetch { dir, name, alternate, .. } => {
            [Some((*dir, name)), alternate.as_ref().map(|alternate| (*dir, alternate))]
        }
        NameOp::MakePrefix { dir, name, alternate, .. } => [Some((*dir, name)), Some((*dir, alternate))],
        // No op holds the names of the parts, since nothing renames them.
        NameOp::Join { dir, to, .. } => [Some((*dir, to)), None],
        NameOp::CreateUnnamed { .. }
        | NameOp::List { .. }
        | NameOp::ListPart { .. }
        | NameOp::ListKeys { .. }
        | NameOp::Stub { .. } => [None, None],
    }
}

pub fn name_key(at: &Membership, ask: &Ask, dir: InodeId, name: &Name) -> Key {
    Key::name(ask.names_prefix(at.own.partition, dir), dir, name.as_bytes())
}

/// The data id whose shard an op writes.
pub fn written_data(op: &Op) -> Option<DataId> {
    match op {
        Op::Data {
            op:
                DataOp::WriteShard { data, .. }
                | DataOp::AllocateShard { data, .. }
                | DataOp::CopyShard { data, .. }
                | DataOp::EmptyShards { data, .. },
        } => Some(*data),
        _ => None,
    }
}

/// The shard that an op writes. A durable write syncs the shard's data file too: earlier bytes of the shard may be
/// covered by that sync only.
pub fn written_shard(volume: VolumeId, op: &Op) -> Option<ShardId> {
    match op {
        Op::Data {
            op:
                DataOp::WriteShard { data, index, .. }
                | DataOp::AllocateShard { data, index, .. }
                | DataOp::CopyShard { data, index, .. },
        } => Some(ShardId { volume, data: *data, index: *index }),
        _ => None,
    }
}

/// Refuses an op for what another partition owns. Otherwise a client, which may send any op to any partition of its
/// volume, could have two partitions write one shard.
///
/// # Errors
///
/// `Error::Protocol` with both partitions.
pub fn check_place(at: &Membership, ask: &Ask, op: &Op) -> Result<()> {
    match position_of(ask.volume, op).map(|position| ask.partition(position)) {
        Some(there) if there != at.own.partition => Err(Error::Protocol {
            what: format!("{} for partition {there} was sent to partition {}", op.label(), at.own.partition),
        }),
        _ => Ok(()),
    }
}

/// The position of what the op is about. `None` for names, whose partition depends on the directory's spread: it is
/// checked when the op is executed.
fn position_of(volume: VolumeId, op: &Op) -> Option<Position> {
    let of_shard = |data: &DataId, index: &u64| Some(ShardId { volume, data: *data, index: *index }.position());
    match op {
        Op::Inode { op } => Some(op.inode().position()),
        Op::Name { op: NameOp::CreateUnnamed { dir, .. } } => Some(dir.position()),
        Op::Name { .. } | Op::Volume { .. } | Op::Leg { .. } => None,
        Op::Lock { op } => match op {
            LockOp::Get { inode, .. }
            | LockOp::Set { inode, .. }
            | LockOp::Cancel { inode, .. }
            | LockOp::Release { inode, .. } => Some(inode.position()),
            LockOp::Restore { .. } => None,
        },
        Op::Data { op } => match op {
            DataOp::Read { inode, .. }
            | DataOp::Write { inode, .. }
            | DataOp::Spill { inode }
            | DataOp::Wrote { inode, .. }
            | DataOp::FindEnd { inode }
            | DataOp::Allocate { inode, .. }
            | DataOp::Append { inode, .. }
            | DataOp::Seek { inode, .. } => Some(inode.position()),
            DataOp::ReadShard { data, index, .. }
            | DataOp::WriteShard { data, index, .. }
            | DataOp::FastWrite { data, index, .. }
            | DataOp::RawWrite { data, index, .. }
            | DataOp::AllocateShard { data, index, .. }
            | DataOp::SeekShard { data, index, .. }
            | DataOp::CopyShard { data, index, .. } => of_shard(data, index),
            DataOp::NextShard { .. }
            | DataOp::EmptyShards { .. }
            | DataOp::Sync { .. }
            | DataOp::Fsync { .. }
            | DataOp::Copy { .. } => None,
        },
    }
}

/// The keys that a change holds in this partition. A name of another partition holds nothing, as no op asks for it
/// here.
pub fn keys_of(at: &Membership, ask: &Ask, op: &Op) -> Vec<Key> {
    let inode_key = |inode: InodeId| Key::inode(ask.ring, ask.volume, inode, Kind::Inode);
    match op {
        Op::Inode { op } => vec![inode_key(op.inode())],
        Op::Data {
            op:
                DataOp::Write { inode, .. }
                | DataOp::Append { inode, .. }
                | DataOp::Allocate { inode, .. }
                | DataOp::Spill { inode }
                | DataOp::FindEnd { inode }
                | DataOp::Wrote { inode, .. },
        } => vec![inode_key(*inode)],
        Op::Name { .. } => names_of(op).into_iter().flatten().map(|(dir, name)| name_key(at, ask, dir, name)).collect(),
        _ => Vec::new(),
    }
}
