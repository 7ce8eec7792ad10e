//! Replicas that lack data, the files that they lack, and proofs that all replicas hold the same.

use crate::brick::BrickState;
use crate::partition::WaitingPartition;
use hekate_proto::{BrickId, PartitionNumber, RingId, ServerId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Learners with their progress, partitions that wait for a member, and the progress of proofs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealingStatus {
    /// Number of partitions.
    pub partitions: usize,
    /// Replicas that are placed on a brick and are no members of their partition's view.
    pub missing: Vec<LackingReplica>,
    /// Estimated seconds until the last of them is healed. None: not known.
    pub seconds_left: Option<f64>,
    /// Partitions that take no changes now.
    pub waiting: Vec<WaitingPartition>,
    /// The last proof of each partition.
    pub proofs: Vec<ProofStatus>,
    /// False: some partitions are led by a server that does not answer, and their state is not known.
    pub all_servers_answer: bool,
}

/// A replica that lacks data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LackingReplica {
    /// The ring.
    pub ring: RingId,
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
    /// Names of the volumes of the ring.
    pub volumes: Vec<String>,
    /// Its brick.
    pub brick: BrickId,
    /// Why it is not a member.
    pub state: LackingState,
    /// The part of it that is healed, from 0 to 1. None: its healing has not begun.
    pub healed: Option<f64>,
    /// Bytes that its leader has sent it so far.
    pub bytes_sent: Option<u64>,
    /// Estimated seconds until it is healed. None: not known.
    pub seconds_left: Option<f64>,
}

/// Why a replica is not a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LackingState {
    /// Its leader is copying data to it.
    #[serde(rename = "being healed")]
    BeingHealed,
    /// Its brick is online, and its healing has not begun.
    #[serde(rename = "waits to be healed")]
    WaitsToBeHealed,
    /// Its brick is not online.
    #[serde(untagged)]
    Brick(BrickState),
}

impl Default for LackingState {
    fn default() -> Self {
        Self::Brick(BrickState::default())
    }
}

impl LackingState {
    /// The word in JSON and in tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::BeingHealed => "being healed",
            Self::WaitsToBeHealed => "waits to be healed",
            Self::Brick(state) => state.text(),
        }
    }
}

/// The last proof of a partition, and the proof of another run that had ended before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProofStatus {
    /// The last proof.
    #[serde(flatten)]
    pub proof: Proof,
    /// The one before it.
    pub before: Option<Proof>,
}

/// A comparison of what all members of a partition hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Proof {
    /// The ring.
    pub ring: RingId,
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
    /// The run that it belongs to (`Prove`).
    pub run: u64,
    /// Number of entries and shards that all members hold alike.
    pub equal: u64,
    /// Number of shards that were not compared, because they were being written.
    pub left_out: u64,
    /// Everything was compared.
    pub ended: bool,
    /// Members that differ from the leader.
    pub differing: Vec<Difference>,
}

/// A member that differs from its leader.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Difference {
    /// The member's brick.
    pub brick: BrickId,
    /// The first key at which it differs.
    pub from: String,
}

/// The server that has passed an order to begin proofs to the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProofsBegun {
    /// Its cluster.
    pub cluster: String,
    /// The server.
    pub server: ServerId,
}

/// Files of which a replica lacks data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MissingFiles {
    /// A row for each brick and file, at most 10,000.
    pub files: Vec<MissingFile>,
    /// Number of rows that there would be without that limit.
    pub files_in_all: usize,
    /// Bytes that are missing, over all of these rows.
    pub bytes: u64,
    /// Ids of bricks that may lack more than the rows say, because the leaders' journals do not go back far enough.
    pub incomplete: BTreeSet<String>,
}

/// What one brick lacks of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingFile {
    /// The brick.
    pub brick: BrickId,
    /// The volume's name.
    pub volume: String,
    /// Number of blocks of 4 KiB.
    pub blocks: u64,
    /// Bytes: those of the blocks, and of metadata.
    pub bytes: u64,
    /// The file by name or id.
    #[serde(flatten)]
    pub file: FileName,
}

/// A file, as far as its name is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FileName {
    /// An inode.
    Inode {
        /// Its id: 32 hex digits.
        inode: String,
        /// Its path from the volume's root. None: no name was found.
        path: Option<String>,
    },
    /// Data whose inode was not found.
    Data {
        /// Its id: 32 hex digits.
        data: String,
    },
}
