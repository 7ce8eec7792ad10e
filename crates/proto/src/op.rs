//! Every request is one [`Op`] value: the wire, the translators and the tests use the same ones.
//!
//! Ops come in families, so that a translator matches few arms. Numbers are kept for ever.

use crate::attr::{AttrChanges, NewNode, NodeKind, Time};
use crate::ids::*;
use crate::lock::{Lock, LockOwner};
use crate::{wire_enum, wire_struct};
use bytes::Bytes;

wire_enum! {
    /// Who answers a request.
    #[derive(Copy)]
    pub enum Target {
        /// The leader of a partition, in the view that the client knows.
        1 = Partition { ring: RingId, partition: PartitionNumber, epoch: Epoch },
        /// One brick: a sync.
        2 = Brick { brick: BrickId },
        /// The server itself: volume ops.
        3 = Server,
        /// One member of a partition's view: a fast write.
        4 = Replica { ring: RingId, partition: PartitionNumber, epoch: Epoch, brick: BrickId },
    }

    /// One request.
    pub enum Op {
        1 = Name { op: NameOp },
        2 = Inode { op: InodeOp },
        3 = Lock { op: LockOp },
        4 = Data { op: DataOp },
        5 = Volume { op: VolumeOp },
        6 = Leg { intent: IntentId, number: u16, leg: Box<Leg> },
    }

    /// Ops on a name in a directory; answered where the name lives, elsewhere with `OtherSpread`.
    pub enum NameOp {
        /// -> `Node`, `Elsewhere`, or `NotFound`.
        1 = Lookup { dir: InodeId, name: Name },
        /// Makes an inode and its name. Not `exclusive`, and a file is there: that file. -> `Node`, or `Elsewhere`.
        2 = Create {
            dir: InodeId,
            name: Name,
            node: NewNode,
            mode: u16,
            uid: u32,
            gid: u32,
            /// Bits that a new mode loses, unless the directory has a default ACL.
            umask: u16,
            exclusive: bool,
            /// Random bits for the new id: high half the position (directories only), low half the random part.
            seed: u64,
        },
        /// A further name for an inode that is no directory. -> `Node`.
        3 = Link { dir: InodeId, name: Name, inode: InodeId },
        /// `open_here`: this session has the inode open, so it stays until the session lets go. -> `Done`.
        4 = Unlink { dir: InodeId, name: Name, open_here: Option<InodeId> },
        /// -> `Done`, or `NotEmpty`.
        5 = Rmdir { dir: InodeId, name: Name },
        /// `open_here` as in unlink, for the inode that is replaced. -> `Done`.
        6 = Rename {
            dir: InodeId,
            name: Name,
            to_dir: InodeId,
            to_name: Name,
            mode: RenameMode,
            open_here: Option<InodeId>,
        },
        /// Names after `after` in byte order, at most `limit`; with attributes where this partition has them. -> `List`,
        /// or `OtherSpread` if there are names in other partitions as well.
        7 = List { dir: InodeId, after: Option<Name>, limit: u32, attributes: bool, touch: bool },
        /// The same of the names in one of the `spread` partitions that share them. -> `List`.
        8 = ListPart { dir: InodeId, spread: u32, after: Option<Name>, limit: u32, attributes: bool },
        /// What one of these partitions knows of the directory. -> `Stub`.
        9 = Stub { dir: InodeId, spread: u32 },
        /// Makes a file without a name where the directory's inode is; `linkable`: `Link` may give it one. -> `Node`.
        10 = CreateUnnamed { dir: InodeId, mode: u16, uid: u32, gid: u32, umask: u16, linkable: bool, seed: u64 },
    }

    /// renameat2's flags.
    #[derive(Copy)]
    pub enum RenameMode {
        1 = Replace,
        2 = NoReplace,
        3 = Exchange,
        /// Leaves a whiteout under the old name: a character device 0:0 of mode 0 that this user and group own (overlayfs).
        /// `seed`: of the whiteout's id. -> `Node`, the whiteout.
        4 = Whiteout { replace: bool, uid: u32, gid: u32, seed: u32 },
    }

    /// Ops on an inode; answered where the inode lives.
    pub enum InodeOp {
        /// -> `Node`.
        1 = GetAttr { inode: InodeId },
        /// chmod, chown, utimens, truncate. -> `Node`.
        2 = SetAttr { inode: InodeId, changes: AttrChanges },
        /// -> `Bytes`.
        3 = ReadLink { inode: InodeId, touch: bool },
        /// -> `Bytes`, or `NoAttribute`.
        4 = GetXattr { inode: InodeId, name: Bytes },
        /// `create`: must be new; `replace`: must exist; `drop_set_group`: set-group-id goes. -> `Done`.
        5 = SetXattr {
            inode: InodeId,
            name: Bytes,
            value: Bytes,
            create: bool,
            replace: bool,
            drop_set_group: bool,
        },
        /// -> `Names`.
        6 = ListXattr { inode: InodeId },
        /// -> `Done`.
        7 = RemoveXattr { inode: InodeId, name: Bytes },
        /// `GetAttr` by who has read its bytes: its time of access follows. -> `Node`.
        8 = Accessed { inode: InodeId },
        /// A directory's parent; of the root, the root. -> `Node`, or `Elsewhere`.
        9 = Parent { inode: InodeId },
    }

    /// Ops on locks: kept by the leader of the inode's partition in its memory, and told again to the next one.
    pub enum LockOp {
        /// The first lock that `lock` would conflict with. -> `Lock`.
        1 = Get { inode: InodeId, lock: Lock },
        /// Takes, converts or lets go. -> `Done`. If another holds it: `Waiting`, if it may `wait`; else `WouldBlock`.
        2 = Set { inode: InodeId, lock: Lock, wait: bool },
        /// Ends a `Set` of this session that waits; that one answers `Interrupted`. -> `Cancelled`.
        3 = Cancel { inode: InodeId, op_id: OpId },
        /// The owner closed the file: all that it holds there goes. -> `Done`.
        4 = Release { inode: InodeId, owner: LockOwner },
        /// Tells a new leader what this session holds in the partition; `done`: that is all. -> `Restored`.
        5 = Restore { locks: Vec<(InodeId, Lock)>, done: bool },
    }

    /// Ops on bytes.
    pub enum DataOp {
        /// Bytes that rest beside the inode. -> `FileData`; `Node` if they rest in shards.
        1 = Read { inode: InodeId, offset: u64, length: u32, touch: bool },
        /// The same for writing. -> `Done`; `Node` if they rest in shards or the write ends over `INLINE_MAX`.
        2 = Write { inode: InodeId, offset: u64, data: Bytes, drop_set_id: bool },
        /// Moves bytes beside the inode into shards. -> `Node`.
        3 = Spill { inode: InodeId },
        /// -> `Data`: what the shard has of the range, holes as zeros, short at its end.
        4 = ReadShard { data: DataId, index: u64, offset: u32, length: u32 },
        /// `follow`: take it only if the shard's last write has this stamp. `fast`: the session would go on on the fast lane.
        /// -> `Written`.
        5 = WriteShard { data: DataId, index: u64, offset: u32, bytes: Bytes, follow: Option<Stamp>, fast: bool },
        /// Tells the inode's leader that shards were written, so that the file ends at `end` at least, and that there may be
        /// some up to `reach`. `LayoutChanged` if they were given up. -> `Done`.
        6 = Wrote { inode: InodeId, layout_version: u32, end: u64, reach: u64, drop_set_id: bool, fast: bool },
        /// Puts everything that the brick acknowledged in this life, and these shards' bytes (`all`: every shard's), on
        /// stable storage. `StaleView` in another life. -> `Done`.
        7 = Sync { incarnation: Incarnation, shards: Vec<ShardId>, all: bool },
        /// fsync as a door asks for it; `distribute` turns it into `Sync` for each brick. -> `Done`.
        8 = Fsync { inode: InodeId },
        /// fallocate of bytes beside the inode. -> `Done`; `Node` if they rest in shards or it ends over `INLINE_MAX`.
        9 = Allocate { inode: InodeId, offset: u64, length: u64, mode: Allocate, drop_set_id: bool },
        /// The same for a run of one shard. -> `Done`.
        10 = AllocateShard { data: DataId, index: u64, offset: u32, length: u32, fill: Fill },
        /// A write at the end, of bytes beside the inode. -> `Done`; `Node` if they rest in shards or it ends over
        /// `INLINE_MAX`.
        11 = Append { inode: InodeId, data: Bytes, drop_set_id: bool },
        /// SEEK_DATA, or (`hole`) SEEK_HOLE; `NoData` beyond the end. -> `Found`; `Node` if the bytes rest in shards.
        12 = Seek { inode: InodeId, offset: u64, hole: bool },
        /// The same in a shard; beyond its end is a hole. -> `Found`.
        13 = SeekShard { data: DataId, index: u64, offset: u32, hole: bool },
        /// The first of the partition's shards `from..to` with a block that is no hole. -> `Found`: its index.
        14 = NextShard { data: DataId, from: u64, to: u64 },
        /// copy_file_range as a door asks for it; at most so many bytes are copied. -> `Copied`.
        15 = Copy {
            from: InodeId,
            from_offset: u64,
            to: InodeId,
            to_offset: u64,
            length: u64,
            drop_set_id: bool,
            touch: bool,
        },
        /// Writes to a run of a shard what another has; blocks of zeros become holes, or stay ones. -> `Written`; `Done` if
        /// nothing changes.
        16 = CopyShard { from: ShardRange, data: DataId, index: u64, offset: u32 },
        /// A write of blocks that exist, sent to all members of the view at once: done when all have taken it. A member takes
        /// it only if the shard's last write has the stamp `follow`, else `Conflict`. `settled`: all members have that one.
        /// `term`: of the leader that allowed it. -> `Written`.
        17 = FastWrite {
            data: DataId,
            index: u64,
            offset: u32,
            bytes: Bytes,
            follow: Stamp,
            settled: bool,
            term: u64,
        },
        /// One step of a write of blocks that exist, which its client takes at each member of the view itself, past the log and
        /// without stamps: only on volumes made for measuring (modes `afr` and `fast-path`). The op id names the write in all
        /// its steps. `Conflict`: it goes to the leader. -> `Done`.
        18 = RawWrite { data: DataId, index: u64, step: RawStep },
        /// The partition's shards `from..to` lose their bytes and their room, as many as one record takes, least index first.
        /// -> `Found`: the index of the first one that is left; who asks goes on from there.
        19 = EmptyShards { data: DataId, from: u64, to: u64 },
    }

    /// A step of such a write: what GlusterFS's AFR does for each, in this order.
    pub enum RawStep {
        /// Nobody else has a range that meets it until `Unlock` or the session's end. -> `WouldBlock` if somebody has.
        1 = Lock { offset: u32, length: u32 },
        /// The changelog, +1: the write may be here, and not elsewhere.
        2 = Mark { offset: u32, length: u32 },
        /// The bytes. -> `Done`, or `Waiting` if another session waits for the lock.
        3 = Write { offset: u32, bytes: Bytes },
        /// The changelog, -1: all members have it.
        4 = Clear,
        /// -> `Done`.
        5 = Unlock,
    }

    /// What fallocate asks for (fallocate(2)).
    #[derive(Copy)]
    pub enum Allocate {
        /// Room for the range: holes become zeros that are written. `keep_size`: the file may end before it.
        1 = Reserve { keep_size: bool },
        /// FALLOC_FL_PUNCH_HOLE: the range becomes a hole.
        2 = Punch,
        /// FALLOC_FL_ZERO_RANGE: the range becomes zeros, with room.
        3 = Zero { keep_size: bool },
    }

    /// What happens to a run of a shard.
    #[derive(Copy)]
    pub enum Fill {
        /// Holes become zeros that are written.
        1 = Holes,
        /// All becomes zeros: blocks that were never written get room, others are written.
        2 = Zeros,
        /// All becomes holes, but for parts of blocks, which become zeros.
        3 = Nothing,
    }

    /// Ops on a volume; answered by any server.
    pub enum VolumeOp {
        /// -> `Space`.
        1 = StatFs,
        /// Keeps the session; of the orphans that it was last told of, names those that it does not have open, and files of
        /// which its kernel has written back mapped pages since the last heartbeat. -> `Orphans`.
        2 = Heartbeat { unused: Vec<InodeId>, mapped: Vec<InodeId> },
        /// -> `Done`.
        3 = EndSession,
    }

    /// One step of an op over several partitions, sent by its driver (DESIGN section 6), each taken once. Those before
    /// the commit point have an undoing twin; those after it are repeated until taken. Those about a directory are sent to
    /// each of the partitions that share its names, and do what is to be done there.
    pub enum Leg {
        /// mkdir, before the name: the inode where it lives, and in each partition the stub. -> `Node`, or `Done`.
        1 = MakeDirectory {
            inode: InodeId,
            parent: InodeId,
            mode: u16,
            uid: u32,
            gid: u32,
            spread: u32,
            access_acl: Bytes,
            default_acl: Bytes,
        },
        /// Undoes it.
        2 = UnmakeDirectory { inode: InodeId },
        /// link, before the name.
        3 = AddLink { inode: InodeId },
        /// Undoes it.
        4 = TakeBackLink { inode: InodeId },
        /// rmdir, before the name goes: refuses unless empty, and nothing is made in it from then on. -> `Stub`.
        5 = CloseDirectory { inode: InodeId },
        /// Undoes it.
        6 = ReopenDirectory { inode: InodeId },
        /// Growing beyond the inode: its bytes as the first shard of a new data id.
        7 = FillShard { shard: ShardId, bytes: Bytes },
        /// Undoes it.
        14 = UnfillShard { shard: ShardId },
        /// unlink and replacing rename, after the name. `keep`: somebody may have it open.
        9 = DropLink { inode: InodeId, keep: bool },
        /// rmdir and replacing rename, after the name: the empty directory's records go.
        10 = DropDirectory { inode: InodeId },
        /// rename, after the new name: the old one goes, or (exchange) leads to `new`.
        11 = ReplaceName { dir: InodeId, name: Name, new: Option<(InodeId, NodeKind)> },
        /// rename, after the new name: the directory's parent.
        12 = SetParent { inode: InodeId, parent: InodeId },
        /// truncate: the shard ends at `length`.
        13 = CutShard { shard: ShardId, length: u32 },
        /// truncate: shards `from..to` of this partition are empty; the file may grow into them again. Its records change at
        /// most so many shards each, so it may be sent more than once.
        15 = EmptyShards { data: DataId, from: u64, to: u64 },
        /// rename from another partition, first: the name stays as it is, and its readers wait. -> `Elsewhere`: where it
        /// leads; `Stub`: it rests in another partition, and nothing is held.
        16 = HoldName { dir: InodeId, name: Name },
        /// Undoes it.
        17 = ReleaseName { dir: InodeId, name: Name },
        /// rename of a directory to another parent: no other directory of the volume moves; taken where the root is.
        18 = HoldMoves,
        /// Undoes it.
        19 = LetMoves,
        /// rename of a directory, at the end: others may move.
        20 = ReleaseMoves,
        /// Looks only. -> `Elsewhere`: the directory's parent.
        21 = Parent { inode: InodeId },
        /// Collecting what was given up: shards `0..to` of this partition go.
        22 = DropShards { data: DataId, to: u64 },
        /// setattr of a directory whose names are in several partitions: whoever asks here for a name waits; undone by
        /// `ReopenDirectory`. -> `Stub`.
        23 = HoldStub { dir: InodeId },
        /// setattr, after the inode: what the stub has of it; those who wait go on.
        24 = SetStub { dir: InodeId, mode: u16, uid: u32, gid: u32, mtime: Option<Time>, default_acl: Bytes },
        /// rename, after the new name: the time of change of what was moved, if it is there still.
        26 = MarkMoved { inode: InodeId },
        /// Copying: looks only. -> `Data`.
        25 = ReadShard { range: ShardRange },
    }
}

