//! Every answer is one [`Reply`] value, or an [`crate::Error`].

use crate::attr::{Attr, NodeKind, Time};
use crate::ids::{InodeId, Name, OpId, PartitionNumber, Stamp};
use crate::lock::{HeldLock, Lock};
use crate::{wire_enum, wire_struct};
use bytes::Bytes;

wire_enum! {
    /// What an op answers.
    pub enum Reply {
        /// Done; nothing else to say.
        1 = Done,
        /// An inode as it is now. `created`: this op made it.
        2 = Node { attr: Attr, created: bool },
        /// A stretch of a directory. `end`: there are no more.
        3 = List { entries: Vec<Entry>, end: bool },
        /// A link's target or an attribute's value.
        4 = Bytes { bytes: Bytes },
        /// Names of extended attributes.
        5 = Names { names: Vec<Bytes> },
        /// Bytes of a file that rest beside its inode, and the inode.
        6 = FileData { bytes: Bytes, attr: Attr },
        /// Bytes of a shard.
        7 = Data { bytes: Bytes },
        /// The shard's stamp after the write. `fast`: the session's next write to it may follow that on the fast lane, in this
        /// term of the leader.
        8 = Written { stamp: Stamp, fast: Option<u64> },
        /// statfs.
        9 = Space { space: VolumeSpace },
        /// Inodes without a name, collected once every session has said that it does not have them open. `untold`:
        /// partitions led there that wait for the session's `Restore`.
        10 = Orphans { inodes: Vec<InodeId>, untold: Vec<PartitionNumber> },
        /// The name leads to an inode of another partition: ask there.
        11 = Elsewhere { inode: InodeId, kind: NodeKind },
        /// The first lock in the way, if there is one.
        12 = Lock { conflict: Option<HeldLock> },
        /// `ended`: the op waits no longer, nor will it if it comes late. Else it had been answered before.
        13 = Cancelled { ended: bool },
        /// Which of the told locks this session has lost.
        14 = Restored { lost: Vec<(InodeId, Lock)> },
        /// The lock waits. Its own answer is had by sending it again with the same op id, once the session was told
        /// that it has come.
        15 = Waiting { op_id: OpId },
        /// What one of the partitions that share a directory's names knows of it.
        16 = Stub { stub: StubView },
        /// A place in a file or shard, or a shard's index; `None`: there is none.
        17 = Found { at: Option<u64> },
        /// So many bytes were copied.
        18 = Copied { bytes: u64 },
    }
}

wire_struct! {
    /// A name in a directory.
    pub struct Entry {
        /// The name.
        pub name: Name,
        /// Where it leads.
        pub inode: InodeId,
        /// What is there.
        pub kind: NodeKind,
        /// Its attributes, if the partition of the name has them.
        pub attr: Option<Attr>,
    }

    /// A directory's share of one partition.
    #[derive(Copy)]
    pub struct StubView {
        /// Partitions that share the names.
        pub spread: u32,
        /// Names in this one.
        pub entries: u64,
        /// Of these, directories.
        pub directories: u32,
        /// Last change of names in this one, or what was set.
        pub mtime: Time,
        /// Last change of names in this one.
        pub ctime: Time,
        /// Grows with every change of them.
        pub change: u64,
    }

    /// Room in the file systems below a volume's bricks, divided by its copies (statvfs(3)).
    #[derive(Copy, Default)]
    pub struct VolumeSpace {
        /// Bytes in all.
        pub total: u64,
        /// Bytes that nothing uses, those that the file systems keep for root included.
        pub free: u64,
        /// Bytes that may still be written.
        pub available: u64,
        /// Inodes in all, of the file systems that count them; a file of over 16 KiB takes one for each 4 MiB.
        pub files: u64,
        /// Inodes that may still be taken.
        pub files_available: u64,
    }
}

impl VolumeSpace {
    /// Of both together.
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
