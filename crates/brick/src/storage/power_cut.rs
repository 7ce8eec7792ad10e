//! A file system and a disk in memory whose power can be cut at any call.
//!
//! What no sync has covered may survive in any part. Each 512-byte sector of a file is as at the last sync, or as any
//! later write left it; the length is any that the file had since; a name that was made or removed since its
//! directory's last sync exists or not. A write changes whole sectors, as the page cache does: if a later write of a
//! sector survives, so does what an earlier one put into it. Directories exist durably as soon as they are made.
//!
//! [`PowerCutStorage::record`] records the calls of a history; [`Recording::cuts`] replays them and gives the disk
//! after a cut at each. [`PowerCutStorage::next_process`] is a kill: the files of the old process answer errors.

mod content;
mod disk;
mod survivors;

pub use survivors::{Random, Survivors};

use super::{Space, Storage, StorageFile};
use disk::{Call, Disk, FileNumber, parent};
use parking_lot::Mutex;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Bytes that a disk writes whole.
const SECTOR_BYTES: usize = 512;

/// Bytes of the longest file, so that a wild offset is an error instead of all of the memory.
const FILE_BYTES_MAX: u64 = 1 << 36;

/// The storage of one process on a machine. Clones belong to the same process.
#[derive(Clone, Default)]
pub struct PowerCutStorage {
    machine: Arc<Mutex<Machine>>,
    process: u64,
}

#[derive(Default)]
struct Machine {
    disk: Disk,
    /// Number of the process that is alive.
    process: u64,
    /// Changing calls left until the process is killed.
    calls_left: Option<u64>,
    recording: Option<Recording>,
}

/// The calls of a history, and the disk before the first of them.
#[derive(Clone, Default)]
pub struct Recording {
    start: Disk,
    calls: Vec<Call>,
}

/// Replays a [`Recording`], one call after the other.
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

    /// A copy of the machine, with its unsynced changes, independent of this one.
    pub fn copy(&self) -> Self {
        Self::on(self.machine.lock().disk.clone())
    }

    /// The machine after a power cut now.
    pub fn after_power_cut(&self, survivors: Survivors) -> Self {
        Self::on(self.machine.lock().disk.after_power_cut(survivors))
    }

    /// The calls whose changes a power cut may take, for [`Survivors::Only`] and [`Survivors::AllBut`].
    pub fn unsynced(&self) -> Vec<u64> {
        self.machine.lock().disk.unsynced()
    }

    /// Kills this process and begins another. Nothing that was written is lost.
    pub fn next_process(&self) -> Self {
        let mut machine = self.machine.lock();
        machine.process += 1;
        machine.calls_left = None;
        Self { machine: self.machine.clone(), process: machine.process }
    }

    /// Kills this process after `calls` more calls that change something or sync.
    pub fn die_after(&self, calls: u64) {
        self.machine.lock().calls_left = Some(calls);
    }

    /// True if the process is to be killed during one of its next calls.
    pub fn is_to_die(&self) -> bool {
        const NEVER: u64 = 1 << 32;
        self.machine.lock().calls_left.is_some_and(|left| left < NEVER)
    }

    /// Whether this process was killed.
    pub fn is_dead(&self) -> bool {
        let machine = self.machine.lock();
        machine.process != self.process || machine.calls_left == Some(0)
    }

    /// Records all calls from now on.
    pub fn record(&self) {
        let mut machine = self.machine.lock();
        machine.recording = Some(Recording { start: machine.disk.clone(), calls: Vec::new() });
    }

    /// Number of calls recorded so far.
    pub fn recorded_calls(&self) -> usize {
        self.machine.lock().recording.as_ref().map_or(0, |recording| recording.calls.len())
    }

    /// Ends recording, and returns the recorded calls.
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
    /// Number of calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Replays from the first call on.
    pub fn cuts(&self) -> Cuts<'_> {
        Cuts { recording: self, disk: self.start.clone(), done: 0 }
    }
}

impl Cuts<'_> {
    /// Number of calls replayed.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Replays the next call. Returns false if there is none.
    pub fn step(&mut self) -> bool {
        let Some(call) = self.recording.calls.get(self.done) else { return false };
        self.disk.apply(call);
        self.done += 1;
        true
    }

    /// Whether the last call was a sync.
    pub fn was_sync(&self) -> bool {
        let last = self.done.checked_sub(1).and_then(|last| self.recording.calls.get(last));
        matches!(last, Some(Call::Sync { .. } | Call::SyncDirectory { .. }))
    }

    /// The calls whose changes a power cut may take.
    pub fn unsynced(&self) -> Vec<u64> {
        self.disk.unsynced()
    }

    /// The machine after a power cut now.
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
        // No reader sees whether a power cut took it.
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
