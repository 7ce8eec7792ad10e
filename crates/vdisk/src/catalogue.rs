//! The vDisks of a volume by name: made, cloned, renamed, deleted; and the layers that nothing leads to any more.

use crate::disk::{DISK, Holder, check_size, holder_of, make_files, take_token};
use crate::format::{DiskId, DiskKind, DiskRecord, Durability, Health, LayerId, Record, SnapshotRecord};
use crate::layer::{Layer, absent_is_fine};
use crate::store::{Hold, Store, Version};
use hekate_proto::{Condition, Error, InodeId, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The file whose lock is the fencing token.
pub(crate) const OWNER: &str = "owner";
pub(crate) const SNAPSHOTS: &str = "snapshots";
pub(crate) const ORDERS: &str = "orders";
const NAMES: &str = "names";
/// Shared by those who make layers, exclusive for those who remove them.
const TREE_LOCK: &str = "lock";
/// Bytes of a name.
const NAME_MAX: usize = 100;
/// Waits for the lock of the tree, and their number.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
const LOCK_TRIES: u32 = 600;

/// The vDisks of a volume.
#[derive(Clone)]
pub struct Catalogue {
    store: Arc<dyn Store>,
    names: InodeId,
    /// Blocks of a segment of new layers.
    segment_blocks: u32,
}

/// A vDisk, for lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskInfo {
    pub name: String,
    pub record: DiskRecord,
    /// The session that has it open.
    pub holder: Option<Holder>,
}

/// Space of a vDisk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of segments and maps that only this vDisk and its snapshots use.
    pub own: u64,
    /// Bytes of segments and maps that other vDisks use too.
    pub shared: u64,
    /// Bytes of blocks in these segments that some layer's map leads to.
    pub referenced: u64,
    /// Layers below the one that is written.
    pub depth: u64,
}

