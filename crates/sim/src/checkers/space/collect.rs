//! Decodes a ring's entries and sorts them by kind.

use super::RingEntries;
use crate::checkers::Complaint;
use bytes::Bytes;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// The entries of a volume on a ring.
#[derive(Debug, Default)]
pub struct Found {
    pub inodes: BTreeMap<InodeId, InodeRecord>,
    /// By directory and the stub's position.
    pub stubs: BTreeMap<(InodeId, Position), StubRecord>,
    /// By directory, the name's position, and name.
    pub names: BTreeMap<(InodeId, Position, Name), NameRecord>,
    pub orphans: BTreeSet<InodeId>,
    pub garbage: BTreeSet<DataId>,
    pub shards: BTreeSet<ShardId>,
    /// Shards that have checksums.
    pub with_checksums: BTreeSet<ShardId>,
    /// Inodes with bytes beside them.
    pub contents: BTreeSet<InodeId>,
    /// Inodes with extended attributes.
    pub with_xattrs: BTreeSet<InodeId>,
}

/// The entries of each volume; and complaints about entries that cannot be decoded, are stored in the wrong place, or
/// should have been removed.
pub fn collect(ring: &RingEntries) -> (BTreeMap<VolumeId, Found>, Vec<Complaint>) {
    let mut volumes: BTreeMap<VolumeId, Found> = BTreeMap::new();
    let mut complaints = Vec::new();
    for (partition, key, value) in &ring.entries {
        let about = || format!("ring {} partition {partition}, entry {key:?}", ring.ring);
        let place = match place(ring, *partition, key) {
            Ok(place) => place,
            Err(what) => {
                complaints.push(Complaint::new(about(), what));
                continue;
            }
        };
        let put = put(&mut volumes, place, key, value.clone());
        complaints.extend(put.err().map(|what| Complaint::new(about(), what)));
    }
    (volumes, complaints)
}

fn place(ring: &RingEntries, partition: PartitionNumber, key: &Key) -> std::result::Result<KeyPrefix, String> {
    let place = key.prefix().filter(|_| key.is_well_formed()).ok_or("these bytes are not a key")?;
    let owner = place.position.partition(ring.count);
    if place.ring != ring.ring || owner != partition {
        return Err(format!("it belongs to ring {} partition {owner}", place.ring));
    }
    Ok(place)
}

fn put(
    volumes: &mut BTreeMap<VolumeId, Found>,
    place: KeyPrefix,
    key: &Key,
    value: Bytes,
) -> std::result::Result<(), String> {
    let unreadable = |malformed: Malformed| format!("its value cannot be read: {}", malformed.0);
    let (Some(kind), Some(id)) = (key.kind(), key.id()) else { return Err("these bytes are not a key".into()) };
    let inode = InodeId::from_bits(id);
    // Entries of the partition itself have volume 0.
    match kind {
        Kind::Partition => return PartitionRecord::from_bytes(value).map(drop).map_err(unreadable),
        Kind::Session => return SessionRecord::from_bytes(value).map(drop).map_err(unreadable),
        Kind::PassedOn => return MappedSince::from_bytes(value).map(drop).map_err(unreadable),
        Kind::Intent => {
            let what = IntentRecord::from_bytes(value).map_err(unreadable)?.what;
            return Err(format!("an intent is left: {what} was neither finished nor undone"));
        }
        Kind::LegDone => return Err("the mark of a leg is left".into()),
        Kind::Hold => return Err("a hold is left".into()),
        Kind::Loose => return Err("the marker of fast writes that may be lost is left".into()),
        _ => {}
    }
    let found = volumes.entry(place.volume).or_default();
    match kind {
        Kind::Inode => drop(found.inodes.insert(inode, InodeRecord::from_bytes(value).map_err(unreadable)?)),
        Kind::Stub => {
            let stub = StubRecord::from_bytes(value).map_err(unreadable)?;
            found.stubs.insert((inode, place.position), stub);
        }
        Kind::Name => {
            let name = Name::new(key.rest()).map_err(unreadable)?;
            let record = NameRecord::from_bytes(value).map_err(unreadable)?;
            found.names.insert((inode, place.position, name), record);
        }
        Kind::Shard => {
            ShardRecord::from_bytes(value).map_err(unreadable)?;
            found.shards.extend(key.as_shard());
        }
        Kind::Checksums => found.with_checksums.extend(shard_of_checksums(place.volume, id, key)),
        Kind::Garbage => {
            GarbageRecord::from_bytes(value).map_err(unreadable)?;
            found.garbage.insert(DataId(id));
        }
        Kind::Content => drop(found.contents.insert(inode)),
        Kind::Xattr => drop(found.with_xattrs.insert(inode)),
        Kind::Orphan => drop(found.orphans.insert(inode)),
        Kind::Partition
        | Kind::Session
        | Kind::Intent
        | Kind::LegDone
        | Kind::Hold
        | Kind::Writing
        | Kind::Loose
        | Kind::PassedOn
        | Kind::Heal
        | Kind::Unsettled => {}
    }
    Ok(())
}

fn shard_of_checksums(volume: VolumeId, data: u128, key: &Key) -> Option<ShardId> {
    let index = key.rest().get(..8)?.try_into().ok()?;
    Some(ShardId { volume, data: DataId(data), index: u64::from_be_bytes(index) })
}
