//! Records of doors: the volumes that each server serves by a protocol of others.

use super::{Registry, text};
use hekate_proto::{Result, VolumeId};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How the door of a volume is open, which is the same at each server.
pub trait DoorInfo: Clone + PartialEq + Serialize + DeserializeOwned + Send {
    /// Where the records of such doors are; a volume's number follows.
    const PREFIX: &'static str;
    /// What people call it.
    const DOOR: &'static str;

    /// The volume's number.
    fn volume(&self) -> u32;
    /// Where each server listens: `HOST:PORT`, or the path of a unix socket.
    fn addresses(&self) -> &[String];
    /// Number of changes of the record.
    fn change(&self) -> u64;
    /// The same with another number of changes.
    #[must_use]
    fn with_change(self, change: u64) -> Self;
}

fn key<D: DoorInfo>(volume: VolumeId) -> String {
    format!("{}{volume}", D::PREFIX)
}

impl Registry {
    /// The open doors of a kind.
    pub fn doors<D: DoorInfo>(&self) -> Result<Vec<D>> {
        self.list(D::PREFIX)
    }

    /// Opens the door of a volume, or changes how it is open. Returns its record, whose number of changes counts on.
    pub fn set_door<D: DoorInfo>(&self, info: &D) -> Result<D> {
        let key = key::<D>(VolumeId(info.volume()));
        let mut attempts = super::Attempts::default();
        loop {
            let before = self.coordinator.get(&key)?;
            let known = before.as_deref().map(|text| super::parse::<D>(&key, text)).transpose()?;
            let change = known.as_ref().map_or(0, D::change);
            if let Some(known) = known
                && known == info.clone().with_change(change)
            {
                return Ok(known);
            }
            let made = info.clone().with_change(change + 1);
            let record = text(&made)?;
            let expect = [(&key[..], before.as_deref())];
            if attempts.is_written(self.coordinator.transact(&expect, &[(&key, Some(&record))]))? {
                return Ok(made);
            }
        }
    }

    /// Closes the door of a volume.
    pub fn remove_door<D: DoorInfo>(&self, volume: VolumeId) -> Result<()> {
        self.remove(&key::<D>(volume), |_: &D| true)
    }
}
