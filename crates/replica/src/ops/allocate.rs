//! fallocate: reserves room, punches holes, writes zeros.
//!
//! Room is reserved in the file system of each brick, or by writing zeros. Nothing less guarantees that a later write
//! finds room on the disk.

use crate::ops::data::{block_change, splice, write_shard, written};
use crate::ops::read::node;
use crate::ops::step::{Commit, Here, Next, Stepped};
use crate::ops::tree::attr_of;
use bytes::Bytes;
use hekate_proto::*;

const BLOCK: u32 = BLOCK_BYTES as u32;

/// Allocates in a file whose bytes are beside the inode. They take their room with the inode itself.
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

/// Allocates a run of a shard.
pub fn allocate_shard(here: &mut Here, shard: ShardId, offset: u32, length: u32, fill: Fill) -> Stepped<Next> {
    let end = u64::from(offset) + u64::from(length);
    if end > SHARD_BYTES || length == 0 {
        return Err(Error::invalid("the range is empty or ends outside of its shard").into());
    }
    if here.brick.is_dropped(shard) {
        return Err(Error::LayoutChanged.into());
    }
    match fill {
        // Zeros for blocks that were never written need room, and no bytes.
        Fill::Zeros
            if offset / BLOCK >= here.brick.shard(here.ask.ring, shard)?.map_or(0, |before| before.home_blocks) =>
        {
            fill_holes(here, shard, offset, end as u32)
        }
        Fill::Zeros => {
            let zeros = Bytes::from(vec![0; length as usize]);
            write_shard(here, shard, offset, &zeros, (None, false))
        }
        Fill::Holes => fill_holes(here, shard, offset, end as u32),
        Fill::Nothing => punch(here, shard, offset, end as u32),
    }
}

/// Reserves room for blocks that were never written. Holes below `home_blocks` are filled with zeros, since room can be
/// reserved only behind it.
fn fill_holes(here: &mut Here, shard: ShardId, offset: u32, end: u32) -> Stepped<Next> {
    let (brick, ask) = (here.brick, here.ask);
    let before = brick.shard(ask.ring, shard)?;
    let stamp = here.next_stamp(before);
    let before = before.unwrap_or(ShardRecord::empty(stamp));
    let mut record = ShardRecord { stamp, ..before };
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
    if first < before.home_blocks {
        let holes = brick.holes(ask.ring, shard, first, last.min(before.home_blocks))?;
        if holes.contains(&true) {
            record.length = before.length.max(end.min(before.home_blocks * BLOCK));
        }
        zero_holes(&mut commit, shard, record, first, &holes);
    }
    // Between `home_blocks` and `reserved_blocks` every block has room, so the reservation includes blocks that were
    // not asked for.
    let bare = before.home_blocks.max(before.reserved_blocks);
    if last > bare {
        record.reserved_blocks = last;
        commit.changes.push(Change::ReserveBlocks { shard, record, first: bare, count: last - bare });
    }
    Ok(if commit.changes.is_empty() { Next::Reply(Reply::Done) } else { Next::record(commit) })
}

/// Adds changes that write zeros to the holes, one change for each run of them.
fn zero_holes(commit: &mut Commit, shard: ShardId, record: ShardRecord, first: u32, holes: &[bool]) {
    let mut at = 0;
    while at < holes.len() {
        let count = holes[at..].iter().take_while(|hole| **hole == holes[at]).count();
        if holes[at] {
            let zeros = Bytes::from(vec![0; count * BLOCK_BYTES]);
            commit.changes.push(block_change(shard, record, first + at as u32, zeros));
        }
        at += count;
    }
}

/// The end of a shard's bytes or room, rounded up to whole blocks, in bytes.
fn reach(record: &ShardRecord) -> u32 {
    record.length.next_multiple_of(BLOCK).max(record.reserved_blocks * BLOCK)
}

/// Whole blocks become holes, parts of blocks zeros. The shard's length stays.
fn punch(here: &mut Here, shard: ShardId, offset: u32, end: u32) -> Stepped<Next> {
    let (brick, ask) = (here.brick, here.ask);
    let Some(before) = brick.shard(ask.ring, shard)?.filter(|before| reach(before) > offset) else {
        return Ok(Next::Reply(Reply::Done));
    };
    // Bytes behind the end are zeros already.
    let end = if end >= before.length { end.next_multiple_of(BLOCK).min(reach(&before)) } else { end };
    let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
    let holes = brick.holes(ask.ring, shard, offset / BLOCK, end.div_ceil(BLOCK))?;
    let is_hole = |block: u32| holes[(block - offset / BLOCK) as usize];
    let record = ShardRecord { stamp: here.next_stamp(Some(before)), ..before };
    let without_room = record.without_room();
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
        commit.changes.push(block_change(shard, record, block, bytes.into()));
    }
    if first < last && (last > before.home_blocks || (first..last).any(|block| !is_hole(block))) {
        commit.changes.push(Change::PunchBlocks { shard, record: without_room, first, count: last - first });
    }
    match commit.changes.is_empty() {
        true => Ok(Next::Reply(Reply::Done)),
        false => Ok(Next::record(commit)),
    }
}
