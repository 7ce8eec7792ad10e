//! A store in memory whose sessions, and whose unsynced bytes, can be lost at any call.

use super::{Hold, Store, Version};
use bytes::Bytes;
use hekate_proto::{Condition, Error, InodeId, Result};
use hekate_threads::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BLOCK: u64 = 4096;
/// Blocks of a shard.
const SHARD: u64 = 1024;
const ROOT: InodeId = InodeId::new(0, 0, 1);

/// The volume: what all sessions see.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<World>>);

/// A session of it.
pub struct MemoryStore {
    world: Arc<Mutex<World>>,
    session: u64,
}

#[derive(Default)]
struct World {
    files: BTreeMap<InodeId, File>,
    directories: BTreeMap<InodeId, Directory>,
    locks: Vec<(InodeId, u64, u64, bool)>,
    opens: BTreeMap<InodeId, u64>,
    ended: BTreeSet<u64>,
    last: u64,
    random: u64,
    /// Changes until the session that makes them ends in the middle of one.
    changes_left: Option<u64>,
    /// Runs when the next write of bytes begins.
    beside: Option<Box<dyn FnOnce() + Send>>,
    /// Runs when the call after so many begins.
    beside_call: Option<(u64, Box<dyn FnOnce() + Send>)>,
    /// Changes that were made.
    pub changes: u64,
}

#[derive(Default)]
struct Directory {
    names: BTreeMap<String, InodeId>,
    change: u64,
}

#[derive(Default)]
struct File {
    size: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
    /// What the blocks were that have changed since the last sync.
    stable: BTreeMap<u64, Option<Vec<u8>>>,
    /// The shards that a session has written since its last sync.
    written: BTreeSet<(u64, u64)>,
    /// Whoever syncs is told of a loss.
    lost: bool,
    links: u64,
}

impl Memory {
    /// A new session. `random`: the seed of its random numbers.
    pub fn session(&self, random: u64) -> Arc<dyn Store> {
        let mut world = self.0.lock();
        world.directories.entry(ROOT).or_default();
        world.random ^= random | 1;
        let session = world.next();
        Arc::new(MemoryStore { world: self.0.clone(), session })
    }

    /// Ends a session in the middle of the change after so many.
    pub fn end_after(&self, changes: u64) {
        self.0.lock().changes_left = Some(changes);
    }

    /// No session ends any more, and nothing runs beside calls.
    pub fn calm(&self) {
        let beside = {
            let mut world = self.0.lock();
            world.changes_left = None;
            world.beside_call.take()
        };
        // It may have locks, which it releases now.
        drop(beside);
    }

    /// Runs `then` when the next write, or allocation, of bytes has begun and not ended.
    pub fn beside_write(&self, then: impl FnOnce() + Send + 'static) {
        self.0.lock().beside = Some(Box::new(then));
    }

    /// Runs `then` when the call after so many has begun and not ended. Opens and closes of files are no calls.
    pub fn beside_call(&self, calls: u64, then: impl FnOnce() + Send + 'static) {
        self.0.lock().beside_call = Some((calls, Box::new(then)));
    }

    /// Releases all locks: their sessions are taken for dead, and do not know it yet.
    pub fn release_locks(&self) {
        self.0.lock().locks.clear();
    }

    /// Ends a session: its locks pass on.
    pub fn end(&self, session: u64) {
        self.0.lock().end(session);
    }

    /// Changes that were made.
    pub fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// All replicas lose power: each block that was not synced is kept, or as it was, as `keeps` says. The sessions that
    /// wrote it, if they have not ended, are told of it.
    pub fn lose_unsynced(&self, keeps: impl FnMut() -> bool) {
        let is_told = self.0.lock().locks.iter().any(|(_, _, _, shared)| !shared);
        self.lose(keeps, is_told);
    }

    /// As [`Memory::lose_unsynced`], but that what was lost is of a session that has ended, so that nobody is told.
    pub fn lose_untold(&self, keeps: impl FnMut() -> bool) {
        self.lose(keeps, false);
    }

