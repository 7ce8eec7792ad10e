//! The reply to an op is one [`Reply`] value, or an [`crate::Error`].

use crate::attr::{Attr, NodeKind, Time};
use crate::ids::{InodeId, Name, OpId, PartitionNumber, Stamp};
use crate::lock::{HeldLock, Lock};
use crate::pledge::GivenPledges;
use crate::{wire_enum, wire_struct};
use bytes::Bytes;

wire_enum! {
    /// The result of an op.
    pub enum Reply {
        /// The op was executed.
        1 = Done,
        /// The current attributes of an inode. `created`: this op made it.
        2 = Node { attr: Attr, created: bool },
        /// Entries of a directory. `end`: there are no more.
        3 = List { entries: Vec<Entry>, end: bool },
        /// The target of a symbolic link, or the value of an attribute.
        4 = Bytes { bytes: Bytes },
        /// The names of extended attributes.
        5 = Names { names: Vec<Bytes> },
        /// Bytes of a file that are stored beside its inode, and the inode.
        6 = FileData { bytes: Bytes, attr: Attr },
        /// Bytes of a shard.
        7 = Data { bytes: Bytes },
        /// The shard's stamp after the write. `fast`: the session's next write to the shard may be a fast write that
        /// follows this stamp, in this term of the leader.
        8 = Written { stamp: Stamp, fast: Option<u64> },
        /// The space of a volume (statvfs(3)).
        9 = Space { space: VolumeSpace },
        /// Inodes without a name, which are removed once every session has confirmed that it does not have them open.
        /// `unrestored`: partitions led here that wait for the session's `Restore`. `graph`: the last change of the
        /// volume's graph that the server knows.
        10 = Orphans { inodes: Vec<InodeId>, unrestored: Vec<PartitionNumber>, graph: u64 },
        /// The name leads to an inode of another partition, to which the client must send its request. Or to a
        /// directory of which an op in flight holds a name: the client must ask for its attributes alone.
        11 = Elsewhere { inode: InodeId, kind: NodeKind },
        /// The first lock in conflict, if there is one.
        12 = Lock { conflict: Option<HeldLock> },
        /// `ended`: the op no longer waits, and is refused if it arrives later. Otherwise it was answered before the
        /// cancellation.
        13 = Cancelled { ended: bool },
        /// The reported locks that this session has lost.
        14 = Restored { lost: Vec<(InodeId, Lock)> },
        /// The lock request waits. After its notification the session sends the op again with the same op id, and gets
        /// the reply.
        15 = Waiting { op_id: OpId },
        /// The stub of a directory in one of the partitions that share its names.
        16 = Stub { stub: StubView },
        /// A position in a file or shard, or the index of a shard. `None` if there is none.
        17 = Found { at: Option<u64> },
        /// Number of bytes copied.
        18 = Copied { bytes: u64 },
        /// What a reader of an object gets.
        19 = Fetched { object: Box<Fetched> },
        /// Names in the order of keys. `end`: there are no more. `escaped`: some names of this partition begin with
        /// `ESCAPE`. `directory`: its attributes, if this partition has them.
        20 = Keys { entries: Vec<Entry>, end: bool, escaped: bool, directory: Option<Box<Attr>> },
        /// The reply to a request that asked for pledges, with those that are given.
        21 = Pledged { found: Found, pledges: Vec<GivenPledges> },
        /// The partitions whose pledges are renewed, each with its leader's term.
        22 = Terms { terms: Vec<(PartitionNumber, u64)> },
    }

    /// A reply that may carry pledges.
    pub enum Found {
        /// As `Reply::Node`, of an inode that existed before.
        1 = Node { attr: Box<Attr> },
        /// As `Reply::Elsewhere`.
        2 = Elsewhere { inode: InodeId, kind: NodeKind },
        /// As the error `NotFound`.
        3 = Missing,
        /// As `Reply::List`.
        4 = List { entries: Vec<Entry>, end: bool },
        /// As `Reply::Data`.
        5 = Data { bytes: Bytes },
        /// As `Reply::Done`.
        6 = Done,
    }
}

wire_struct! {
    /// What a reader of an object gets in one answer.
    pub struct Fetched {
        pub attr: Attr,
        /// Value of the extended attribute that was requested. `None` if there is none.
        pub attribute: Option<Bytes>,
        /// The bytes of a file of up to 16 KiB, if they were requested.
        pub content: Option<Bytes>,
        /// It was found under the alternate name.
        pub alternate: bool,
    }

    /// An entry of a directory.
    pub struct Entry {
        pub name: Name,
        /// The inode that has the name.
        pub inode: InodeId,
        /// Kind of that inode.
        pub kind: NodeKind,
        /// Attributes of the inode, if the partition of the name has them and no op in flight holds a name in it.
        pub attr: Option<Attr>,
    }

    /// The part of a directory's attributes that one of the partitions with its names has.
    #[derive(Copy)]
    pub struct StubView {
        /// Number of partitions that share the names.
        pub spread: u32,
        /// Number of names in this partition.
        pub entries: u64,
        /// Number of directories among them.
        pub directories: u32,
        /// Time of the last change of names in this partition, or the time that was set since.
        pub mtime: Time,
        /// Time of the last change of names in this partition.
        pub ctime: Time,
        /// Increases with every change of these names.
        pub change: u64,
    }

    /// Space in the file systems below a volume's bricks, divided by its copies (statvfs(3)).
    #[derive(Copy, Default)]
    pub struct VolumeSpace {
        /// Bytes in total.
        pub total: u64,
        /// Free bytes, including those that the file systems reserve for root.
        pub free: u64,
        /// Bytes that can still be written.
        pub available: u64,
        /// Inodes in total, of the file systems that count them. A file longer than 16 KiB uses one for each 4 MiB.
        pub files: u64,
        /// Inodes that can still be used.
        pub files_available: u64,
    }
}

impl VolumeSpace {
    /// Sum of both.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            total: self.total.saturating_add(other.total),
            free: self.free.saturating_add(other.free),
            available: self.available.saturating_add(other.available),
            files: self.files.saturating_add(other.files),
            files_available: self.files_available.saturating_add(other.files_available),
        }
    }
}
