//! A server's disk, which can lose power, run full or fail to sync; and the files of a brick's directory beside the
//! brick itself.

use hekate_brick::storage::{PowerCutStorage, Random, Space, Storage, StorageFile, Survivors};
use hekate_brick::{Brick, Identity, RecoveryReport};
use hekate_proto::{BLOCK_BYTES, BrickId, Error, Incarnation, Result};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Free bytes of a disk that is not full.
const FREE: u64 = 64 << 20;

/// Bytes of the smallest unit that becomes unreadable.
pub const SECTOR: u64 = 512;

/// Path prefix of data files.
const DATA: &str = "data/";

/// Path prefix of the index.
const INDEX: &str = "index/";

/// The reserve that a brick gives up to open on a full disk.
const GIVEN_UP: &str = "reserve.opening";

/// Time between two looks of a sync whether it may go on.
const HELD_PAUSE: Duration = Duration::from_millis(1);

const PAGE: u64 = 4096;
const ENOSPC: i32 = 28;

/// The file in which a brick records why it stopped itself.
const STOPPED: &str = "stopped";

/// One disk, with the brick on it.
pub struct Disk {
    pub identity: Identity,
    medium: PowerCutStorage,
    state: Arc<Mutex<State>>,
    /// `life.toml`: the last incarnation, and the boot of the machine in which it was settled.
    recorded: (u64, u64),
    /// The boot of the machine.
    boot: u64,
    /// The last of its openings that the cluster knows of.
    openings: u32,
    copy: Option<Copy>,
    /// The content before an older copy was put in its place.
    newer: Option<Copy>,
}

/// Everything stored on a disk.
struct Copy {
    medium: PowerCutStorage,
    recorded: (u64, u64),
    openings: u32,
}

#[derive(Default)]
struct State {
    free: u64,
    /// Another user of the file system has taken all free space: writes that need new space fail, reservations
    /// included.
    taken: bool,
    /// Bytes that are free nevertheless: the brick has given them up for an opening, and uses them at once.
    given_up: u64,
    /// Lengths of the files when all space was taken, and pages behind these that got space since.
    lengths: HashMap<String, u64>,
    grown: BTreeSet<(String, u64)>,
    /// Syncs wait until this is false.
    held: bool,
    /// Syncs until one fails.
    syncs_left: Option<u64>,
    failed: bool,
    /// A sync failed: data that was not synced may be gone once the page cache is.
    struck: bool,
    /// The next write to a data file lands one block further.
    misdirects: bool,
    went_astray: bool,
    /// The boot of the machine in which the brick's process has settled its incarnation, unless `Disk` knows already.
    settled: Option<u64>,
    /// Sectors (file, number) that return EIO until they are written.
    unreadable: BTreeSet<(String, u64)>,
}

/// A brick that is to be opened.
pub struct Opening {
    storage: Arc<dyn Storage>,
    identity: Identity,
    incarnation: Incarnation,
    is_new: bool,
    state: Arc<Mutex<State>>,
    boot: u64,
}

impl Opening {
    /// # Errors
    ///
    /// Those of `may_open`, which is given the brick and the least number that this opening can have, and returns the one
    /// that it has; the brick is damaged or without room.
    pub fn open(self, may_open: &dyn Fn(BrickId, u32) -> Result<u32>) -> Result<(Brick, RecoveryReport)> {
        let Self { storage, identity, incarnation, is_new, state, boot } = self;
        let (mut brick, report) = Brick::open_on_if(storage, &identity, incarnation, is_new, may_open)?;
        brick.set_record_life(Box::new(move || {
            state.lock().settled = Some(boot);
            Ok(())
        }));
        Ok((brick, report))
    }
}