    fn lose(&self, mut keeps: impl FnMut() -> bool, is_told: bool) {
        for file in self.0.lock().files.values_mut() {
            for (block, before) in std::mem::take(&mut file.stable) {
                file.lost = is_told;
                if keeps() {
                    continue;
                }
                match before {
                    Some(bytes) => file.blocks.insert(block, bytes),
                    None => file.blocks.remove(&block),
                };
            }
        }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.0.lock().files.values().map(|file| file.blocks.len() as u64 * BLOCK).sum()
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        self.0.lock().files.len()
    }
}

impl World {
    /// Counts a call. Returns what runs beside it.
    fn begin_call(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        match &mut self.beside_call {
            Some((0, _)) => self.beside_call.take().map(|(_, run)| run),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last + 100
    }

    fn number(&mut self) -> u64 {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn end(&mut self, session: u64) {
        self.ended.insert(session);
        self.locks.retain(|(_, holder, _, _)| *holder != session);
    }

    /// Notes a change by a session. False: the session ends now; the change may be made or not.
    fn may_change(&mut self, session: u64) -> Result<bool> {
        self.check(session)?;
        self.changes += 1;
        match &mut self.changes_left {
            Some(0) => {
                self.changes_left = None;
                self.end(session);
                Ok(false)
            }
            Some(left) => {
                *left -= 1;
                Ok(true)
            }
            None => Ok(true),
        }
    }

    fn check(&self, session: u64) -> Result<()> {
        if self.ended.contains(&session) { Err(Error::SessionEnded) } else { Ok(()) }
    }

    fn directory(&mut self, dir: InodeId) -> Result<&mut Directory> {
        self.directories.get_mut(&dir).ok_or(Error::Stale)
    }

    fn find(&self, dir: InodeId, name: &str) -> Result<InodeId> {
        let directory = self.directories.get(&dir).ok_or(Error::Stale)?;
        directory.names.get(name).copied().ok_or(Error::NotFound)
    }

    fn file(&mut self, file: InodeId) -> Result<&mut File> {
        self.files.get_mut(&file).ok_or(Error::Stale)
    }

    fn link(&mut self, dir: InodeId, name: &str, inode: InodeId) -> Result<()> {
        let directory = self.directory(dir)?;
        if directory.names.contains_key(name) {
            return Err(Error::Exists);
        }
        directory.names.insert(name.into(), inode);
        directory.change += 1;
        Ok(())
    }

    fn unlink(&mut self, dir: InodeId, name: &str, inode: InodeId) -> Result<()> {
        self.file(inode)?.links -= 1;
        let directory = self.directory(dir)?;
        directory.names.remove(name);
        directory.change += 1;
        self.drop_unused(inode);
        Ok(())
    }

    fn drop_unused(&mut self, inode: InodeId) {
        let is_open = self.opens.contains_key(&inode);
        if !is_open && self.files.get(&inode).is_some_and(|file| file.links == 0) {
            self.files.remove(&inode);
        }
    }
}

impl File {
    fn set(&mut self, block: u64, bytes: Vec<u8>) {
        let before = self.blocks.insert(block, bytes);
        self.stable.entry(block).or_insert(before);
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.size = self.size.max(offset + bytes.len() as u64);
        let mut at = 0;
        while at < bytes.len() {
            let (block, within) = ((offset + at as u64) / BLOCK, ((offset + at as u64) % BLOCK) as usize);
            let length = (bytes.len() - at).min(BLOCK as usize - within);
            let mut whole = self.blocks.get(&block).cloned().unwrap_or_else(|| vec![0; BLOCK as usize]);
            whole[within..within + length].copy_from_slice(&bytes[at..at + length]);
            self.set(block, whole);
            at += length;
        }
    }

    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let end = (offset + length).min(self.size).max(offset);
        let mut out = Vec::with_capacity((end - offset) as usize);
        let mut at = offset;
        while at < end {
            let (block, within) = (at / BLOCK, (at % BLOCK) as usize);
            let length = ((end - at) as usize).min(BLOCK as usize - within);
            match self.blocks.get(&block) {
                Some(bytes) => out.extend_from_slice(&bytes[within..within + length]),
                None => out.resize(out.len() + length, 0),
            }
            at += length as u64;
        }
        out
    }
}

/// Each put makes another file.
fn version_of(inode: InodeId) -> Version {
    Version(inode.number().to_le_bytes().to_vec().into())
}

impl MemoryStore {
    /// The world, for a call.
    fn world(&self) -> MutexGuard<'_, World> {
        let beside = self.world.lock().begin_call();
        beside.into_iter().for_each(|run| run());
        self.world.lock()
    }

