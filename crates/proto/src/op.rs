//! Every request is one [`Op`] value, used on the wire, in translators and in tests.
//!
//! Ops are grouped in families, so that a translator matches few variants. The numbers never change. In the comments,
//! `-> X` names the reply of an op.

mod label;
mod leg;

use crate::attr::{AttrChanges, NewNode};
use crate::ids::*;
use crate::lock::{Lock, LockOwner};
use crate::pledge::{KeptRight, Pledge, Report};
use crate::{wire_enum, wire_struct};
use bytes::Bytes;
pub use label::OP_LABELS;
pub use leg::Leg;

wire_enum! {
    /// The replica that executes a request.
    #[derive(Copy)]
    pub enum Target {
        /// The leader of a partition, in the view that the client knows.
        1 = Partition { ring: RingId, partition: PartitionNumber, epoch: Epoch },
        /// One brick. For syncs.
        2 = Brick { brick: BrickId },
        /// The server itself. For volume ops.
        3 = Server,
        /// One member of a partition's view. For fast writes.
        4 = Replica { ring: RingId, partition: PartitionNumber, epoch: Epoch, brick: BrickId },
    }

    /// One op.
    pub enum Op {
        1 = Name { op: NameOp },
        2 = Inode { op: InodeOp },
        3 = Lock { op: LockOp },
        4 = Data { op: DataOp },
        5 = Volume { op: VolumeOp },
        6 = Leg { intent: IntentId, number: u16, leg: Box<Leg> },
    }

    /// Ops on a name in a directory. They are executed in the partition of the name; any other replies `OtherSpread`.
    pub enum NameOp {
        /// Replies `NotFound` if the name does not exist. -> `Node`, or `Elsewhere`.
        1 = Lookup { dir: InodeId, name: Name },
        /// Makes an inode and its name. If a file has the name and `exclusive` is false, returns that file. ->
        /// `Node`, or `Elsewhere`.
        2 = Create {
            dir: InodeId,
            name: Name,
            node: NewNode,
            mode: u16,
            uid: u32,
            gid: u32,
            /// Bits to clear in the mode, unless the directory has a default ACL.
            umask: u16,
            exclusive: bool,
            /// Random bits for the new id. High half: the position (directories only); low half: the random part.
            seed: u64,
        },
        /// Gives an inode that is not a directory one more name. -> `Node`.
        3 = Link { dir: InodeId, name: Name, inode: InodeId },
        /// `open_here`: this session has the inode open, so the inode exists until the session no longer has. ->
        /// `Done`.
        4 = Unlink { dir: InodeId, name: Name, open_here: Option<InodeId> },
        /// Replies `NotEmpty` if the directory has names. -> `Done`.
        5 = Rmdir { dir: InodeId, name: Name },
        /// `open_here`: as in `Unlink`, for the inode that is replaced. -> `Done`.
        6 = Rename {
            dir: InodeId,
            name: Name,
            to_dir: InodeId,
            to_name: Name,
            mode: RenameMode,
            open_here: Option<InodeId>,
        },
        /// At most `limit` names after `after`, in byte order, with attributes where this partition has them. Replies
        /// `OtherSpread` if other partitions have names, too. -> `List`.
        7 = List { dir: InodeId, after: Option<Name>, limit: u32, attributes: bool, touch: bool },
        /// As `List`, in one of the `spread` partitions that share the names. -> `List`.
        8 = ListPart { dir: InodeId, spread: u32, after: Option<Name>, limit: u32, attributes: bool },
        /// What one of these partitions knows of the directory. -> `Stub`.
        9 = Stub { dir: InodeId, spread: u32 },
        /// Makes a file without a name in the partition of the directory's inode. `linkable`: `Link` may give it a
        /// name. -> `Node`.
        10 = CreateUnnamed { dir: InodeId, mode: u16, uid: u32, gid: u32, umask: u16, linkable: bool, seed: u64 },
        /// Creates or replaces a file's name with its content, in one record. `alternate` is used instead of `name` if
        /// a directory has `name`, or if `alternate` exists and `name` does not. Replies `ConditionFailed` if the file
        /// that has the name is not as `condition` demands. `keep`: the session may have the file open that is replaced,
        /// so it exists until no session has. -> `Node`.
        11 = Put {
            dir: InodeId,
            name: Name,
            alternate: Option<Name>,
            source: PutSource,
            /// The ETag of the content. Empty: none.
            etag: Bytes,
            condition: Condition,
            keep: bool,
            /// Random bits for a new id.
            seed: u32,
        },
        /// Removes a file's name under a condition. `alternate` is used instead of `name` if a directory has `name`, or
        /// if nothing has. `keep`: as in `Put`. -> `Done`.
        12 = Remove {
            dir: InodeId,
            name: Name,
            alternate: Option<Name>,
            condition: Condition,
            keep: bool,
        },
        /// mkdir for a key that needs a directory. A file that has `name` gets the name `alternate` in the same record.
        /// -> `Node`.
        13 = MakePrefix {
            dir: InodeId,
            name: Name,
            alternate: Name,
            mode: u16,
            uid: u32,
            gid: u32,
            /// As in `Create`.
            seed: u64,
        },
        /// Joins files of a directory to a new file there, in one record: it gets their pieces, and they are removed.
        /// Replies `ConditionFailed` if a part has another ETag, and `Elsewhere` with a part whose bytes are beside its
        /// inode: `Spill` comes first. -> `Node`.
        14 = Join {
            dir: InodeId,
            /// Each with the ETag that it must have, or an empty one.
            parts: Vec<(Name, Bytes)>,
            to: Name,
            mode: u16,
            uid: u32,
            gid: u32,
            etag: Bytes,
            attributes: Vec<(Bytes, Bytes)>,
            seed: u32,
        },
        /// A name's file or directory with its attributes, the value of the extended attribute `attribute`, and with
        /// `content` the bytes, if they are beside the inode. `alternate` is used instead of `name` if a directory has
        /// `name`, or if nothing has. -> `Fetched`, or `Elsewhere`.
        15 = Fetch { dir: InodeId, name: Name, alternate: Option<Name>, attribute: Bytes, content: bool },
        /// At most `limit` names of this partition that begin with `prefix`, in the order of keys: a directory's name
        /// counts as if it ended in `/`. Only those after `after` in that order. Replies `OtherSpread` if the names are
        /// in another number of partitions. -> `Keys`.
        16 = ListKeys { dir: InodeId, spread: u32, prefix: Bytes, after: Bytes, limit: u32 },
        /// As `Rmdir`, of a directory that is implied. Another one replies `NotEmpty`. -> `Done`.
        17 = RemovePrefix { dir: InodeId, name: Name },
    }

    /// The content that `Put` gives to a name.
    pub enum PutSource {
        /// At most `INLINE_MAX` bytes, for a new file with these extended attributes.
        1 = Bytes { content: Bytes, mode: u16, uid: u32, gid: u32, attributes: Vec<(Bytes, Bytes)> },
        /// An existing file: one without a name that may be linked, or one with another name.
        2 = Inode { inode: InodeId },
    }

    /// What the file under a name has to be.
    pub enum Condition {
        1 = Always,
        /// No file has the name.
        2 = Absent,
        /// A file has the name.
        3 = Exists,
        /// A file with this ETag has the name.
        4 = Matches { etag: Bytes },
    }

    /// The flags of renameat2(2).
    #[derive(Copy)]
    pub enum RenameMode {
        1 = Replace,
        2 = NoReplace,
        3 = Exchange,
        /// Leaves a whiteout (overlayfs) with the old name: a character device 0:0 with mode 0, owned by this user
        /// and group. `seed`: for the id of the whiteout. -> `Node`, the whiteout.
        4 = Whiteout { replace: bool, uid: u32, gid: u32, seed: u32 },
    }

    /// Ops on an inode, executed in the partition of the inode.
    pub enum InodeOp {
        /// -> `Node`.
        1 = GetAttr { inode: InodeId },
        /// chmod, chown, utimens, truncate. -> `Node`.
        2 = SetAttr { inode: InodeId, changes: AttrChanges },
        /// -> `Bytes`.
        3 = ReadLink { inode: InodeId, touch: bool },
        /// Replies `NoAttribute` if the inode does not have it. -> `Bytes`.
        4 = GetXattr { inode: InodeId, name: Bytes },
        /// `create`: fail if it exists. `replace`: fail if it does not exist. `drop_set_group`: clear set-group-id.
        /// -> `Done`.
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
        /// As `GetAttr`, by a client that has read the bytes; updates the time of access. -> `Node`.
        8 = Accessed { inode: InodeId },
        /// The parent of a directory; of the root, the root. -> `Node`, or `Elsewhere`.
        9 = Parent { inode: InodeId },
        /// As `NameOp::Fetch`. -> `Fetched`.
        10 = Fetch { inode: InodeId, attribute: Bytes, content: bool },
        /// Asks for the mapping right, and waits until no other session has it. `Done` if the session is to be given no
        /// pledges. -> `Pledged`.
        11 = Map { inode: InodeId },
    }

    /// Ops on locks. The leader of the inode's partition keeps locks in its memory, and sessions report them to the
    /// next leader.
    pub enum LockOp {
        /// The first lock that `lock` conflicts with. -> `Lock`.
        1 = Get { inode: InodeId, lock: Lock },
        /// Takes, converts or releases a lock. If another owner holds one in conflict: `Waiting` with `wait`, else
        /// `WouldBlock`. -> `Done`.
        2 = Set { inode: InodeId, lock: Lock, wait: bool },
        /// Cancels a waiting `Set` of this session, which then replies `Interrupted`. -> `Cancelled`.
        3 = Cancel { inode: InodeId, op_id: OpId },
        /// The owner closed the file: releases its locks on the file. -> `Done`.
        4 = Release { inode: InodeId, owner: LockOwner },
        /// Reports to a new leader what this session holds in the partition. `done`: the report is complete. ->
        /// `Restored`.
        5 = Restore { locks: Vec<(InodeId, Lock)>, done: bool },
    }

    /// Ops on bytes.
    pub enum DataOp {
        /// Reads bytes stored beside the inode; `Node` if they are in shards. -> `FileData`.
        1 = Read { inode: InodeId, offset: u64, length: u32, touch: bool },
        /// Writes bytes stored beside the inode; `Node` if they are in shards or the write ends beyond `INLINE_MAX`.
        /// -> `Done`.
        2 = Write { inode: InodeId, offset: u64, data: Bytes, drop_set_id: bool },
        /// Moves bytes stored beside the inode to shards. -> `Node`.
        3 = Spill { inode: InodeId },
        /// Reads a range of a shard: holes as zeros, shorter at the end of the shard. -> `Data`.
        4 = ReadShard { data: DataId, index: u64, offset: u32, length: u32 },
        /// `follow`: refuse unless the stamp of the shard's last write is this one. `fast`: the session requests that
        /// the leader open the shard for its fast writes. -> `Written`.
        5 = WriteShard { data: DataId, index: u64, offset: u32, bytes: Bytes, follow: Option<Stamp>, fast: bool },
        /// Reports to the inode's leader that shards were written: the file ends at `end` or later, and shards may
        /// exist up to `reach` (offsets in bytes). `age`: time since then, in ns. `fast`: the leader may keep the times
        /// without a record. Replies `LayoutChanged` if the shards were removed meanwhile. -> `Done`.
        6 = Wrote {
            inode: InodeId,
            layout_version: u32,
            end: u64,
            reach: u64,
            drop_set_id: bool,
            fast: bool,
            age: u64,
        },
        /// Puts everything that the brick acknowledged in this incarnation, and the bytes of these shards (`all`: of
        /// every shard), on stable storage. Replies `StaleView` in another incarnation. -> `Done`.
        7 = Sync { incarnation: Incarnation, shards: Vec<ShardId>, all: bool },
        /// fsync(2), as a gateway requests it. `distribute` turns it into one `Sync` for each brick. -> `Done`.
        8 = Fsync { inode: InodeId },
        /// fallocate(2) of bytes beside the inode; `Node` if they are in shards or the range ends beyond
        /// `INLINE_MAX`. -> `Done`.
        9 = Allocate { inode: InodeId, offset: u64, length: u64, mode: Allocate, drop_set_id: bool },
        /// As `Allocate`, for a range of one shard. -> `Done`.
        10 = AllocateShard { data: DataId, index: u64, offset: u32, length: u32, fill: Fill },
        /// Appends bytes beside the inode; `Node` if they are in shards or the write ends beyond `INLINE_MAX`. ->
        /// `Done`.
        11 = Append { inode: InodeId, data: Bytes, drop_set_id: bool },
        /// SEEK_DATA, or with `hole` SEEK_HOLE; `NoData` beyond the end, `Node` if the bytes are in shards. ->
        /// `Found`.
        12 = Seek { inode: InodeId, offset: u64, hole: bool },
        /// As `Seek`, in a shard. Everything beyond the end of the shard is a hole. -> `Found`.
        13 = SeekShard { data: DataId, index: u64, offset: u32, hole: bool },
        /// The lowest index of the partition's shards `from..to` that have a block that is not a hole. -> `Found`.
        14 = NextShard { data: DataId, from: u64, to: u64 },
        /// copy_file_range(2), as a gateway requests it. Copies at most `length` bytes. -> `Copied`.
        15 = Copy {
            from: InodeId,
            from_offset: u64,
            to: InodeId,
            to_offset: u64,
            length: u64,
            drop_set_id: bool,
            touch: bool,
        },
        /// Copies a range of another shard to a shard. Blocks of zeros become or remain holes. `Done` if nothing
        /// changes. -> `Written`.
        16 = CopyShard { from: ShardRange, data: DataId, index: u64, offset: u32 },
        /// A write of existing blocks, sent to all members of the view at once. It is acknowledged when all have
        /// accepted it. A member accepts it only if the stamp of the shard's last write is `follow`, else it replies
        /// `Conflict`. `settled`: all members are known to have that write. `term`: of the leader that allowed the
        /// fast write. -> `Written`.
        17 = FastWrite {
            data: DataId,
            index: u64,
            offset: u32,
            bytes: Bytes,
            follow: Stamp,
            settled: bool,
            term: u64,
        },
        /// One step of a write of existing blocks that the client executes at each member of the view, outside of the
        /// log and without stamps. Only on volumes made for measuring (modes `afr` and `fast-path`). All steps of a
        /// write have the same op id. `Conflict`: the write must go to the leader. -> `Done`.
        18 = RawWrite { data: DataId, index: u64, step: RawStep },
        /// Removes the bytes and the allocated space of the partition's shards `from..to`, of as many as one record
        /// holds, lowest index first. The reply is the index of the first shard that is left; the client continues
        /// there. -> `Found`.
        19 = EmptyShards { data: DataId, from: u64, to: u64 },
        /// Finds the end of a file that a session may have moved under a grant without a word: the shards are asked how
        /// long they are. Only an inode's leader begins it. -> `Done`.
        20 = FindEnd { inode: InodeId },
    }

    /// A step of a raw write: those that GlusterFS's AFR takes for each write, in this order.
    pub enum RawStep {
        /// Excludes other sessions from ranges that overlap, until `Unlock` or the end of the session. `WouldBlock`
        /// if one holds such a range. -> `Done`.
        1 = Lock { offset: u32, length: u32 },
        /// Changelog +1: this member may have the write, and others may not.
        2 = Mark { offset: u32, length: u32 },
        /// Writes the bytes. `Waiting` if another session waits for the lock. -> `Done`.
        3 = Write { offset: u32, bytes: Bytes },
        /// Changelog -1: all members have the write.
        4 = Clear,
        5 = Unlock,
    }

    /// Operation of fallocate(2).
    #[derive(Copy)]
    pub enum Allocate {
        /// Allocates space for the range: holes become written zeros. `keep_size`: the size of the file does not
        /// change.
        1 = Reserve { keep_size: bool },
        /// FALLOC_FL_PUNCH_HOLE: the range becomes a hole.
        2 = Punch,
        /// FALLOC_FL_ZERO_RANGE: the range becomes zeros with allocated space.
        3 = Zero { keep_size: bool },
    }

    /// What happens to a range of a shard.
    #[derive(Copy)]
    pub enum Fill {
        /// Holes become written zeros.
        1 = Holes,
        /// Everything becomes zeros. Blocks that were never written get space, others are overwritten.
        2 = Zeros,
        /// Whole blocks become holes, parts of blocks become zeros.
        3 = Nothing,
    }

    /// Ops on a volume, executed by any server.
    pub enum VolumeOp {
        /// -> `Space`.
        1 = StatFs,
        /// Keeps the session alive. `unused`: of the orphans in the last reply, those that the client does not have
        /// open. `mapped`: files whose mapped pages a kernel has written back without the mapping right since the last
        /// heartbeat. `graph`: the change of the volume's graph that the client runs. -> `Orphans`.
        2 = Heartbeat { unused: Vec<InodeId>, mapped: Vec<InodeId>, graph: u64 },
        /// -> `Done`.
        3 = EndSession,
        /// The session has none of these pledges any more, nor an earlier one about the same. `reports`: what it wrote
        /// under grants among them. -> `Done`.
        4 = Return { partition: PartitionNumber, term: u64, pledges: Vec<Pledge>, reports: Vec<Report> },
        /// Renews the session's pledges of the partitions that this server leads. `forgot`: the session has no pledge
        /// of these partitions that was given before this term of a leader, but for its mapping rights:
        /// `mapped`. -> `Terms`.
        5 = Renew { forgot: Vec<(PartitionNumber, u64)>, mapped: Vec<KeptRight> },
    }
}

