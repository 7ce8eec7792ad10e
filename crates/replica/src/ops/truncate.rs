//! truncate: sets the size, and cuts or empties the shards behind it.

use crate::ops::data::spill_with;
use crate::ops::inodes::{apply_changes, forget_content};
use crate::ops::read::node;
use crate::ops::recent_truncates::Cut;
use crate::ops::shards::{Portion, full_portion};
use crate::ops::step::{Ask, Commit, Here, Next, Stepped};
use crate::ops::tree::{attr_of, give_up_data, later};
use crate::transactions::legs::cut_shard;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeSet;

/// Executes a `SetAttr` with a size.
pub fn truncate(here: &mut Here, id: InodeId, changes: &AttrChanges, size: u64) -> Stepped<Next> {
    if size > FILE_BYTES_MAX {
        return Err(Error::TooLarge.into());
    }
    let (ask, tree, now) = (here.ask, here.tree(), here.now);
    let mut inode = tree.file(id)?;
    if size == inode.size && *changes == (AttrChanges { size: Some(size), ..AttrChanges::default() }) {
        return Ok(Next::Reply(node(attr_of(id, &inode, None))));
    }
    let before = inode.clone();
    if size != inode.size && changes.mtime.is_none() {
        inode.mtime = later(now, inode.ctime);
    }
    apply_changes(&mut inode, changes, now);
    inode.size = size;
    inode.size_high = inode.size_high.max(size);
    let (mut commit, mut legs) = (Commit::default(), Vec::new());
    commit.changes.extend(forget_content(&tree, id, &mut inode));
    if before.layout.is_inline() {
        let content = tree.content(id)?;
        if size > INLINE_MAX {
            return spill_with(here, id, inode, content, commit);
        }
        if (content.len() as u64) > size {
            let value = content.slice(..size as usize);
            commit.changes.push(Change::Put { key: tree.key(id, Kind::Content), value });
        }
    } else if size == 0 {
        give_up_data(ask.ring, ask.volume, &mut commit, id, &before);
        inode.layout = Layout::inline(here.new_layout_version());
        inode.size_high = 0;
    } else if size < before.size && !is_planted(Bug::TruncateKeepsShards) {
        let versions = (inode.layout.version, here.new_layout_version());
        inode.layout.version = versions.1;
        commit.cut = Some(Cut { file: (ask.volume, id), versions, size });
        legs = shrink(here, &mut commit, &before, size)?;
    }
    commit.put(tree.key(id, Kind::Inode), &inode);
    commit.reply = Some(node(attr_of(id, &inode, None)));
    Ok(Next::Commit(commit, legs))
}

/// The legs that cut the shard in which the new size lies, and empty those behind it. Until all are taken the inode is
/// held, so that no write is recorded under the old layout. Shards of this partition are cut in the commit if one
/// record takes all of them, and otherwise with a leg too.
fn shrink(here: &Here, commit: &mut Commit, before: &InodeRecord, size: u64) -> Stepped<Vec<(Position, Leg)>> {
    let (brick, ask) = (here.brick, here.ask);
    let mut legs = Vec::new();
    let mut start = 0u64;
    for piece in &before.layout.pieces {
        let end = before.size.min(start.saturating_add(piece.length));
        if end > size {
            piece_legs(ask, piece.data, size.saturating_sub(start), end - start, &mut legs);
        }
        start = start.saturating_add(piece.length);
    }
    let (own, mut others): (Vec<_>, Vec<_>) = legs.into_iter().partition(|(position, _)| here.owns(*position));
    for (position, leg) in own {
        match leg {
            Leg::CutShard { shard, length } => cut_shard(brick, ask, commit, shard, length)?,
            Leg::EmptyShards { data, from, to } => {
                let Portion { shards, next } = full_portion(brick, ask, here.at, data, from..to)?;
                if next.is_some() {
                    others.push((position, leg));
                    continue;
                }
                for shard in shards {
                    cut_shard(brick, ask, commit, shard, 0)?;
                }
            }
            _ => return Err(Error::bug("a leg that is none of a truncate").into()),
        }
    }
    Ok(others)
}

/// Adds the legs that leave `kept` of the `length` bytes of a piece.
fn piece_legs(ask: &Ask, data: DataId, kept: u64, length: u64, legs: &mut Vec<(Position, Leg)>) {
    let edge = ShardId { volume: ask.volume, data, index: kept / SHARD_BYTES };
    if !kept.is_multiple_of(SHARD_BYTES) {
        legs.push((edge.position(), Leg::CutShard { shard: edge, length: (kept % SHARD_BYTES) as u32 }));
    }
    // One shard more than the size covers: a write that was not recorded in the inode may have made it.
    let (from, to) = (kept.div_ceil(SHARD_BYTES), length.div_ceil(SHARD_BYTES) + 2);
    let tried = (to - from).min(u64::from(ask.count) * 8);
    let mut partitions: BTreeSet<PartitionNumber> =
        (from..from + tried).map(|index| ask.partition(ShardId { index, ..edge }.position())).collect();
    if to - from > tried {
        partitions.extend((0..ask.count).map(PartitionNumber));
    }
    for partition in partitions {
        legs.push((partition.first_position(ask.count), Leg::EmptyShards { data, from, to }));
    }
}
