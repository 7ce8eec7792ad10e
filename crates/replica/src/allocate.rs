//! fallocate: room for bytes that are to come, holes where bytes were, zeros.
//!
//! Room is zeros that are written: nothing less keeps a later write from finding the disk full.

use crate::data::{splice, write_shard, written, zero_blocks};
use crate::read::node;
use crate::step::{Commit, Here, Next, Stepped};
use crate::tree::attr_of;
use bytes::Bytes;
use hekate_proto::*;

const BLOCK: u32 = BLOCK_BYTES as u32;

/// Of bytes beside the inode. They take their room with the inode itself.
pub fn allocate(
    here: &mut Here,
    id: InodeId,
    (offset, length): (u64, u64),
    mode: Allocate,
    drop_set_id: bool,
) -> Stepped<Next> {
    let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::TooLarge)?;
    let (tree, now) = (here.tree(), here.now);
    let mut inode = tree.file(id)?;
    let keeps_size =
        matches!(mode, Allocate::Punch | Allocate::Reserve { keep_size: true } | Allocate::Zero { keep_size: true });
    let reserves = matches!(mode, Allocate::Reserve { .. });
    if !inode.layout.is_inline() || end > INLINE_MAX && (reserves || !keeps_size) {
        return Ok(Next::Reply(node(attr_of(id, &inode, None))));
    }
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    let content = tree.content(id)?;
    let upto = end.min(content.len() as u64);
    if !reserves && offset < upto {
        let zeros = vec![0; (upto - offset) as usize];
        let value = splice(&content, offset as usize, &zeros);
        commit.changes.push(Change::Put { key: tree.key(id, Kind::Content), value });
    }
    let end = if keeps_size { 0 } else { end };
    written(&tree, &mut commit, (id, &mut inode), end, drop_set_id, now);
    commit.put(tree.key(id, Kind::Inode), &inode);
    Ok(Next::record(commit))
}

/// Of a run of a shard.
pub fn allocate_shard(here: &mut Here, shard: ShardId, offset: u32, length: u32, fill: Fill) -> Stepped<Next> {
    let end = u64::from(offset) + u64::from(length);
    if end > SHARD_BYTES || length == 0 {
        return Err(Error::invalid("a run that does not lie in its shard").into());
    }
    if here.brick.is_dropped(shard) {
        return Err(Error::LayoutChanged.into());
    }
    match fill {
        Fill::Zeros => {
            let zeros = Bytes::from(vec![0; length as usize]);
            write_shard(here, shard, offset, &zeros, None)
        }
        Fill::Holes => fill_holes(here, shard, offset, end as u32),
        Fill::Nothing => punch(here, shard, offset, end as u32),
    }
}

/// Blocks that were never written become zeros, neighbours together.
fn fill_holes(here: &mut Here, shard: ShardId, offset: u32, end: u32) -> Stepped<Next> {
    let (brick, ask) = (here.brick, here.ask);
    let before = brick.shard(ask.ring, shard)?;
    let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
    let holes = brick.holes(ask.ring, shard, first, last)?;
    let (length, home_blocks) = before.map_or((0, 0), |record| (record.length, record.home_blocks));
    if holes.iter().all(|hole| !hole) && end <= length {
        return Ok(Next::Reply(Reply::Done));
    }
    let stamp = here.next_stamp(before);
    let record = ShardRecord { stamp, length: length.max(end), home_blocks: home_blocks.max(last) };
    // What was home once is not fresh: the changes of such blocks come first, and know of no others.
    let old = ShardRecord { length: length.max(end.min(home_blocks * BLOCK)), home_blocks, ..record };
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    let mut at = 0;
    while at < holes.len() {
        let block = first + at as u32;
        let is_fresh = block >= home_blocks;
        let same = |(next, hole): &(u32, &bool)| **hole == holes[at] && (*next >= home_blocks) == is_fresh;
        let count = (block..).zip(&holes[at..]).take_while(same).count();
        if holes[at] {
            let record = if is_fresh { record } else { old };
            zero_blocks(&mut commit, shard, record, (block, count as u32), is_fresh);
        }
        at += count;
    }
    if commit.changes.is_empty() {
        // Only the last block's end moves.
        let last = brick.read_shard(ask.ring, shard, (last - 1) * BLOCK, BLOCK)?;
        return write_shard(here, shard, (end.div_ceil(BLOCK) - 1) * BLOCK, &padded(&last, end), None);
    }
    Ok(Next::record(commit))
}

/// A shard's last bytes up to its new end.
fn padded(last: &[u8], end: u32) -> Bytes {
    let mut bytes = last.to_vec();
    bytes.resize(((end - 1) % BLOCK + 1) as usize, 0);
    bytes.into()
}

/// Whole blocks become holes, parts of blocks zeros. Where the shard ends does not change.
fn punch(here: &mut Here, shard: ShardId, offset: u32, end: u32) -> Stepped<Next> {
    let (brick, ask) = (here.brick, here.ask);
    let Some(before) = brick.shard(ask.ring, shard)?.filter(|before| before.length > offset) else {
        return Ok(Next::Reply(Reply::Done));
    };
    // What is behind the end is zeros already.
    let end = if end >= before.length { before.length.next_multiple_of(BLOCK) } else { end };
    let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
    let holes = brick.holes(ask.ring, shard, offset / BLOCK, end.div_ceil(BLOCK))?;
    let is_hole = |block: u32| holes[(block - offset / BLOCK) as usize];
    let record = ShardRecord { stamp: here.next_stamp(Some(before)), ..before };
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    let edges = match first > last {
        true => [offset..end, end..end],
        false => [offset..first * BLOCK, last * BLOCK..end],
    };
    for edge in edges.into_iter().filter(|edge| !edge.is_empty() && !is_hole(edge.start / BLOCK)) {
        let block = edge.start / BLOCK;
        let mut bytes = brick.read_shard(ask.ring, shard, block * BLOCK, BLOCK)?.to_vec();
        bytes.resize(BLOCK as usize, 0);
        bytes[(edge.start % BLOCK) as usize..(edge.end - block * BLOCK) as usize].fill(0);
        commit.changes.push(crate::data::block_change(shard, record, block, bytes.into()));
    }
    if first < last && (first..last).any(|block| !is_hole(block)) {
        commit.changes.push(Change::PunchBlocks { shard, record, first, count: last - first });
    }
    match commit.changes.is_empty() {
        true => Ok(Next::Reply(Reply::Done)),
        false => Ok(Next::record(commit)),
    }
}
