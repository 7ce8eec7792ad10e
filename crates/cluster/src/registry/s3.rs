//! Records of the S3 door: the volumes whose door is open, and access keys.

use super::{Registry, text};
use hekate_proto::{Error, Result, VolumeId};
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

fn door_key(volume: VolumeId) -> String {
    format!("/s3/doors/{volume}")
}

fn key_key(id: &str) -> String {
    format!("/s3/keys/{id}")
}

impl Registry {
    /// The open doors.
    pub fn s3_doors(&self) -> Result<Vec<S3DoorInfo>> {
        self.list("/s3/doors/")
    }

    /// Opens the door of a volume, or changes how it is open. Returns its record, in which `change` counts on.
    pub fn set_s3_door(&self, info: &S3DoorInfo) -> Result<S3DoorInfo> {
        let key = door_key(VolumeId(info.volume));
        let mut attempts = super::Attempts::default();
        loop {
            let before = self.coordinator.get(&key)?;
            let known = before.as_deref().map(|text| super::parse::<S3DoorInfo>(&key, text)).transpose()?;
            let change = known.as_ref().map_or(1, |known| known.change + 1);
            if let Some(known) = known
                && known == (S3DoorInfo { change: known.change, ..info.clone() })
            {
                return Ok(known);
            }
            let made = S3DoorInfo { change, ..info.clone() };
            let record = text(&made)?;
            let expect = [(&key[..], before.as_deref())];
            if attempts.is_written(self.coordinator.transact(&expect, &[(&key, Some(&record))]))? {
                return Ok(made);
            }
        }
    }

    /// Closes the door of a volume.
    pub fn remove_s3_door(&self, volume: VolumeId) -> Result<()> {
        self.remove(&door_key(volume), |_: &S3DoorInfo| true)
    }

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
