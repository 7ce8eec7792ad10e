//! Typed access to a partition's entries: inodes, stubs, names, contents.

use crate::ops::acl::{self, Birth};
use crate::ops::step::{Ask, Commit, Stepped, Stop};
use bytes::Bytes;
use hekate_brick::Brick;
use hekate_proto::*;

/// A volume's entries in one partition.
pub struct Tree<'a> {
    brick: &'a Brick,
    ask: Ask,
    at: PartitionNumber,
}

/// The value of an orphan entry of an inode that was made without a name and may be given one.
const LINKABLE: u8 = 1;

/// Entries that one scan returns at most. An inode has 128 attributes and two ACLs at most.
const SCAN_AT_ONCE: usize = 256;

impl<'a> Tree<'a> {
    /// The entries of the op's volume.
    pub fn new(brick: &'a Brick, ask: &Ask, at: PartitionNumber) -> Self {
        Self { brick, ask: *ask, at }
    }

    /// True if this partition has the inode itself.
    pub fn is_home(&self, inode: InodeId) -> bool {
        self.ask.partition(inode.position()) == self.at
    }

    fn value<T: Wire>(&self, key: &Key) -> Stepped<Option<T>> {
        Ok(self.brick.get(key)?.map(T::from_bytes).transpose()?)
    }

    /// The key of one of an inode's entries.
    pub fn key(&self, inode: InodeId, kind: Kind) -> Key {
        Key::inode(self.ask.ring, self.ask.volume, inode, kind)
    }

    /// The prefix of the keys of a directory's names in this partition.
    pub fn names_prefix(&self, dir: InodeId) -> KeyPrefix {
        self.ask.names_prefix(self.at, dir)
    }

    /// The key of this partition's stub of a directory.
    pub fn stub_key(&self, dir: InodeId) -> Key {
        Key::stub(self.names_prefix(dir), dir)
    }

    /// The key of a name in this partition.
    pub fn name_key(&self, dir: InodeId, name: &Name) -> Key {
        Key::name(self.names_prefix(dir), dir, name.as_bytes())
    }

    /// The inode.
    ///
    /// # Errors
    ///
    /// `Stale` if there is none.
    pub fn inode(&self, id: InodeId) -> Stepped<InodeRecord> {
        self.value(&self.key(id, Kind::Inode))?.ok_or(Stop::Error(Error::Stale))
    }

    /// The parent of a directory.
    ///
    /// # Errors
    ///
    /// `NotFound` if the directory was removed.
    pub fn parent(&self, dir: InodeId) -> Stepped<InodeId> {
        match self.inode(dir) {
            Ok(inode) => Ok(inode.parent),
            Err(Stop::Error(Error::Stale)) => Err(Error::NotFound.into()),
            Err(other) => Err(other),
        }
    }

    /// The inode of a regular file.
    ///
    /// # Errors
    ///
    /// `IsDirectory` or `Invalid` if it is something else.
    pub fn file(&self, id: InodeId) -> Stepped<InodeRecord> {
        let inode = self.inode(id)?;
        match inode.kind {
            NodeKind::File => Ok(inode),
            NodeKind::Directory => Err(Error::IsDirectory.into()),
            _ => Err(Error::invalid("not a regular file").into()),
        }
    }

    /// The stub of an existing directory.
    ///
    /// # Errors
    ///
    /// `Stop::Wait` if an op has closed it, so that it may be removed; `NotFound` if there is no such directory;
    /// `NotDirectory` if the inode is something else.
    pub fn stub(&self, dir: InodeId) -> Stepped<StubRecord> {
        match self.found_stub(dir)? {
            Some(stub) if stub.alive => Ok(stub),
            Some(_) => Err(Stop::Wait),
            // The directory was removed, or there never was one.
            None if !self.is_home(dir) => Err(Error::NotFound.into()),
            None => match self.inode(dir) {
                Ok(_) => Err(Error::NotDirectory.into()),
                Err(Stop::Error(Error::Stale)) => Err(Error::NotFound.into()),
                Err(other) => Err(other),
            },
        }
    }

    /// The directory's stub, if the name belongs in this partition. A client that asks here may know a smaller spread,
    /// whose partitions are among those of the actual one: so this partition has a stub with the actual spread.
    ///
    /// # Errors
    ///
    /// As [`Tree::stub`]; `OtherSpread` with the actual spread.
    pub fn stub_of(&self, dir: InodeId, name: &Name) -> Stepped<StubRecord> {
        let stub = self.stub(dir)?;
        if self.ask.partition(name_position(dir, name, stub.spread)) != self.at {
            return Err(Error::OtherSpread { spread: stub.spread }.into());
        }
        Ok(stub)
    }

