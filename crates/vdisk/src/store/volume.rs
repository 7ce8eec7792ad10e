//! A volume's system directory as the store.

use super::{Hold, Store, Version};
use bytes::Bytes;
use hekate_client::{Context, New, ObjectName, Owner, Volume};
use hekate_proto::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The directory of vDisks in the system directory.
const TOP: &str = "vdisks";
/// Bytes of one read or write.
const PART_BYTES: usize = 1 << 20;
const OWNER: Owner = Owner { mode: 0o600, uid: 0, gid: 0 };

/// A session of a volume.
pub struct VolumeStore {
    volume: Arc<Volume>,
    root: InodeId,
    /// Owners of locks within the session.
    owners: AtomicU64,
}

impl VolumeStore {
    /// The vDisks of a volume. Their directory is made if there is none.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn open(volume: Arc<Volume>) -> Result<Self> {
        let context = Context::DURABLE;
        let name = Name::try_from(TOP)?;
        let root = match volume.lookup(&context, SYSTEM, name.clone()) {
            Err(Error::NotFound) => volume.create(&context, SYSTEM, name, new(NewNode::Directory, false))?.0,
            found => found?,
        };
        Ok(Self { volume, root: root.id, owners: AtomicU64::new(1 << 32) })
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    fn whole(kind: LockKind, owner: u64) -> Lock {
        let pid = std::process::id();
        Lock { kind, style: LockStyle::Flock, start: 0, end: LOCK_END, owner: LockOwner(owner), pid }
    }
}

fn new(node: NewNode, exclusive: bool) -> New {
    let mode = if matches!(node, NewNode::Directory) { 0o700 } else { OWNER.mode };
    New { node, mode, uid: OWNER.uid, gid: OWNER.gid, umask: 0, exclusive }
}

fn object(dir: InodeId, name: &str) -> Result<ObjectName> {
    Ok(ObjectName { dir, name: Name::try_from(name)?, alternate: None })
}

impl Store for VolumeStore {
    fn root(&self) -> InodeId {
        self.root
    }

    fn read(&self, file: InodeId, offset: u64, length: u32) -> Result<Bytes> {
        self.volume.read_quietly(&Context::default(), file, offset, length)
    }

    fn write(&self, file: InodeId, offset: u64, bytes: Bytes, durable: bool) -> Result<()> {
        let context = if durable { Context::DURABLE } else { Context::default() };
        let mut at = 0;
        while at < bytes.len() {
            let part = bytes.slice(at..bytes.len().min(at + PART_BYTES));
            let length = part.len();
            self.volume.write(&context, file, offset + at as u64, part, false)?;
            at += length;
        }
        Ok(())
    }

    fn sync(&self, file: InodeId) -> Result<()> {
        self.volume.fsync(&Context::default(), file)
    }

    fn allocate(&self, file: InodeId, bytes: u64) -> Result<()> {
        let mode = Allocate::Reserve { keep_size: false };
        self.volume.allocate(&Context::DURABLE, file, 0, bytes, mode, false)
    }

    fn fill(&self, file: InodeId, bytes: u64) -> Result<()> {
        if !self.volume.has_fast_lane() {
            return self.allocate(file, bytes);
        }
        let zeros = Bytes::from(vec![0; bytes.min(PART_BYTES as u64) as usize]);
        let mut at = 0;
        while at < bytes {
            let part = zeros.slice(..(bytes - at).min(PART_BYTES as u64) as usize);
            at += part.len() as u64;
            self.volume.write(&Context::default(), file, at - part.len() as u64, part, false)?;
        }
        match self.sync(file) {
            // Holes are zeros, too.
            Err(Error::Lost { .. }) => self.allocate(file, bytes),
            synced => synced,
        }
    }

    fn make_file(&self, dir: InodeId, name: &str) -> Result<InodeId> {
        let made = self.volume.create(&Context::DURABLE, dir, Name::try_from(name)?, new(NewNode::File, true))?;
        Ok(made.0.id)
    }

    fn make_directory(&self, dir: InodeId, name: &str) -> Result<InodeId> {
        let made = self.volume.create(&Context::DURABLE, dir, Name::try_from(name)?, new(NewNode::Directory, true))?;
        Ok(made.0.id)
    }

    fn find(&self, dir: InodeId, name: &str) -> Result<InodeId> {
        Ok(self.volume.lookup(&Context::default(), dir, Name::try_from(name)?)?.id)
    }

