//! Requests about the S3 door: volumes whose door is open, and access keys.

use crate::{ControlCall, ControlRequest, calls};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

calls! { ControlRequest, ControlCall:
    S3Enable => S3DoorStatus,
    S3Disable => (),
    S3List => Vec<S3DoorStatus>,
    S3KeyCreate => S3KeyCreated,
    S3KeyList => Vec<S3KeyStatus>,
    S3KeySet => S3KeyStatus,
    S3KeyDelete => (),
    S3Secrets => Vec<S3Secret>,
}

/// Opens the S3 door of a volume at each server, or changes how it is open.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct S3Enable {
    pub volume: String,
    /// `HOST:PORT`, at each server.
    pub listen: Vec<String>,
    /// Plain HTTP.
    #[serde(default)]
    pub plain: bool,
    /// PEM files of each server. Without them, and without `plain`, the cluster's authority signs a certificate.
    #[serde(default)]
    pub certificate: Option<String>,
    #[serde(default)]
    pub key: Option<String>,
    /// Further names and addresses for the certificate.
    #[serde(default)]
    pub names: Vec<String>,
    #[serde(default)]
    pub domain: Option<String>,
    /// The region that signatures name.
    #[serde(default)]
    pub region: Option<String>,
}

/// Closes the S3 door of a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct S3Disable {
    pub volume: String,
}

/// All open doors.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct S3List {}

/// A volume's S3 door.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct S3DoorStatus {
    pub volume: String,
    /// Addresses at which each server listens.
    pub listen: Vec<String>,
    /// Addresses at which the server that answers listens now.
    pub open: Vec<String>,
    /// Why the server that answers does not listen.
    pub failure: Option<String>,
    /// `none`, `cluster` or `files`.
    pub tls: String,
    pub domain: Option<String>,
    pub region: String,
    /// PEM: what clients have to trust, if the cluster's authority signs the door's certificate.
    pub roots: Option<String>,
}

/// Makes an access key of a user of a volume.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct S3KeyCreate {
    pub volume: String,
    pub user: String,
    /// Ids of the files that are made with the key.
    pub uid: u32,
    pub gid: u32,
    #[serde(default)]
    pub read_only: bool,
    /// By bucket: true if the key may change its objects. None: all buckets.
    #[serde(default)]
    pub buckets: Option<BTreeMap<String, bool>>,
    /// An access key id and a secret that are in use elsewhere.
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub secret: Option<String>,
}

impl std::fmt::Debug for S3KeyCreate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S3KeyCreate({} of {})", self.user, self.volume)
    }
}

/// The reply to [`S3KeyCreate`]. No other reply shows the secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct S3KeyCreated {
    pub id: String,
    pub secret: String,
}

impl std::fmt::Debug for S3KeyCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S3KeyCreated({})", self.id)
    }
}

/// The access keys.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct S3KeyList {
    /// Only those of this volume.
    #[serde(default)]
    pub volume: Option<String>,
}

/// An access key, without its secret.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct S3KeyStatus {
    pub id: String,
    pub volume: String,
    pub user: String,
    pub uid: u32,
    pub gid: u32,
    pub read_only: bool,
    /// As in [`S3KeyCreate`].
    pub buckets: Option<BTreeMap<String, bool>>,
    pub disabled: bool,
    /// Seconds since 1970.
    pub created: u64,
}

/// Disables an access key, or enables it again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct S3KeySet {
    pub id: String,
    pub disabled: bool,
}

/// Removes an access key for good.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct S3KeyDelete {
    pub id: String,
}

/// The secrets of a volume's keys, for a door that runs alone.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct S3Secrets {
    pub volume: String,
}

/// A key with its secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct S3Secret {
    #[serde(flatten)]
    pub key: S3KeyStatus,
    pub secret: String,
}

impl std::fmt::Debug for S3Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S3Secret({})", self.key.id)
    }
}
