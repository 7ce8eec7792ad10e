//! Requests of programs for people.

use crate::access::*;
use crate::brick::{BrickRecord, BrickRemoved, BrickReplaced, BrickStatus, ScrubBegun};
use crate::coordinator::{CoordinatorBackup, CoordinatorMove, CoordinatorShow, EtcdFinish, EtcdPrepare, EtcdRemove};
use crate::healing::{HealingStatus, MissingFiles, ProofsBegun};
use crate::location::WhereReply;
use crate::nbd::*;
use crate::partition::{PartitionDetails, PartitionForced, PartitionStatus};
use crate::s3::*;
use crate::status::{ClusterStatus, Identity, MetricsPage, SlowOpsReport, Stopping};
use crate::volume::{PoolStatus, VolumeDeleted, VolumeDetails, VolumeStatus};
use crate::{ControlCall, Domain, calls};
use hekate_proto::map::{LayerSpec, Mode};
use hekate_proto::{PartitionNumber, RingId, ServerId};
use serde::{Deserialize, Serialize};

/// A request of a program for people. The field `request` of its JSON names the variant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum ControlRequest {
    /// See [`Status`].
    Status(Status),
    /// See [`Identify`].
    Identify(Identify),
    /// See [`PoolList`].
    PoolList(PoolList),
    /// See [`VolumeList`].
    VolumeList(VolumeList),
    /// See [`VolumeShow`].
    VolumeShow(VolumeShow),
    /// See [`VolumeCreate`].
    VolumeCreate(VolumeCreate),
    /// See [`VolumeSetGraph`].
    VolumeSetGraph(VolumeSetGraph),
    /// See [`VolumeDelete`].
    VolumeDelete(VolumeDelete),
    /// See [`PartitionList`].
    PartitionList(PartitionList),
    /// See [`PartitionShow`].
    PartitionShow(PartitionShow),
    /// See [`PartitionForce`].
    PartitionForce(PartitionForce),
    /// See [`HealStatus`].
    HealStatus(HealStatus),
    /// See [`Missing`].
    Missing(Missing),
    /// See [`Prove`].
    Prove(Prove),
    /// See [`BrickList`].
    BrickList(BrickList),
    /// See [`BrickAdd`].
    BrickAdd(BrickAdd),
    /// See [`BrickRemove`].
    BrickRemove(BrickRemove),
    /// See [`BrickDrain`].
    BrickDrain(BrickDrain),
    /// See [`BrickReplace`].
    BrickReplace(BrickReplace),
    /// See [`ScrubStart`].
    ScrubStart(ScrubStart),
    /// See [`Where`].
    Where(Where),
    /// See [`SlowOps`].
    SlowOps(SlowOps),
    /// See [`Metrics`].
    Metrics(Metrics),
    /// See [`TokenCreate`].
    TokenCreate(TokenCreate),
    /// See [`Enroll`].
    Enroll(Enroll),
    /// See [`ClientCreate`].
    ClientCreate(ClientCreate),
    /// See [`ClientRenew`].
    ClientRenew(ClientRenew),
    /// See [`ClientRevoke`].
    ClientRevoke(ClientRevoke),
    /// See [`ClientList`].
    ClientList(ClientList),
    /// See [`CaShow`].
    CaShow(CaShow),
    /// See [`CaRotate`].
    CaRotate(CaRotate),
    /// See [`CaSet`].
    CaSet(CaSet),
    /// See [`NetworkList`].
    NetworkList(NetworkList),
    /// See [`NetworkSet`].
    NetworkSet(NetworkSet),
    /// See [`CoordinatorShow`].
    CoordinatorShow(CoordinatorShow),
    /// See [`CoordinatorMove`].
    CoordinatorMove(CoordinatorMove),
    /// See [`CoordinatorBackup`].
    CoordinatorBackup(CoordinatorBackup),
    /// See [`EtcdPrepare`].
    EtcdPrepare(EtcdPrepare),
    /// See [`EtcdFinish`].
    EtcdFinish(EtcdFinish),
    /// See [`EtcdRemove`].
    EtcdRemove(EtcdRemove),
    /// See [`S3Enable`].
    S3Enable(S3Enable),
    /// See [`S3Disable`].
    S3Disable(S3Disable),
    /// See [`S3List`].
    S3List(S3List),
    /// See [`S3KeyCreate`].
    S3KeyCreate(S3KeyCreate),
    /// See [`S3KeyList`].
    S3KeyList(S3KeyList),
    /// See [`S3KeySet`].
    S3KeySet(S3KeySet),
    /// See [`S3KeyDelete`].
    S3KeyDelete(S3KeyDelete),
    /// See [`S3Secrets`].
    S3Secrets(S3Secrets),
    /// See [`NbdEnable`].
    NbdEnable(NbdEnable),
    /// See [`NbdDisable`].
    NbdDisable(NbdDisable),
    /// See [`NbdList`].
    NbdList(NbdList),
    /// See [`Stop`].
    Stop(Stop),
}

impl ControlRequest {
    /// True if any local user may send the request: it changes nothing, and its reply names no files, sessions or
    /// secrets.
    pub fn is_open_to_all(&self) -> bool {
        use ControlRequest::*;
        matches!(
            self,
            Status(_)
                | Identify(_)
                | PoolList(_)
                | VolumeList(_)
                | VolumeShow(_)
                | PartitionList(_)
                | PartitionShow(_)
                | HealStatus(_)
                | BrickList(_)
                | NetworkList(_)
                | CoordinatorShow(_)
                | S3List(_)
                | NbdList(_)
                | Metrics(_)
        )
    }
}

