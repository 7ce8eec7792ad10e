//! Room for records. The leader checks that every member has room for a record before any of them appends it, so that
//! no replica lacks room for a record that another has.

use crate::leader::{Leader, Member};
use hekate_brick::{Amount, Brick, LogEntry};
use hekate_proto::*;

/// Blocks that a truncate or a punch writes at most: the blocks in which its range begins and ends.
const EDGE_BLOCKS: usize = 2;

impl Leader {
    /// Checks that every member has room for the record, besides the records that are in flight.
    ///
    /// # Errors
    ///
    /// `Error::NoSpace` with the brick that has no room; the brick's error if its room cannot be determined.
    pub fn check_room(&self, entry: &LogEntry, brick: &Brick) -> Result<()> {
        drop(brick.reserve(entry, true)?);
        let on_the_way = self.log.window.iter().fold(Amount::default(), |sum, (entry, _)| sum.plus(room_of(entry)));
        let mut needed = room_of(entry);
        if needed.files > 0 && self.members.values().any(|member| !has_room(member, on_the_way, needed)) {
            needed.files = brick.files_to_make(&entry.record)?;
        }
        match self.members.iter().find(|(_, member)| !has_room(member, on_the_way, needed)) {
            None => Ok(()),
            Some((brick, Member { room, .. })) => {
                let (brick, mib, files) = (brick.text(), room.bytes >> 20, room.files);
                let what =
                    format!("brick {brick} has room for {mib} MiB and {files} data files; remove files or add a brick");
                Err(Error::NoSpace { what })
            }
        }
    }
}

/// True if the member has room for all of it. A record that makes no file is not refused for want of files.
fn has_room(member: &Member, on_the_way: Amount, needed: Amount) -> bool {
    let all = on_the_way.plus(needed);
    all.bytes <= member.room.bytes && (needed.files == 0 || all.files <= member.room.files)
}

/// Shards whose data files a record writes before it is journaled.
pub(crate) fn fresh_shards(entry: &LogEntry) -> impl Iterator<Item = ShardId> {
    entry.record.changes.iter().filter_map(|change| match change {
        Change::FreshBlocks { shard, .. } | Change::ReserveBlocks { shard, .. } => Some(*shard),
        _ => None,
    })
}

/// The room that a member needs for a record.
fn room_of(entry: &LogEntry) -> Amount {
    let blocks = |change: &Change| match change {
        Change::FreshBlocks { record, run, .. } => {
            let end = run.first + run.checksums.len() as u32;
            end.saturating_sub(record.reserved_blocks.max(run.first))
        }
        Change::ReserveBlocks { count, .. } => *count,
        _ => 0,
    };
    let home: u64 = entry.record.changes.iter().map(|change| u64::from(blocks(change)) * BLOCK_BYTES as u64).sum();
    entry.need().plus(Amount { bytes: home, files: 0 })
}

/// True if the changes need room in the store. Changes that free room are accepted on a full disk.
pub(crate) fn takes_room(changes: &[Change]) -> bool {
    let grows = |change: &Change| match change {
        Change::WriteBlocks { .. } | Change::FreshBlocks { .. } | Change::ReserveBlocks { .. } => true,
        Change::Put { key, .. } => matches!(key.kind(), Some(Kind::Content | Kind::Name | Kind::Xattr)),
        Change::Delete { .. } | Change::CutShard { .. } | Change::PunchBlocks { .. } => false,
        Change::DropShard { .. } | Change::Restamp { .. } | Change::BeginLog => false,
    };
    let frees = |change: &Change| match change {
        Change::CutShard { .. } | Change::PunchBlocks { .. } | Change::DropShard { .. } => true,
        Change::Delete { key } => matches!(key.kind(), Some(Kind::Content | Kind::Name | Kind::Xattr | Kind::Inode)),
        Change::Put { .. } | Change::WriteBlocks { .. } | Change::FreshBlocks { .. } => false,
        Change::ReserveBlocks { .. } | Change::Restamp { .. } | Change::BeginLog => false,
    };
    let blocks = |change: &Change| match change {
        Change::WriteBlocks { run, .. } | Change::FreshBlocks { run, .. } => run.checksums.len(),
        _ => 0,
    };
    let writes_more_than_edges = changes.iter().map(blocks).sum::<usize>() > EDGE_BLOCKS;
    changes.iter().any(grows) && (writes_more_than_edges || !changes.iter().any(frees))
}

/// True if all that grows has its room already: blocks with bytes, and blocks that were reserved.
pub(crate) fn has_its_room(brick: &Brick, ring: RingId, changes: &[Change]) -> Result<bool> {
    for change in changes {
        let has_room = match change {
            Change::WriteBlocks { shard, run, .. } | Change::FreshBlocks { shard, run, .. } => {
                let end = run.first + run.checksums.len() as u32;
                let (home, reserved) =
                    brick.shard(ring, *shard)?.map_or((0, 0), |before| (before.home_blocks, before.reserved_blocks));
                let holes = brick.holes(ring, *shard, run.first, end)?;
                (run.first..).zip(holes).all(|(block, hole)| !hole || (home..reserved).contains(&block))
            }
            other => !takes_room(std::slice::from_ref(other)),
        };
        if !has_room {
            return Ok(false);
        }
    }
    Ok(true)
}
