//! Records of the block door: the volumes whose vDisks each server serves.

use super::doors::DoorInfo;
use serde::{Deserialize, Serialize};

/// Record `/nbd/doors/VOLUME`: the servers serve the vDisks of the volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct NbdDoorInfo {
    /// The volume's number.
    pub volume: u32,
    /// Where each server listens: `HOST:PORT`, or the path of a unix socket.
    pub listen: Vec<String>,
    pub tls: NbdTls,
    /// Number of changes of this record.
    pub change: u64,
}

/// What a door shows to clients at its addresses, and which of them it lets in.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum NbdTls {
    /// Plain connections of anybody.
    #[default]
    None,
    /// A certificate of the cluster's authority with the names of the server and these, for the cluster's clients that may
    /// use the volume.
    Cluster { names: Vec<String> },
    /// PEM files of each server. Clients have a certificate of `client_authority`.
    Files { certificate: String, key: String, client_authority: String },
}

impl DoorInfo for NbdDoorInfo {
    const PREFIX: &'static str = "/nbd/doors/";
    const DOOR: &'static str = "block door";

    fn volume(&self) -> u32 {
        self.volume
    }

    fn addresses(&self) -> &[String] {
        &self.listen
    }

    fn change(&self) -> u64 {
        self.change
    }

    fn with_change(self, change: u64) -> Self {
        Self { change, ..self }
    }
}