impl Disk {
    /// A disk with a new brick on it, all on stable storage.
    ///
    /// # Errors
    ///
    /// The brick cannot be created.
    pub fn new(identity: Identity) -> Result<Self> {
        let medium = PowerCutStorage::new();
        Brick::create_on(&medium, &identity)?;
        let state = Arc::new(Mutex::new(State { free: FREE, ..State::default() }));
        let medium = medium.after_power_cut(Survivors::Everything);
        let (boot, openings, copy, newer) = Default::default();
        Ok(Self { identity, medium, state, recorded: (1, 0), boot, openings, copy, newer })
    }

    /// Takes what an opening of the brick needs.
    ///
    /// # Errors
    ///
    /// The disk cannot be read.
    pub fn begin_open(&mut self, seed: u64) -> Result<Opening> {
        let struck = std::mem::take(&mut self.state.lock().struck);
        if struck && let Some(note) = self.stopped_note()? {
            // A failed sync loses bytes, but no file names.
            self.medium = self.medium.after_power_cut(Survivors::Seeded(seed));
            let file = self.medium.open(STOPPED, true).map_err(|e| Error::io("the note", e))?;
            file.write_at(&[&note], 0).map_err(|e| Error::io("the note", e))?;
        }
        let storage = DiskStorage { inner: self.medium.clone(), state: self.state.clone() };
        if let Some(boot) = self.state.lock().settled.take() {
            self.recorded.1 = boot;
        }
        let is_new = self.is_new_life();
        self.recorded.0 += u64::from(is_new);
        let (identity, incarnation) = (self.identity.clone(), Incarnation(self.recorded.0));
        let (state, boot) = (self.state.clone(), self.boot);
        Ok(Opening { storage: Arc::new(storage), identity, incarnation, is_new, state, boot })
    }

    fn has_stopped(&self) -> bool {
        self.medium.open(STOPPED, false).is_ok()
    }

    fn stopped_note(&self) -> Result<Option<Vec<u8>>> {
        let Ok(file) = self.medium.open(STOPPED, false) else { return Ok(None) };
        let mut note = vec![0; file.length().map_err(|e| Error::io("the note", e))? as usize];
        file.read_at(&mut note, 0).map_err(|e| Error::io("the note", e))?;
        Ok(Some(note))
    }

    /// True if data that was not synced since the recorded incarnation may be lost.
    pub fn is_new_life(&self) -> bool {
        self.recorded.1 != self.boot || self.has_stopped()
    }

    /// The process that has the brick open dies.
    pub fn kill(&mut self) {
        self.medium = self.medium.next_process();
        self.state.lock().syncs_left = None;
    }

    /// The process dies at its `calls`th storage call from now.
    pub fn die_after(&self, calls: u64) {
        self.medium.die_after(calls);
    }

    pub fn is_dead(&self) -> bool {
        self.medium.is_dead()
    }

    /// The machine loses its power.
    pub fn cut_power(&mut self, survivors: Survivors) {
        drop(self.medium.next_process());
        self.medium = self.medium.after_power_cut(survivors);
        self.state.lock().syncs_left = None;
        self.boot += 1;
    }

    /// Copies the disk as a snapshot does. `survivors`: the copied part of the data that is not synced.
    pub fn copy(&mut self, survivors: Survivors) {
        let medium = self.medium.after_power_cut(survivors);
        self.copy = Some(Copy { medium, recorded: self.recorded, openings: self.openings });
    }

    pub fn has_copy(&self) -> bool {
        self.copy.is_some()
    }

    /// Notes an opening of the brick.
    pub fn set_openings(&mut self, openings: u32) {
        self.openings = openings;
    }

    /// True if the copy was made before the last opening that the cluster has recorded.
    pub fn is_copy_older_than(&self, seen: u32) -> bool {
        self.newer.is_none() && self.copy.as_ref().is_some_and(|copy| copy.openings < seen)
    }

    /// Puts the copy in the disk's place. The process is dead.
    pub fn put_back_older(&mut self) {
        let Some(copy) = self.copy.take() else { return };
        let medium = self.medium.after_power_cut(Survivors::Everything);
        self.newer = Some(Copy { medium, recorded: self.recorded, openings: self.openings });
        self.put(copy);
    }

