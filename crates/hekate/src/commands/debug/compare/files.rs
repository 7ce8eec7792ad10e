//! The path of the file to which a key belongs, found in the names and layouts on the bricks.

use super::{Compared, tick};
use crate::commands::brick::lines::ProgressLine;
use hekate_brick::inspect::Contents;
use hekate_proto::*;
use std::collections::HashMap;
use std::sync::Mutex;

/// Most directories above a file. Deeper ones are a loop, which only damage makes.
const DEPTH_MAX: usize = 256;
/// Most partitions that share a directory's names. A larger number is damage.
const SPREAD_MAX: u32 = 4096;

/// Finds the path of each key that differs and belongs to a file.
pub fn find(contents: &[Contents], compared: &mut [Compared], progress: &Mutex<ProgressLine>) {
    let mut files = Files { contents, progress, owners: HashMap::new(), names: HashMap::new() };
    let keys: Vec<Key> = compared.iter().flat_map(|one| &one.differ).map(|differs| differs.key.clone()).collect();
    files.learn_owners(&keys);
    files.learn_names(&keys);
    for differs in compared.iter_mut().flat_map(|one| &mut one.differ) {
        differs.path = files.path_of(&differs.key);
    }
}

/// An inode of a volume.
type Owner = (VolumeId, InodeId);

struct Files<'a> {
    contents: &'a [Contents],
    progress: &'a Mutex<ProgressLine>,
    /// The inode of each wanted data id.
    owners: HashMap<(VolumeId, DataId), Option<InodeId>>,
    /// A name of each wanted inode.
    names: HashMap<Owner, Option<(InodeId, Vec<u8>)>>,
}

impl Files<'_> {
    /// Visits all entries of one kind on all bricks.
    fn scan<T: Wire>(&self, kind: Kind, visit: &mut dyn FnMut(KeyPrefix, &Key, T)) {
        let (from, to) = Contents::all_keys();
        for contents in self.contents {
            // The digests have found the same errors.
            let _ = contents.scan(&from, &to, &mut |key, value| {
                tick(self.progress, || "looking for the files that differ".into());
                let wanted = key.prefix().filter(|_| key.kind() == Some(kind));
                if let (Some(place), Ok(value)) = (wanted, value)
                    && let Ok(record) = T::from_bytes(value)
                {
                    visit(place, key, record);
                }
                true
            });
        }
    }

    fn learn_owners(&mut self, keys: &[Key]) {
        let data_of = |key: &Key| key.as_shard().map(|shard| ((shard.volume, shard.data), None));
        let mut owners: HashMap<_, _> = keys.iter().filter_map(data_of).collect();
        if owners.is_empty() {
            return;
        }
        self.scan(Kind::Inode, &mut |place, key, record: InodeRecord| {
            for piece in record.layout.pieces {
                if let Some(owner) = owners.get_mut(&(place.volume, piece.data)) {
                    *owner = key.id().map(InodeId::from_bits);
                }
            }
        });
        self.owners = owners;
    }

    fn learn_names(&mut self, keys: &[Key]) {
        let wanted = keys.iter().filter_map(|key| self.inode_of(key)).map(|owner| (owner, None));
        let mut names: HashMap<Owner, Option<(InodeId, Vec<u8>)>> = wanted.collect();
        if names.is_empty() {
            return;
        }
        self.scan(Kind::Name, &mut |place, key, record: NameRecord| {
            if let Some(name) = names.get_mut(&(place.volume, record.inode)) {
                *name = key.id().map(|directory| (InodeId::from_bits(directory), key.rest().to_vec()));
            }
        });
        self.names = names;
    }

    /// The inode to which a key belongs; for a name, its directory.
    fn inode_of(&self, key: &Key) -> Option<Owner> {
        let place = key.prefix()?;
        match key.kind()? {
            Kind::Shard => {
                let owner = self.owners.get(&(place.volume, key.as_shard()?.data))?;
                owner.map(|inode| (place.volume, inode))
            }
            Kind::Inode | Kind::Content | Kind::Xattr | Kind::Stub | Kind::Name => {
                Some((place.volume, InodeId::from_bits(key.id()?)))
            }
            _ => None,
        }
    }

    fn path_of(&self, key: &Key) -> Option<String> {
        let (volume, inode) = self.inode_of(key)?;
        let ring = key.prefix()?.ring;
        let mut path = if key.kind() == Some(Kind::Name) { vec![key.rest().to_vec()] } else { Vec::new() };
        let mut at = inode;
        for _ in 0..DEPTH_MAX {
            if at == ROOT || at == SYSTEM {
                path.reverse();
                let text: Vec<String> = path.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
                let top = if at == SYSTEM { SYSTEM_PATH } else { "" };
                return Some(format!("{top}/{}", text.join("/")));
            }
            let (directory, name) = match self.names.get(&(volume, at)) {
                Some(found) => found.clone()?,
                None => self.name_of_directory(ring, volume, at)?,
            };
            path.push(name);
            at = directory;
        }
        None
    }

    /// Searches the names of its parent.
    fn name_of_directory(&self, ring: RingId, volume: VolumeId, id: InodeId) -> Option<(InodeId, Vec<u8>)> {
        let parent = self.record(ring, volume, id)?.parent;
        let spread = self.record(ring, volume, parent).map_or(1, |record| record.spread).min(SPREAD_MAX);
        let places = name_positions(parent, spread).map(|position| KeyPrefix { ring, position, volume });
        let mut name = None;
        for all in places.map(|place| Key::name(place, parent, b"")) {
            for contents in self.contents {
                let _ = contents.scan(&all, &all.prefix_end(), &mut |key, value| {
                    let record = value.ok().and_then(|value| NameRecord::from_bytes(value).ok());
                    if record.is_some_and(|record| record.inode == id) {
                        name = Some(key.rest().to_vec());
                    }
                    name.is_none()
                });
            }
        }
        Some((parent, name?))
    }

    fn record(&self, ring: RingId, volume: VolumeId, id: InodeId) -> Option<InodeRecord> {
        let value = |contents: &Contents| contents.get(&Key::inode(ring, volume, id, Kind::Inode)).ok().flatten();
        InodeRecord::from_bytes(self.contents.iter().find_map(value)?).ok()
    }
}
