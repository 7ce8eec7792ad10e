//! The vDisks, snapshots and templates that clients can open. One that is open is shared by its connections, and closed
//! with the last of them.

use hekate_proto::{Error, Result};
use hekate_vdisk::{Catalogue, Disk, DiskKind, Settings};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a door shows.
pub struct Exports {
    catalogue: Catalogue,
    /// Machine and process, for people.
    who: String,
    settings: Settings,
    open: Mutex<BTreeMap<String, Shared>>,
}

struct Shared {
    disk: Disk,
    users: usize,
}

/// A connection's use of a vDisk.
pub struct Use {
    exports: Arc<Exports>,
    name: String,
    pub disk: Disk,
}

impl Exports {
    pub fn new(catalogue: Catalogue, who: String, settings: Settings) -> Arc<Self> {
        Arc::new(Self { catalogue, who, settings, open: Mutex::default() })
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The vDisks that clients have open.
    pub fn open_disks(&self) -> Vec<Disk> {
        self.open.lock().values().map(|shared| shared.disk.clone()).collect()
    }

    /// A vDisk that clients have open, by its name.
    pub fn open_disk(&self, name: &str) -> Option<Disk> {
        self.open.lock().get(name).map(|shared| shared.disk.clone())
    }

    /// Names and descriptions of what can be opened.
    pub fn list(&self) -> Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        for info in self.catalogue.list()? {
            let kind = if info.record.kind == DiskKind::Template { "template" } else { "vDisk" };
            all.push((info.name.clone(), format!("{kind} of {} bytes", info.record.size)));
            for (snapshot, record) in self.catalogue.snapshots(&info.name)? {
                all.push((format!("{}@{snapshot}", info.name), format!("snapshot of {} bytes", record.size)));
            }
        }
        Ok(all)
    }

    /// Opens what a client names: `NAME`, `NAME@SNAPSHOT`, or nothing if there is one vDisk.
    ///
    /// # Errors
    /// `Invalid` if there is none of this name; `Unavailable` if another process has it open.
    pub fn open(self: &Arc<Self>, name: &str) -> Result<Use> {
        let name = match name {
            "" => self.only()?,
            name => name.to_string(),
        };
        let mut open = self.open.lock();
        if open.get(&name).is_some_and(|shared| shared.disk.has_ended()) {
            open.remove(&name);
        }
        if let Some(shared) = open.get_mut(&name) {
            shared.users += 1;
            return Ok(Use { exports: self.clone(), disk: shared.disk.clone(), name });
        }
        let disk = match name.split_once('@') {
            Some((disk, snapshot)) => Disk::open_snapshot(&self.catalogue, disk, snapshot, self.settings)?,
            None if self.catalogue.disk(&name)?.1.kind == DiskKind::Template => {
                Disk::open_template(&self.catalogue, &name, self.settings)?
            }
            None => Disk::open(&self.catalogue, &name, &self.who, self.settings)?,
        };
        open.insert(name.clone(), Shared { disk: disk.clone(), users: 1 });
        Ok(Use { exports: self.clone(), disk, name })
    }

    fn only(&self) -> Result<String> {
        match &self.catalogue.list()?[..] {
            [only] => Ok(only.name.clone()),
            all => {
                let count = all.len();
                Err(Error::invalid(format!("there are {count} vDisks; a client has to name one: nbd://HOST/NAME")))
            }
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut open = self.exports.open.lock();
        let Some(shared) = open.get_mut(&self.name) else { return };
        shared.users -= 1;
        if shared.users > 0 {
            return;
        }
        open.remove(&self.name);
        // Another connection can open the vDisk only once it is closed: `open` is locked until then.
        if let Err(error) = self.disk.close() {
            log::warn!("vDisk {}: it is closed without a checkpoint: {error}", self.name);
        }
    }
}
