//! The state of a cluster and of its servers.

use crate::brick::{BrickState, BrickStatus};
use crate::partition::{PartitionStatus, WaitingPartition};
use crate::volume::VolumeStatus;
use hekate_proto::{BrickId, ServerId, SessionId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whether an operator has to act.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// All servers answer, all replicas are members, no partition waits, no brick has failed, nothing is damaged.
    Good,
    /// One of these does not hold.
    #[default]
    #[serde(other)]
    Degraded,
}

impl Health {
    /// The word in JSON and in tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Degraded => "degraded",
        }
    }
}

/// The state of a cluster, as the server that answers has gathered it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// The cluster's id.
    pub cluster: String,
    /// The server that answers.
    pub server: ServerId,
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// Whether an operator has to act.
    pub health: Health,
    /// Addresses of the coordinator.
    pub coordinator: Vec<String>,
    /// Partitions that take no changes now.
    pub waiting_partitions: Vec<WaitingPartition>,
    /// Bricks whose replicas are not all members.
    pub lacking_copies: Vec<LackingCopies>,
    /// All servers.
    pub servers: Vec<ServerStatus>,
    /// All partitions.
    pub partitions: Vec<PartitionStatus>,
    /// Writes of shards, by server and lane.
    pub lanes: Vec<ServerLane>,
    /// All bricks.
    pub bricks: Vec<BrickStatus>,
    /// Number of blocks and entries that no replica has undamaged.
    pub damaged: u64,
    /// The first of these items, at most 100 of each server.
    pub damage: Vec<DamagedItem>,
    /// Number of files to which two mounts have written back mapped pages, since the servers started.
    pub mapped_by_two: u64,
    /// The last of these, at most 16 of each server.
    pub mapped_files: Vec<MappedFile>,
    /// Clients that others wait for now.
    pub slow_clients: Vec<SlowClient>,
    /// What the connections of each network carry, of all servers that answer.
    #[serde(default)]
    pub networks: Vec<NetworkTraffic>,
    /// Certificates that expire within 14 days.
    #[serde(default)]
    pub expiring: Vec<ExpiringCertificate>,
    /// All volumes.
    pub volumes: Vec<VolumeStatus>,
    /// Number of inodes without a name that a session may have open.
    pub orphans: usize,
    /// Number of removed contents that are not collected yet.
    pub garbage: usize,
    /// Ops of clients of the server that answers, by kind, since it started.
    pub ops: BTreeMap<String, OpStatistics>,
}

/// What the connections that were accepted at the addresses of a network have carried.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkTraffic {
    /// Its name.
    pub network: String,
    /// Connections that are open.
    pub connections: u64,
    /// Bytes that clients and other servers have sent.
    pub received_bytes: u64,
    /// Bytes that were sent to them.
    pub sent_bytes: u64,
    /// Round trips: batches of requests, control requests, and packets of other servers.
    pub round_trips: u64,
}

/// A certificate that expires soon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiringCertificate {
    /// What it is of: a server, a client, the issuing key, the root.
    pub holder: String,
    /// Seconds since 1970.
    pub expires: u64,
    /// The fix.
    pub fix: String,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The server.
    pub server: ServerId,
    /// Its name.
    pub name: String,
    /// Addresses where it listens. Empty: it was never started.
    pub endpoints: Vec<String>,
    /// Whether it answers, with its report.
    #[serde(flatten)]
    pub state: ServerState,
}

/// Whether a server answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum ServerState {
    /// It answers.
    Online(ServerVitals),
    /// It does not answer within 2 s, or something else answers at its address.
    Away {
        /// Why.
        reason: String,
    },
}

/// What a server reports of its process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerVitals {
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// Number of ops that it is working on.
    pub ops_at_work: usize,
    /// Age of the oldest of these, in ms.
    pub oldest_op_milliseconds: Option<u64>,
    /// Number of slow ops since it started.
    pub slow_ops: u64,
}

/// A brick whose replicas are not all members of their partitions' views.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LackingCopies {
    /// The brick.
    pub brick: BrickId,
    /// Its directory.
    pub directory: Option<String>,
    /// Its server.
    pub server: Option<ServerId>,
    /// Its state.
    pub state: Option<BrickState>,
    /// Number of partitions in which its replica is no member.
    pub partitions: u64,
    /// Number of these whose replica is being healed.
    pub learning: u64,
    /// The part of these replicas that is healed, from 0 to 1.
    pub healed: f64,
}

