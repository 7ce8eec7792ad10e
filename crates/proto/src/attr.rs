//! The attributes of an inode, and where its bytes are stored.

use crate::ids::{DataId, InodeId, ShardId, VolumeId};
use crate::{SHARD_BYTES, wire_enum, wire_newtype, wire_struct};
use bytes::Bytes;

wire_newtype! {
    /// Nanoseconds since 1970-01-01T00:00:00Z; negative for earlier times.
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

    /// What to make for a new name.
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
        /// The current time of the leader's clock.
        1 = Now,
        2 = At { time: Time },
    }
}

impl NewNode {
    /// The kind of the inode that will be made.
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

/// Time in ns after which a read updates the access time of an inode that did not change: 24 h, as relatime of mount(8).
const ACCESS_NS: i64 = 24 * 3600 * 1_000_000_000;

impl Attr {
    /// True if a read at this time updates the access time.
    pub fn is_access_due(&self, now: Time) -> bool {
        self.atime <= self.mtime.max(self.ctime) || now.0.saturating_sub(self.atime.0) >= ACCESS_NS
    }
}

wire_struct! {
    /// A run of a file's bytes, stored as the first `length` bytes of `data`. The last piece extends to the end of
    /// the file.
    #[derive(Copy)]
    pub struct Piece {
        /// The data id whose shards hold the bytes.
        pub data: DataId,
        /// Bytes of the file in this piece. `u64::MAX` for the last piece.
        pub length: u64,
    }

    /// Where a file's bytes are stored. Without pieces they are beside the inode, at most `INLINE_MAX` bytes.
    pub struct Layout {
        /// Changes when bytes are removed (truncate) or move, so that concurrent writers and readers notice.
        pub version: u32,
        /// The pieces in file order.
        pub pieces: Vec<Piece>,
    }

    /// The attributes of an inode, as its leader returns them.
    pub struct Attr {
        pub id: InodeId,
        /// Kind of the inode: file, directory, …
        pub kind: NodeKind,
        /// Permission bits with set-id and sticky bits, 0o7777.
        pub mode: u16,
        /// User id of the owner.
        pub uid: u32,
        /// Group id.
        pub gid: u32,
        /// Number of names. For a directory, 2 and one for each subdirectory.
        pub nlink: u32,
        /// Size of the content in bytes.
        pub size: u64,
        /// Device number of a device node, as in `st_rdev`.
        pub device: u64,
        /// Time of the last read.
        pub atime: Time,
        /// Time of the last change of content.
        pub mtime: Time,
        /// Time of the last change of content or attributes.
        pub ctime: Time,
        /// Time of creation.
        pub btime: Time,
        /// Increases with every change: the change attribute of NFSv4 (RFC 7530 section 5.8.1.4).
        pub change: u64,
        /// Where the bytes are stored.
        pub layout: Layout,
        /// For a directory: number of partitions that share its names, a power of two.
        pub spread: u32,
        /// False if the inode has neither extended attributes nor ACLs. True if it may have some.
        pub has_xattrs: bool,
        /// Of a file: the ETag that `Put` or `Join` recorded. Empty once the content has changed since, or if there
        /// was none.
        pub etag: Bytes,
        /// Of a directory: a key needed it, and it is no object itself.
        pub implied: bool,
    }

    /// Changes that setattr makes. `None` leaves a field unchanged.
    #[derive(Default)]
    pub struct AttrChanges {
        /// New mode (chmod).
        pub mode: Option<u16>,
        /// New owner (chown).
        pub uid: Option<u32>,
        /// New group (chgrp).
        pub gid: Option<u32>,
        /// New size (truncate).
        pub size: Option<u64>,
        /// New time of access (utimensat).
        pub atime: Option<SetTime>,
        /// New time of modification (utimensat).
        pub mtime: Option<SetTime>,
        /// Clear set-user-id and set-group-id, as a write by an unprivileged user does.
        pub drop_set_id: bool,
        /// Of a directory: whether it is implied, see [`Attr::implied`].
        pub implied: Option<bool>,
    }
}

/// A run of bytes in one shard: the shard, the offset in it, and the length.
pub type ShardRun = (ShardId, u64, usize);

impl Layout {
    /// A layout with the bytes beside the inode.
    pub const fn inline(version: u32) -> Self {
        Self { version, pieces: Vec::new() }
    }

    /// True if the bytes are beside the inode.
    pub fn is_inline(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The runs of shards that hold `length` bytes from `offset`, in file order.
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
