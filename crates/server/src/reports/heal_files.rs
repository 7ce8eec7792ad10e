//! Files of which a replica lacks changes, because it is absent or being healed: what the leader's journal has of the
//! time since the replica left its view. The journal also has the names of files that were made since; `names.rs` looks
//! for the others.
//!
//! The time at which a replica left its view is in memory only. If it is unknown, or the journal does not reach back to
//! it, the list is marked as incomplete: such a replica is compared from its beginning.

mod names;

pub use names::names_here;

use crate::control::ask_server;
use crate::hosting::node::Node;
use hekate_control::healing::{FileName, MissingFile, MissingFiles};
use hekate_control::peer::{FileShare, Journaled, MissingHere, ReplicaLack};
use hekate_proto::*;
use hekate_replica::Healing;
use std::collections::{BTreeMap, BTreeSet};

/// Files that one answer lists.
const FILES_MAX: usize = 10_000;

/// A replica that lacks records of a partition which is led here.
struct Lacking {
    brick: BrickId,
    /// The epoch of the first view without the replica; `None` if it left before this server started.
    since: Option<Epoch>,
    healing: Option<Healing>,
    /// The journal has all that the replica lacks.
    is_complete: bool,
    entries: BTreeMap<Key, u64>,
    blocks: BTreeMap<ShardId, BTreeSet<u32>>,
}

impl Lacking {
    fn wants(&self, record: &Record) -> bool {
        let is_since = self.since.is_none_or(|since| record.epoch >= since);
        let has = |healing: &Healing| healing.whole || healing.from.is_none() && record.sequence <= healing.held;
        is_since && !self.healing.as_ref().is_some_and(has)
    }

    /// True if healing has not reached the key yet.
    fn is_behind(&self, key: &Key) -> bool {
        self.healing.as_ref().and_then(|healing| healing.from.as_ref()).is_none_or(|from| key >= from)
    }

    fn take(&mut self, ring: RingId, change: &Change) {
        match change {
            Change::Put { key, .. } | Change::Delete { key } if self.is_behind(key) => {
                let bytes = if let Change::Put { value, .. } = change { value.len() } else { 0 };
                self.entries.insert(key.clone(), (key.as_bytes().len() + bytes) as u64);
            }
            Change::WriteBlocks { shard, run, .. } | Change::FreshBlocks { shard, run, .. } => {
                if self.is_behind(&Key::shard(ring, *shard)) {
                    self.blocks.entry(*shard).or_default().extend((run.first..).take(run.checksums.len()));
                }
            }
            of_shard => {
                if let Some(shard) = of_shard.shard().filter(|shard| self.is_behind(&Key::shard(ring, *shard))) {
                    self.blocks.entry(shard).or_default();
                }
            }
        }
    }

    /// What is missing, by file.
    fn files(self) -> impl Iterator<Item = ReplicaLack> {
        // Bytes by volume and inode, and blocks by volume and data id.
        let (mut inodes, mut contents) = (BTreeMap::new(), BTreeMap::new());
        for (key, bytes) in self.entries {
            let (Some(place), Some(id), Some(kind)) = (key.prefix(), key.id(), key.kind()) else { continue };
            if matches!(kind, Kind::Inode | Kind::Content | Kind::Xattr | Kind::Stub | Kind::Name) {
                *inodes.entry((place.volume.0, id)).or_insert(0) += bytes;
            }
        }
        for (shard, blocks) in self.blocks {
            *contents.entry((shard.volume.0, shard.data.0)).or_insert(0) += blocks.len() as u64;
        }
        let brick = self.brick;
        let of_inode = move |((volume, id), bytes)| ReplicaLack {
            inode: Some(hex(id)),
            bytes,
            brick,
            volume,
            ..ReplicaLack::default()
        };
        let of_content = move |((volume, id), blocks): ((u32, u128), u64)| ReplicaLack {
            data: Some(hex(id)),
            blocks,
            bytes: blocks * BLOCK_BYTES as u64,
            brick,
            volume,
            ..ReplicaLack::default()
        };
        inodes.into_iter().map(of_inode).chain(contents.into_iter().map(of_content))
    }
}

fn hex(id: u128) -> String {
    format!("{id:032x}")
}

/// Learns from a change which inode has which data ids, and which name leads to which inode.
fn learn(share: &mut FileShare, change: &Change) {
    let Change::Put { key, value } = change else { return };
    let Some(id) = key.id().map(hex) else { return };
    match key.kind() {
        Some(Kind::Inode) => {
            let Ok(record) = InodeRecord::from_bytes(value.clone()) else { return };
            if record.kind == NodeKind::Directory {
                share.parents.insert(id.clone(), hex(record.parent.bits()));
            }
            share.owners.extend(record.layout.pieces.iter().map(|piece| (hex(piece.data.0), id.clone())));
        }
        Some(Kind::Name) => {
            let Ok(record) = NameRecord::from_bytes(value.clone()) else { return };
            let name = String::from_utf8_lossy(&key.rest()).into_owned();
            share.names.insert(hex(record.inode.bits()), (id, name));
        }
        _ => {}
    }
}

