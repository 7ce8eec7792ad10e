//! The shards of a data id that a partition has, and ops over all of them. The cost depends on the number of existing
//! shards, not on the length of the range: shards of a data id may be anywhere in a partition, so a long range is
//! answered with a scan.

use crate::ops::step::{Ask, Commit, Here, Next, Stepped};
use crate::transactions::legs::cut_shard;
use hekate_brick::Brick;
use hekate_proto::*;
use std::ops::Range;

/// Indexes that are looked up one by one, from the start of a range. A scan of the partition's shards covers the rest
/// of a longer range.
const INDEXES_TRIED_MAX: u64 = 65_536;
/// Shards that one record changes at most.
const SHARDS_AT_ONCE: usize = 4096;
/// A bound of the encoded size of `CutShard` and `DropShard`, which is 4 + 28 (shard) + 36 (record) bytes.
const CHANGE_BYTES_MAX: usize = 128;

/// Shards of a data id that one record changes, least index first.
pub struct Portion {
    /// As many shards as one record takes.
    pub shards: Vec<ShardId>,
    /// The index of the first shard that is left for the next record.
    pub next: Option<u64>,
}

/// True if a cut to nothing changes the shard: it has bytes, or room behind its blocks.
fn is_full(_: ShardId, record: &ShardRecord) -> Stepped<bool> {
    Ok(record.length > 0 || record.reserved_blocks > record.home_blocks)
}

/// Shards of the range that a cut to nothing changes.
pub fn full_portion(
    brick: &Brick,
    ask: &Ask,
    at: PartitionNumber,
    data: DataId,
    range: Range<u64>,
) -> Stepped<Portion> {
    portion(brick, ask, at, data, range, &is_full)
}

/// Shards of the range, with or without bytes.
pub fn portion_of(brick: &Brick, ask: &Ask, at: PartitionNumber, data: DataId, range: Range<u64>) -> Stepped<Portion> {
    portion(brick, ask, at, data, range, &|_, _| Ok(true))
}

fn portion(
    brick: &Brick,
    ask: &Ask,
    at: PartitionNumber,
    data: DataId,
    range: Range<u64>,
    is_wanted: &dyn Fn(ShardId, &ShardRecord) -> Stepped<bool>,
) -> Stepped<Portion> {
    let most = (brick.record_bytes_max() / 2 / CHANGE_BYTES_MAX).clamp(1, SHARDS_AT_ONCE);
    let mut shards = first_shards(brick, ask, at, data, range, most + 1, is_wanted)?;
    let next = shards.get(most).map(|shard| shard.index);
    shards.truncate(most);
    Ok(Portion { shards, next })
}

/// The partition's shards in the range for which `is_wanted` is true, least index first, `limit` at most.
pub fn first_shards(
    brick: &Brick,
    ask: &Ask,
    at: PartitionNumber,
    data: DataId,
    range: Range<u64>,
    limit: usize,
    is_wanted: &dyn Fn(ShardId, &ShardRecord) -> Stepped<bool>,
) -> Stepped<Vec<ShardId>> {
    let volume = ask.volume;
    let mut found = Vec::new();
    let mut take = |shard: ShardId| -> Stepped<bool> {
        if let Some(record) = brick.shard(ask.ring, shard)?
            && is_wanted(shard, &record)?
        {
            found.push(shard);
        }
        Ok(found.len() < limit)
    };
    let tried_end = range.end.min(range.start.saturating_add(INDEXES_TRIED_MAX));
    let tried = (range.start..tried_end).map(|index| ShardId { volume, data, index });
    for shard in tried.filter(|shard| ask.partition(shard.position()) == at) {
        if !take(shard)? {
            return Ok(found);
        }
    }
    if tried_end < range.end {
        let is_own = |shard: &ShardId| {
            shard.volume == volume && shard.data == data && (tried_end..range.end).contains(&shard.index)
        };
        let mut rest: Vec<ShardId> = brick.shards(ask.ring, at, ask.count)?.into_iter().filter(is_own).collect();
        rest.sort_unstable_by_key(|shard| shard.index);
        for shard in rest {
            if !take(shard)? {
                break;
            }
        }
    }
    Ok(found)
}

/// True if the shard has a block that is no hole.
pub fn has_data(brick: &Brick, ring: RingId, shard: ShardId, record: &ShardRecord) -> Stepped<bool> {
    let holes = brick.holes(ring, shard, 0, record.length.div_ceil(BLOCK_BYTES as u32))?;
    Ok(holes.contains(&false))
}

/// Removes bytes and room of the range's shards, as many as one record takes. The answer, `Found`, has the index of the
/// first that is left.
pub fn empty_shards(here: &Here, data: DataId, from: u64, to: u64) -> Stepped<Next> {
    let (brick, ask) = (here.brick, here.ask);
    let Portion { shards, next } = full_portion(brick, ask, here.at, data, from..to)?;
    let reply = Reply::Found { at: next };
    if shards.is_empty() {
        return Ok(Next::Reply(reply));
    }
    let mut commit = Commit { reply: Some(reply), ..Commit::default() };
    for shard in shards {
        cut_shard(brick, ask, &mut commit, shard, 0)?;
    }
    Ok(Next::record(commit))
}