impl Catalogue {
    /// The vDisks of a store. What is missing of the directories is made.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(store: Arc<dyn Store>) -> Result<Self> {
        let root = store.root();
        let names = match store.find(root, NAMES) {
            Err(Error::NotFound) => made_or_found(&*store, root, NAMES)?,
            found => found?,
        };
        match store.find(root, TREE_LOCK) {
            Err(Error::NotFound) => match store.put(root, TREE_LOCK, bytes::Bytes::new(), Condition::Absent) {
                Err(Error::ConditionFailed) => {}
                made => drop(made?),
            },
            found => drop(found?),
        }
        Ok(Self { store, names, segment_blocks: crate::format::SEGMENT_BLOCKS_MAX })
    }

    /// Segments of new vDisks have so many blocks.
    #[must_use]
    pub fn with_segments(self, segment_blocks: u32) -> Self {
        Self { segment_blocks, ..self }
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// A vDisk's directory and record.
    ///
    /// # Errors
    /// `Invalid` with the known names if there is none.
    pub fn disk(&self, name: &str) -> Result<(InodeId, DiskRecord)> {
        self.disk_version(name).map(|(directory, record, _)| (directory, record))
    }

    pub(crate) fn disk_version(&self, name: &str) -> Result<(InodeId, DiskRecord, Version)> {
        check_name(name)?;
        let found = self.store.find(self.names, name).and_then(|directory| {
            let (record, version) = self.store.fetch_version(directory, DISK)?;
            Ok((directory, DiskRecord::unseal(&record)?, version))
        });
        match found {
            Err(Error::NotFound | Error::Stale) => {
                let known: Vec<String> = self.store.list(self.names)?.into_iter().take(20).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                Err(Error::invalid(format!("there is no vDisk {name}; there are: {known}")))
            }
            found => found,
        }
    }

    pub(crate) fn snapshot(&self, directory: InodeId, name: &str, snapshot: &str) -> Result<SnapshotRecord> {
        check_name(snapshot)?;
        let snapshots = self.store.find(directory, SNAPSHOTS)?;
        match self.store.fetch(snapshots, snapshot) {
            Err(Error::NotFound) => {
                let known = self.store.list(snapshots)?;
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                Err(Error::invalid(format!("vDisk {name} has no snapshot {snapshot}; it has: {known}")))
            }
            found => SnapshotRecord::unseal(&found?),
        }
    }

    /// All vDisks.
    ///
    /// # Errors
    /// Those of the store.
    pub fn list(&self) -> Result<Vec<DiskInfo>> {
        let mut all = Vec::new();
        for name in self.store.list(self.names)? {
            if let Some(info) = self.info_of(&name)? {
                all.push(info);
            }
        }
        Ok(all)
    }

    fn info_of(&self, name: &str) -> Result<Option<DiskInfo>> {
        let found = self.store.find(self.names, name).and_then(|directory| {
            let record = DiskRecord::unseal(&self.store.fetch(directory, DISK)?)?;
            let holder = holder_of(&*self.store, directory)?;
            Ok(DiskInfo { name: name.into(), record, holder })
        });
        match found {
            // It is being made or removed.
            Err(Error::NotFound | Error::Stale) => Ok(None),
            found => found.map(Some),
        }
    }

    /// One vDisk.
    ///
    /// # Errors
    /// As [`Catalogue::disk`].
    pub fn info(&self, name: &str) -> Result<DiskInfo> {
        let (directory, record) = self.disk(name)?;
        Ok(DiskInfo { name: name.into(), record, holder: holder_of(&*self.store, directory)? })
    }

    /// The snapshots of a vDisk by name, the oldest first.
    ///
    /// # Errors
    /// As [`Catalogue::disk`].
    pub fn snapshots(&self, name: &str) -> Result<Vec<(String, SnapshotRecord)>> {
        let (directory, _) = self.disk(name)?;
        let mut all = self.snapshots_in(directory)?;
        all.sort_by_key(|(name, record)| (record.created, name.clone()));
        Ok(all)
    }

    fn snapshots_in(&self, directory: InodeId) -> Result<Vec<(String, SnapshotRecord)>> {
        let snapshots = match self.store.find(directory, SNAPSHOTS) {
            Err(Error::NotFound) => return Ok(Vec::new()),
            found => found?,
        };
        let mut all = Vec::new();
        for name in self.store.list(snapshots)? {
            match self.store.fetch(snapshots, &name) {
                Err(Error::NotFound) => {}
                found => all.push((name, SnapshotRecord::unseal(&found?)?)),
            }
        }
        Ok(all)
    }

    /// Makes an empty vDisk.
    ///
    /// # Errors
    /// `Invalid` for a name or a size that cannot be, and if there is one of this name.
    pub fn create(
        &self,
        name: &str,
        size: u64,
        durability: Durability,
        labels: Vec<(String, String)>,
    ) -> Result<DiskRecord> {
        check_size(size)?;
        self.make(name, None, size, durability, labels)
    }

    /// Makes a vDisk with the content of a snapshot, or of a template if `snapshot` is `None`. No byte is copied.
    ///
    /// # Errors
    /// `Invalid` if one of them does not exist, or `name` does.
    pub fn clone_disk(
        &self,
        source: &str,
        snapshot: Option<&str>,
        name: &str,
        labels: Vec<(String, String)>,
    ) -> Result<DiskRecord> {
        // The snapshot must not go before the clone leads to its layer.
        let _tree = making(&*self.store)?;
        let (directory, record) = self.disk(source)?;
        let (layer, size) = match snapshot {
            Some(snapshot) => {
                let found = self.snapshot(directory, source, snapshot)?;
                (found.layer, found.size)
            }
            None if record.kind == DiskKind::Template => (record.head, record.size),
            None => {
                return Err(Error::invalid(format!(
                    "a clone is made of a snapshot or a template: hekate vdisk snapshot VOLUME {source} NAME, then clone \
                     {source}@NAME"
                )));
            }
        };
        self.make(name, Some(layer), size, record.durability, labels)
    }

    fn make(
        &self,
        name: &str,
        parent: Option<LayerId>,
        size: u64,
        durability: Durability,
        labels: Vec<(String, String)>,
    ) -> Result<DiskRecord> {
        check_name(name)?;
        let store = &*self.store;
        let _tree = making(store)?;
        let directory = made_or_found(store, self.names, name)?;
        let exists = || Error::invalid(format!("there is a vDisk {name} already"));
        match store.find(directory, DISK) {
            Err(Error::NotFound) => {}
            found => return found.and(Err(exists())),
        }
        make_files(store, directory)?;
        made_or_found(store, directory, SNAPSHOTS)?;
        made_or_found(store, directory, ORDERS)?;
        let (layer, _) = Layer::make(store, parent, self.segment_blocks)?;
        let record = DiskRecord {
            id: DiskId(u128::from(store.random()?) << 64 | u128::from(store.random()?)),
            size,
            head: layer.id,
            kind: DiskKind::Disk,
            durability,
            health: Health::Good,
            created: store.time(),
            labels,
        };
        match store.put(directory, DISK, record.seal(), Condition::Absent) {
            Err(Error::ConditionFailed) => Err(exists()),
            put => put.map(|_| record),
        }
    }

    /// Gives a vDisk another name. It may be open.
    ///
    /// # Errors
    /// `Invalid` if it does not exist, or the new name does.
    pub fn rename(&self, name: &str, to: &str) -> Result<()> {
        self.disk(name)?;
        check_name(to)?;
        match self.store.rename(self.names, name, to) {
            Err(Error::Exists | Error::NotEmpty) => Err(Error::invalid(format!("there is a vDisk {to} already"))),
            renamed => renamed,
        }
    }

    /// Deletes a vDisk with its snapshots. Clones of them keep what they need. [`Catalogue::collect`] frees the rest.
    ///
    /// # Errors
    /// `Invalid` if it does not exist; `Unavailable` while it is open.
    pub fn delete(&self, name: &str, who: &str) -> Result<()> {
        let (directory, _) = self.disk(name)?;
        let _hold = take_token(&*self.store, directory, name, who)?;
        absent_is_fine(self.store.remove(directory, DISK))?;
        self.remove_files(name, directory)
    }

    /// Removes what a vDisk without a record has left.
    fn remove_files(&self, name: &str, directory: InodeId) -> Result<()> {
        let store = &*self.store;
        for part in [SNAPSHOTS, ORDERS] {
            match store.find(directory, part) {
                Err(Error::NotFound) => continue,
                found => {
                    let found = found?;
                    for file in store.list(found)? {
                        absent_is_fine(store.remove(found, &file))?;
                    }
                }
            }
            absent_is_fine(store.remove_directory(directory, part))?;
        }
        absent_is_fine(store.remove(directory, OWNER))?;
        absent_is_fine(store.remove_directory(self.names, name))
    }

    /// Deletes a snapshot. Clones of it keep what they need.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn delete_snapshot(&self, name: &str, snapshot: &str) -> Result<()> {
        let (directory, _) = self.disk(name)?;
        self.snapshot(directory, name, snapshot)?;
        let snapshots = self.store.find(directory, SNAPSHOTS)?;
        absent_is_fine(self.store.remove(snapshots, snapshot))
    }

    /// Removes layers that no vDisk and no snapshot leads to, and what interrupted calls have left. Returns their number.
    ///
    /// # Errors
    /// `Unavailable` while others make layers for long.
    pub fn collect(&self) -> Result<u64> {
        let _tree = locked(&*self.store, false)?;
        let tree = self.tree()?;
        let used = tree.used();
        let mut removed = 0;
        for (id, _) in Layer::all(&*self.store)? {
            if !used.contains(&id) {
                Layer::remove(&*self.store, id)?;
                removed += 1;
            }
        }
        for name in self.store.list(self.names)? {
            let directory = self.store.find(self.names, &name)?;
            if matches!(self.store.find(directory, DISK), Err(Error::NotFound)) {
                self.remove_files(&name, directory)?;
            }
        }
        Ok(removed)
    }

    /// The layer below `layer`, if nothing else leads to it.
    ///
    /// # Errors
    /// As [`Catalogue::collect`].
    pub(crate) fn merges_into(&self, layer: LayerId) -> Result<Option<LayerId>> {
        // Nobody makes a layer or a snapshot meanwhile. Afterwards nobody can: without a snapshot it has no name.
        let _tree = locked(&*self.store, false)?;
        let tree = self.tree()?;
        let parent = tree.layers.get(&layer).and_then(|layer| layer.parent);
        let is_lonely = |parent: &LayerId| {
            let children = tree.layers.values().filter(|layer| layer.parent == Some(*parent)).count();
            children == 1 && !tree.roots.values().flatten().any(|root| root == parent)
        };
        Ok(parent.filter(is_lonely))
    }

    /// What leads to which layers.
    pub(crate) fn tree(&self) -> Result<Tree> {
        let mut tree = Tree::default();
        for name in self.store.list(self.names)? {
            let directory = match self.store.find(self.names, &name) {
                Err(Error::NotFound) => continue,
                found => found?,
            };
            let record = match self.store.fetch(directory, DISK) {
                Err(Error::NotFound) => continue,
                found => DiskRecord::unseal(&found?)?,
            };
            let mut layers = vec![record.head];
            layers.extend(self.snapshots_in(directory)?.into_iter().map(|(_, snapshot)| snapshot.layer));
            tree.roots.insert(name, layers);
        }
        for (id, directory) in Layer::all(&*self.store)? {
            match Layer::state_in(&*self.store, directory) {
                // It is being made or removed.
                Err(Error::NotFound | Error::Stale) => {}
                state => {
                    let state = state?;
                    let segments =
                        state.segments.len() as u64 * u64::from(state.segment_blocks) * crate::format::BLOCK_BYTES;
                    let live = state.segments.iter().map(|segment| u64::from(segment.live)).sum::<u64>();
                    let bytes = segments + crate::layer::count_pages(&state.pages) * crate::format::BLOCK_BYTES;
                    let live = live * crate::format::BLOCK_BYTES;
                    tree.layers.insert(id, TreeLayer { parent: state.parent, bytes, live });
                }
            }
        }
        Ok(tree)
    }

    /// Space of a vDisk and its snapshots, as of the last checkpoints.
    ///
    /// # Errors
    /// As [`Catalogue::disk`].
    pub fn usage(&self, name: &str) -> Result<Usage> {
        let (_, record) = self.disk(name)?;
        let tree = self.tree()?;
        let own = tree.below(tree.roots.get(name).into_iter().flatten());
        let others = tree.below(tree.roots.iter().filter(|(other, _)| *other != name).flat_map(|(_, layers)| layers));
        let mut usage = Usage { depth: tree.below([&record.head].into_iter()).len() as u64 - 1, ..Usage::default() };
        for id in own {
            let Some(layer) = tree.layers.get(&id) else { continue };
            usage.referenced += layer.live;
            if others.contains(&id) {
                usage.shared += layer.bytes;
            } else {
                usage.own += layer.bytes;
            }
        }
        Ok(usage)
    }
}