    /// The stub, if there is one in this partition.
    pub fn found_stub(&self, dir: InodeId) -> Stepped<Option<StubRecord>> {
        self.value(&self.stub_key(dir))
    }

    /// The stub, whether an op has closed it or not.
    pub fn any_stub(&self, dir: InodeId) -> Stepped<StubRecord> {
        self.found_stub(dir)?.ok_or(Stop::Error(Error::Stale))
    }

    /// The stub.
    ///
    /// # Errors
    ///
    /// `Stop::Wait` if an op has closed it, so that the directory may be removed; `Stale` if there is none.
    pub fn open_stub(&self, dir: InodeId) -> Stepped<StubRecord> {
        let stub = self.any_stub(dir)?;
        if stub.alive { Ok(stub) } else { Err(Stop::Wait) }
    }

    /// The record of a name.
    pub fn name(&self, dir: InodeId, name: &Name) -> Stepped<Option<NameRecord>> {
        self.value(&self.name_key(dir, name))
    }

    /// Bytes beside an inode.
    pub fn content(&self, id: InodeId) -> Stepped<Bytes> {
        Ok(self.brick.get(&self.key(id, Kind::Content))?.unwrap_or_default())
    }

    /// Extended attributes and ACLs of an inode, by name.
    pub fn xattrs(&self, id: InodeId, inode: &InodeRecord) -> Stepped<Vec<(Bytes, Bytes)>> {
        if !inode.has_xattrs {
            return Ok(Vec::new());
        }
        let from = self.xattr_key(id, b"");
        let entries = self.brick.scan(&from, &from.prefix_end(), SCAN_AT_ONCE)?;
        Ok(entries.into_iter().map(|(key, value)| (key.rest(), value)).collect())
    }

    /// Adds the changes that delete an inode's extended attributes.
    pub fn delete_xattrs(&self, commit: &mut Commit, id: InodeId, inode: &InodeRecord) -> Stepped<()> {
        let names = self.xattrs(id, inode)?.into_iter();
        names.for_each(|(name, _)| commit.delete(self.xattr_key(id, &name)));
        Ok(())
    }

    /// The key of the entry for an inode without a name.
    pub fn orphan_key(&self, id: InodeId) -> Key {
        Key::orphan(self.ask.ring, self.ask.volume, id)
    }

    /// True if the inode was made without a name and may be given one.
    pub fn is_linkable(&self, id: InodeId) -> Stepped<bool> {
        Ok(self.value::<u8>(&self.orphan_key(id))? == Some(LINKABLE))
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, id: InodeId, name: &[u8]) -> Stepped<Option<Bytes>> {
        Ok(self.brick.get(&self.xattr_key(id, name))?)
    }

    /// The key of an extended attribute.
    pub fn xattr_key(&self, id: InodeId, name: &[u8]) -> Key {
        Key::xattr(self.ask.ring, self.ask.volume, id, name)
    }

    /// An inode's attributes. A directory's include those of the stub in this partition.
    pub fn attr(&self, id: InodeId) -> Stepped<Attr> {
        let inode = self.inode(id)?;
        let stub = match inode.kind {
            NodeKind::Directory => Some(self.open_stub(id)?),
            _ => None,
        };
        Ok(attr_of(id, &inode, stub.as_ref()))
    }
}

/// The size that a directory reports, in bytes: ext4's for a small directory.
const DIRECTORY_BYTES: u64 = 4096;

/// The attributes of an inode, for clients.
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
        has_xattrs: inode.has_xattrs,
        etag: inode.etag.clone(),
        implied: inode.implied,
    };
    if let Some(stub) = stub {
        attr.nlink = if stub.alive { 2 + stub.directories } else { 0 };
        attr.size = DIRECTORY_BYTES;
        attr.mtime = stub.mtime;
        attr.ctime = attr.ctime.max(stub.ctime);
        attr.change += stub.change;
    }
    attr
}

/// The time of a change of an inode, which never moves backwards.
pub fn later(now: Time, before: Time) -> Time {
    now.max(before)
}

/// The time so many ns before another.
pub fn before(time: Time, ns: u64) -> Time {
    Time(time.0.saturating_sub(i64::try_from(ns).unwrap_or(i64::MAX)))
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
        has_capability: false,
        has_xattrs: false,
        etag: Bytes::new(),
        implied: false,
    }
}