wire_struct! {
    /// A range of a shard's bytes.
    #[derive(Copy)]
    pub struct ShardRange {
        pub data: DataId,
        /// Index of the shard.
        pub index: u64,
        /// Offset of the first byte.
        pub offset: u32,
        /// Length in bytes.
        pub length: u32,
    }

    /// One op, addressed to the recipient that executes it.
    pub struct Request {
        pub volume: VolumeId,
        /// The replica that executes the request.
        pub target: Target,
        pub session: SessionId,
        /// The op's id in its session. A retry carries the same id.
        pub op_id: OpId,
        /// Reply only when the change is on stable storage of every replica.
        pub durable: bool,
        /// The op may have been executed already, with its reply lost.
        pub retry: bool,
        /// The session asks for pledges with the reply.
        pub pledge: bool,
        pub op: Op,
    }
}

impl NameOp {
    /// The directory of the name. For a rename that of the new name, whose leader drives the op.
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
            | NameOp::Put { dir, .. }
            | NameOp::Remove { dir, .. }
            | NameOp::MakePrefix { dir, .. }
            | NameOp::RemovePrefix { dir, .. }
            | NameOp::Join { dir, .. }
            | NameOp::Fetch { dir, .. }
            | NameOp::ListKeys { dir, .. }
            | NameOp::Rename { to_dir: dir, .. } => *dir,
        }
    }

    /// True if the op changes nothing.
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            NameOp::Lookup { .. }
                | NameOp::List { .. }
                | NameOp::ListPart { .. }
                | NameOp::Stub { .. }
                | NameOp::Fetch { .. }
                | NameOp::ListKeys { .. }
        )
    }
}

impl InodeOp {
    /// The inode that the op is about.
    pub fn inode(&self) -> InodeId {
        match self {
            InodeOp::GetAttr { inode }
            | InodeOp::SetAttr { inode, .. }
            | InodeOp::ReadLink { inode, .. }
            | InodeOp::Accessed { inode }
            | InodeOp::Parent { inode }
            | InodeOp::Map { inode }
            | InodeOp::Fetch { inode, .. }
            | InodeOp::GetXattr { inode, .. }
            | InodeOp::SetXattr { inode, .. }
            | InodeOp::ListXattr { inode }
            | InodeOp::RemoveXattr { inode, .. } => *inode,
        }
    }
}

impl DataOp {
    /// The inode that the op changes or reads, if it names one.
    pub fn inode(&self) -> Option<InodeId> {
        match self {
            DataOp::Read { inode, .. }
            | DataOp::Write { inode, .. }
            | DataOp::Append { inode, .. }
            | DataOp::Spill { inode }
            | DataOp::Wrote { inode, .. }
            | DataOp::FindEnd { inode }
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

impl Op {
    /// True if the op changes nothing, so that it needs no op id.
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
                    | InodeOp::Map { .. }
                    | InodeOp::Fetch { .. }
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
}
