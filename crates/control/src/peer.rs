//! Requests that only servers send to each other.
//!
//! A reply names its cluster and server beside what was asked for ([`PeerReply`]): another server may have taken over
//! an address, even one of another cluster with the same secret. The coordinator's requests are an exception: they
//! name the cluster themselves, and their reply is the bare value.

mod coordinator;
mod damage;
mod files;
mod held;
mod report;

pub use coordinator::{CoordinatorRequest, KEPT_MAX, Pair, WATCH_MAX};
pub use damage::{Copied, CopyItem, EncodedPart, Repair, RepairItem, Repaired, Said};
pub use files::{FileShare, FoundName, Journaled, MissingHere, NameOf, NamesHere, ReplicaLack};
pub use held::{HELD_LOOKS_MAX, Held, HeldCopy, HeldRows, Look, LookAt};
pub use report::{HealingReplica, LedPartition, MemberLag, ServerReport, ServerStatus, VolumeSpace};

use crate::calls;
use crate::partition::ReplicaStatus;
use hekate_proto::{BrickId, PartitionNumber, RingId, ServerId, VolumeId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A request of another server, with the type of its reply.
pub trait PeerCall: Into<PeerRequest> {
    /// What the reply holds beside the cluster and the server.
    type Reply: Serialize + DeserializeOwned;
}

/// A request of another server. The field `request` of its JSON names the variant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum PeerRequest {
    /// See [`ServerStatus`].
    ServerStatus(ServerStatus),
    /// See [`ReplicasHere`].
    ReplicasHere(ReplicasHere),
    /// See [`MissingHere`].
    MissingHere(MissingHere),
    /// See [`NamesHere`].
    NamesHere(NamesHere),
    /// See [`ProveHere`].
    ProveHere(ProveHere),
    /// See [`ScrubHere`].
    ScrubHere(ScrubHere),
    /// See [`Repair`].
    Repair(Repair),
    /// See [`Held`].
    Held(Held),
    /// See [`CoordinatorPlace`].
    CoordinatorPlace(CoordinatorPlace),
    /// A read or write of the coordinator, which the first server or a process of its own holds.
    Coordinator {
        /// The cluster of the server that asks. None while it does not know its cluster yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        /// The read or write.
        #[serde(flatten)]
        asked: CoordinatorRequest,
    },
}

impl PeerRequest {
    /// The field `request` of each variant.
    pub const TAGS: [&str; 10] = [
        "server-status",
        "replicas-here",
        "missing-here",
        "names-here",
        "prove-here",
        "scrub-here",
        "repair",
        "held",
        "coordinator-place",
        "coordinator",
    ];

    /// True if any local user may send the request: it changes nothing, and its reply names no files, sessions or
    /// secrets.
    pub fn is_open_to_all(&self) -> bool {
        matches!(self, Self::ServerStatus(_) | Self::ReplicasHere(_))
    }
}

calls! { PeerRequest, PeerCall:
    ServerStatus => ServerReport,
    ReplicasHere => Replicas,
    MissingHere => Journaled,
    NamesHere => FoundName,
    ProveHere => Begun,
    ScrubHere => Begun,
    Held => HeldRows,
    CoordinatorPlace => PlaceOfCoordinator,
}

/// A reply of a server to another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerReply<T> {
    /// The cluster of the server that answers.
    pub cluster: String,
    /// The server that answers.
    pub server: ServerId,
    /// The reply to the request itself.
    #[serde(flatten)]
    pub reply: T,
}

/// Where the coordinator is, for a server that was down while the records moved.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CoordinatorPlace {}

/// The reply to [`CoordinatorPlace`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PlaceOfCoordinator {
    /// As in `server.json`, for another server.
    pub place: String,
    /// The record of etcd, if the records are there: JSON. Its secrets are sealed.
    #[serde(default)]
    pub etcd: Option<String>,
}

/// The replicas of a partition that the server that answers holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplicasHere {
    /// The ring.
    pub ring: RingId,
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
}

/// The reply to [`ReplicasHere`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Replicas {
    /// The replicas.
    #[serde(default)]
    pub replicas: Vec<ReplicaStatus>,
}

/// Begins proofs of the partitions that the server that answers leads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProveHere {
    /// See [`crate::Prove`].
    pub run: u64,
}

/// Begins to scrub bricks of the server that answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScrubHere {
    /// The bricks.
    pub bricks: Vec<BrickId>,
    /// The only volume to scrub. None: all.
    pub volume: Option<VolumeId>,
}

/// The work that was ordered has begun.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Begun {}
