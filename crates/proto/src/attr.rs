//! What an inode is: kind, owner, times, size and where its bytes rest.

use crate::ids::{DataId, InodeId, ShardId, VolumeId};
use crate::{SHARD_BYTES, wire_enum, wire_newtype, wire_struct};
use bytes::Bytes;

wire_newtype! {
    /// Nanoseconds since 1970-01-01T00:00:00Z; negative before.
    pub struct Time(i64);
}

wire_enum! {
    /// The type of an inode, as in `st_mode`.
    #[derive(Copy, Hash)]
    pub enum NodeKind {
        1 = File,
        2 = Directory,
        3 = Symlink,
        4 = Fifo,
        5 = Socket,
        6 = CharDevice,
        7 = BlockDevice,
    }

    /// What to make under a new name.
    pub enum NewNode {
        1 = File,
        2 = Directory,
        3 = Symlink { target: Bytes },
        4 = Fifo,
        5 = Socket,
        6 = CharDevice { device: u64 },
        7 = BlockDevice { device: u64 },
    }

    /// How setattr sets a time.
    #[derive(Copy)]
    pub enum SetTime {
        /// The leader's clock.
        1 = Now,
        2 = At { time: Time },
    }
}

impl NewNode {
    /// The kind that it will have.
    pub fn kind(&self) -> NodeKind {
        match self {
            NewNode::File => NodeKind::File,
            NewNode::Directory => NodeKind::Directory,
            NewNode::Symlink { .. } => NodeKind::Symlink,
            NewNode::Fifo => NodeKind::Fifo,
            NewNode::Socket => NodeKind::Socket,
            NewNode::CharDevice { .. } => NodeKind::CharDevice,
            NewNode::BlockDevice { .. } => NodeKind::BlockDevice,
        }
    }
}

wire_struct! {
    /// A run of a file's bytes: the first `length` bytes of `data`. The last piece goes on to the end of the file.
    #[derive(Copy)]
    pub struct Piece {
        /// Whose shards hold them.
        pub data: DataId,
        /// Bytes of the file in this piece; for the last one `u64::MAX`.
        pub length: u64,
    }

    /// Where a file's bytes rest. No pieces: beside the inode, at most `INLINE_MAX` bytes.
    pub struct Layout {
        /// Grows when bytes are given up (truncate) or move, so that a writer or reader in flight can tell.
        pub version: u32,
        /// In file order.
        pub pieces: Vec<Piece>,
    }

    /// An inode as its leader answers it. Sizes in bytes; `blocks` in units of 512 bytes.
    pub struct Attr {
        /// Who.
        pub id: InodeId,
        /// File, directory, …
        pub kind: NodeKind,
        /// Permission bits with set-id and sticky, 0o7777.
        pub mode: u16,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Names that lead here; for a directory 2 and one for each subdirectory.
        pub nlink: u32,
        /// Bytes of content.
        pub size: u64,
        /// Device number of a device node, as in `st_rdev`.
        pub device: u64,
        /// Last read.
        pub atime: Time,
        /// Last change of content.
        pub mtime: Time,
        /// Last change of anything.
        pub ctime: Time,
        /// Birth.
        pub btime: Time,
        /// Grows with every change: the change attribute of NFSv4 (RFC 7530 section 5.8.1.4).
        pub change: u64,
        /// Where the bytes rest.
        pub layout: Layout,
        /// Of a directory: the partitions that share its names, a power of two.
        pub spread: u32,
        /// Whether it may have extended attributes or ACLs.
        pub has_xattrs: bool,
    }

    /// What setattr changes; `None` leaves a field as it is.
    #[derive(Default)]
    pub struct AttrChanges {
        /// chmod.
        pub mode: Option<u16>,
        /// chown.
        pub uid: Option<u32>,
        /// chgrp.
        pub gid: Option<u32>,
        /// truncate.
        pub size: Option<u64>,
        /// utimensat.
        pub atime: Option<SetTime>,
        /// utimensat.
        pub mtime: Option<SetTime>,
        /// Clear set-user-id and set-group-id, as a write by another user does.
        pub drop_set_id: bool,
    }
}

/// A run of one shard: which, from which byte in it, how many.
pub type ShardRun = (ShardId, u64, usize);

impl Layout {
    /// A file whose bytes rest beside its inode.
    pub const fn inline(version: u32) -> Self {
        Self { version, pieces: Vec::new() }
    }

    /// Whether the bytes rest beside the inode.
    pub fn is_inline(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The shards that hold `length` bytes from `offset`, in file order.
    pub fn shard_runs(&self, volume: VolumeId, offset: u64, length: usize) -> Vec<ShardRun> {
        let mut runs = Vec::new();
        let (mut at, end) = (offset, offset.saturating_add(length as u64));
        let mut piece_start = 0u64;
        for piece in &self.pieces {
            let piece_end = piece_start.saturating_add(piece.length);
            while at < end && at < piece_end {
                let inside = at - piece_start;
                let in_shard = inside % SHARD_BYTES;
                let count = (SHARD_BYTES - in_shard).min(end - at).min(piece_end - at);
                runs.push((
                    ShardId { volume, data: piece.data, index: inside / SHARD_BYTES },
                    in_shard,
                    count as usize,
                ));
                at += count;
            }
            piece_start = piece_end;
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_over_a_shard_border_is_two_runs_in_file_order() {
        let layout = Layout { version: 0, pieces: vec![Piece { data: DataId(9), length: u64::MAX }] };
        let runs = layout.shard_runs(VolumeId(1), SHARD_BYTES - 10, 30);
        let plain: Vec<_> = runs.iter().map(|(s, o, l)| (s.index, *o, *l)).collect();
        assert_eq!(plain, [(0, SHARD_BYTES - 10, 10), (1, 0, 20)]);
    }

    #[test]
    fn joined_pieces_are_read_in_order() {
        let layout = Layout {
            version: 0,
            pieces: vec![Piece { data: DataId(1), length: 100 }, Piece { data: DataId(2), length: u64::MAX }],
        };
        let plain: Vec<_> = layout.shard_runs(VolumeId(1), 90, 20).iter().map(|(s, o, l)| (s.data.0, *o, *l)).collect();
        assert_eq!(plain, [(1, 90, 10), (2, 0, 10)]);
    }
}
