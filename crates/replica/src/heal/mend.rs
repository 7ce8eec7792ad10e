//! Sends a learner what differs in a portion: entries, and the differing blocks of shards.

use super::{Blocks, Learner, Mending, Stage};
use crate::context::Context;
use crate::heal::learner::block_hashes;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::message::{BlockHash, HealStep, HeldShard, Message};
use crate::ops::step::Commit;
use bytes::BytesMut;
use hekate_brick::{Brick, block_checksum};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes of entries that one step carries, but for the last entry.
const ENTRY_BYTES: usize = 32 << 10;
/// Blocks of a shard that one step carries.
const BLOCKS: u32 = 8;

impl Leader {
    pub(super) fn mend(&mut self, cx: &mut Context, brick: BrickId, mut mending: Mending) -> Result<bool> {
        let goes_on = match &mending.blocks {
            Blocks::Asked(_) => false,
            Blocks::Differ(..) => self.mend_blocks(cx, brick, &mut mending)?,
            Blocks::None if !mending.entries.is_empty() => self.mend_entries(cx, brick, &mut mending)?,
            Blocks::None => match mending.shards.pop_front() {
                Some(held) => self.restamp_shard(cx, brick, held, &mut mending)?,
                None => {
                    self.set_stage(brick, Stage::Next(mending.to));
                    return Ok(true);
                }
            },
        };
        self.set_stage(brick, Stage::Mending(mending));
        Ok(goes_on)
    }

    fn mend_entries(&mut self, cx: &mut Context, brick: BrickId, mending: &mut Mending) -> Result<bool> {
        let (mut changes, mut bytes, mut count) = (Vec::new(), 0, 0);
        for key in &mending.entries {
            if bytes >= ENTRY_BYTES {
                break;
            }
            let key = key.clone();
            bytes += key.as_bytes().len();
            changes.push(match cx.around.brick.get(&key)? {
                Some(value) => {
                    bytes += value.len();
                    Change::Put { key, value }
                }
                None => Change::Delete { key },
            });
            count += 1;
        }
        let step = HealStep::Take { changes, reconciled: Vec::new() };
        if self.step_record(cx, (brick, step), &Commit::default(), bytes)?.is_none() {
            return Ok(false);
        }
        mending.entries.drain(..count);
        self.note_sent(brick, bytes);
        Ok(true)
    }

    fn note_sent(&mut self, brick: BrickId, bytes: usize) {
        if let Some(learner) = self.healing.learners.get_mut(&brick) {
            learner.sent += bytes as u64;
        }
    }

    /// Gives the shard a new stamp on all replicas, greater than the learner's, and the larger number of home blocks of
    /// the two. Then asks for the hashes of its blocks.
    fn restamp_shard(
        &mut self,
        cx: &mut Context,
        brick: BrickId,
        held: HeldShard,
        mending: &mut Mending,
    ) -> Result<bool> {
        let shard = held.shard;
        let own = cx.around.brick.shard(cx.at.ring, shard)?;
        let (mut commit, mut taken) = (Commit::default(), Vec::new());
        match (own, held.record) {
            (Some(own), theirs) => {
                let theirs = theirs.unwrap_or(own);
                let count = own.stamp.count.max(theirs.stamp.count) + 1;
                let stamp = Stamp::of_leader(count, cx.at.view.epoch, Sequence(self.log.last().0 + 1));
                let home = |record: &ShardRecord| record.home_blocks.max(record.reserved_blocks);
                let home_blocks = home(&own).max(home(&theirs));
                let record = ShardRecord { stamp, length: own.length, home_blocks, reserved_blocks: 0 };
                commit.changes.push(Change::CutShard { shard, record });
            }
            (None, Some(_)) => taken.push(Change::DropShard { shard }),
            (None, None) => {}
        }
        let step = HealStep::Take { changes: taken, reconciled: vec![shard] };
        let Some(sequence) = self.step_record(cx, (brick, step), &commit, 0)? else {
            mending.shards.push_front(held);
            return Ok(false);
        };
        if own.is_some() {
            cx.send_member(brick, Message::HashBlocks { sequence, shard });
            mending.blocks = Blocks::Asked(shard);
        }
        Ok(own.is_none())
    }

    pub fn blocks_held(&mut self, cx: &Context, brick: BrickId, shard: ShardId, theirs: &[BlockHash]) -> Result<()> {
        let Some(Learner { stage: Stage::Mending(mending), .. }) = self.healing.learners.get_mut(&brick) else {
            return Ok(());
        };
        if mending.blocks != Blocks::Asked(shard) {
            return Ok(());
        }
        let runs = differing_blocks(cx.at, cx.around.brick, shard, theirs)?;
        mending.blocks = if runs.is_empty() { Blocks::None } else { Blocks::Differ(shard, runs) };
        Ok(())
    }

