//! Fresh blocks that a replica lacks because their record came without their bytes.
//!
//! A record of fresh blocks has only their checksums. A replica that is sent the record from another one's journal gets
//! the bytes that this one can still read. The rest were overwritten, and come with a later record, or a power cut took
//! them from the sender. The receiver lacks the latter as the sender does, and reports them as lost (rule R15): the
//! sender may be gone before the members have reconciled them. The list ends with the process: if the receiver makes a
//! checkpoint and starts anew before that, it does not know.

use crate::message::Fresh;
use hekate_brick::Brick;
use hekate_proto::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks whose bytes did not come, and that no later record has written.
#[derive(Debug, Clone, Default)]
pub(crate) struct WithoutBytes(BTreeMap<ShardId, Vec<Range<u32>>>);

impl WithoutBytes {
    /// Notes a record that this replica has appended. `copied`: it comes from another journal, with these fresh blocks.
    pub fn took(&mut self, record: &Record, fresh: &[Fresh], copied: bool) {
        for change in &record.changes {
            match change {
                Change::FreshBlocks { shard, run, .. } if copied => self.note(*shard, blocks_of(run), fresh),
                Change::WriteBlocks { shard, run, .. } => self.remove(*shard, blocks_of(run)),
                Change::PunchBlocks { shard, first, count, .. } => {
                    self.remove(*shard, *first..first.saturating_add(*count))
                }
                Change::CutShard { shard, record } => {
                    self.remove(*shard, record.length.div_ceil(BLOCK_BYTES as u32)..u32::MAX);
                }
                Change::DropShard { shard } => self.remove(*shard, 0..u32::MAX),
                _ => {}
            }
        }
    }

    fn note(&mut self, shard: ShardId, blocks: Range<u32>, fresh: &[Fresh]) {
        self.0.entry(shard).or_default().push(blocks);
        for came in fresh.iter().filter(|came| came.shard == shard) {
            let count = (came.bytes.len() / BLOCK_BYTES) as u32;
            self.remove(shard, came.first_block..came.first_block + count);
        }
    }

    fn remove(&mut self, shard: ShardId, blocks: Range<u32>) {
        let Some(runs) = self.0.remove(&shard) else { return };
        let left = runs.into_iter().flat_map(|run| {
            let before = run.start..run.end.min(blocks.start);
            let behind = run.start.max(blocks.end)..run.end;
            [before, behind].into_iter().filter(|part| !part.is_empty())
        });
        let left: Vec<Range<u32>> = left.collect();
        if !left.is_empty() {
            self.0.insert(shard, left);
        }
    }

    /// True if a block of the shard came without its bytes.
    pub fn has_shard(&self, shard: ShardId) -> bool {
        self.0.contains_key(&shard)
    }

    /// The blocks that the brick cannot read. It may have the bytes although it lost their record.
    ///
    /// # Errors
    ///
    /// Those of the brick, except damage.
    pub fn lacking(&self, brick: &Brick, ring: RingId) -> Result<Vec<(ShardId, u32)>> {
        let mut lacking = Vec::new();
        for (shard, runs) in &self.0 {
            for block in runs.iter().cloned().flatten() {
                match brick.read_block(ring, *shard, block) {
                    Err(Error::Damaged { .. }) => lacking.push((*shard, block)),
                    found => drop(found?),
                }
            }
        }
        Ok(lacking)
    }
}

fn blocks_of(run: &BlockRun) -> Range<u32> {
    run.first..run.first + run.checksums.len() as u32
}