    /// True if an older copy is in the disk's place.
    pub fn is_older_copy(&self) -> bool {
        self.newer.is_some()
    }

    /// Puts the newer content back, if an older copy was in its place; true if it was.
    pub fn put_back_newer(&mut self) -> bool {
        self.newer.take().map(|newer| self.put(newer)).is_some()
    }

    fn put(&mut self, copy: Copy) {
        (self.medium, self.recorded, self.openings) = (copy.medium, copy.recorded, copy.openings);
        *self.state.lock() = State { free: FREE, ..State::default() };
    }

    /// A byte of a data file, if there is one.
    pub fn data_byte(&self, random: &mut Random) -> Option<(String, u64)> {
        let mut files = self.medium.paths();
        files.retain(|path| path.starts_with(DATA));
        let index = files.len().checked_sub(1).map(|last| random.below(last as u64 + 1))?;
        let path = files.swap_remove(index as usize);
        let length = self.medium.open(&path, false).and_then(|file| file.length()).unwrap_or_default();
        (length > 0).then(|| (path, random.below(length)))
    }

    pub fn flip_bits(&self, path: &str, at: u64, mask: u8) {
        self.medium.flip_bits(path, at, mask);
    }

    /// Makes the sector with that byte unreadable.
    pub fn spoil(&self, path: &str, at: u64) {
        self.state.lock().unreadable.insert((path.into(), at / SECTOR));
    }

    /// The next write to a data file lands one block further.
    pub fn misdirect(&self) {
        self.state.lock().misdirects = true;
    }

    /// True if a write was misdirected; stops further ones.
    pub fn take_astray(&self) -> bool {
        let mut state = self.state.lock();
        state.misdirects = false;
        std::mem::take(&mut state.went_astray)
    }

    /// Takes the free space, all of it if `taken`, including what the brick gives up later.
    pub fn fill(&self, taken: bool) {
        let length = |path: &String| self.medium.open(path, false).and_then(|file| file.length()).unwrap_or_default();
        let lengths = self.medium.paths().into_iter().map(|path| (path.clone(), length(&path))).collect();
        let mut state = self.state.lock();
        (state.free, state.taken) = (if taken { 0 } else { 16 << 10 }, taken);
        (state.given_up, state.lengths, state.grown) = (0, lengths, BTreeSet::new());
    }

    /// True if another user has taken all space.
    pub fn is_taken(&self) -> bool {
        self.state.lock().taken
    }

    pub fn empty(&self) {
        let mut state = self.state.lock();
        (state.free, state.taken) = (FREE, false);
    }

    /// Syncs of simulated threads do not end from now on, or end again.
    #[cfg(test)]
    pub fn hold_syncs(&self, held: bool) {
        self.state.lock().held = held;
    }

    pub fn fail_sync(&self, after: u64) {
        self.state.lock().syncs_left = Some(after);
    }

    pub fn is_to_fail(&self) -> bool {
        self.state.lock().syncs_left.is_some() || self.medium.is_to_die()
    }

    /// True if a sync has failed since the brick was opened.
    pub fn take_failed(&self) -> bool {
        std::mem::take(&mut self.state.lock().failed)
    }

    /// Ends all faults of the disk.
    pub fn heal(&self) {
        self.empty();
        self.state.lock().syncs_left = None;
        self.state.lock().misdirects = false;
        if !self.is_dead() {
            self.medium.die_after(u64::MAX);
        }
    }
}

#[derive(Clone)]
struct DiskStorage {
    inner: PowerCutStorage,
    state: Arc<Mutex<State>>,
}

impl DiskStorage {
    fn take_misdirection(&self) -> bool {
        let mut state = self.state.lock();
        state.went_astray |= state.misdirects;
        std::mem::take(&mut state.misdirects)
    }

