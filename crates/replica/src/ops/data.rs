//! Bytes of files: beside the inode up to 16 KiB, in shards from then on.

use crate::fast::FAST_BYTES_MAX;
use crate::message::Fresh;
use crate::ops::ends::limit_behind;
use crate::ops::inodes::{drop_set_id_bits, forget_content};
use crate::ops::read::node;
use crate::ops::step::{Ask, Commit, EndBy, EndChange, Here, Next, Stepped};
use crate::ops::tree::{Tree, attr_of, before, later};
use bytes::{Bytes, BytesMut};
use hekate_brick::{Brick, block_checksum};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// Fresh bytes of one write that go through the journal. More are written to the data file first, so that the journal
/// does not carry them.
const JOURNALED_BYTES_MAX: usize = 32 << 10;
const BLOCK: u32 = BLOCK_BYTES as u32;

/// Updates size, times and permissions of an inode whose content was written up to `end`.
pub fn written(
    tree: &Tree,
    commit: &mut Commit,
    (id, inode): (InodeId, &mut InodeRecord),
    end: u64,
    drop_set_id: bool,
    now: Time,
) {
    commit.changes.extend(forget_content(tree, id, inode));
    let now = later(now, inode.ctime);
    inode.size = if is_planted(Bug::WriteShrinksFile) { end } else { inode.size.max(end) };
    inode.size_high = inode.size_high.max(inode.size);
    inode.mtime = now;
    inode.ctime = now;
    inode.change += 1;
    if drop_set_id {
        drop_set_id_bits(inode);
    }
}

/// Writes bytes beside the inode. Answers with the inode if the write has to go to shards.
pub fn write(here: &mut Here, id: InodeId, offset: u64, data: &Bytes, drop_set_id: bool) -> Stepped<Next> {
    let (tree, now) = (here.tree(), here.now);
    let mut inode = tree.file(id)?;
    let end = offset.saturating_add(data.len() as u64);
    if !inode.layout.is_inline() || end > INLINE_MAX {
        return Ok(Next::Reply(node(attr_of(id, &inode, None))));
    }
    Ok(Next::record(write_inline(&tree, (id, &mut inode), offset, data, drop_set_id, now)?))
}

/// Appends bytes beside the inode. Answers with the inode if they have to go to shards.
pub fn append(here: &mut Here, id: InodeId, data: &Bytes, drop_set_id: bool) -> Stepped<Next> {
    let (tree, now) = (here.tree(), here.now);
    let mut inode = tree.file(id)?;
    let offset = inode.size;
    if !inode.layout.is_inline() || offset.saturating_add(data.len() as u64) > INLINE_MAX {
        return Ok(Next::Reply(node(attr_of(id, &inode, None))));
    }
    Ok(Next::record(write_inline(&tree, (id, &mut inode), offset, data, drop_set_id, now)?))
}

fn write_inline(
    tree: &Tree,
    (id, inode): (InodeId, &mut InodeRecord),
    offset: u64,
    data: &Bytes,
    drop_set_id: bool,
    now: Time,
) -> Stepped<Commit> {
    let end = offset + data.len() as u64;
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    let key = tree.key(id, Kind::Content);
    let value = if offset == 0 && end >= inode.size {
        Bytes::copy_from_slice(data)
    } else {
        splice(&tree.content(id)?, offset as usize, data)
    };
    commit.changes.push(Change::Put { key, value });
    written(tree, &mut commit, (id, inode), end, drop_set_id, now);
    commit.put(tree.key(id, Kind::Inode), inode);
    Ok(commit)
}

/// `old` with `data` at `offset`, and zeros between the old end and `offset`.
pub fn splice(old: &[u8], offset: usize, data: &[u8]) -> Bytes {
    let mut content = BytesMut::with_capacity(old.len().max(offset + data.len()));
    content.extend_from_slice(old);
    content.resize(old.len().max(offset + data.len()), 0);
    content[offset..offset + data.len()].copy_from_slice(data);
    content.freeze()
}

/// Moves the bytes beside an inode into a shard of a new data id.
pub fn spill(here: &mut Here, id: InodeId) -> Stepped<Next> {
    let tree = here.tree();
    let inode = tree.file(id)?;
    if !inode.layout.is_inline() {
        return Ok(Next::Reply(node(attr_of(id, &inode, None))));
    }
    let content = tree.content(id)?;
    spill_with(here, id, inode, content, Commit::default())
}

/// Spills `content` into a shard. `inode` is as it is to be afterwards, but for its layout. The changes of `commit`
/// come first in the record.
pub fn spill_with(
    here: &mut Here,
    id: InodeId,
    mut inode: InodeRecord,
    content: Bytes,
    mut commit: Commit,
) -> Stepped<Next> {
    let (ask, tree) = (here.ask, here.tree());
    let data = here.new_data_id(id);
    let shard = ShardId { volume: ask.volume, data, index: 0 };
    if !content.is_empty() {
        if here.owns(shard.position()) {
            commit.changes.extend(fill_shard(ask, shard, &content).changes);
        } else {
            let undo = Some(Leg::UnfillShard { shard });
            here.leg(shard.position(), Leg::FillShard { shard, bytes: content }, undo)?;
        }
    }
    inode.size_high = inode.size;
    let version = here.new_layout_version();
    inode.layout = Layout { version, pieces: vec![Piece { data, length: u64::MAX }] };
    commit.reply = Some(node(attr_of(id, &inode, None)));
    commit.put(tree.key(id, Kind::Inode), &inode);
    commit.delete(tree.key(id, Kind::Content));
    Ok(Next::record(commit))
}