/// The owner of a new inode, and its permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    pub birth: Birth,
    /// Of a directory: a key needs it, and it is no object itself.
    pub implied: bool,
}

/// The changes that make a directory in the partition of its inode.
pub fn new_directory(
    ask: &Ask,
    (id, parent): (InodeId, InodeId),
    owner: &Owner,
    spread: u32,
    now: Time,
) -> (Vec<Change>, Attr) {
    let inode = new_inode(NodeKind::Directory, owner.birth.mode, owner.uid, owner.gid, now);
    let (has_xattrs, implied) = (owner.birth.has_acl(), owner.implied);
    let inode = InodeRecord { parent, spread, has_xattrs, implied, ..inode };
    let stub = new_stub(owner, spread, now);
    let attr = attr_of(id, &inode, Some(&stub));
    let put = |kind, value| Change::Put { key: Key::inode(ask.ring, ask.volume, id, kind), value };
    let mut changes = vec![put(Kind::Inode, inode.to_bytes()), put(Kind::Stub, stub.to_bytes())];
    changes.extend(acl::born(ask, id, &owner.birth));
    (changes, attr)
}

/// A partition's stub of a new directory.
pub fn new_stub(owner: &Owner, spread: u32, mtime: Time) -> StubRecord {
    let Owner { uid, gid, birth, implied: _ } = owner;
    let (alive, entries, directories, change, default_acl) = (true, 0, 0, 0, birth.default.clone());
    let (mode, uid, gid) = (birth.mode & 0o7777, *uid, *gid);
    StubRecord { alive, mode, uid, gid, spread, entries, directories, mtime, ctime: mtime, change, default_acl }
}

/// The changes that make a new volume's root and system directory. The names of each are in one partition.
pub fn root_directory(ask: &Ask, uid: u32, gid: u32) -> Vec<Change> {
    let owner = |mode, uid, gid| Owner { uid, gid, birth: Birth { mode, ..Birth::default() }, implied: false };
    let (root, system) = (owner(0o755, uid, gid), owner(0o700, 0, 0));
    let mut changes = new_directory(ask, (ROOT, ROOT), &root, 1, ask.now).0;
    changes.extend(new_directory(ask, (SYSTEM, SYSTEM), &system, 1, ask.now).0);
    changes
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

/// Removes a link from an inode. Without a link the inode is removed or, with `keep`, becomes an orphan until no
/// session has it open.
pub fn drop_link(tree: &Tree, commit: &mut Commit, id: InodeId, keep: bool, now: Time) -> Stepped<()> {
    let mut inode = tree.inode(id)?;
    inode.nlink = inode.nlink.saturating_sub(1);
    inode.ctime = later(now, inode.ctime);
    inode.change += 1;
    if inode.nlink > 0 {
        commit.put(tree.key(id, Kind::Inode), &inode);
    } else if keep {
        commit.put(tree.key(id, Kind::Inode), &inode);
        commit.put(Key::orphan(tree.ask.ring, tree.ask.volume, id), &0u8);
    } else {
        purge(tree, commit, id, &inode)?;
    }
    Ok(())
}

/// Removes the inode and what is beside it. Its data ids become garbage.
fn purge(tree: &Tree, commit: &mut Commit, id: InodeId, inode: &InodeRecord) -> Stepped<()> {
    commit.delete(tree.key(id, Kind::Inode));
    if inode.layout.is_inline() && inode.kind != NodeKind::Directory {
        commit.delete(tree.key(id, Kind::Content));
    }
    tree.delete_xattrs(commit, id, inode)?;
    give_up_data(tree.ask.ring, tree.ask.volume, commit, id, inode);
    Ok(())
}

/// Turns the inode's data ids into garbage: their shards are dropped later.
pub fn give_up_data(ring: RingId, volume: VolumeId, commit: &mut Commit, id: InodeId, inode: &InodeRecord) {
    for piece in &inode.layout.pieces {
        // A write that was not recorded in the inode may have made the shard behind the last one.
        let shards = inode.size_high.max(inode.size).min(piece.length).div_ceil(SHARD_BYTES) + 2;
        commit.put(Key::garbage(ring, volume, id.position(), piece.data), &GarbageRecord { shards });
    }
}

/// The record that removes an orphan. `None` if it is no orphan any more.
pub fn purge_orphan(brick: &Brick, ask: &Ask, id: InodeId) -> Stepped<Option<Commit>> {
    let tree = Tree::new(brick, ask, ask.partition(id.position()));
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
