//! Steps of ops over several partitions, which a leader sends to other partitions.

use crate::attr::{NodeKind, Time};
use crate::ids::*;
use crate::op::ShardRange;
use crate::wire_enum;
use bytes::Bytes;

wire_enum! {
    /// One step of an op over several partitions (docs/replication.md). The leader that drives the op sends it, and it
    /// is executed once. A leg before the commit point has an undoing leg; a leg after it is repeated until it is
    /// executed. Legs about a directory are sent to each partition that shares its names, and change what that
    /// partition has of it.
    pub enum Leg {
        /// mkdir, before the name: makes the inode in its partition, and the stub in each partition. -> `Node`, or
        /// `Done`.
        1 = MakeDirectory {
            inode: InodeId,
            parent: InodeId,
            mode: u16,
            uid: u32,
            gid: u32,
            spread: u32,
            access_acl: Bytes,
            default_acl: Bytes,
            implied: bool,
        },
        /// Undoes `MakeDirectory`.
        2 = UnmakeDirectory { inode: InodeId },
        /// link, before the name: increments the link count.
        3 = AddLink { inode: InodeId },
        /// Undoes `AddLink`.
        4 = TakeBackLink { inode: InodeId },
        /// rmdir, before the name is removed: refuses if there are names, or with `implied` if the directory is an object
        /// itself, and then allows no new ones. -> `Stub`.
        5 = CloseDirectory { inode: InodeId, implied: bool },
        /// Undoes `CloseDirectory`.
        6 = ReopenDirectory { inode: InodeId },
        /// A file becomes longer than `INLINE_MAX`: writes its bytes as the first shard of a new data id.
        7 = FillShard { shard: ShardId, bytes: Bytes },
        /// Undoes `FillShard`.
        14 = UnfillShard { shard: ShardId },
        /// unlink and replacing rename, after the name: decrements the link count. `keep`: a client may have the
        /// inode open.
        9 = DropLink { inode: InodeId, keep: bool },
        /// rmdir and replacing rename, after the name: removes the records of the empty directory.
        10 = DropDirectory { inode: InodeId },
        /// rename, after the new name: removes the old name, or for an exchange makes it lead to `new`.
        11 = ReplaceName { dir: InodeId, name: Name, new: Option<(InodeId, NodeKind)> },
        /// rename, after the new name: sets the directory's parent.
        12 = SetParent { inode: InodeId, parent: InodeId },
        /// truncate: cuts the shard at `length`.
        13 = CutShard { shard: ShardId, length: u32 },
        /// truncate: empties shards `from..to` of this partition, into which the file may grow again. One record
        /// covers a limited number of shards, so the leg may be sent several times.
        15 = EmptyShards { data: DataId, from: u64, to: u64 },
        /// rename from another partition, first step: the name cannot change, and look-ups of it wait. `Stub` if the
        /// name belongs to another partition, and nothing is held. -> `Elsewhere`: the inode that has the name.
        16 = HoldName { dir: InodeId, name: Name },
        /// Undoes `HoldName`.
        17 = ReleaseName { dir: InodeId, name: Name },
        /// rename of a directory to another parent: prevents other moves of directories in the volume. Executed in
        /// the root's partition.
        18 = HoldMoves,
        /// Undoes `HoldMoves`.
        19 = LetMoves,
        /// rename of a directory, last step: allows other moves again.
        20 = ReleaseMoves,
        /// Reads only. -> `Elsewhere`: the directory's parent.
        21 = Parent { inode: InodeId },
        /// Garbage collection: removes shards `0..to` of this partition.
        22 = DropShards { data: DataId, to: u64 },
        /// setattr of a directory with names in several partitions: requests for its names wait here.
        /// `ReopenDirectory` undoes it. -> `Stub`.
        23 = HoldStub { dir: InodeId },
        /// setattr, after the inode: sets the attributes in the stub; the waiting requests continue.
        24 = SetStub { dir: InodeId, mode: u16, uid: u32, gid: u32, mtime: Option<Time>, default_acl: Bytes },
        /// rename, after the new name: sets the time of change of the moved inode, if it still exists.
        26 = MarkMoved { inode: InodeId },
        /// copy_file_range: reads only. -> `Data`.
        25 = ReadShard { range: ShardRange },
        /// A change under a condition: reads only. -> `Node`.
        27 = Attributes { inode: InodeId },
        /// Put of an existing file, before the name: adds a link and sets the ETag. `TakeBackLink` undoes it.
        28 = AddObjectLink { inode: InodeId, etag: Bytes },
        /// The size of a file that its leader does not know: reads only. -> `Found`, the length of the shard in bytes.
        29 = ShardEnd { shard: ShardId },
    }
}
