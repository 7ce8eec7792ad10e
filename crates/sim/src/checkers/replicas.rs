//! Replicas: all copies of a partition hold the same entries, and of each shard the same stamp and bytes (contract,
//! sections 3 and 6). Equal stamps mean equal bytes, so of two shards with one stamp the bytes are compared too.

use crate::checkers::Complaint;
use bytes::Bytes;
use hekate_proto::{Key, PartitionNumber, RingId, ShardId, Stamp};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// A brick's copy of a partition.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    /// The brick's name in complaints.
    pub brick: String,
    /// Its entries, as stored.
    pub entries: BTreeMap<Key, Bytes>,
    /// Each shard as a read returns it: the stamp of its last write, and its bytes.
    pub shards: BTreeMap<ShardId, (Stamp, Bytes)>,
}

/// All copies of one partition.
#[derive(Debug, Clone)]
pub struct Copies {
    /// Its ring.
    pub ring: RingId,
    /// Its number.
    pub partition: PartitionNumber,
    /// The members of its view.
    pub replicas: Vec<Replica>,
}

/// Compares each replica with the first; at most one complaint for each, the first difference.
pub fn check(partitions: &[Copies]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for Copies { ring, partition, replicas } in partitions {
        let Some((first, others)) = replicas.split_first() else { continue };
        for other in others {
            let difference = entries(first, other).or_else(|| shards(first, other));
            let about = || format!("ring {ring} partition {partition}, bricks {} and {}", first.brick, other.brick);
            complaints.extend(difference.map(|what| Complaint::new(about(), what)));
        }
    }
    complaints
}

fn entries(one: &Replica, other: &Replica) -> Option<String> {
    let (key, ours, theirs) = first_difference(&one.entries, &other.entries)?;
    Some(match (ours, theirs) {
        (Some(ours), Some(theirs)) => {
            format!("entry {key:?} differs: {}", difference(ours, theirs))
        }
        (ours, _) => only(one, other, ours.is_some(), &format!("entry {key:?}")),
    })
}

fn shards(one: &Replica, other: &Replica) -> Option<String> {
    let (shard, ours, theirs) = first_difference(&one.shards, &other.shards)?;
    Some(match (ours, theirs) {
        (Some((ours, _)), Some((theirs, _))) if ours != theirs => {
            format!("{shard:?} was written last by {ours:?} here and by {theirs:?} there")
        }
        (Some((stamp, ours)), Some((_, theirs))) => {
            format!("{shard:?} has the stamp {stamp:?} on both, but its bytes differ: {}", difference(ours, theirs))
        }
        (ours, _) => only(one, other, ours.is_some(), &format!("{shard:?}")),
    })
}

fn only(one: &Replica, other: &Replica, is_ours: bool, what: &str) -> String {
    let (has, lacks) = if is_ours { (one, other) } else { (other, one) };
    format!("{what} is on {} and not on {}", has.brick, lacks.brick)
}

/// The first key whose values differ, with both values.
fn first_difference<'a, K: Ord + Debug, V: PartialEq>(
    one: &'a BTreeMap<K, V>,
    other: &'a BTreeMap<K, V>,
) -> Option<(&'a K, Option<&'a V>, Option<&'a V>)> {
    let ours = one.iter().find(|(key, value)| other.get(key) != Some(value)).map(|(key, _)| key);
    let theirs = other.keys().find(|key| !one.contains_key(key));
    let key = ours.into_iter().chain(theirs).min()?;
    Some((key, one.get(key), other.get(key)))
}

fn difference(ours: &[u8], theirs: &[u8]) -> String {
    let at = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs);
    match at {
        Some(at) => format!("byte {at} is {:#04x} here and {:#04x} there", ours[at], theirs[at]),
        None => format!("{} bytes here and {} there", ours.len(), theirs.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::{DataId, InodeId, Kind, OpId, SessionId, VolumeId};

    const SHARD: ShardId = ShardId { volume: VolumeId(1), data: DataId(7), index: 0 };

    fn key(number: u64) -> Key {
        Key::inode(RingId(1), VolumeId(1), InodeId::new(0, 0, number), Kind::Inode)
    }

    fn copies(change: impl Fn(&mut Replica)) -> Vec<Copies> {
        let stamp = Stamp { count: 3, session: SessionId(1), op: OpId(9) };
        let replica = |brick: &str| Replica {
            brick: brick.into(),
            entries: BTreeMap::from([(key(1), Bytes::from_static(b"one")), (key(2), Bytes::from_static(b"two"))]),
            shards: BTreeMap::from([(SHARD, (stamp, Bytes::from_static(b"bytes")))]),
        };
        let (good, mut bad) = (replica("a"), replica("b"));
        change(&mut bad);
        vec![Copies { ring: RingId(1), partition: PartitionNumber(2), replicas: vec![good.clone(), good, bad] }]
    }

    fn complaint(change: impl Fn(&mut Replica)) -> String {
        let complaints = check(&copies(change));
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        complaints[0].to_string()
    }

    #[test]
    fn equal_replicas_are_fine() {
        assert_eq!(check(&copies(|_| {})), []);
    }

    #[test]
    fn the_first_entry_that_differs_is_named() {
        let why = complaint(|bad| drop(bad.entries.insert(key(2), Bytes::from_static(b"twa"))));
        assert!(why.contains("partition 2, bricks a and b") && why.contains("byte 2 is 0x6f here and 0x61"), "{why}");
        let why = complaint(|bad| drop(bad.entries.insert(key(2), Bytes::from_static(b"tw"))));
        assert!(why.contains("3 bytes here and 2 there"), "{why}");
    }

    #[test]
    fn an_entry_that_one_lacks_is_named() {
        assert!(complaint(|bad| drop(bad.entries.remove(&key(1)))).contains("is on a and not on b"));
        let extra = complaint(|bad| drop(bad.entries.insert(key(3), Bytes::new())));
        assert!(extra.contains("is on b and not on a"), "{extra}");
    }

    #[test]
    fn shards_have_equal_stamps_and_equal_bytes() {
        let why = complaint(|bad| bad.shards.values_mut().for_each(|(stamp, _)| stamp.count = 4));
        assert!(why.contains("written last by"), "{why}");
        let why = complaint(|bad| bad.shards.values_mut().for_each(|(_, bytes)| *bytes = Bytes::from_static(b"bites")));
        assert!(why.contains("on both, but its bytes differ: byte 1"), "{why}");
        assert!(complaint(|bad| bad.shards.clear()).contains("is on a and not on b"));
    }
}