    fn put(&self, dir: InodeId, name: &str, content: Bytes, condition: Condition) -> Result<Version> {
        let context = Context::DURABLE;
        let target = object(dir, name)?;
        if content.len() as u64 <= INLINE_MAX {
            let Owner { mode, uid, gid } = OWNER;
            let source = PutSource::Bytes { content, mode, uid, gid, attributes: Vec::new() };
            return self
                .volume
                .put(&context, &target, source, Bytes::new(), condition)
                .map(|(attr, _)| Version(etag_of(&attr)));
        }
        let made = self.volume.create_unnamed(&context, dir, new(NewNode::File, true), true)?;
        let put = self.write(made.id, 0, content, false).and_then(|()| self.sync(made.id)).and_then(|()| {
            let source = PutSource::Inode { inode: made.id };
            self.volume.put(&context, &target, source, Bytes::new(), condition)
        });
        self.volume.closed(made.id);
        put.map(|(attr, _)| Version(etag_of(&attr)))
    }

    fn version(&self, dir: InodeId, name: &str) -> Result<Version> {
        let fetched = self.volume.fetch(&Context::default(), &object(dir, name)?, Bytes::new(), false)?;
        Ok(Version(etag_of(&fetched.attr)))
    }

    fn fetch_version(&self, dir: InodeId, name: &str) -> Result<(Bytes, Version)> {
        let fetched = self.volume.fetch(&Context::default(), &object(dir, name)?, Bytes::new(), true)?;
        let version = Version(etag_of(&fetched.attr));
        if let Some(content) = fetched.content {
            return Ok((content, version));
        }
        let (file, size) = (fetched.attr.id, fetched.attr.size);
        self.volume.opened(file);
        let mut all = Vec::new();
        let mut read = Ok(());
        while read.is_ok() && (all.len() as u64) < size {
            match self.read(file, all.len() as u64, PART_BYTES as u32) {
                Ok(part) if part.is_empty() => break,
                Ok(part) => all.extend_from_slice(&part),
                Err(error) => read = Err(error),
            }
        }
        self.volume.closed(file);
        read.map(|()| (all.into(), version))
    }

    fn list(&self, dir: InodeId) -> Result<Vec<String>> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let (entries, end) = self.volume.list_quietly(&Context::default(), dir, after, 1024, false)?;
            all.extend(entries.iter().map(|entry| String::from_utf8_lossy(entry.name.as_bytes()).into_owned()));
            after = entries.last().map(|entry| entry.name.clone());
            if end || after.is_none() {
                return Ok(all);
            }
        }
    }

    fn change_of(&self, dir: InodeId) -> Result<u64> {
        Ok(self.volume.getattr(&Context::default(), dir)?.change)
    }

    fn remove(&self, dir: InodeId, name: &str) -> Result<()> {
        let name = Name::try_from(name)?;
        let found = self.volume.lookup(&Context::default(), dir, name.clone())?;
        self.volume.unlink(&Context::DURABLE, dir, name, Some(found.id))
    }

    fn remove_version(&self, dir: InodeId, name: &str, version: &Version) -> Result<()> {
        self.volume.remove_object(&Context::DURABLE, &object(dir, name)?, version.condition())
    }

    fn remove_directory(&self, dir: InodeId, name: &str) -> Result<()> {
        self.volume.rmdir(&Context::DURABLE, dir, Name::try_from(name)?)
    }

    fn rename(&self, dir: InodeId, name: &str, to: &str) -> Result<()> {
        let (from, to) = ((dir, Name::try_from(name)?), (dir, Name::try_from(to)?));
        self.volume.rename(&Context::DURABLE, from, to, RenameMode::NoReplace, None)
    }

    fn lock(&self, file: InodeId, shared: bool) -> Result<Option<Hold>> {
        let owner = self.owners.fetch_add(1, Ordering::Relaxed);
        let kind = if shared { LockKind::Read } else { LockKind::Write };
        match self.volume.lock(&Context::default(), file, Self::whole(kind, owner), false) {
            Err(Error::WouldBlock) => return Ok(None),
            taken => taken?,
        }
        let volume = Arc::downgrade(&self.volume);
        Ok(Some(Hold::new(move || {
            if let Some(volume) = volume.upgrade().filter(|volume| !volume.has_ended()) {
                // A release that cannot be sent now is sent later, or the end of the session releases the lock.
                let _ = volume.lock(&Context::default(), file, Self::whole(LockKind::Unlock, owner), false);
            }
        })))
    }

    fn opened(&self, file: InodeId) {
        self.volume.opened(file);
    }

    fn closed(&self, file: InodeId) {
        self.volume.closed(file);
    }

    fn has_ended(&self) -> bool {
        self.volume.has_ended()
    }

    fn holder(&self, file: InodeId) -> Result<Option<u64>> {
        let owner = self.owners.fetch_add(1, Ordering::Relaxed);
        let held = self.volume.test_lock(&Context::default(), file, Self::whole(LockKind::Write, owner))?;
        Ok(held.map(|held| held.session.0))
    }

    fn time(&self) -> u64 {
        let now = hekate_threads::time_of_day().duration_since(std::time::UNIX_EPOCH);
        now.unwrap_or_default().as_secs()
    }

    fn random(&self) -> Result<u64> {
        hekate_client::seed()
    }
}