wire_struct! {
    /// A run of a shard's bytes.
    #[derive(Copy)]
    pub struct ShardRange {
        /// Whose.
        pub data: DataId,
        /// Which shard.
        pub index: u64,
        /// From here.
        pub offset: u32,
        /// So many.
        pub length: u32,
    }

    /// One op on its way to who answers it.
    pub struct Request {
        /// Of which volume.
        pub volume: VolumeId,
        /// Who answers.
        pub target: Target,
        /// Whose.
        pub session: SessionId,
        /// Which of the session's ops; a retry carries the same.
        pub op_id: OpId,
        /// Answer only once it is on stable storage of every replica.
        pub durable: bool,
        /// It may have been done already, and its answer lost.
        pub retry: bool,
        /// What to do.
        pub op: Op,
    }
}

impl NameOp {
    /// The directory whose leader answers; the new name's drives a rename.
    pub fn dir(&self) -> InodeId {
        match self {
            NameOp::Lookup { dir, .. }
            | NameOp::Create { dir, .. }
            | NameOp::Link { dir, .. }
            | NameOp::Unlink { dir, .. }
            | NameOp::Rmdir { dir, .. }
            | NameOp::List { dir, .. }
            | NameOp::ListPart { dir, .. }
            | NameOp::Stub { dir, .. }
            | NameOp::CreateUnnamed { dir, .. }
            | NameOp::Rename { to_dir: dir, .. } => *dir,
        }
    }

