//! Requests about the block door: volumes whose vDisks each server serves over NBD.

use crate::{ControlCall, ControlRequest, calls};
use serde::{Deserialize, Serialize};

calls! { ControlRequest, ControlCall:
    NbdEnable => NbdDoorStatus,
    NbdDisable => (),
    NbdList => Vec<NbdDoorStatus>,
}

/// Opens the block door of a volume at each server, or changes how it is open.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NbdEnable {
    pub volume: String,
    /// `HOST:PORT`, at each server.
    #[serde(default)]
    pub listen: Vec<String>,
    /// Unix sockets, at each server.
    #[serde(default)]
    pub sockets: Vec<String>,
    /// No TLS: whoever reaches an address may read and write the vDisks.
    #[serde(default)]
    pub plain: bool,
    /// PEM files of each server. Without them, and without `plain`, the cluster's authority signs a certificate, and the
    /// cluster's clients are let in.
    #[serde(default)]
    pub certificate: Option<String>,
    #[serde(default)]
    pub key: Option<String>,
    #[serde(default)]
    pub client_authority: Option<String>,
    /// Further names and addresses for the certificate.
    #[serde(default)]
    pub names: Vec<String>,
}

/// Closes the block door of a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NbdDisable {
    pub volume: String,
}

/// All open doors.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NbdList {}

/// A volume's block door.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NbdDoorStatus {
    pub volume: String,
    /// Where each server listens: `HOST:PORT`, or the path of a unix socket.
    pub listen: Vec<String>,
    /// Where the server that answers listens now.
    pub open: Vec<String>,
    /// Why the server that answers does not listen.
    pub failure: Option<String>,
    /// `none`, `cluster` or `files`.
    pub tls: String,
}
