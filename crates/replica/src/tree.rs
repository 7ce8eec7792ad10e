//! Typed access to a partition's entries: inodes, stubs, names, contents.

use crate::step::{Ask, Commit, Stepped, Stop};
use bytes::Bytes;
use hekate_brick::Brick;
use hekate_proto::*;

/// A volume's entries in one partition.
pub struct Tree<'a> {
    brick: &'a Brick,
    ring: RingId,
    volume: VolumeId,
}

/// Entries of one scan.
const SCAN_AT_ONCE: usize = 256;

impl<'a> Tree<'a> {
    /// Of the volume that the ask is about.
    pub fn new(brick: &'a Brick, ask: &Ask) -> Self {
        Self { brick, ring: ask.ring, volume: ask.volume }
    }

    fn value<T: Wire>(&self, key: &Key) -> Stepped<Option<T>> {
        Ok(self.brick.get(key)?.map(T::from_bytes).transpose()?)
    }

    /// The key of one of an inode's entries.
    pub fn key(&self, inode: InodeId, kind: Kind) -> Key {
        Key::inode(self.ring, self.volume, inode, kind)
    }

    /// An inode, or `Stale`.
    pub fn inode(&self, id: InodeId) -> Stepped<InodeRecord> {
        self.value(&self.key(id, Kind::Inode))?.ok_or(Stop::Error(Error::Stale))
    }

    /// An inode that is no directory.
    pub fn file(&self, id: InodeId) -> Stepped<InodeRecord> {
        let inode = self.inode(id)?;
        match inode.kind {
            NodeKind::File => Ok(inode),
            NodeKind::Directory => Err(Error::IsDirectory.into()),
            _ => Err(Error::invalid("not a regular file").into()),
        }
    }

    /// A directory's stub, if it is one that lives. Whether one that an op has closed is removed is not known yet.
    pub fn stub(&self, dir: InodeId) -> Stepped<StubRecord> {
        let stub: Option<StubRecord> = self.value(&self.key(dir, Kind::Stub))?;
        match stub {
            Some(stub) if stub.alive => Ok(stub),
            Some(_) => Err(Stop::Wait),
            // Either it is gone, or it never was a directory.
            None => match self.inode(dir) {
                Ok(_) => Err(Error::NotDirectory.into()),
                Err(Stop::Error(Error::Stale)) => Err(Error::NotFound.into()),
                Err(other) => Err(other),
            },
        }
    }

    /// The stub whether it lives or not.
    pub fn any_stub(&self, dir: InodeId) -> Stepped<StubRecord> {
        self.value(&self.key(dir, Kind::Stub))?.ok_or(Stop::Error(Error::Stale))
    }

    /// The stub, unless an op has closed it: whether the directory is removed is not known yet.
    pub fn open_stub(&self, dir: InodeId) -> Stepped<StubRecord> {
        let stub = self.any_stub(dir)?;
        if stub.alive { Ok(stub) } else { Err(Stop::Wait) }
    }

    /// Where a name leads.
    pub fn name(&self, place: Place, dir: InodeId, name: &Name) -> Stepped<Option<NameRecord>> {
        self.value(&Key::name(place, dir, name.as_bytes()))
    }

    /// Bytes that rest beside an inode.
    pub fn content(&self, id: InodeId) -> Stepped<Bytes> {
        Ok(self.brick.get(&self.key(id, Kind::Content))?.unwrap_or_default())
    }

    /// Extended attributes: name and value.
    pub fn xattrs(&self, id: InodeId) -> Stepped<Vec<(Bytes, Bytes)>> {
        let from = Key::xattr(self.ring, self.volume, id, b"");
        let entries = self.brick.scan(&from, &from.prefix_end(), SCAN_AT_ONCE)?;
        Ok(entries.into_iter().map(|(key, value)| (key.rest(), value)).collect())
    }

    /// Keys of extended attributes.
    pub fn xattr_keys(&self, id: InodeId) -> Stepped<Vec<Key>> {
        let names = self.xattrs(id)?.into_iter();
        Ok(names.map(|(name, _)| Key::xattr(self.ring, self.volume, id, &name)).collect())
    }

    /// An inode's attributes, a directory's with those of its stub.
    pub fn attr(&self, id: InodeId) -> Stepped<Attr> {
        let inode = self.inode(id)?;
        let stub = match inode.kind {
            NodeKind::Directory => Some(self.open_stub(id)?),
            _ => None,
        };
        Ok(attr_of(id, &inode, stub.as_ref()))
    }
}

/// Bytes that a directory says it has, as ext4 does for a small one.
const DIRECTORY_BYTES: u64 = 4096;