    /// Whether it changes nothing.
    pub fn is_read(&self) -> bool {
        matches!(self, NameOp::Lookup { .. } | NameOp::List { .. } | NameOp::ListPart { .. } | NameOp::Stub { .. })
    }
}

impl InodeOp {
    /// The inode that it is about.
    pub fn inode(&self) -> InodeId {
        match self {
            InodeOp::GetAttr { inode }
            | InodeOp::SetAttr { inode, .. }
            | InodeOp::ReadLink { inode, .. }
            | InodeOp::Accessed { inode }
            | InodeOp::Parent { inode }
            | InodeOp::GetXattr { inode, .. }
            | InodeOp::SetXattr { inode, .. }
            | InodeOp::ListXattr { inode }
            | InodeOp::RemoveXattr { inode, .. } => *inode,
        }
    }
}

impl DataOp {
    /// The inode that it changes or reads, if it names one.
    pub fn inode(&self) -> Option<InodeId> {
        match self {
            DataOp::Read { inode, .. }
            | DataOp::Write { inode, .. }
            | DataOp::Append { inode, .. }
            | DataOp::Spill { inode }
            | DataOp::Wrote { inode, .. }
            | DataOp::Fsync { inode }
            | DataOp::Allocate { inode, .. }
            | DataOp::Seek { inode, .. }
            | DataOp::Copy { to: inode, .. } => Some(*inode),
            DataOp::ReadShard { .. }
            | DataOp::WriteShard { .. }
            | DataOp::AllocateShard { .. }
            | DataOp::SeekShard { .. }
            | DataOp::NextShard { .. }
            | DataOp::CopyShard { .. }
            | DataOp::FastWrite { .. }
            | DataOp::RawWrite { .. }
            | DataOp::EmptyShards { .. }
            | DataOp::Sync { .. } => None,
        }
    }
}