calls! { ControlRequest, ControlCall:
    Status => ClusterStatus,
    Identify => Identity,
    PoolList => Vec<PoolStatus>,
    VolumeList => Vec<VolumeStatus>,
    VolumeShow => VolumeDetails,
    VolumeCreate => VolumeStatus,
    VolumeSetGraph => VolumeStatus,
    VolumeDelete => VolumeDeleted,
    PartitionList => Vec<PartitionStatus>,
    PartitionShow => PartitionDetails,
    PartitionForce => PartitionForced,
    HealStatus => HealingStatus,
    Missing => MissingFiles,
    Prove => ProofsBegun,
    BrickList => Vec<BrickStatus>,
    BrickAdd => BrickRecord,
    BrickRemove => BrickRemoved,
    BrickDrain => (),
    BrickReplace => BrickReplaced,
    ScrubStart => Vec<ScrubBegun>,
    Where => WhereReply,
    SlowOps => SlowOpsReport,
    Metrics => MetricsPage,
    Stop => Stopping,
}

/// The state of the cluster, with that of each of its servers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Status {}

/// The process that answers: its server, its cluster, its addresses and those of the coordinator.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Identify {}

/// All pools with their bricks and rings.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PoolList {}

/// All volumes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct VolumeList {}

/// One volume with the views of its partitions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeShow {
    /// The volume's name.
    pub name: String,
}

/// Makes a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeCreate {
    /// The volume's name.
    pub name: String,
    /// The pool on whose bricks its data is placed.
    pub pool: String,
    /// Number of copies.
    pub copies: u32,
    /// What no two copies share. None: servers if the pool has enough of them, else disks.
    #[serde(default)]
    pub domain: Option<Domain>,
    /// Number of copies that must be available for a partition to be served. None: all but one.
    #[serde(default)]
    pub min_replicas: Option<u32>,
    /// Users that may open the volume besides root, the server's user and the owner.
    pub allowed_uids: Vec<u32>,
    /// Owner of the root directory. None: the user that sends the request.
    pub owner_uid: Option<u32>,
    /// Number of partitions that share the names of a directory made in the root directory: a power of two, at most the
    /// partitions of the ring.
    #[serde(default = "one")]
    pub spread: u32,
    /// How writes are replicated.
    #[serde(default)]
    pub mode: Mode,
    /// The server that leads every partition of the volume while it is available.
    #[serde(default)]
    pub led_by: Option<ServerId>,
}

fn one() -> u32 {
    1
}

/// Gives a volume other translators. Programs that use the volume take them within seconds. The caller has checked names
/// and options: servers do not know the translators of clients.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeSetGraph {
    /// The volume's name.
    pub name: String,
    /// The translators. The first one sees ops first.
    pub layers: Vec<LayerSpec>,
}

/// Deletes a volume with all of its data. The reply comes before the data is removed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeDelete {
    /// The volume's name.
    pub name: String,
}

/// All partitions of all rings: their views, and what each waits for that takes no changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PartitionList {}

/// One partition, with the position of each replica's log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PartitionShow {
    /// The ring.
    pub ring: RingId,
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
}

/// Makes a replica of the server that answers the leader, and only member, of a partition whose other members are lost
/// for good. Changes that this replica lacks are lost.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PartitionForce {
    /// The ring.
    pub ring: RingId,
    /// The partition's number in the ring.
    pub partition: PartitionNumber,
    /// The replica's brick: its directory, or the first 4 or more digits of its id.
    pub brick: String,
}

/// Replicas that lack data, partitions that wait, and the progress of proofs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HealStatus {}

/// Files of which a replica that is away, or being healed, lacks data.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Missing {}

/// Begins a proof for each partition that has none of this run: its leader compares what all members hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Prove {
    /// A random number of the sender, which distinguishes the proofs of its run from those of other runs.
    pub run: u64,
}

/// All bricks, with the number of replicas on each.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BrickList {}

/// Makes a brick on the server that answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BrickAdd {
    /// Absolute path of an empty directory on that server.
    pub directory: String,
    /// The pool that the brick joins.
    pub pool: String,
    /// Size of the journal, in MiB.
    pub journal_mib: u64,
}

/// Removes a brick that holds no replica from the cluster. Its directory stays as it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BrickRemove {
    /// A brick of the server that answers: its directory, or the first 4 or more digits of its id.
    pub brick: String,
}

/// Moves the replicas of a brick to other bricks. This version refuses it, and its refusal says why.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BrickDrain {
    /// A brick of the server that answers: its directory, or the first 4 or more digits of its id.
    pub brick: String,
}

/// Makes a brick on the server that answers, and places on it all replicas of another brick, which may be on any
/// server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BrickReplace {
    /// The brick to replace: its directory, or the first 4 or more digits of its id.
    pub brick: String,
    /// Absolute path of an empty directory on the server that answers.
    pub directory: String,
    /// Size of the new brick's journal, in MiB.
    pub journal_mib: u64,
}

/// Begins to scrub one brick, or all bricks of all servers that hold replicas.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScrubStart {
    /// The brick: its directory, or the first 4 or more digits of its id. None: all.
    pub brick: Option<String>,
    /// Name of the only volume to scrub. None: all.
    #[serde(default)]
    pub volume: Option<String>,
}

/// Where a file or directory is stored, and the version that each replica has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Where {
    /// The volume's name.
    pub volume: String,
    /// Path from the volume's root. Names are bytes; symbolic links are not followed.
    pub path: Vec<u8>,
    /// First byte of the file whose shard is listed.
    pub offset: u64,
}

/// Ops that the server that answers is working on, and the last slow ones.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SlowOps {}

/// Counters of the server that answers, as Prometheus reads them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Metrics {}

/// Stops the process that answers, once all bricks have completed a checkpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Stop {}