/// Layers, and what leads to them.
#[derive(Default)]
pub(crate) struct Tree {
    /// The layers of each vDisk and its snapshots.
    pub roots: BTreeMap<String, Vec<LayerId>>,
    pub layers: BTreeMap<LayerId, TreeLayer>,
}

pub(crate) struct TreeLayer {
    pub parent: Option<LayerId>,
    pub bytes: u64,
    pub live: u64,
}

impl Tree {
    /// These layers and all below them.
    fn below<'a>(&self, roots: impl Iterator<Item = &'a LayerId>) -> BTreeSet<LayerId> {
        let mut all = BTreeSet::new();
        for root in roots {
            let mut next = Some(*root);
            while let Some(id) = next.filter(|id| all.insert(*id)) {
                next = self.layers.get(&id).and_then(|layer| layer.parent);
            }
        }
        all
    }

    pub fn used(&self) -> BTreeSet<LayerId> {
        self.below(self.roots.values().flatten())
    }
}

/// The lock that keeps layers which nothing leads to yet.
pub(crate) fn making(store: &dyn Store) -> Result<Hold> {
    locked(store, true)
}

fn locked(store: &dyn Store, shared: bool) -> Result<Hold> {
    let file = store.find(store.root(), TREE_LOCK)?;
    for _ in 0..LOCK_TRIES {
        if let Some(hold) = store.lock(file, shared)? {
            return Ok(hold);
        }
        hekate_threads::sleep(LOCK_PAUSE);
    }
    Err(Error::Unavailable { what: "layers of vDisks are being removed, or made, for long; try again".into() })
}

fn made_or_found(store: &dyn Store, directory: InodeId, name: &str) -> Result<InodeId> {
    match store.make_directory(directory, name) {
        Err(Error::Exists) => store.find(directory, name),
        made => made,
    }
}

/// Checks the name of a vDisk or a snapshot.
///
/// # Errors
/// `Invalid`, with what a name may be.
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > NAME_MAX || name.starts_with(['.', '-']) || !name.bytes().all(is_plain) {
        return Err(Error::invalid(format!(
            "{name:?} cannot be a name: it has 1 to {NAME_MAX} letters, digits and -_. and begins with none of - and ."
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["a", "vm-1.root", "9", "A_b"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "-f", "a/b", "a@b", "a b", "ü", &"x".repeat(101)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