/// What doors see of an inode.
pub fn attr_of(id: InodeId, inode: &InodeRecord, stub: Option<&StubRecord>) -> Attr {
    let mut attr = Attr {
        id,
        kind: inode.kind,
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.nlink,
        size: inode.size,
        device: inode.device,
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        btime: inode.btime,
        change: inode.change,
        layout: inode.layout.clone(),
        spread: inode.spread,
    };
    if let Some(stub) = stub {
        attr.nlink = if stub.alive { 2 + stub.directories } else { 0 };
        attr.size = DIRECTORY_BYTES;
        attr.mtime = attr.mtime.max(stub.mtime);
        attr.ctime = attr.ctime.max(stub.mtime);
        attr.change += stub.change;
    }
    attr
}

/// A new inode.
pub fn new_inode(kind: NodeKind, mode: u16, uid: u32, gid: u32, now: Time) -> InodeRecord {
    InodeRecord {
        kind,
        mode: mode & 0o7777,
        uid,
        gid,
        nlink: 1,
        size: 0,
        device: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        change: 1,
        layout: Layout::inline(0),
        spread: 1,
        parent: InodeId::from_bits(0),
        size_high: 0,
        grant_limit: 0,
    }
}

/// The records of a new directory.
pub fn new_directory(
    ask: &Ask,
    id: InodeId,
    parent: InodeId,
    owner: (u16, u32, u32),
    now: Time,
) -> (Vec<Change>, Attr) {
    let (mode, uid, gid) = owner;
    let inode = InodeRecord { parent, ..new_inode(NodeKind::Directory, mode, uid, gid, now) };
    let stub = StubRecord {
        alive: true,
        mode: inode.mode,
        uid,
        gid,
        spread: 1,
        entries: 0,
        directories: 0,
        mtime: now,
        change: 0,
        default_acl: Bytes::new(),
    };
    let attr = attr_of(id, &inode, Some(&stub));
    let put = |kind, value| Change::Put { key: Key::inode(ask.ring, ask.volume, id, kind), value };
    (vec![put(Kind::Inode, inode.to_bytes()), put(Kind::Stub, stub.to_bytes())], attr)
}

/// What a new volume begins with.
pub fn root_directory(ask: &Ask, uid: u32, gid: u32) -> Vec<Change> {
    new_directory(ask, ROOT, ROOT, (0o755, uid, gid), ask.now).0
}

impl Commit {
    /// Puts an entry.
    pub fn put(&mut self, key: Key, value: &impl Wire) {
        self.changes.push(Change::Put { key, value: value.to_bytes() });
    }

    /// Deletes an entry.
    pub fn delete(&mut self, key: Key) {
        self.changes.push(Change::Delete { key });
    }
}

/// One name less leads to the inode. Without a name it goes, or (`keep`) waits until nobody has it open.
pub fn drop_link(tree: &Tree, commit: &mut Commit, id: InodeId, keep: bool, now: Time) -> Stepped<()> {
    let mut inode = tree.inode(id)?;
    inode.nlink = inode.nlink.saturating_sub(1);
    inode.ctime = now;
    inode.change += 1;
    if inode.nlink > 0 {
        commit.put(tree.key(id, Kind::Inode), &inode);
    } else if keep {
        commit.put(tree.key(id, Kind::Inode), &inode);
        commit.put(Key::orphan(tree.ring, tree.volume, id), &0u8);
    } else {
        purge(tree, commit, id, &inode)?;
    }
    Ok(())
}

/// The inode and all that rests beside it go; its data ids wait to be collected.
fn purge(tree: &Tree, commit: &mut Commit, id: InodeId, inode: &InodeRecord) -> Stepped<()> {
    commit.delete(tree.key(id, Kind::Inode));
    if inode.layout.is_inline() && inode.kind != NodeKind::Directory {
        commit.delete(tree.key(id, Kind::Content));
    }
    for key in tree.xattr_keys(id)? {
        commit.delete(key);
    }
    give_up_data(tree.ring, tree.volume, commit, id, inode);
    Ok(())
}

/// The inode's data ids are given up: their shards are collected later.
pub fn give_up_data(ring: RingId, volume: VolumeId, commit: &mut Commit, id: InodeId, inode: &InodeRecord) {
    for piece in &inode.layout.pieces {
        // A write whose end was never told may have made the shard after the last one that the size covers.
        let shards = inode.size_high.max(inode.size).min(piece.length).div_ceil(SHARD_BYTES) + 2;
        commit.put(Key::garbage(ring, volume, id.position(), piece.data), &GarbageRecord { shards });
    }
}

/// The record that collects an orphan: nothing, if it is none any more.
pub fn purge_orphan(brick: &Brick, ask: &Ask, id: InodeId) -> Stepped<Option<Commit>> {
    let tree = Tree::new(brick, ask);
    let key = Key::orphan(ask.ring, ask.volume, id);
    if brick.get(&key)?.is_none() {
        return Ok(None);
    }
    let mut commit = Commit::default();
    commit.delete(key);
    if let Ok(inode) = tree.inode(id) {
        purge(&tree, &mut commit, id, &inode)?;
    }
    Ok(Some(commit))
}