/// What replicas lack of the partitions that are led here, according to this server's journals.
///
/// # Errors
///
/// `Io` or `Damaged` if a journal cannot be read; those of the coordinator.
pub fn missing_here(node: &Node) -> Result<Journaled> {
    let mut share = FileShare::default();
    for brick in node.bricks.values() {
        let mut lacking = lacking_of(node, brick.id())?;
        if lacking.is_empty() {
            continue;
        }
        let mut seen: BTreeSet<(RingId, PartitionNumber)> = BTreeSet::new();
        brick.journaled(&mut |record| {
            let at = (record.ring, record.partition);
            let Some(all) = lacking.get_mut(&at) else { return };
            let is_first = seen.insert(at);
            for one in all {
                // The journal has an older record as well, so it has everything since.
                one.is_complete |=
                    one.since.is_some_and(|since| record.epoch < since) || is_first && record.sequence == Sequence(1);
                if one.wants(&record) {
                    record.changes.iter().for_each(|change| one.take(record.ring, change));
                }
            }
            record.changes.iter().for_each(|change| learn(&mut share, change));
        })?;
        for one in lacking.into_values().flatten() {
            if !one.is_complete && !one.healing.as_ref().is_some_and(|healing| healing.whole) {
                share.incomplete.insert(one.brick.text());
            }
            share.lacked.extend(one.files());
        }
    }
    Ok(Journaled { share })
}

/// The replicas that lack records of the partitions that a brick leads.
fn lacking_of(node: &Node, leader: BrickId) -> Result<BTreeMap<(RingId, PartitionNumber), Vec<Lacking>>> {
    let progress = node.maintenance.heal_progress();
    let mut found = BTreeMap::new();
    for info in node.cluster.registry().rings()? {
        let Ok(ring) = node.ring(info.ring) else { continue };
        for address in ring.leaders().into_iter().filter(|address| address.brick == leader) {
            let (partition, view) = (address.partition, ring.view(address.partition)?);
            let healing = ring.replica(address).map(|hosted| hosted.partition.read().healing()).unwrap_or_default();
            let placed = info.placed(partition).into_iter().filter(|brick| !view.has_member(*brick));
            let lacking = placed.map(|brick| Lacking {
                brick,
                since: progress.left_in((info.ring, partition, brick)),
                healing: healing.iter().find(|one| one.brick == brick).cloned(),
                is_complete: false,
                entries: BTreeMap::new(),
                blocks: BTreeMap::new(),
            });
            let lacking: Vec<Lacking> = lacking.collect();
            if !lacking.is_empty() {
                found.insert((info.ring, partition), lacking);
            }
        }
    }
    Ok(found)
}

/// The files of which replicas lack changes, as all servers that answer say.
///
/// # Errors
///
/// Those of the coordinator.
pub fn missing(node: &Node) -> Result<MissingFiles> {
    let mut all = FileShare::default();
    for info in node.cluster.registry().servers()? {
        let said = match info.server == node.cluster.server() {
            true => missing_here(node).map_err(|error| error.to_string()),
            false => ask_server(node, &info, MissingHere {}),
        };
        // A server that does not answer leads no partition.
        let Ok(Journaled { share }) = said else { continue };
        all.lacked.extend(share.lacked);
        all.incomplete.extend(share.incomplete);
        all.owners.extend(share.owners);
        all.names.extend(share.names);
        all.parents.extend(share.parents);
    }
    let mut files: BTreeMap<(BrickId, u32, bool, String), (u64, u64)> = BTreeMap::new();
    for one in std::mem::take(&mut all.lacked) {
        let owner = one.data.as_ref().and_then(|data| all.owners.get(data).cloned());
        let (is_inode, id) = match (one.inode.or(owner), one.data) {
            (Some(inode), _) => (true, inode),
            (None, data) => (false, data.unwrap_or_default()),
        };
        let (blocks, bytes) = files.entry((one.brick, one.volume, is_inode, id)).or_default();
        (*blocks, *bytes) = (*blocks + one.blocks, *bytes + one.bytes);
    }
    let total: u64 = files.values().map(|(_, bytes)| bytes).sum();
    let count = files.len();
    let mut paths = names::Paths::new(node, all.names, all.parents)?;
    let mut rows = Vec::new();
    for ((brick, volume, is_inode, id), (blocks, bytes)) in files.into_iter().take(FILES_MAX) {
        let file = match is_inode {
            true => FileName::Inode { path: paths.of(VolumeId(volume), &id), inode: id },
            false => FileName::Data { data: id },
        };
        rows.push(MissingFile { brick, volume: paths.volume(volume), blocks, bytes, file });
    }
    Ok(MissingFiles { files: rows, files_in_all: count, bytes: total, incomplete: all.incomplete })
}
