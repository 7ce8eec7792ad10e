//! Pools and volumes.

use crate::Domain;
use crate::brick::BrickStatus;
use hekate_proto::map::{BrickPlace, GraphSpec, Mode, View};
use hekate_proto::{RingId, ServerId, VolumeId};
use serde::{Deserialize, Serialize};

/// A pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolStatus {
    /// The pool's name.
    pub name: String,
    /// Its bricks.
    pub bricks: Vec<BrickStatus>,
    /// Its rings.
    pub rings: Vec<RingStatus>,
}

/// A ring: the partitions that volumes of one protection share in a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RingStatus {
    /// The ring.
    pub ring: RingId,
    /// Number of copies.
    pub copies: u32,
    /// What no two copies of a partition share.
    pub domain: Domain,
    /// Number of partitions.
    pub partitions: usize,
}

/// Whether a volume can be opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// It can.
    #[default]
    Online,
    /// It is being deleted and takes no new sessions.
    Deleting,
}

impl VolumeState {
    /// The word in JSON and in tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Deleting => "deleting",
        }
    }
}

/// A volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    /// The volume's number.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its ring.
    pub ring: RingId,
    /// Number of copies.
    pub copies: u32,
    /// The user that owns its root directory and may open it.
    pub owner_uid: u32,
    /// Other users that may open it.
    pub allowed_uids: Vec<u32>,
    /// Translators above the fixed layers.
    pub graph: GraphSpec,
    /// Number of sessions that use this change of the graph, as far as the server that was asked knows.
    pub sessions_on_graph: usize,
    /// It is being deleted.
    pub deleting: bool,
    /// Number of partitions that share the names of a directory made in its root directory.
    pub spread: u32,
    /// How writes are replicated.
    pub mode: Mode,
    /// What no two copies share. None: its ring is not recorded.
    pub domain: Option<Domain>,
    /// Number of copies that must be available for a partition to be served.
    pub min_replicas: Option<usize>,
    /// The server that leads every partition while it is available.
    pub led_by: Option<ServerId>,
    /// Number of open sessions.
    pub sessions: usize,
    /// Whether it can be opened.
    pub state: VolumeState,
    /// A server that answers knows that its root directory is made.
    pub made: bool,
    /// Bytes of files, one copy, that fit on the bricks of the servers that answer.
    pub bytes_total: u64,
    /// Bytes of these that are free.
    pub bytes_free: u64,
    /// Each way in which its mode promises less than docs/semantics.md, in a sentence.
    pub weaker: Vec<String>,
}

/// A volume with the views of its partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeDetails {
    /// The volume.
    #[serde(flatten)]
    pub volume: VolumeStatus,
    /// A view a partition, in order.
    pub views: Vec<View>,
    /// The bricks of the views, with their servers.
    pub bricks: Vec<BrickPlace>,
}

/// A volume whose deletion has begun.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeDeleted {
    /// The volume's name.
    pub name: String,
    /// Always `deleting`.
    pub state: VolumeState,
}
