//! One pass over all entries: the inodes and shards, and the inodes that have a name on this brick.

use super::report::{Finding, Report};
use super::{ProgressLine, Source};
use hekate_brick::inspect::{Contents, Entry};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};

#[derive(Default)]
pub struct Catalog {
    volumes: BTreeMap<VolumeId, Inodes>,
    shards: BTreeSet<(RingId, ShardId)>,
    /// Number of partitions of each ring, from the numbers of its inodes.
    partitions: BTreeMap<RingId, u32>,
}

/// A volume's inodes.
#[derive(Default)]
pub struct Inodes {
    /// The ring of most of its entries. There is only one unless the brick is damaged.
    pub ring: RingId,
    /// Inodes that are directories, or have names in them.
    pub directories: BTreeSet<InodeId>,
    /// All other inodes, without those whose names were removed.
    pub files: BTreeSet<InodeId>,
    /// Positions of directories' names other than the directory's own.
    pub shares: BTreeMap<InodeId, BTreeSet<Position>>,
    /// Inodes that have a name on this brick.
    pub named: HashSet<InodeId>,
}

/// Bits of a number below the tag `P | p` (docs/format/index.md, "Numbers").
const COUNTER_BITS: u32 = 40;

impl Catalog {
    /// Reads the brick.
    pub fn read(source: &Source, progress: &mut ProgressLine, report: &mut Report) -> Self {
        let mut catalog = Self { shards: source.contents.shards(), ..Self::default() };
        let mut seen = 0u64;
        let (from, to) = Contents::all_keys();
        let gone_through = source.contents.scan(&from, &to, &mut |key, value| {
            seen += 1;
            progress.tick(&format!("reading the index: {seen} entries"));
            let decoded = value.map_err(|error| error.to_string()).and_then(|value| {
                Entry::decode(key, value).map_err(|why| format!("the index entry {key:?} is malformed: {why}"))
            });
            match decoded {
                Ok((place, entry)) => catalog.take(place, &entry),
                Err(what) => {
                    catalog.take_damaged(key);
                    report.find(Finding::Damaged, None, &[], &what);
                }
            }
            true
        });
        if let Err(error) = gone_through {
            report.find(Finding::Damaged, None, &[], &format!("part of the index: {error}"));
        }
        let rings: Vec<(RingId, DataId)> = catalog.shards.iter().map(|(ring, shard)| (*ring, shard.data)).collect();
        rings.into_iter().for_each(|(ring, data)| catalog.learn_partitions(ring, data.0 as u64));
        catalog
    }

    fn take(&mut self, place: KeyPrefix, entry: &Entry) {
        let inodes = match entry {
            Entry::Inode { .. } | Entry::Name { .. } | Entry::Stub { .. } => {
                self.volumes.entry(place.volume).or_default()
            }
            _ => return,
        };
        inodes.ring = place.ring;
        if let Entry::Stub { directory, .. } | Entry::Name { directory, .. } = entry
            && directory.position() != place.position
        {
            inodes.shares.entry(*directory).or_default().insert(place.position);
        }
        match entry {
            Entry::Inode { inode, record } => {
                if record.kind == NodeKind::Directory {
                    inodes.directories.insert(*inode);
                } else if record.nlink > 0 {
                    inodes.files.insert(*inode);
                }
                self.learn_partitions(place.ring, inode.number());
            }
            Entry::Stub { directory, .. } => {
                inodes.directories.insert(*directory);
            }
            Entry::Name { directory, record, .. } => {
                inodes.directories.insert(*directory);
                inodes.named.insert(record.inode);
            }
            _ => {}
        }
    }

    /// Records the inode or directory of an entry whose value is damaged, by its key.
    fn take_damaged(&mut self, key: &Key) {
        let (Some(kind), Some(place), Some(id)) = (key.kind(), key.prefix(), key.id()) else { return };
        let inode = InodeId::from_bits(id);
        let Some(inodes) = self.volumes.get_mut(&place.volume) else { return };
        match kind {
            Kind::Stub | Kind::Name => {
                inodes.directories.insert(inode);
            }
            _ => {}
        }
    }

    fn learn_partitions(&mut self, ring: RingId, number: u64) {
        let tag = number >> COUNTER_BITS;
        let Some(bits) = tag.checked_ilog2().filter(|bits| *bits < 32) else { return };
        let count = self.partitions.entry(ring).or_insert(1);
        *count = (*count).max(1 << bits);
    }

    /// All volumes that have entries on this brick.
    pub fn volumes(&self) -> Vec<VolumeId> {
        self.volumes.keys().copied().collect()
    }

    pub fn inodes_of(&self, volume: VolumeId) -> Option<&Inodes> {
        self.volumes.get(&volume)
    }

    /// Number of partitions of a ring, if it is known.
    pub fn partitions_of(&self, ring: RingId) -> Option<u32> {
        self.partitions.get(&ring).copied()
    }

    /// The indexes of a data id's shards on this brick.
    pub fn shards_of(&self, ring: RingId, volume: VolumeId, data: DataId) -> Vec<u64> {
        let at = |index| (ring, ShardId { volume, data, index });
        self.shards.range(at(0)..=at(u64::MAX)).map(|(_, shard)| shard.index).collect()
    }
}