/// The record that makes a shard with these bytes.
pub fn fill_shard(ask: &Ask, shard: ShardId, bytes: &Bytes) -> Commit {
    let stamp = Stamp { count: 1, session: ask.session, op: ask.op_id };
    let blocks = pad_to_blocks(bytes);
    let count = (blocks.len() / BLOCK_BYTES) as u32;
    let record = ShardRecord { stamp, length: bytes.len() as u32, home_blocks: count, reserved_blocks: 0 };
    let run = BlockRun { first: 0, checksums: checksums(shard, 0, &blocks) };
    Commit { changes: vec![Change::WriteBlocks { shard, record, run, bytes: blocks }], ..Commit::default() }
}

fn pad_to_blocks(bytes: &[u8]) -> Bytes {
    let mut blocks = BytesMut::with_capacity(bytes.len().next_multiple_of(BLOCK_BYTES));
    blocks.extend_from_slice(bytes);
    blocks.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    blocks.freeze()
}

fn checksums(shard: ShardId, first: u32, blocks: &[u8]) -> Vec<u32> {
    (first..).zip(blocks.chunks(BLOCK_BYTES)).map(|(block, bytes)| block_checksum(shard, block, bytes)).collect()
}

/// Writes a run of a shard. With `follow`, only if the shard's stamp is that one. `fast`: the session would go on with
/// fast writes. Members take these below `home_blocks` only, so if the write makes the shard longer, and no room is
/// reserved there, that is raised to the end of the shard.
///
/// # Errors
///
/// `Conflict` with the shard's stamp if it is not `follow`; `LayoutChanged` if the shard was dropped; `Invalid` if the
/// run is not within a shard.
pub fn write_shard(
    here: &mut Here,
    shard: ShardId,
    offset: u32,
    bytes: &Bytes,
    (follow, fast): (Option<Stamp>, bool),
) -> Stepped<Next> {
    let end = u64::from(offset) + bytes.len() as u64;
    if end > SHARD_BYTES || bytes.is_empty() {
        return Err(Error::invalid("the write is empty or ends outside of its shard").into());
    }
    let (brick, ask) = (here.brick, here.ask);
    if brick.is_dropped(shard) {
        return Err(Error::LayoutChanged.into());
    }
    let before = brick.shard(ask.ring, shard)?;
    let stamp_before = before.map(|record| record.stamp);
    if follow.is_some() && follow != stamp_before {
        return Err(Error::Conflict { stamp: stamp_before }.into());
    }
    let stamp = here.next_stamp(before);
    let mut before = ShardRecord { stamp, ..before.unwrap_or(ShardRecord::empty(stamp)) };
    let has_grown = end > u64::from(before.length) && before.reserved_blocks <= before.home_blocks;
    if fast && has_grown && bytes.len() <= FAST_BYTES_MAX {
        before.home_blocks = (SHARD_BYTES / BLOCK_BYTES as u64) as u32;
    }
    let mut commit = Commit { reply: Some(Reply::Written { stamp, fast: None }), ..Commit::default() };
    write_run(brick, ask, &mut commit, (shard, before), offset, bytes, true)?;
    Ok(Next::record(commit))
}

/// Adds the changes that write a run of a shard. `before` has the op's stamp already. `may_be_fresh`: no other run of
/// the record has fresh blocks of the shard. Returns the shard's record afterwards.
pub(crate) fn write_run(
    brick: &Brick,
    ask: &Ask,
    commit: &mut Commit,
    (shard, before): (ShardId, ShardRecord),
    offset: u32,
    bytes: &Bytes,
    may_be_fresh: bool,
) -> Stepped<ShardRecord> {
    let end = offset + bytes.len() as u32;
    let ShardRecord { length, home_blocks, .. } = before;
    let first = offset / BLOCK;
    let blocks = whole_blocks(brick, ask, shard, length, offset, bytes)?;
    let after = first + (blocks.len() / BLOCK_BYTES) as u32;
    let record = ShardRecord { length: length.max(end), home_blocks: home_blocks.max(after), ..before };
    // Blocks below `home_blocks` go through the journal: mostly one in which an earlier write ended.
    let fresh_from = home_blocks.clamp(first, after);
    let mut old = blocks;
    let fresh = old.split_off((fresh_from - first) as usize * BLOCK_BYTES);
    if fresh.len() <= JOURNALED_BYTES_MAX || !may_be_fresh {
        old.unsplit(fresh);
        commit.changes.push(block_change(shard, record, first, old.freeze()));
        return Ok(record);
    }
    if !old.is_empty() {
        let length = length.max(fresh_from * BLOCK);
        let record = ShardRecord { length, home_blocks, ..record };
        // A copy: the overlay keeps these blocks, and with them it would keep the buffer of the fresh ones.
        let old = Bytes::copy_from_slice(&old);
        commit.changes.push(block_change(shard, record, first, old));
    }
    let fresh = fresh.freeze();
    let run = BlockRun { first: fresh_from, checksums: checksums(shard, fresh_from, &fresh) };
    commit.fresh.push(Fresh { shard, first_block: fresh_from, bytes: fresh });
    commit.changes.push(Change::FreshBlocks { shard, record, run });
    Ok(record)
}

