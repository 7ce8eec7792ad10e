//! Where a file or directory is stored.

use hekate_proto::{BrickId, Epoch, PartitionNumber, RingId, Sequence, Time, VolumeId};
use serde::{Deserialize, Serialize};

/// Where a file or directory is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhereReply {
    /// The volume's name.
    pub volume: String,
    /// The volume's number.
    pub volume_id: VolumeId,
    /// Its ring.
    pub ring: RingId,
    /// The path that was looked up. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The inode's id.
    pub inode: String,
    /// The inode's number, which is `st_ino`.
    pub number: u64,
    /// `file`, `directory`, `symlink` or another kind of inode, in lower case.
    pub kind: String,
    /// Size, in bytes.
    pub size: u64,
    /// The inode itself.
    pub place: Place<InodeCopy>,
    /// What belongs to the inode.
    #[serde(flatten)]
    pub contents: Contents,
}

/// What belongs to an inode, by its kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Contents {
    /// A directory.
    Directory {
        /// Each partition that holds names of the directory.
        names: Vec<Place<StubCopy>>,
    },
    /// A regular file.
    File {
        /// The bytes are stored with the inode, not in shards.
        beside_the_inode: bool,
        /// Its pieces, in order.
        pieces: Vec<Piece>,
        /// Its shards from the requested offset on. Holes have none.
        shards: Vec<ShardPlace>,
        /// Offset to ask for next, in bytes. None: no more shards.
        next_offset: Option<u64>,
    },
    /// Anything else.
    Other {},
}

/// A piece of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The id of its data: 32 hex digits.
    pub data: String,
    /// Its first byte in the file.
    pub file_offset: u64,
    /// Its length, in bytes.
    pub length: u64,
}

/// A shard and its replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPlace {
    /// The partition that holds it.
    #[serde(flatten)]
    pub place: Place<ShardCopy>,
    /// The id of its data: 32 hex digits.
    pub data: String,
    /// Its number in that data.
    pub index: u64,
    /// Its first byte in the file.
    pub file_offset: u64,
}

/// A partition with each replica's copy of one item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place<T> {
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
    /// Position on the ring: 8 hex digits.
    pub position: String,
    /// Epoch of the partition's view.
    pub epoch: Epoch,
    /// The replicas.
    pub replicas: Vec<PlacedReplica<T>>,
    /// All replicas could be read, and their copies are equal.
    pub equal: bool,
}

/// A replica's copy of one item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedReplica<T> {
    /// Its brick.
    pub brick: BrickId,
    /// The directory of that brick.
    pub directory: Option<String>,
    /// It leads the partition.
    pub leader: bool,
    /// Its copy. None: it has none, or cannot be read.
    #[serde(default = "Option::default")]
    pub has: Option<T>,
    /// Why it cannot be read.
    pub error: Option<String>,
    /// Number of the last record of its log.
    pub sequence: Sequence,
}

/// A replica's copy of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeCopy {
    /// Counter of changes.
    pub change: u64,
    /// Time of the last change of the contents, in ns since 1970.
    pub mtime: Time,
    /// Size, in bytes.
    pub size: u64,
}

/// A replica's copy of a directory's stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StubCopy {
    /// Counter of changes.
    pub change: u64,
    /// Number of directories among the names.
    pub directories: u32,
    /// Number of names in this partition.
    pub entries: u64,
}

/// A replica's copy of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCopy {
    /// Length, in bytes.
    pub length: u32,
    /// Stamp of the last write: count/session/op.
    pub stamp: String,
}
