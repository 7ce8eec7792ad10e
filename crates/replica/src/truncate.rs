//! truncate: the size, and what lies beyond it.

use crate::data::spill_with;
use crate::execute::{Ask, Commit, Multi, Partitions, Stop};
use crate::inodes::apply_changes;
use crate::legs::{cut_shard, shards_of};
use crate::read::node;
use crate::tree::{Tree, attr_of, give_up_data};
use hekate_proto::*;
use std::collections::BTreeSet;

/// setattr with a size.
pub fn truncate(
    parts: &mut dyn Partitions,
    ask: &Ask,
    id: InodeId,
    changes: &AttrChanges,
    size: u64,
) -> std::result::Result<Reply, Stop> {
    if size > FILE_BYTES_MAX {
        return Err(Error::TooLarge.into());
    }
    let home = ask.partition(id.position());
    let now = parts.leader(home)?.time(ask.now);
    let tree = Tree::new(parts.brick(home)?, ask);
    let mut inode = tree.file(id)?;
    let before = inode.clone();
    if size != inode.size && changes.mtime.is_none() {
        inode.mtime = now;
    }
    apply_changes(&mut inode, changes, now);
    inode.size = size;
    inode.size_high = inode.size_high.max(size);
    let mut commit = Commit::default();
    if before.layout.is_inline() {
        let content = tree.content(id)?;
        if size > INLINE_MAX {
            return spill_with(parts, ask, id, inode, content);
        }
        if (content.len() as u64) > size {
            let value = content.slice(..size as usize);
            commit.changes.push(Change::Put { key: tree.key(id, Kind::Content), value });
        }
    } else if size == 0 {
        give_up_data(ask.ring, ask.volume, &mut commit, id, &before);
        inode.layout = Layout::inline(before.layout.version + 1);
        inode.size_high = 0;
    } else if size < before.size {
        inode.layout.version += 1;
        commit.put(tree.key(id, Kind::Inode), &inode);
        return shrink(parts, ask, commit, node(attr_of(id, &inode, None)), &before, size);
    }
    commit.put(tree.key(id, Kind::Inode), &inode);
    let reply = node(attr_of(id, &inode, None));
    commit.reply = Some(reply.clone());
    parts.commit(home, commit)?;
    Ok(reply)
}

/// Shards beyond the new size are emptied, the one in which it lies is cut: all with the inode's partition locked, so no write
/// is told meanwhile.
fn shrink(
    parts: &mut dyn Partitions,
    ask: &Ask,
    mut commit: Commit,
    reply: Reply,
    before: &InodeRecord,
    size: u64,
) -> std::result::Result<Reply, Stop> {
    let Reply::Node { attr, .. } = &reply else { return Err(Error::bug("shrink answers a node").into()) };
    let home = ask.partition(attr.id.position());
    let mut legs = Vec::new();
    let mut start = 0u64;
    for piece in &before.layout.pieces {
        let end = before.size.min(start.saturating_add(piece.length));
        if end > size {
            piece_legs(parts, ask, piece.data, size.saturating_sub(start), end - start, &mut legs)?;
        }
        start = start.saturating_add(piece.length);
    }
    commit.reply = Some(reply.clone());
    // What this partition holds itself is part of the commit.
    let (here, there): (Vec<_>, Vec<_>) = legs.into_iter().partition(|(position, _)| ask.partition(*position) == home);
    for (_, leg) in here {
        let brick = parts.brick(home)?;
        match leg {
            Leg::CutShard { shard, length } => cut_shard(brick, ask, &mut commit, shard, length)?,
            Leg::EmptyShards { data, from, to } => {
                for shard in shards_of(brick, ask, home, data, from, to)? {
                    cut_shard(brick, ask, &mut commit, shard, 0)?;
                }
            }
            _ => return Err(Error::bug("a leg that truncate does not have").into()),
        }
    }
    Multi::begin(parts, ask, home, "truncate")?.commit(commit, there)?;
    Ok(reply)
}

/// Legs that leave `kept` of the `length` bytes of a piece.
fn piece_legs(
    parts: &dyn Partitions,
    ask: &Ask,
    data: DataId,
    kept: u64,
    length: u64,
    legs: &mut Vec<(Position, Leg)>,
) -> std::result::Result<(), Stop> {
    let edge = ShardId { volume: ask.volume, data, index: kept / SHARD_BYTES };
    if !kept.is_multiple_of(SHARD_BYTES) {
        parts.brick(ask.partition(edge.position()))?;
        legs.push((edge.position(), Leg::CutShard { shard: edge, length: (kept % SHARD_BYTES) as u32 }));
    }
    // One more than the size covers: a write that was not told may have made it.
    let (from, to) = (kept.div_ceil(SHARD_BYTES), length.div_ceil(SHARD_BYTES) + 2);
    let tried = (to - from).min(u64::from(ask.count) * 8);
    let mut partitions: BTreeSet<PartitionNumber> =
        (from..from + tried).map(|index| ask.partition(ShardId { index, ..edge }.position())).collect();
    if to - from > tried {
        partitions.extend((0..ask.count).map(PartitionNumber));
    }
    for partition in partitions {
        parts.brick(partition)?;
        legs.push((partition.first_position(ask.count), Leg::EmptyShards { data, from, to }));
    }
    Ok(())
}