/// The change that writes whole blocks through the journal, from block `block` on.
pub fn block_change(shard: ShardId, record: ShardRecord, block: u32, bytes: Bytes) -> Change {
    let run = BlockRun { first: block, checksums: checksums(shard, block, &bytes) };
    Change::WriteBlocks { shard, record, run, bytes }
}

/// The bytes as whole blocks. The rest of the first and the last block is read from the shard; behind its end it is
/// zeros.
pub(crate) fn whole_blocks(
    brick: &Brick,
    ask: &Ask,
    shard: ShardId,
    length: u32,
    offset: u32,
    bytes: &Bytes,
) -> Stepped<BytesMut> {
    let end = offset + bytes.len() as u32;
    let (from, to) = (offset / BLOCK * BLOCK, end.next_multiple_of(BLOCK));
    let mut blocks = BytesMut::with_capacity((to - from) as usize);
    if from < offset {
        blocks.extend_from_slice(&brick.read_shard(ask.ring, shard, from, offset - from)?);
        blocks.resize((offset - from) as usize, 0);
    }
    blocks.extend_from_slice(bytes);
    if end < to && end < length {
        blocks.extend_from_slice(&brick.read_shard(ask.ring, shard, end, to - end)?);
    }
    blocks.resize((to - from) as usize, 0);
    Ok(blocks)
}

/// The change that releases the room behind `length`, where the shard has no bytes.
pub fn give_back(ask: &Ask, shard: ShardId, before: ShardRecord, length: u32) -> Change {
    let stamp = Stamp { count: before.stamp.count + 1, session: ask.session, op: ask.op_id };
    let first = length.div_ceil(BLOCK);
    let record = ShardRecord { stamp, ..before.without_room() };
    Change::PunchBlocks { shard, record, first, count: record.home_blocks - first }
}

/// Adds the changes that end the shard at `length`. The block in which it ends is filled with zeros.
pub fn cut(
    brick: &Brick,
    ask: &Ask,
    commit: &mut Commit,
    shard: ShardId,
    before: ShardRecord,
    length: u32,
) -> Stepped<()> {
    let stamp = Stamp { count: before.stamp.count + 1, session: ask.session, op: ask.op_id };
    let record = ShardRecord { stamp, length, ..before.without_room() };
    let first = length / BLOCK;
    if !length.is_multiple_of(BLOCK) {
        let kept = brick.read_shard(ask.ring, shard, first * BLOCK, length % BLOCK)?;
        let bytes = pad_to_blocks(&kept);
        let written = ShardRecord { stamp, length, ..before };
        commit.changes.push(block_change(shard, written, first, bytes));
    }
    commit.changes.push(Change::CutShard { shard, record });
    Ok(())
}

/// Updates the inode after its client wrote to shards: size up to `end`, and room up to `reach`.
///
/// # Errors
///
/// `LayoutChanged` if the client used another layout; `TooLarge` for a file of more than `FILE_BYTES_MAX`.
pub fn wrote(
    here: &mut Here,
    id: InodeId,
    layout_version: u32,
    (end, reach): (u64, u64),
    (drop_set_id, fast, age): (bool, bool, u64),
) -> Stepped<Next> {
    if end.max(reach) > FILE_BYTES_MAX {
        return Err(Error::TooLarge.into());
    }
    let (tree, at) = (here.tree(), before(here.now, age));
    let mut inode = tree.file(id)?;
    if inode.layout.is_inline() || inode.layout.version != layout_version && !is_planted(Bug::StaleLayoutAccepted) {
        return Err(Error::LayoutChanged.into());
    }
    let is_within = end <= inode.size && reach <= inode.size_high;
    let times_of = (fast && is_within && !drop_set_id).then_some((id, at));
    let has_grown = end > inode.size && reach == end && !drop_set_id;
    let limit = (has_grown && !fast && here.ask.pledge).then(|| limit_behind(end));
    let moved = || Box::new(EndChange { file: (here.ask.volume, id), by: EndBy::Session { limit } });
    let mut commit = Commit { reply: Some(Reply::Done), times_of, end: has_grown.then(moved), ..Commit::default() };
    written(&tree, &mut commit, (id, &mut inode), end, drop_set_id, at);
    inode.size_high = inode.size_high.max(reach).max(limit.unwrap_or(0));
    commit.put(tree.key(id, Kind::Inode), &inode);
    if here.carried {
        commit.reply = Some(node(attr_of(id, &inode, None)));
    }
    Ok(Next::record(commit))
}