    /// Makes a change. If the session ends in the middle of it, it is made or not, and fails.
    fn change<R>(&self, then: impl FnOnce(&mut World) -> Result<R>) -> Result<R> {
        let mut world = self.world();
        if world.may_change(self.session)? {
            return then(&mut world);
        }
        if world.number().is_multiple_of(2) {
            let _ = then(&mut world);
        }
        Err(Error::SessionEnded)
    }
}

impl Store for MemoryStore {
    fn root(&self) -> InodeId {
        ROOT
    }

    fn read(&self, file: InodeId, offset: u64, length: u32) -> Result<Bytes> {
        let mut world = self.world();
        world.check(self.session)?;
        Ok(world.file(file)?.read(offset, u64::from(length)).into())
    }

    fn write(&self, file: InodeId, offset: u64, bytes: Bytes, durable: bool) -> Result<()> {
        let beside = self.world.lock().beside.take();
        beside.into_iter().for_each(|run| run());
        self.change(|world| {
            let file = world.file(file)?;
            file.write(offset, &bytes);
            for block in offset / BLOCK..(offset + bytes.len() as u64).div_ceil(BLOCK) {
                file.written.insert((self.session, block / SHARD));
                if durable {
                    file.stable.remove(&block);
                }
            }
            Ok(())
        })
    }

    fn sync(&self, file: InodeId) -> Result<()> {
        self.change(|world| {
            let session = self.session;
            let file = world.file(file)?;
            // As of a volume: a sync covers the shards that its session has written.
            let written = file.written.clone();
            file.stable.retain(|block, _| !written.contains(&(session, block / SHARD)));
            file.written.retain(|(writer, _)| *writer != session);
            if std::mem::take(&mut file.lost) {
                return Err(Error::Lost { what: "power".into() });
            }
            Ok(())
        })
    }

    fn allocate(&self, file: InodeId, bytes: u64) -> Result<()> {
        let beside = self.world.lock().beside.take();
        beside.into_iter().for_each(|run| run());
        self.change(|world| {
            let file = world.file(file)?;
            file.size = file.size.max(bytes);
            Ok(())
        })
    }

    fn make_file(&self, dir: InodeId, name: &str) -> Result<InodeId> {
        self.change(|world| {
            let inode = InodeId::new(0, 0, world.next());
            world.link(dir, name, inode)?;
            world.files.insert(inode, File { links: 1, ..File::default() });
            Ok(inode)
        })
    }

    fn make_directory(&self, dir: InodeId, name: &str) -> Result<InodeId> {
        self.change(|world| {
            let inode = InodeId::new(0, 0, world.next());
            world.link(dir, name, inode)?;
            world.directories.insert(inode, Directory::default());
            Ok(inode)
        })
    }

    fn find(&self, dir: InodeId, name: &str) -> Result<InodeId> {
        let world = self.world();
        world.check(self.session)?;
        world.find(dir, name)
    }