/// All that [`Op::label`] says, in byte order.
pub const OP_LABELS: [&str; 47] = [
    "accessed",
    "allocate",
    "allocate-shard",
    "append",
    "cancel-lock",
    "copy",
    "copy-shard",
    "create",
    "create-unnamed",
    "empty-shards",
    "end-session",
    "fast-write",
    "fsync",
    "get-lock",
    "getattr",
    "getxattr",
    "heartbeat",
    "leg",
    "link",
    "list",
    "list-part",
    "listxattr",
    "lookup",
    "next-shard",
    "parent",
    "raw-write",
    "read",
    "read-shard",
    "readlink",
    "release-locks",
    "removexattr",
    "rename",
    "restore-locks",
    "rmdir",
    "seek",
    "seek-shard",
    "set-lock",
    "setattr",
    "setxattr",
    "spill",
    "statfs",
    "stub",
    "sync",
    "unlink",
    "write",
    "write-shard",
    "wrote",
];

impl Op {
    /// Whether it changes nothing.
    pub fn is_read(&self) -> bool {
        match self {
            Op::Name { op } => op.is_read(),
            Op::Inode { op } => matches!(
                op,
                InodeOp::GetAttr { .. }
                    | InodeOp::ReadLink { .. }
                    | InodeOp::GetXattr { .. }
                    | InodeOp::ListXattr { .. }
                    | InodeOp::Accessed { .. }
                    | InodeOp::Parent { .. }
            ),
            Op::Lock { op } => matches!(op, LockOp::Get { .. }),
            Op::Data { op } => matches!(
                op,
                DataOp::Read { .. }
                    | DataOp::ReadShard { .. }
                    | DataOp::Seek { .. }
                    | DataOp::SeekShard { .. }
                    | DataOp::NextShard { .. }
            ),
            Op::Volume { .. } => true,
            Op::Leg { .. } => false,
        }
    }

