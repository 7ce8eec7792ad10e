//! SEEK_DATA and SEEK_HOLE (lseek(2)). A block that was never written, or was punched, is a hole.

use crate::ops::read::node;
use crate::ops::shards::{first_shards, has_data};
use crate::ops::step::{Ask, Stepped};
use crate::ops::tree::{Tree, attr_of};
use hekate_brick::Brick;
use hekate_proto::*;

const BLOCK: u32 = BLOCK_BYTES as u32;

/// Seeks in a file whose bytes are beside the inode: all of them are data.
pub fn seek(tree: &Tree, id: InodeId, offset: u64, hole: bool) -> Stepped<Reply> {
    let inode = tree.file(id)?;
    if !inode.layout.is_inline() {
        return Ok(node(attr_of(id, &inode, None)));
    }
    if offset >= inode.size {
        return Err(Error::NoData.into());
    }
    Ok(Reply::Found { at: Some(if hole { inode.size } else { offset }) })
}

/// Seeks in a shard.
pub fn seek_shard(brick: &Brick, ask: &Ask, shard: ShardId, offset: u32, hole: bool) -> Stepped<Reply> {
    if u64::from(offset) >= SHARD_BYTES {
        return Err(Error::invalid("an offset outside of its shard").into());
    }
    let length = brick.shard(ask.ring, shard)?.map_or(0, |record| record.length);
    let found = |at: u32| Ok(Reply::Found { at: Some(u64::from(at)) });
    if offset < length {
        let first = offset / BLOCK;
        let holes = brick.holes(ask.ring, shard, first, length.div_ceil(BLOCK))?;
        if let Some(block) = holes.iter().position(|is_hole| *is_hole == hole) {
            return found(((first + block as u32) * BLOCK).max(offset));
        }
    }
    match hole && u64::from(length) < SHARD_BYTES {
        true => found(length.max(offset)),
        false => Ok(Reply::Found { at: None }),
    }
}

/// The first shard of a data id in this partition that has data. Shards that are holes only are skipped.
pub fn next_shard(brick: &Brick, ask: &Ask, at: PartitionNumber, data: DataId, from: u64, to: u64) -> Stepped<Reply> {
    let is_wanted = |shard: ShardId, record: &ShardRecord| has_data(brick, ask.ring, shard, record);
    let first = first_shards(brick, ask, at, data, from..to, 1, &is_wanted)?;
    Ok(Reply::Found { at: first.first().map(|shard| shard.index) })
}
