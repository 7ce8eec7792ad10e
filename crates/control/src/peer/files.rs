//! What replicas lack, by file, and the names of inodes: each server's part of the reply to [`crate::Missing`].

use hekate_proto::{BrickId, RingId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What the journals of the server that answers say of replicas that lack data.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MissingHere {}

/// The reply to [`MissingHere`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Journaled {
    /// What the journals say.
    #[serde(rename = "told")]
    pub share: FileShare,
}

/// What the journals of a server say of files that replicas lack. Ids are hexadecimal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileShare {
    /// What each replica lacks of each file.
    pub lacked: Vec<ReplicaLack>,
    /// Bricks that may lack more than that.
    pub incomplete: BTreeSet<String>,
    /// The inode of each data id, as far as the journals have it.
    pub owners: BTreeMap<String, String>,
    /// The directory and name of each inode, as far as the journals have it.
    pub names: BTreeMap<String, (String, String)>,
    /// The parent of each directory, as far as the journals have it.
    pub parents: BTreeMap<String, String>,
}

/// What one replica lacks of one file, by the journal of its partition's leader.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaLack {
    /// The replica's brick.
    pub brick: BrickId,
    /// The volume's number.
    pub volume: u32,
    /// The inode's id. None: it is data of an inode that the leader does not know.
    pub inode: Option<String>,
    /// The data's id. None: it is an inode.
    pub data: Option<String>,
    /// Number of blocks of 4 KiB.
    pub blocks: u64,
    /// Bytes: those of the blocks, or of metadata.
    pub bytes: u64,
}

/// A name of an inode, searched in the replicas of the server that answers: that of a directory among the names in its
/// parent, that of anything else where it was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NamesHere {
    /// The ring of the volume.
    pub ring: RingId,
    /// The volume.
    pub volume: VolumeId,
    /// The inode's id, in hex.
    pub inode: String,
    /// The id of its parent, in hex, if that is known.
    pub parent: Option<String>,
}

/// The reply to [`NamesHere`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FoundName {
    /// The directory's id, in hex, and the name in it.
    pub found: Option<NameOf>,
    /// The parent of the inode, in hex, if the inode is a directory and its record is on this server.
    pub parent: Option<String>,
}

/// A directory's id, in hex, and a name in it.
pub type NameOf = (String, String);