    fn put(&self, dir: InodeId, name: &str, content: Bytes, condition: Condition) -> Result<Version> {
        self.change(|world| {
            let before = match world.find(dir, name) {
                Err(Error::NotFound) => None,
                found => Some(found?),
            };
            match (&condition, before) {
                (Condition::Absent, Some(_)) | (Condition::Exists, None) => return Err(Error::ConditionFailed),
                (Condition::Matches { etag }, before) if before.map(version_of).is_none_or(|now| now.0 != *etag) => {
                    return Err(Error::ConditionFailed);
                }
                _ => {}
            }
            let inode = InodeId::new(0, 0, world.next());
            let mut file = File { links: 1, ..File::default() };
            file.write(0, &content);
            file.stable.clear();
            world.files.insert(inode, file);
            let directory = world.directory(dir)?;
            directory.names.insert(name.into(), inode);
            directory.change += 1;
            if let Some(before) = before {
                world.file(before)?.links -= 1;
                world.drop_unused(before);
            }
            Ok(version_of(inode))
        })
    }

    fn version(&self, dir: InodeId, name: &str) -> Result<Version> {
        Ok(self.fetch_version(dir, name)?.1)
    }

    fn fetch_version(&self, dir: InodeId, name: &str) -> Result<(Bytes, Version)> {
        let mut world = self.world();
        world.check(self.session)?;
        let inode = world.find(dir, name)?;
        let file = world.file(inode)?;
        Ok((file.read(0, file.size).into(), version_of(inode)))
    }

    fn list(&self, dir: InodeId) -> Result<Vec<String>> {
        let mut world = self.world();
        world.check(self.session)?;
        Ok(world.directory(dir)?.names.keys().cloned().collect())
    }

    fn change_of(&self, dir: InodeId) -> Result<u64> {
        let mut world = self.world();
        world.check(self.session)?;
        Ok(world.directory(dir)?.change)
    }

    fn remove(&self, dir: InodeId, name: &str) -> Result<()> {
        self.change(|world| {
            let inode = world.find(dir, name)?;
            world.unlink(dir, name, inode)
        })
    }

    fn remove_version(&self, dir: InodeId, name: &str, version: &Version) -> Result<()> {
        self.change(|world| {
            let inode = world.find(dir, name)?;
            if version_of(inode) != *version {
                return Err(Error::ConditionFailed);
            }
            world.unlink(dir, name, inode)
        })
    }

    fn remove_directory(&self, dir: InodeId, name: &str) -> Result<()> {
        self.change(|world| {
            let inode = world.find(dir, name)?;
            if !world.directory(inode)?.names.is_empty() {
                return Err(Error::NotEmpty);
            }
            world.directories.remove(&inode);
            world.directory(dir)?.names.remove(name);
            Ok(())
        })
    }

    fn rename(&self, dir: InodeId, name: &str, to: &str) -> Result<()> {
        self.change(|world| {
            let inode = world.find(dir, name)?;
            world.link(dir, to, inode)?;
            world.directory(dir)?.names.remove(name);
            Ok(())
        })
    }

    fn lock(&self, file: InodeId, shared: bool) -> Result<Option<Hold>> {
        let mut world = self.world();
        world.check(self.session)?;
        if world.locks.iter().any(|(locked, _, _, other)| *locked == file && !(shared && *other)) {
            return Ok(None);
        }
        let number = world.next();
        world.locks.push((file, self.session, number, shared));
        let released = self.world.clone();
        Ok(Some(Hold::new(move || released.lock().locks.retain(|(_, _, held, _)| *held != number))))
    }

    fn opened(&self, file: InodeId) {
        *self.world.lock().opens.entry(file).or_default() += 1;
    }

    fn closed(&self, file: InodeId) {
        let mut world = self.world.lock();
        if let Some(count) = world.opens.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                world.opens.remove(&file);
                world.drop_unused(file);
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.world.lock().ended.contains(&self.session)
    }

    fn holder(&self, file: InodeId) -> Result<Option<u64>> {
        let world = self.world();
        world.check(self.session)?;
        Ok(world.locks.iter().find(|(locked, ..)| *locked == file).map(|(_, session, ..)| *session))
    }

    fn time(&self) -> u64 {
        self.world.lock().changes
    }

    fn random(&self) -> Result<u64> {
        Ok(self.world.lock().number())
    }
}