    /// Refuses bytes that need new space where another user has taken all. Only data files and the index need any: the
    /// other files are overwritten in place.
    fn check_room(&self, path: &str, from: u64, to: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.taken || !(path.starts_with(DATA) || path.starts_with(INDEX)) {
            return Ok(());
        }
        let had = state.lengths.get(path).copied().unwrap_or_default();
        let pages = from.max(had) / PAGE..to.div_ceil(PAGE);
        let new: Vec<_> =
            pages.map(|page| (path.to_string(), page)).filter(|page| !state.grown.contains(page)).collect();
        let needed = if to > had { new.len() as u64 * PAGE } else { 0 };
        if needed > state.given_up {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        state.given_up -= needed;
        if needed > 0 {
            state.grown.extend(new);
        }
        Ok(())
    }

    fn check_new_file(&self, path: &str) -> io::Result<()> {
        let is_refused = self.state.lock().taken && path.starts_with(DATA) && self.inner.open(path, false).is_err();
        if is_refused { Err(io::Error::from_raw_os_error(ENOSPC)) } else { Ok(()) }
    }

    fn check_sync(&self) -> io::Result<()> {
        while self.state.lock().held {
            hekate_threads::sleep(HELD_PAUSE);
        }
        let mut state = self.state.lock();
        match &mut state.syncs_left {
            Some(0) => {
                (state.syncs_left, state.failed, state.struck) = (None, true, true);
                Err(io::Error::from_raw_os_error(5))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Storage for DiskStorage {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn StorageFile>> {
        if create {
            self.check_new_file(path)?;
        }
        let inner = self.inner.open(path, create)?;
        Ok(Arc::new(DiskFile { inner, path: path.into(), disk: self.clone() }))
    }
    fn create_directory(&self, path: &str) -> io::Result<()> {
        self.inner.create_directory(path)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.inner.remove(path)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.inner.list(path)
    }
    fn sync_directory(&self, path: &str) -> io::Result<()> {
        self.inner.sync_directory(path)
    }
    fn space(&self) -> io::Result<Space> {
        Ok(Space::of_bytes(2 * FREE, self.state.lock().free))
    }
}

struct DiskFile {
    inner: Arc<dyn StorageFile>,
    path: String,
    disk: DiskStorage,
}

impl DiskFile {
    fn sectors(&self, offset: u64, bytes: usize) -> std::ops::Range<(String, u64)> {
        let end = (offset + bytes as u64).div_ceil(SECTOR);
        (self.path.clone(), offset / SECTOR)..(self.path.clone(), end)
    }
}

impl StorageFile for DiskFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.disk.state.lock();
        if !state.unreadable.is_empty() && state.unreadable.range(self.sectors(offset, buffer.len())).next().is_some() {
            return Err(io::Error::from_raw_os_error(5));
        }
        drop(state);
        self.inner.read_at(buffer, offset)
    }
    fn write_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        if !state.unreadable.is_empty() {
            let written = self.sectors(offset, parts.iter().map(|part| part.len()).sum());
            state.unreadable.retain(|sector| !written.contains(sector));
        }
        drop(state);
        let end = offset + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        self.disk.check_room(&self.path, offset, end)?;
        let goes_astray = self.path.starts_with(DATA) && self.disk.take_misdirection();
        self.inner.write_at(parts, offset + if goes_astray { BLOCK_BYTES as u64 } else { 0 })
    }
    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }
    fn set_length(&self, length: u64) -> io::Result<()> {
        if self.path == GIVEN_UP {
            self.disk.state.lock().given_up += self.inner.length()?.saturating_sub(length);
        }
        self.inner.set_length(length)
    }
    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.disk.check_room(&self.path, offset, offset + length)?;
        self.inner.allocate(offset, length)
    }
    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.inner.punch(offset, length)
    }
    fn sync(&self) -> io::Result<()> {
        self.disk.check_sync()?;
        self.inner.sync()
    }
}
