//! Punching: a range of a file becomes a hole, at a cost that depends on the shards that exist in it, not on its
//! length.

use super::bytes::ShardChanges;
use super::space::gave_up;
use super::{Distribute, unexpected};
use hekate_graph::Context;
use hekate_proto::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// Partitions asked in one batch. Together with the shards at the edges and the inode, they need fewer slots than a
/// session has (256).
const PARTITIONS_AT_ONCE: usize = 128;
/// Longest run of whole shards that are punched one by one. For a longer run, each partition removes the shards that
/// it has.
const WHOLE_SHARDS_MAX: u64 = 32;

impl Distribute {
    /// Makes `range` a hole; the file ends at `end` or later. False if the layout changed meanwhile: then it must be
    /// repeated.
    pub(super) fn punch(
        &self,
        context: &Context,
        inode: InodeId,
        layout: &Layout,
        range: Range<u64>,
        end: u64,
        drop_set_id: bool,
    ) -> Result<bool> {
        let changes = |ops| ShardChanges { ops, end, reach: 0, drop_set_id, within: false };
        let whole = range.start.div_ceil(SHARD_BYTES)..range.end / SHARD_BYTES;
        let (Some(data), true) = (data_of(layout), whole.end.saturating_sub(whole.start) > WHOLE_SHARDS_MAX) else {
            return self.change_shards(context, inode, layout, changes(self.punches(layout, range)));
        };
        let mut ops = self.punches(layout, range.start..whole.start * SHARD_BYTES);
        ops.extend(self.punches(layout, whole.end * SHARD_BYTES..range.end));
        let mut left: Vec<(ShardId, u64)> = self.one_of_each_partition(data, whole.clone());
        loop {
            let asked: Vec<(ShardId, u64)> = left.drain(..left.len().min(PARTITIONS_AT_ONCE)).collect();
            let edges = ops.len();
            ops.extend(
                asked.iter().map(|(shard, from)| (*shard, DataOp::EmptyShards { data, from: *from, to: whole.end })),
            );
            let Some(answers) =
                self.change_shards_replies(context, inode, layout, changes(std::mem::take(&mut ops)))?
            else {
                return Ok(false);
            };
            for ((shard, _), answer) in asked.into_iter().zip(answers.into_iter().skip(edges)) {
                match answer {
                    Reply::Found { at: None } => {}
                    Reply::Found { at: Some(next) } => left.push((shard, next)),
                    _ => return Err(unexpected()),
                }
            }
            if left.is_empty() {
                return Ok(true);
            }
            if context.interrupted() {
                return Err(gave_up());
            }
        }
    }

    /// One op for each shard of the range.
    fn punches(&self, layout: &Layout, range: Range<u64>) -> Vec<(ShardId, DataOp)> {
        let length = range.end.saturating_sub(range.start) as usize;
        let op = |(shard, offset, count): ShardRun| {
            let (data, index, offset, length) = (shard.data, shard.index, offset as u32, count as u32);
            (shard, DataOp::AllocateShard { data, index, offset, length, fill: Fill::Nothing })
        };
        layout.shard_runs(self.replicate.map().volume, range.start, length).into_iter().map(op).collect()
    }

    /// One shard of the range for each partition that may have shards of it, and the first index. The shard stands
    /// for its partition as the op's recipient and in what an fsync has to cover.
    fn one_of_each_partition(&self, data: DataId, range: Range<u64>) -> Vec<(ShardId, u64)> {
        let map = self.replicate.map();
        let (volume, count, first) = (map.volume, map.partitions() as usize, range.start);
        let mut each: BTreeMap<PartitionNumber, ShardId> = BTreeMap::new();
        for index in range {
            let shard = ShardId { volume, data, index };
            each.entry(map.partition_of(shard.position())).or_insert(shard);
            if each.len() == count {
                break;
            }
        }
        each.into_values().map(|shard| (shard, first)).collect()
    }
}

/// The data id, if all shards of the file have the same one and each is at its own place in the file.
fn data_of(layout: &Layout) -> Option<DataId> {
    match layout.pieces[..] {
        [Piece { data, .. }] => Some(data),
        _ => None,
    }
}