    /// The op's name for counters and traces.
    pub fn label(&self) -> &'static str {
        match self {
            Op::Name { op } => match op {
                NameOp::Lookup { .. } => "lookup",
                NameOp::Create { .. } => "create",
                NameOp::Link { .. } => "link",
                NameOp::Unlink { .. } => "unlink",
                NameOp::Rmdir { .. } => "rmdir",
                NameOp::Rename { .. } => "rename",
                NameOp::List { .. } => "list",
                NameOp::ListPart { .. } => "list-part",
                NameOp::Stub { .. } => "stub",
                NameOp::CreateUnnamed { .. } => "create-unnamed",
            },
            Op::Inode { op } => match op {
                InodeOp::GetAttr { .. } => "getattr",
                InodeOp::SetAttr { .. } => "setattr",
                InodeOp::ReadLink { .. } => "readlink",
                InodeOp::GetXattr { .. } => "getxattr",
                InodeOp::SetXattr { .. } => "setxattr",
                InodeOp::ListXattr { .. } => "listxattr",
                InodeOp::RemoveXattr { .. } => "removexattr",
                InodeOp::Accessed { .. } => "accessed",
                InodeOp::Parent { .. } => "parent",
            },
            Op::Lock { op } => match op {
                LockOp::Get { .. } => "get-lock",
                LockOp::Set { .. } => "set-lock",
                LockOp::Cancel { .. } => "cancel-lock",
                LockOp::Release { .. } => "release-locks",
                LockOp::Restore { .. } => "restore-locks",
            },
            Op::Data { op } => match op {
                DataOp::Read { .. } => "read",
                DataOp::Write { .. } => "write",
                DataOp::Spill { .. } => "spill",
                DataOp::ReadShard { .. } => "read-shard",
                DataOp::WriteShard { .. } => "write-shard",
                DataOp::Wrote { .. } => "wrote",
                DataOp::Sync { .. } => "sync",
                DataOp::Fsync { .. } => "fsync",
                DataOp::Allocate { .. } => "allocate",
                DataOp::AllocateShard { .. } => "allocate-shard",
                DataOp::Append { .. } => "append",
                DataOp::Seek { .. } => "seek",
                DataOp::SeekShard { .. } => "seek-shard",
                DataOp::NextShard { .. } => "next-shard",
                DataOp::Copy { .. } => "copy",
                DataOp::CopyShard { .. } => "copy-shard",
                DataOp::FastWrite { .. } => "fast-write",
                DataOp::RawWrite { .. } => "raw-write",
                DataOp::EmptyShards { .. } => "empty-shards",
            },
            Op::Volume { op } => match op {
                VolumeOp::StatFs => "statfs",
                VolumeOp::Heartbeat { .. } => "heartbeat",
                VolumeOp::EndSession => "end-session",
            },
            Op::Leg { .. } => "leg",
        }
    }
}
