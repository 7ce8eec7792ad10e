//! A file system and a disk in memory whose power can be cut at any call.
//!
//! Of what no sync has covered any part may survive: each 512-byte sector of a file is as it was at the last sync or as
//! any write since left it, the length is any that the file had since, and a name that was made or removed since its
//! directory's last sync is there or not. A write changes whole sectors, as the page cache does: if a later write of a
//! sector survives, so does what an earlier one put into it. Directories are there as soon as they are made.
//!
//! [`PowerCutStorage::record`] keeps the calls of a history; [`Recording::cuts`] goes through them again and gives the
//! disk after a cut at each. [`PowerCutStorage::next_process`] is a kill: the old process's files answer errors.

mod content;
mod disk;
mod survivors;

pub use survivors::{Random, Survivors};

use super::{Space, Storage, StorageFile};
use disk::{Call, Disk, FileNumber, parent};
use parking_lot::Mutex;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

/// What a disk writes in one piece.
const SECTOR_BYTES: usize = 512;

/// Bytes of the greatest file, so that a wild offset is an error and not all of the memory.
const FILE_BYTES_MAX: u64 = 1 << 36;

/// One process's view of a machine. Clones are the same process.
#[derive(Clone, Default)]
pub struct PowerCutStorage {
    machine: Arc<Mutex<Machine>>,
    process: u64,
}

#[derive(Default)]
struct Machine {
    disk: Disk,
    /// The process that is alive.
    process: u64,
    /// Changing calls until it is killed.
    calls_left: Option<u64>,
    recording: Option<Recording>,
}

/// The calls of a history, and the disk that they began with.
#[derive(Clone, Default)]
pub struct Recording {
    start: Disk,
    calls: Vec<Call>,
}

/// Goes through a [`Recording`], one call after the other.
pub struct Cuts<'a> {
    recording: &'a Recording,
    disk: Disk,
    done: usize,
}

impl PowerCutStorage {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    fn on(disk: Disk) -> Self {
        Self { machine: Arc::new(Mutex::new(Machine { disk, ..Machine::default() })), process: 0 }
    }

    /// Another machine with the same disk, whatever is unsynced included. The two go their own ways.
    pub fn copy(&self) -> Self {
        Self::on(self.machine.lock().disk.clone())
    }

    /// What a power cut leaves now.
    pub fn after_power_cut(&self, survivors: Survivors) -> Self {
        Self::on(self.machine.lock().disk.after_power_cut(survivors))
    }

    /// The calls whose changes a power cut may take, for [`Survivors::Only`] and [`Survivors::AllBut`].
    pub fn unsynced(&self) -> Vec<u64> {
        self.machine.lock().disk.unsynced()
    }

    /// Kills this process, which takes nothing that it had written, and begins another.
    pub fn next_process(&self) -> Self {
        let mut machine = self.machine.lock();
        machine.process += 1;
        machine.calls_left = None;
        Self { machine: self.machine.clone(), process: machine.process }
    }

    /// Kills this process once it has made so many more calls that change something or sync.
    pub fn die_after(&self, calls: u64) {
        self.machine.lock().calls_left = Some(calls);
    }

    /// Whether this process is dead.
    pub fn is_dead(&self) -> bool {
        let machine = self.machine.lock();
        machine.process != self.process || machine.calls_left == Some(0)
    }

    /// Keeps all calls from now on.
    pub fn record(&self) {
        let mut machine = self.machine.lock();
        machine.recording = Some(Recording { start: machine.disk.clone(), calls: Vec::new() });
    }

    /// Calls kept so far.
    pub fn recorded_calls(&self) -> usize {
        self.machine.lock().recording.as_ref().map_or(0, |recording| recording.calls.len())
    }

    /// What was kept; nothing is kept any more.
    pub fn take_recording(&self) -> Recording {
        self.machine.lock().recording.take().unwrap_or_default()
    }

    /// Flips bits of one byte, in the page cache and on the medium.
    pub fn flip_bits(&self, path: &str, offset: u64, mask: u8) {
        self.machine.lock().disk.rot(path, offset, mask);
    }

    /// All paths.
    pub fn paths(&self) -> Vec<String> {
        self.machine.lock().disk.paths()
    }

    fn alive(&self) -> Result<parking_lot::MutexGuard<'_, Machine>> {
        let machine = self.machine.lock();
        if machine.process != self.process || machine.calls_left == Some(0) {
            return Err(Error::other("the process that asks is dead"));
        }
        Ok(machine)
    }
}

impl Machine {
    fn call(&mut self, call: Call) {
        self.disk.apply(&call);
        if let Some(recording) = &mut self.recording {
            recording.calls.push(call);
        }
        if let Some(left) = &mut self.calls_left {
            *left = left.saturating_sub(1);
        }
    }
}

