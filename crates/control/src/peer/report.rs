//! What a server reports of itself.

use crate::brick::BrickReport;
use crate::healing::ProofStatus;
use crate::partition::WaitingPartition;
use crate::status::{DamagedItem, Lane, MappedFile, NetworkTraffic, ServerVitals, SlowClient};
use hekate_proto::{BrickId, PartitionNumber, RingId, Sequence, VolumeId};
use serde::{Deserialize, Serialize};

/// The state of the server that answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ServerStatus {}

/// The state of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerReport {
    /// Its process.
    #[serde(flatten)]
    pub vitals: ServerVitals,
    /// Partitions that it leads and that take no changes now.
    pub waiting_partitions: Vec<WaitingPartition>,
    /// Replicas that its leaders are healing.
    pub healing: Vec<HealingReplica>,
    /// Partitions that it leads.
    pub led: Vec<LedPartition>,
    /// Writes of shards, by lane.
    pub lanes: Vec<Lane>,
    /// The last proof of each partition that it leads.
    pub proofs: Vec<ProofStatus>,
    /// Number of damaged blocks and entries on its bricks that no replica could repair.
    pub damaged: u64,
    /// The first of these items, at most 100.
    pub damage: Vec<DamagedItem>,
    /// Number of files to which two mounts have written back mapped pages, since it started.
    pub mapped_by_two: u64,
    /// The last of these, at most 16.
    pub mapped_files: Vec<MappedFile>,
    /// Clients that changes wait for.
    pub slow_clients: Vec<SlowClient>,
    /// Number of pledges that its leaders have given and that are not returned.
    pub pledges: u64,
    /// Its bricks.
    pub bricks: Vec<BrickReport>,
    /// What the connections of each network have carried since it started.
    pub networks: Vec<NetworkTraffic>,
    /// When its certificate expires, in seconds since 1970. None: it has none.
    pub certificate_expires: Option<u64>,
    /// Its part of each volume's space.
    pub spaces: Vec<VolumeSpace>,
    /// Volumes whose root directory one of its leaders has made or found.
    pub roots: Vec<VolumeId>,
    /// Number of inodes without a name that a session may have open.
    pub orphans: usize,
    /// Number of removed contents that are not collected yet.
    pub garbage: usize,
}

/// A replica that a leader is healing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealingReplica {
    /// The ring.
    pub ring: RingId,
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
    /// The replica's brick.
    pub brick: BrickId,
    /// The replica takes records.
    pub heard: bool,
    /// The part of it that is healed, from 0 to 1.
    pub healed: f64,
    /// Bytes that the leader has sent it.
    pub bytes_sent: u64,
    /// Estimated seconds until it is healed. None: not known.
    pub seconds_left: Option<f64>,
}

/// The log and the fast lane of a partition, as its leader reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LedPartition {
    /// The ring.
    pub ring: RingId,
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
    /// Number of the last record.
    pub records: Sequence,
    /// How far each other member is behind.
    pub lags: Vec<MemberLag>,
    /// Records that some member lacks.
    pub unsettled: u64,
    /// Records that some member does not have on stable storage.
    pub unstable: u64,
    /// Shards that a session may write on the fast lane.
    pub open_shards: usize,
    /// Fast writes that some member may lack.
    pub unsettled_fast_writes: usize,
    /// True if acknowledged fast writes may not be on stable storage: a member that loses power may lack them.
    pub loose: bool,
}

/// How far a member is behind its leader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberLag {
    /// The member's brick.
    pub brick: BrickId,
    /// Records that it lacks. None: the leader has no connection to it.
    pub records: Option<u64>,
}

/// A server's part of a volume's space, in bytes of files, one copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeSpace {
    /// The volume.
    pub volume: VolumeId,
    /// Bytes that fit.
    pub bytes_total: u64,
    /// Bytes of these that are free.
    pub bytes_free: u64,
}
