//! Partitions: their views, their logs, their replicas.

use crate::brick::BrickState;
use hekate_proto::map::Member;
use hekate_proto::{BrickId, Epoch, Incarnation, PartitionNumber, RingId, Sequence, ServerId};
use serde::{Deserialize, Serialize};

/// A partition: its view, and what its leader reports. What the leader reports is None while no leader serves it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionStatus {
    /// The ring.
    pub ring: RingId,
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
    /// Names of the volumes of the ring.
    pub volumes: Vec<String>,
    /// Epoch of the view.
    pub epoch: Epoch,
    /// The brick whose replica leads.
    pub leader: BrickId,
    /// Bricks whose replicas have all acknowledged changes, the leader among them.
    pub members: Vec<Member>,
    /// Bricks whose replicas are being healed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub learners: Vec<Member>,
    /// The view has begun. Before that its leader serves no client.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub opened: bool,
    /// The machines of all members had restarted when the view was formed: changes that were not on stable storage may
    /// be lost.
    #[serde(skip_serializing_if = "is_no")]
    pub forgetful: bool,
    /// The view has fewer members than the ring demands.
    #[serde(skip_serializing_if = "is_no")]
    pub too_few: bool,
    /// All bricks on which the partition is placed are members.
    #[serde(skip_serializing_if = "is_no")]
    pub whole: bool,
    /// Number of views so far that may lack acknowledged changes.
    pub losses: u32,
    /// Bricks on which the partition is placed.
    pub placed: Vec<BrickId>,
    /// What it waits for. None: it takes changes.
    pub waits_for: Option<String>,
    /// Number of members that it needs to be served.
    pub min_replicas: usize,
    /// Number of the last record of the leader's log.
    pub records: Option<Sequence>,
    /// How far each other member is behind.
    pub lags: Option<Vec<Lag>>,
    /// Records that some member lacks.
    pub unsettled: Option<u64>,
    /// Records that some member does not have on stable storage.
    pub unstable: Option<u64>,
    /// Shards that a session may write on the fast lane.
    pub open_shards: Option<usize>,
    /// Fast writes that some member may lack.
    pub unsettled_fast_writes: Option<usize>,
    /// True if acknowledged fast writes may not be on stable storage: a member that loses power may lack them.
    pub loose: Option<bool>,
}

fn yes() -> bool {
    true
}

fn is_yes(flag: &bool) -> bool {
    *flag
}

fn is_no(flag: &bool) -> bool {
    !flag
}

/// How far a member is behind its leader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lag {
    /// The member's brick.
    pub brick: BrickId,
    /// Records that it lacks. None: the leader has no connection to it.
    pub records: Option<u64>,
    /// The state of its brick. None: the cluster does not record that brick.
    pub state: Option<BrickState>,
}

/// A partition with its replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionDetails {
    /// The partition.
    #[serde(flatten)]
    pub partition: PartitionStatus,
    /// The replicas on the servers that answer.
    pub replicas: Vec<ReplicaStatus>,
}

/// A replica as its server reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaStatus {
    /// Its brick.
    pub brick: BrickId,
    /// Its server.
    pub server: ServerId,
    /// Epoch of the last record of its log.
    pub epoch: Epoch,
    /// Number of the last record of its log.
    pub sequence: Sequence,
    /// Its brick's incarnation.
    pub incarnation: Incarnation,
    /// False while it is being healed.
    pub whole: bool,
}

/// A partition that one replica leads alone, by an operator's order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionForced {
    /// The ring.
    pub ring: RingId,
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
    /// Epoch of the new view.
    pub epoch: Epoch,
    /// The brick that leads it.
    pub brick: BrickId,
    /// Number of views so far that may lack acknowledged changes, this one included.
    pub losses: u32,
}

/// A partition that takes no changes now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitingPartition {
    /// The ring.
    pub ring: RingId,
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
    /// What it waits for.
    pub waits_for: String,
}