    /// Sends the next run of blocks, as the leader has them now.
    fn mend_blocks(&mut self, cx: &mut Context, brick: BrickId, mending: &mut Mending) -> Result<bool> {
        let Blocks::Differ(shard, runs) = &mut mending.blocks else { return Ok(false) };
        let (shard, Some(run)) = (*shard, runs.front().copied()) else {
            mending.blocks = Blocks::None;
            return Ok(true);
        };
        let Some(record) = cx.around.brick.shard(cx.at.ring, shard)? else {
            // The shard was dropped in the meantime, on the learner too.
            mending.blocks = Blocks::None;
            return Ok(true);
        };
        let (first, count, is_hole) = run;
        let changes = match is_hole {
            true if record.reserved_blocks > 0 => {
                // Room was reserved for the shard in the meantime. A hole cannot be punched beside that, so the shard
                // begins again.
                mending.blocks = Blocks::None;
                mending.shards.push_front(HeldShard { shard, record: Some(record) });
                return Ok(true);
            }
            true => punched(cx.at, cx.around.brick, shard, record, first..first + count)?,
            false => written(cx.at, cx.around.brick, shard, record, first..first + count)?,
        };
        if changes.is_empty() {
            runs.pop_front();
            return Ok(true);
        }
        let bytes = if is_hole { 0 } else { count as usize * BLOCK_BYTES };
        let step = HealStep::Take { changes, reconciled: Vec::new() };
        if self.step_record(cx, (brick, step), &Commit::default(), bytes)?.is_none() {
            return Ok(false);
        }
        runs.pop_front();
        self.note_sent(brick, bytes);
        Ok(true)
    }
}

/// Runs of blocks that the learner holds differently.
///
/// # Errors
///
/// `Error::Damaged` if the leader cannot read one of its blocks: it must not count as a hole, which would be copied.
fn differing_blocks(
    at: &Membership,
    brick: &Brick,
    shard: ShardId,
    theirs: &[BlockHash],
) -> Result<VecDeque<(u32, u32, bool)>> {
    let Some(record) = brick.shard(at.ring, shard)? else { return Ok(VecDeque::new()) };
    let holes = brick.holes(at.ring, shard, 0, record.home_blocks)?;
    let ours: BTreeMap<u32, u128> =
        block_hashes(at, brick, shard)?.into_iter().map(|block| (block.block, block.hash)).collect();
    if ours.len() < holes.iter().filter(|is_hole| !**is_hole).count() {
        return Err(Error::Damaged { what: format!("a block of {shard:?} on brick {}", at.own.brick.text()) });
    }
    let theirs: BTreeMap<u32, u128> = theirs.iter().map(|block| (block.block, block.hash)).collect();
    let blocks: BTreeSet<u32> = ours.keys().chain(theirs.keys()).copied().collect();
    let mut runs: VecDeque<(u32, u32, bool)> = VecDeque::new();
    for block in blocks.into_iter().filter(|block| ours.get(block) != theirs.get(block)) {
        let is_hole = !ours.contains_key(&block);
        match runs.back_mut() {
            Some((first, count, same)) if *same == is_hole && *first + *count == block && *count < BLOCKS => {
                *count += 1
            }
            _ if block < record.home_blocks => runs.push_back((block, 1, is_hole)),
            _ => {}
        }
    }
    Ok(runs)
}

/// Changes that punch the holes of a range. What clients have written there since it was compared the learner has.
fn punched(
    at: &Membership,
    brick: &Brick,
    shard: ShardId,
    record: ShardRecord,
    blocks: std::ops::Range<u32>,
) -> Result<Vec<Change>> {
    let end = blocks.end.min(record.home_blocks).max(blocks.start);
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (block, is_hole) in (blocks.start..end).zip(brick.holes(at.ring, shard, blocks.start, end)?) {
        match runs.last_mut() {
            _ if !is_hole => {}
            Some((first, count)) if *first + *count == block => *count += 1,
            _ => runs.push((block, 1)),
        }
    }
    Ok(runs.into_iter().map(|(first, count)| Change::PunchBlocks { shard, record, first, count }).collect())
}

/// Changes that write the blocks of a range, without holes.
fn written(
    at: &Membership,
    brick: &Brick,
    shard: ShardId,
    record: ShardRecord,
    blocks: std::ops::Range<u32>,
) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    let (mut run, mut bytes) = (BlockRun { first: blocks.start, checksums: Vec::new() }, BytesMut::new());
    for block in blocks.start..=blocks.end {
        let found =
            if block < blocks.end.min(record.home_blocks) { brick.read_block(at.ring, shard, block)? } else { None };
        match found {
            Some(content) => {
                run.checksums.push(block_checksum(shard, block, &content));
                bytes.extend_from_slice(&content);
            }
            None => {
                let whole = std::mem::replace(&mut run, BlockRun { first: block + 1, checksums: Vec::new() });
                if !whole.checksums.is_empty() {
                    let bytes = bytes.split().freeze();
                    changes.push(Change::WriteBlocks { shard, record, run: whole, bytes });
                }
            }
        }
    }
    Ok(changes)
}
