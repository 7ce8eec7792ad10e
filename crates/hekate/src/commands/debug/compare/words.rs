//! Differences between replicas, in words.

use super::{Difference, plan::Known};
use crate::commands::brick::words;
use hekate_brick::inspect::{BlockState, Held, HeldShard};
use hekate_proto::*;

/// Most characters of a replica's value that are shown.
const SHOWN_CHARS_MAX: usize = 1000;

/// The object of a key.
pub fn title(key: &Key, known: Option<&Known>) -> String {
    let (Some(kind), Some(place), Some(id)) = (key.kind(), key.prefix(), key.id()) else { return format!("{key:?}") };
    let (inode, rest) = (InodeId::from_bits(id), words::lossy(&key.rest()));
    let what = match kind {
        Kind::Inode => format!("inode {inode:?}"),
        Kind::Content => format!("content of {inode:?}"),
        Kind::Xattr => format!("attribute {rest:?} of {inode:?}"),
        Kind::Stub => format!("stub of directory {inode:?}"),
        Kind::Name => format!("name {rest:?} in {inode:?}"),
        Kind::Shard => {
            key.as_shard().map_or(format!("{key:?}"), |shard| format!("shard {} of {:?}", shard.index, shard.data))
        }
        Kind::Checksums => format!("checksums of {:?}", DataId(id)),
        Kind::Partition => "counters of the partition".into(),
        Kind::Intent => format!("intent {id:032x}"),
        Kind::LegDone => format!("a leg of intent {id:032x}"),
        Kind::Session => "a slot of a session".into(),
        Kind::Orphan => format!("orphan {inode:?}"),
        Kind::Writing => format!("{inode:?} is being written"),
        Kind::Loose => "the marker of fast writes that may not be on stable storage".into(),
        Kind::PassedOn => "a mapping right that a session has lost".into(),
        Kind::Garbage => format!("garbage {:?}", DataId(id)),
        Kind::Heal => "how far the replica has healed".into(),
        Kind::Unsettled => "fast writes that some member may lack".into(),
        Kind::Hold => format!("a rename's hold of {rest:?} in {inode:?}"),
    };
    if place.volume == VolumeId(0) {
        return what;
    }
    let name = known.and_then(|known| known.volumes.get(&place.volume));
    format!("{what} of volume {}{}", place.volume, name.map_or(String::new(), |name| format!(" ({name})")))
}

/// The value of each replica. None: the replica has none.
pub fn each(differs: &Difference) -> Vec<Option<String>> {
    let short: Vec<Option<String>> = differs.held.iter().map(|held| held.as_ref().map(one)).collect();
    let there: Vec<&String> = short.iter().flatten().collect();
    // If the short forms are equal, the full forms are shown.
    let same = there.len() > 1 && there.windows(2).all(|pair| pair[0] == pair[1]);
    match same {
        false => short,
        true => differs.held.iter().map(|held| held.as_ref().map(whole)).collect(),
    }
}

fn one(held: &Held) -> String {
    match held {
        Held::Entry(place, entry) => words::entry(*place, entry),
        Held::Shard(shard) => shard_words(shard),
        Held::Unreadable(why) => format!("cannot be read: {why}"),
    }
}

fn whole(held: &Held) -> String {
    match held {
        Held::Entry(_, entry) => format!("{entry:?}").chars().take(SHOWN_CHARS_MAX).collect(),
        other => one(other),
    }
}

fn shard_words(held: &HeldShard) -> String {
    let Stamp { count, session, op } = held.record.stamp;
    let mut text = format!("{} bytes, stamp {count}/{session}/{}", held.record.length, op.0);
    for (state, word) in [(BlockState::Damaged, "damaged"), (BlockState::Lost, "lost")] {
        match held.states.iter().filter(|one| **one == state).count() {
            0 => {}
            number => text += &format!(", {number} blocks {word}"),
        }
    }
    text
}

/// The bytes of a shard that differ: first and last of each run of blocks.
pub fn bytes_that_differ(differs: &Difference) -> Vec<(u64, u64)> {
    let shards: Vec<&HeldShard> = differs
        .held
        .iter()
        .filter_map(|held| match held {
            Some(Held::Shard(shard)) => Some(shard),
            _ => None,
        })
        .collect();
    let blocks = shards.iter().map(|shard| shard.hashes.len()).max().unwrap_or(0);
    let differ = |block: &usize| shards.iter().any(|shard| shard.hashes.get(*block) != shards[0].hashes.get(*block));
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for block in (0..blocks).filter(differ) {
        let from = (block * BLOCK_BYTES) as u64;
        let to = from + BLOCK_BYTES as u64 - 1;
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == from => *last = to,
            _ => runs.push((from, to)),
        }
    }
    runs
}