/// Writes of shards that took one lane at a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lane {
    /// `leader`, `fast` or `raw`.
    pub lane: String,
    /// Number of writes.
    pub writes: u64,
    /// Number of these that were answered with an error.
    pub refused: u64,
    /// Median of their latency, in µs.
    pub p50_us: f64,
    /// 99th percentile of their latency, in µs.
    pub p99_us: f64,
}

/// A lane of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerLane {
    /// The server's name.
    pub server: String,
    /// The lane.
    #[serde(flatten)]
    pub lane: Lane,
}

/// A block or entry that no replica has undamaged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DamagedItem {
    /// The volume's name, or `number N`.
    pub volume: String,
    /// The item.
    pub what: String,
    /// The brick where it was found.
    pub brick: BrickId,
    /// The directory of that brick.
    pub directory: Option<String>,
    /// The server of that brick.
    pub server: ServerId,
}

/// A file to which two mounts have written back mapped pages: stores of one may overwrite those of the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MappedFile {
    /// The volume's name.
    pub volume: Option<String>,
    /// The inode's number, which is `st_ino`.
    pub inode: u64,
    /// The session that wrote back last, and the other one.
    pub sessions: (SessionId, Option<SessionId>),
    /// Seconds since the last write back.
    pub seconds_ago: u64,
}

/// A client that has not returned, for more than a second, what a server has pledged to it. Changes by others wait for
/// it, for 6 s at most.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowClient {
    /// Its session.
    pub session: SessionId,
    /// The name in its certificate, or the user whose process it is.
    pub client: String,
    /// The volume's name.
    pub volume: Option<String>,
    /// How long the first of these changes has been waiting, in seconds.
    pub seconds: f64,
}

/// Ops of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpStatistics {
    /// Number of ops that were answered.
    pub done: u64,
    /// Number of these that were answered with an error.
    pub failed: u64,
    /// Sum of their latencies, in µs.
    pub microseconds: f64,
    /// Median of the latency, in µs.
    pub p50_us: f64,
    /// 99th percentile of the latency, in µs.
    pub p99_us: f64,
    /// Parts of the latency histogram that are not empty: the upper end, in µs, and the number of ops.
    pub latencies: Vec<(f64, u64)>,
}

/// Ops that a server is working on, and the last slow ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowOpsReport {
    /// An op is slow from this latency on, in ms. 0: none is.
    pub limit_milliseconds: u64,
    /// Number of slow ops since the server started.
    pub count: u64,
    /// The last of these, at most 256, newest first.
    pub ops: Vec<SlowOp>,
    /// Ops that the server is working on, oldest first.
    pub at_work: Vec<OpAtWork>,
}

/// An op that was slow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowOp {
    /// When it was answered, as RFC 3339 in UTC.
    pub at: String,
    /// Its kind.
    pub op: String,
    /// Its object: an inode by number or a shard, never a name.
    pub about: String,
    /// The volume.
    pub volume: VolumeId,
    /// The client's session.
    pub session: SessionId,
    /// Its latency, in ms.
    pub milliseconds: u64,
    /// The part of its latency that it waited for disks to sync, in ms.
    pub syncing_milliseconds: u64,
    /// The error that it was answered with.
    pub error: Option<String>,
}

/// An op that a server is working on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpAtWork {
    /// Its kind.
    pub op: String,
    /// The client's session.
    pub session: SessionId,
    /// Its age, in ms.
    pub milliseconds: u64,
}

/// The process that answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// The cluster's id. None: a coordinator that has no cluster yet.
    pub cluster: Option<String>,
    /// The server. None: a coordinator that is a process of its own.
    pub server: Option<ServerId>,
    /// Its process id.
    pub pid: u32,
    /// Addresses where it listens.
    pub endpoints: Vec<String>,
    /// Addresses of the coordinator.
    pub coordinator: Vec<String>,
    /// This process holds the coordinator.
    pub holds_coordinator: bool,
}

/// Counters of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricsPage {
    /// OpenMetrics text. `docs/operating.md` lists the names.
    pub text: String,
}

/// A process that stops.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stopping {
    /// Its process id.
    pub pid: u32,
}
