//! The entry: one request, executed with the locks of the partitions that it needs.

use crate::leader::Leader;
use crate::{data, driver, inodes, legs, names, rename, truncate};
use bytes::Bytes;
use hekate_brick::Brick;
use hekate_proto::*;

/// Who asks what, when.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// Ring.
    pub ring: RingId,
    /// Partitions of the ring.
    pub count: u32,
    /// Volume.
    pub volume: VolumeId,
    /// Session.
    pub session: SessionId,
    /// Op in the session.
    pub op_id: OpId,
    /// The server's clock.
    pub now: Time,
    /// No other session uses the volume, so nobody else can have an inode open.
    pub alone: bool,
}

impl Ask {
    /// The partition that owns a position.
    pub fn partition(&self, position: Position) -> PartitionNumber {
        position.partition(self.count)
    }

    /// Where a name of a directory rests. Directories have one partition until they grow.
    pub fn name_place(&self, dir: InodeId, name: &Name) -> Place {
        Place { ring: self.ring, position: name_position(dir, name, 1), volume: self.volume }
    }
}

/// Why an op did not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It needs this partition as well: lock it too and begin again.
    Lock(PartitionNumber),
    /// It failed.
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Error(error)
    }
}

impl From<Malformed> for Stop {
    fn from(error: Malformed) -> Self {
        Stop::Error(Error::Damaged { what: format!("a stored value: {}", error.0) })
    }
}

/// Fresh blocks to be written home before the record that tells of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fresh {
    /// Which shard.
    pub shard: ShardId,
    /// From which block.
    pub first_block: u32,
    /// Whole blocks.
    pub bytes: Bytes,
}

/// A record to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commit {
    /// What changes.
    pub changes: Vec<Change>,
    /// Bytes that go home first.
    pub fresh: Vec<Fresh>,
    /// The answer to the session, kept for retries; none for steps that are not the commit point.
    pub reply: Option<Reply>,
}

/// The partitions that an op has locked, as its server gives them.
pub trait Partitions {
    /// The leader's copy of a partition; `Stop::Lock` if it is not locked for this op.
    fn brick(&self, at: PartitionNumber) -> std::result::Result<&Brick, Stop>;

    /// The op has begun to change something: what it commits from now on is not refused for want of room.
    fn must_finish(&mut self) {}

    /// The leader of a locked partition.
    fn leader(&mut self, at: PartitionNumber) -> std::result::Result<&mut Leader, Stop>;

    /// Makes one record and returns when every member has it.
    fn commit(&mut self, at: PartitionNumber, commit: Commit) -> Result<()>;

    /// Before a record of `then` may follow what `first` has committed: the first is on stable storage, unless both
    /// rest on the same bricks, whose journals keep the order.
    fn order(&mut self, first: PartitionNumber, then: PartitionNumber) -> Result<()>;

    /// An entry that has served once this op is done (an intent, the mark of a leg): removed some time later, intents
    /// first.
    fn sweep(&mut self, at: PartitionNumber, key: Key);
}

/// Does a change. Reads go to [`crate::answer`].
pub fn execute(parts: &mut dyn Partitions, ask: &Ask, op: &Op) -> std::result::Result<Reply, Stop> {
    match op {
        Op::Name { op } => match op {
            NameOp::Create { node: NewNode::Directory, dir, name, mode, uid, gid, seed, .. } => {
                names::mkdir(parts, ask, *dir, name, names::Owner { mode: *mode, uid: *uid, gid: *gid }, *seed)
            }
            NameOp::Create { dir, name, node, mode, uid, gid, exclusive, seed } => {
                let owner = names::Owner { mode: *mode, uid: *uid, gid: *gid };
                names::create(parts, ask, *dir, name, node, owner, *exclusive, *seed)
            }
            NameOp::Link { dir, name, inode } => names::link(parts, ask, *dir, name, *inode),
            NameOp::Unlink { dir, name, open_here } => names::unlink(parts, ask, *dir, name, *open_here),
            NameOp::Rmdir { dir, name } => names::rmdir(parts, ask, *dir, name),
            NameOp::Rename { dir, name, to_dir, to_name, mode, open_here } => {
                let ends = rename::Ends { dir: *dir, name, to_dir: *to_dir, to_name };
                rename::rename(parts, ask, &ends, *mode, *open_here)
            }
            NameOp::Lookup { .. } | NameOp::List { .. } => Err(not_a_change()),
        },
        Op::Inode { op } => match op {
            InodeOp::SetAttr { inode, changes } => match changes.size {
                Some(size) => truncate::truncate(parts, ask, *inode, changes, size),
                None => inodes::setattr(parts, ask, *inode, changes),
            },
            InodeOp::SetXattr { inode, name, value, create, replace } => {
                inodes::setxattr(parts, ask, *inode, name, Some(value), *create, *replace)
            }
            InodeOp::RemoveXattr { inode, name } => inodes::setxattr(parts, ask, *inode, name, None, false, true),
            _ => Err(not_a_change()),
        },
        Op::Data { op } => match op {
            DataOp::Write { inode, offset, data, drop_set_id } => {
                data::write(parts, ask, *inode, *offset, data, *drop_set_id)
            }
            DataOp::Spill { inode } => data::spill(parts, ask, *inode),
            DataOp::WriteShard { data, index, offset, bytes, follow } => {
                let shard = ShardId { volume: ask.volume, data: *data, index: *index };
                data::write_shard(parts, ask, shard, *offset, bytes, *follow)
            }
            DataOp::Wrote { inode, layout_version, end, drop_set_id } => {
                data::wrote(parts, ask, *inode, *layout_version, *end, *drop_set_id)
            }
            _ => Err(not_a_change()),
        },
        Op::Leg { .. } | Op::Volume { .. } | Op::Lock { .. } => Err(not_a_change()),
    }
}

fn not_a_change() -> Stop {
    Stop::Error(Error::bug("an op that changes nothing was to be executed"))
}

pub(crate) use driver::Multi;
pub(crate) use legs::take as take_leg;
