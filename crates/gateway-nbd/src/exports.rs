//! The vDisks, snapshots and templates that clients can open. One that is open is shared by its connections, and closed
//! with the last of them.

use hekate_metrics::VdiskCounters;
use hekate_proto::{Error, Result};
use hekate_vdisk::{Catalogue, Disk, DiskKind, Health, Settings};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a vDisk that another process has open is waited for, and the time between two attempts.
const HELD_PATIENCE: Duration = Duration::from_secs(2);
const HELD_PAUSE: Duration = Duration::from_millis(50);

/// What a door shows.
pub struct Exports {
    catalogue: Catalogue,
    /// Machine and process, for people.
    who: String,
    settings: Settings,
    open: Mutex<BTreeMap<String, Slot>>,
    /// An opening or a closing has ended.
    changed: Condvar,
}

/// An export that is in use.
enum Slot {
    /// It is being opened or closed: who wants it waits.
    Busy,
    Open {
        disk: Disk,
        users: usize,
    },
}

/// A connection's use of a vDisk.
pub struct Use {
    exports: Arc<Exports>,
    name: String,
    pub disk: Disk,
}

impl Exports {
    pub fn new(catalogue: Catalogue, who: String, settings: Settings) -> Arc<Self> {
        Arc::new(Self { catalogue, who, settings, open: Mutex::default(), changed: Condvar::new() })
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The vDisks that clients have open.
    pub fn open_disks(&self) -> Vec<Disk> {
        self.open.lock().values().filter_map(|slot| Some(slot.disk()?.0.clone())).collect()
    }

    /// How the vDisks that clients have open stand.
    pub fn counters(&self) -> Vec<VdiskCounters> {
        let open = self.open.lock();
        let open: Vec<(Disk, usize)> = open.values().filter_map(Slot::disk).map(|(d, u)| (d.clone(), u)).collect();
        open.into_iter().map(|(disk, users)| counters_of(&disk, users as u64)).collect()
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
        loop {
            match open.get_mut(&name) {
                None => break,
                Some(Slot::Busy) => self.changed.wait(&mut open),
                Some(Slot::Open { disk, .. }) if disk.has_ended() => break,
                Some(Slot::Open { disk, users }) => {
                    *users += 1;
                    let disk = disk.clone();
                    drop(open);
                    return Ok(Use { exports: self.clone(), disk, name });
                }
            }
        }
        open.insert(name.clone(), Slot::Busy);
        drop(open);
        let busy = Busy { exports: self, name: &name, then: None };
        let disk = self.open_anew(&name)?;
        busy.ends_with(Slot::Open { disk: disk.clone(), users: 1 });
        Ok(Use { exports: self.clone(), disk, name })
    }

    fn open_anew(&self, name: &str) -> Result<Disk> {
        match name.split_once('@') {
            Some((disk, snapshot)) => Disk::open_snapshot(&self.catalogue, disk, snapshot, self.settings),
            None if self.catalogue.disk(name)?.1.kind == DiskKind::Template => {
                Disk::open_template(&self.catalogue, name, self.settings)
            }
            None => self.open_for_writing(name),
        }
    }

    /// Opens a vDisk. One that another door has open is waited for a moment: its client may have left just now.
    fn open_for_writing(&self, name: &str) -> Result<Disk> {
        let begun = Instant::now();
        loop {
            match Disk::open(&self.catalogue, name, &self.who, self.settings) {
                Err(Error::Unavailable { .. }) if begun.elapsed() < HELD_PATIENCE => std::thread::sleep(HELD_PAUSE),
                opened => return opened,
            }
        }
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

impl Slot {
    fn disk(&self) -> Option<(&Disk, usize)> {
        match self {
            Self::Busy => None,
            Self::Open { disk, users } => Some((disk, *users)),
        }
    }
}

fn counters_of(disk: &Disk, users: u64) -> VdiskCounters {
    let (counters, (live, held)) = (disk.counters(), disk.fill());
    VdiskCounters {
        name: disk.name().into(),
        users,
        blocks_written: counters.blocks_written,
        blocks_read: counters.blocks_read,
        appends: counters.appends,
        flushes: counters.flushes,
        checkpoints: counters.checkpoints,
        map_pages: counters.map_pages,
        backlog_bytes: counters.backlog_bytes,
        blocks_live: live,
        blocks_held: held,
        has_lost: matches!(disk.record().health, Health::Lost { .. }),
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut open = self.exports.open.lock();
        match open.get_mut(&self.name) {
            // One that has ended may have been opened again since.
            Some(Slot::Open { disk, users }) if disk.is_same(&self.disk) => {
                *users -= 1;
                if *users > 0 {
                    return;
                }
            }
            _ => return,
        }
        open.insert(self.name.clone(), Slot::Busy);
        drop(open);
        let _busy = Busy { exports: &self.exports, name: &self.name, then: None };
        if let Err(error) = self.disk.close() {
            log::warn!("vDisk {}: it is closed without a checkpoint: {error}", self.name);
        }
    }
}

/// An export that is being opened or closed, until this is dropped: also by a panic, so that nobody waits for ever.
struct Busy<'a> {
    exports: &'a Exports,
    name: &'a str,
    then: Option<Slot>,
}

impl Busy<'_> {
    fn ends_with(mut self, slot: Slot) {
        self.then = Some(slot);
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut open = self.exports.open.lock();
        match self.then.take() {
            Some(slot) => drop(open.insert(self.name.into(), slot)),
            None => drop(open.remove(self.name)),
        }
        drop(open);
        self.exports.changed.notify_all();
    }
}
