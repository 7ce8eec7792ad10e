//! Records of the S3 door: the volumes whose door is open, and access keys.

use super::Registry;
use super::doors::DoorInfo;
use hekate_proto::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Record `/s3/doors/VOLUME`: the servers answer S3 requests for the volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct S3DoorInfo {
    /// The volume's number.
    pub volume: u32,
    /// Addresses at which each server listens: `HOST:PORT`.
    pub listen: Vec<String>,
    pub tls: S3Tls,
    /// The domain whose subdomains are buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The region that signatures name.
    pub region: String,
    /// Number of changes of this record.
    pub change: u64,
}

/// What a door shows to its clients.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum S3Tls {
    /// Plain HTTP.
    #[default]
    None,
    /// A certificate of the cluster's authority with these names and addresses, and those of `listen`.
    Cluster { names: Vec<String> },
    /// PEM files of each server.
    Files { certificate: String, key: String },
}

/// Record `/s3/keys/ID`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct S3KeyInfo {
    /// The access key id.
    pub id: String,
    /// The number of the volume that it is for.
    pub volume: u32,
    /// The secret access key, sealed: hex digits.
    pub sealed: String,
    /// The user that the key belongs to, with whose ids its files are made.
    pub user: String,
    pub uid: u32,
    pub gid: u32,
    pub read_only: bool,
    /// What it may do, by bucket. `None`: all that its user may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<BTreeMap<String, S3Grant>>,
    pub disabled: bool,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Number of changes of this record.
    pub change: u64,
}

/// What a key may do with the objects of a bucket.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum S3Grant {
    Read,
    Write,
}

impl DoorInfo for S3DoorInfo {
    const PREFIX: &'static str = "/s3/doors/";
    const DOOR: &'static str = "S3 door";

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

fn key_key(id: &str) -> String {
    format!("/s3/keys/{id}")
}

impl Registry {
    /// All access keys.
    pub fn s3_keys(&self) -> Result<Vec<S3KeyInfo>> {
        self.list("/s3/keys/")
    }

    /// Records a new access key.
    ///
    /// # Errors
    /// `Exists` if there is one with its id.
    pub fn create_s3_key(&self, info: &S3KeyInfo) -> Result<()> {
        self.create(&key_key(&info.id), info)
    }

    /// Disables an access key, or enables it again.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn set_s3_key_disabled(&self, id: &str, disabled: bool) -> Result<S3KeyInfo> {
        let set = |info: &mut S3KeyInfo| {
            info.change += 1;
            std::mem::replace(&mut info.disabled, disabled) != disabled
        };
        self.update(&key_key(id), set)?.ok_or_else(|| no_key(id))
    }

    /// Removes an access key for good.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn delete_s3_key(&self, id: &str) -> Result<()> {
        if self.get::<S3KeyInfo>(&key_key(id))?.is_none() {
            return Err(no_key(id));
        }
        self.remove(&key_key(id), |_: &S3KeyInfo| true)
    }
}

fn no_key(id: &str) -> Error {
    Error::invalid(format!("there is no access key {id}; `hekate s3 key list` shows them"))
}
