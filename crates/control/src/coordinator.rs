//! Requests about the coordinator: where it is, moving it, its etcd, backups.

use crate::{ControlCall, ControlRequest, calls};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

calls! { ControlRequest, ControlCall:
    CoordinatorShow => CoordinatorStatus,
    CoordinatorMove => CoordinatorMoved,
    CoordinatorBackup => Backup,
    EtcdPrepare => EtcdFiles,
    EtcdFinish => EtcdMemberStatus,
    EtcdRemove => EtcdMemberStatus,
}

/// Where the coordinator is, and how it does.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CoordinatorShow {}

/// The reply to [`CoordinatorShow`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CoordinatorStatus {
    /// `own`: with the server that answers; `unix:PATH`, `tcp:HOST:PORT`, `server:NUMBER@ADDRESS` or `etcd:ADDRESS,…`.
    pub place: String,
    /// Where the records are moving to, or were moved to, if this store is closed.
    #[serde(default)]
    pub closed: Option<String>,
    /// Number of changes.
    pub revision: u64,
    /// Number of records, and their bytes.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time of a read, in microseconds.
    pub read_us: u64,
    /// Members of etcd.
    #[serde(default)]
    pub members: Vec<EtcdMemberStatus>,
    /// Alarms of etcd, and what to do.
    #[serde(default)]
    pub alarms: Vec<String>,
}

/// A member of etcd.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EtcdMemberStatus {
    /// Its name.
    pub name: String,
    /// Where clients reach it.
    pub address: String,
    /// `leader`, `member`, `learner`, `starting`, or `away` with the reason.
    pub state: String,
    /// Bytes of its database file.
    #[serde(default)]
    pub bytes: u64,
    /// Its release.
    #[serde(default)]
    pub version: String,
}

/// Moves the cluster's records to another coordinator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CoordinatorMove {
    /// The kind of coordinator.
    pub to: CoordinatorKind,
    /// The address of a coordinator that is a process of its own: `tcp:HOST:PORT` or `unix:PATH`. Absent for the other
    /// kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// A kind of coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoordinatorKind {
    /// The cluster's etcd.
    Etcd,
    /// A file of the server that answers.
    Embedded,
    /// The coordinator that is a process of its own and has held the records before.
    Apart,
}

/// The reply to [`CoordinatorMove`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoordinatorMoved {
    /// Where the records were.
    pub from: String,
    /// Where they are.
    pub to: String,
    /// Time in which no write was taken, in ms.
    pub pause_ms: u64,
}

/// A copy of the records.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CoordinatorBackup {}

/// The reply to [`CoordinatorBackup`], and the content of a backup's file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Backup {
    /// Version of this format: [`Backup::FORMAT`].
    pub format: u32,
    /// The cluster's id.
    pub cluster: String,
    /// The revision of the store.
    pub revision: u64,
    /// Seconds since 1970.
    pub taken: u64,
    /// The records; no leases.
    pub records: BTreeMap<String, String>,
    /// XXH3 of the records, in hex digits.
    pub sum: String,
}

impl Backup {
    /// The version of the format.
    pub const FORMAT: u32 = 1;
}

/// Prepares a member of etcd beside the server that answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EtcdPrepare {
    /// A name or IP address at which the other servers reach this machine.
    pub host: String,
    /// Port for clients.
    pub client_port: u16,
    /// Port for the other members.
    pub peer_port: u16,
}

/// The reply to [`EtcdPrepare`]: what a member is started with.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct EtcdFiles {
    /// Its name.
    pub name: String,
    /// The cluster's id, which is etcd's `initial-cluster-token`.
    pub cluster: String,
    /// It is the first member.
    pub is_new: bool,
    /// etcd's `initial-cluster`.
    pub initial_cluster: String,
    /// Where clients reach it.
    pub client_url: String,
    /// Where the other members reach it.
    pub peer_url: String,
    /// PEM: certificates of the authority that signs those of members and clients.
    pub ca: String,
    /// PEM: its certificate.
    pub certificate: String,
    /// PEM: its key.
    pub key: String,
}

impl std::fmt::Debug for EtcdFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EtcdFiles({})", self.name)
    }
}

/// Makes the member of etcd beside the server that answers a full one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EtcdFinish {}

/// Removes a member of etcd.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EtcdRemove {
    /// Its name.
    pub name: String,
}