impl Recording {
    /// How many calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// From the first call on.
    pub fn cuts(&self) -> Cuts<'_> {
        Cuts { recording: self, disk: self.start.clone(), done: 0 }
    }
}

impl Cuts<'_> {
    /// Calls that have returned.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Takes the next call. -> whether there was one.
    pub fn step(&mut self) -> bool {
        let Some(call) = self.recording.calls.get(self.done) else { return false };
        self.disk.apply(call);
        self.done += 1;
        true
    }

    /// Whether the last call made changes durable, rather than any.
    pub fn was_sync(&self) -> bool {
        let last = self.done.checked_sub(1).and_then(|last| self.recording.calls.get(last));
        matches!(last, Some(Call::Sync { .. } | Call::SyncDirectory { .. }))
    }

    /// The calls whose changes a power cut may take.
    pub fn unsynced(&self) -> Vec<u64> {
        self.disk.unsynced()
    }

    /// What a power cut leaves now.
    pub fn cut(&self, survivors: Survivors) -> PowerCutStorage {
        PowerCutStorage::on(self.disk.after_power_cut(survivors))
    }

    /// The last call, for people.
    pub fn describe_last(&self) -> String {
        let last = self.done.checked_sub(1).and_then(|last| self.recording.calls.get(last));
        let name = |file: &FileNumber| self.disk.name_of(*file).unwrap_or("a file without a name");
        match last {
            None => "nothing yet".into(),
            Some(Call::CreateDirectory { path }) => format!("make directory {path}"),
            Some(Call::Create { path }) => format!("make {path}"),
            Some(Call::Remove { path }) => format!("remove {path}"),
            Some(Call::SyncDirectory { path }) => format!("sync directory {path}"),
            Some(Call::Write { file, bytes, offset }) => {
                format!("write {} bytes at {offset} of {}", bytes.len(), name(file))
            }
            Some(Call::SetLength { file, length }) => format!("set the length of {} to {length}", name(file)),
            Some(Call::Punch { file, offset, length }) => format!("punch {length} bytes at {offset} of {}", name(file)),
            Some(Call::Sync { file }) => format!("sync {}", name(file)),
        }
    }
}

impl Storage for PowerCutStorage {
    fn open(&self, path: &str, create: bool) -> Result<Arc<dyn StorageFile>> {
        let mut machine = self.alive()?;
        let missing = || Error::new(ErrorKind::NotFound, path.to_string());
        if machine.disk.named(path).is_none() {
            if !create || !machine.disk.has_directory(parent(path)) {
                return Err(missing());
            }
            machine.call(Call::Create { path: path.into() });
        }
        let file = machine.disk.named(path).ok_or_else(missing)?;
        Ok(Arc::new(PowerCutFile { storage: self.clone(), file }))
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        let mut machine = self.alive()?;
        if !machine.disk.has_directory(path) {
            machine.call(Call::CreateDirectory { path: path.into() });
        }
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<()> {
        let mut machine = self.alive()?;
        if machine.disk.named(path).is_some() {
            machine.call(Call::Remove { path: path.into() });
        }
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        let paths = self.alive()?.disk.paths();
        let here = paths.iter().filter(|file| parent(file) == path);
        Ok(here.filter_map(|file| file.rsplit('/').next()).map(str::to_string).collect())
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        self.alive()?.call(Call::SyncDirectory { path: path.into() });
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        Ok(Space::of_bytes(1 << 40, 1 << 40))
    }
}

fn check_end(end: u64) -> Result<()> {
    if end > FILE_BYTES_MAX { Err(Error::from(ErrorKind::FileTooLarge)) } else { Ok(()) }
}

struct PowerCutFile {
    storage: PowerCutStorage,
    file: FileNumber,
}

impl StorageFile for PowerCutFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let machine = self.storage.alive()?;
        Ok(machine.disk.content(self.file).map_or(0, |content| content.read(buffer, offset)))
    }

    fn write_at(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        let bytes: Arc<[u8]> = parts.concat().into();
        check_end(offset.saturating_add(bytes.len() as u64))?;
        let mut machine = self.storage.alive()?;
        if !bytes.is_empty() {
            machine.call(Call::Write { file: self.file, bytes, offset });
        }
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.storage.alive()?.disk.content(self.file).map_or(0, |content| content.length()))
    }

    fn set_length(&self, length: u64) -> Result<()> {
        check_end(length)?;
        self.storage.alive()?.call(Call::SetLength { file: self.file, length });
        Ok(())
    }

    fn allocate(&self, _: u64, _: u64) -> Result<()> {
        // Whatever a power cut does to it, nobody reads a difference.
        self.storage.alive().map(|_| ())
    }

    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        self.storage.alive()?.call(Call::Punch { file: self.file, offset, length });
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.storage.alive()?.call(Call::Sync { file: self.file });
        Ok(())
    }
}
