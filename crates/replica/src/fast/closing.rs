//! Closing of shards: members' copies become equal to the leader's where a fast write may differ (rules 8 and 9 of
//! `docs/fast-lane.md`).

use super::FAST_BYTES_MAX;
use super::lane::FastLane;
use super::member_copy::request_blocks;
use super::reconciliation::Reconciliation;
use crate::context::Context;
use crate::invariants::require;
use crate::leader::Leader;
use crate::log::append::{Appended, Draft};
use crate::message::{FastList, Message};
use crate::ops::data::block_change;
use crate::ops::step::Commit;
use bytes::{Bytes, BytesMut};
use hekate_brick::Brick;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Shards that are closed together.
const SHARDS_AT_ONCE: usize = 64;
/// Blocks that one record reconciles at most, if the journal takes records of that size. One record with up to 512
/// blocks mostly covers all listed writes of a shard, so that no replica has half of a write.
const BLOCKS_MAX: u32 = 512;
/// Blocks of the longest write, wherever in a block it begins.
const BLOCKS_MIN: u32 = (FAST_BYTES_MAX / BLOCK_BYTES) as u32 + 1;
/// Bytes of a record besides its blocks.
const BESIDE_BYTES: usize = 8192;

/// The blocks from block `first` on, with zeros behind the shard's end: there lie bytes of writes that are undone.
fn zeros_behind(blocks: Bytes, first: u32, length: u32) -> Bytes {
    let kept =
        u64::from(length).saturating_sub(u64::from(first) * BLOCK_BYTES as u64).min(blocks.len() as u64) as usize;
    if blocks[kept..].iter().all(|byte| *byte == 0) {
        return blocks;
    }
    let mut bytes = blocks.to_vec();
    bytes[kept..].fill(0);
    bytes.into()
}

fn blocks_max(brick: &Brick) -> u32 {
    let most = brick.record_bytes_max().saturating_sub(BESIDE_BYTES) / BLOCK_BYTES;
    (most as u32).clamp(BLOCKS_MIN, BLOCKS_MAX)
}

/// Shards that are being closed: no session can write them on the fast lane any more.
#[derive(Debug)]
pub(crate) struct Closing {
    /// The record that gave the shards new stamps.
    sequence: Sequence,
    /// Members that have not sent their lists.
    missing: BTreeSet<BrickId>,
    shards: BTreeMap<ShardId, Reconciliation>,
}

impl Closing {
    pub fn has(&self, shard: ShardId) -> bool {
        self.shards.contains_key(&shard)
    }

    /// True until all members have sent their lists.
    pub fn awaits_lists(&self) -> bool {
        !self.missing.is_empty()
    }
}

impl FastLane {
    /// True if a closing waits for lists of members.
    pub fn awaits_lists(&self) -> bool {
        self.closing.as_ref().is_some_and(Closing::awaits_lists)
    }

    /// L18: the shards that are closed now have no loose writes that some member has not synced.
    fn check_synced(&self, shards: &[ShardId]) -> Result<()> {
        let is_loose = |shard: &&ShardId| self.open.get(shard).is_some_and(|open| open.loose);
        let loose = if is_planted(Bug::ClosedBeforeSync) { None } else { shards.iter().find(is_loose) };
        require(loose.is_none(), "L18", || format!("{loose:?} is closed before its loose writes are synced"))
    }

    /// Takes a member's lists.
    pub fn listed(&mut self, from: BrickId, sequence: Sequence, lists: Vec<FastList>) {
        let Some(closing) = self.closing.as_mut().filter(|closing| closing.sequence == sequence) else { return };
        if closing.missing.remove(&from) {
            for FastList { shard, writes } in lists {
                closing.shards.entry(shard).or_default().add_member(from, writes);
            }
        }
    }

    /// Begins to reconcile what members listed when the leader began, or a learner when it came back. Returns true if a
    /// shard is being reconciled.
    pub fn reconciles_found(&mut self) -> bool {
        if self.closing.is_none() && !self.found.is_empty() {
            let shards = std::mem::take(&mut self.found);
            self.closing = Some(Closing { sequence: Sequence(0), missing: BTreeSet::new(), shards });
        }
        self.closing.is_some()
    }

    pub fn reconciliation_of(&mut self, shard: ShardId) -> Option<&mut Reconciliation> {
        self.closing.as_mut()?.shards.get_mut(&shard)
    }
}

impl Leader {
    /// Closes shards until one has to wait.
    pub fn continue_closing(&mut self, cx: &mut Context) -> Result<()> {
        loop {
            if self.fast.closing.is_none() && self.serves() {
                self.fast.reconciles_found();
            }
            if self.fast.closing.is_none() && !self.begin_closing(cx)? {
                return Ok(());
            }
            if !self.reconcile_next(cx)? {
                return Ok(());
            }
        }
    }

    /// Gives the shards that are due new stamps and asks the members for their lists. Returns true if shards are being
    /// closed.
    fn begin_closing(&mut self, cx: &mut Context) -> Result<bool> {
        let lane = &mut self.fast;
        lane.due.retain(|shard| lane.open.contains_key(shard));
        if lane.due.is_empty() || !self.all_present() {
            return Ok(false);
        }
        let synced = self.sync_due(cx);
        let shards: Vec<ShardId> = synced.into_iter().take(SHARDS_AT_ONCE).collect();
        if shards.is_empty() {
            return Ok(false);
        }
        self.fast.check_synced(&shards)?;
        let mut commit = Commit::default();
        let mut closing: BTreeMap<ShardId, Reconciliation> = BTreeMap::new();
        for shard in &shards {
            if let Some(before) = cx.around.brick.shard(cx.at.ring, *shard)? {
                let record = ShardRecord { stamp: Stamp { count: before.stamp.count + 1, ..before.stamp }, ..before };
                if !is_planted(Bug::ClosedWithoutRestamp) {
                    commit.changes.push(Change::Restamp { shard: *shard, record });
                }
            }
            let own = self.fast.open.get(shard).map(|open| open.list.as_slice()).unwrap_or_default();
            closing.entry(*shard).or_default().add_own(own);
        }
        let Some(sequence) = self.append_closing(cx, &commit)? else { return Ok(false) };
        cx.out.branches.push("shards are closed");
        self.fast.due.retain(|shard| !shards.contains(shard));
        let missing: BTreeSet<BrickId> = cx.at.others().collect();
        for brick in &missing {
            cx.send_member(*brick, Message::ListFast { sequence, shards: shards.clone() });
        }
        self.fast.closing = Some(Closing { sequence, missing, shards: closing });
        Ok(true)
    }

    /// Sends the request for lists again, to a member that is connected again.
    pub fn list_again(&self, cx: &mut Context, brick: BrickId) {
        if let Some(closing) = self.fast.closing.as_ref().filter(|closing| closing.missing.contains(&brick)) {
            let shards = closing.shards.keys().copied().collect();
            cx.send_member(brick, Message::ListFast { sequence: closing.sequence, shards });
        }
        let closing = self.fast.closing.iter().flat_map(|closing| &closing.shards);
        closing.for_each(|(shard, reconciliation)| request_blocks(cx, *shard, reconciliation));
    }

    /// Reconciles the next shard, or a part of it, once all members have sent their lists. Returns true if there may be
    /// more.
    fn reconcile_next(&mut self, cx: &mut Context) -> Result<bool> {
        let Some(closing) = self.fast.closing.as_mut().filter(|closing| closing.missing.is_empty()) else {
            return Ok(false);
        };
        let Some((shard, mut reconciliation)) = closing.shards.pop_first() else {
            self.fast.closing = None;
            self.requests.retry();
            return Ok(true);
        };
        if !reconciliation.is_listed {
            self.fast.closed(shard);
            return Ok(true);
        }
        if self.waits_for_member_copy(cx, shard, &mut reconciliation)? {
            self.put_off(shard, reconciliation);
            return Ok(false);
        }
        let mut commit = Commit::default();
        let left = self.reconcile_ranges(cx, shard, &mut reconciliation, &mut commit)?;
        let is_last = left.is_empty();
        if is_last {
            commit.delete(Key::unsettled(cx.at.ring, shard));
            // The member from which the damaged block is repaired may lack these writes.
            if !reconciliation.is_damaged {
                self.remember_writes(cx, &reconciliation.own, &mut commit)?;
            }
        } else {
            commit.put(Key::unsettled(cx.at.ring, shard), &reconciliation.rest(&left, cx.at.others().count()));
        }
        let made = self.append_closing(cx, &commit)?;
        if made.is_some() {
            reconciliation.ranges = left;
            if is_last {
                cx.out.branches.push("a shard is reconciled");
                for FastWrite { stamp, .. } in &reconciliation.own {
                    // The slot has to be read from the brick again.
                    self.requests.forget_slot(stamp.session, stamp.op.0 as u8);
                }
                self.fast.closed(shard);
                return Ok(true);
            }
        }
        self.put_off(shard, reconciliation);
        Ok(made.is_some())
    }

    /// Adds as many ranges to a record as it takes. Returns the ranges that are left.
    fn reconcile_ranges(
        &self,
        cx: &mut Context,
        shard: ShardId,
        reconciliation: &mut Reconciliation,
        commit: &mut Commit,
    ) -> Result<VecDeque<(u32, u32)>> {
        let Some(before) = cx.around.brick.shard(cx.at.ring, shard)? else { return Ok(VecDeque::new()) };
        let count = reconciliation.count.max(before.stamp.count) + 1;
        // The length of a member that has been received counts for the first record only: it is then the leader's, too.
        let length = reconciliation.length(before.length);
        let record = ShardRecord { stamp: Stamp { count, ..before.stamp }, length, ..before };
        reconciliation.end_at(before.home_blocks);
        let mut left = reconciliation.ranges.clone();
        let most = blocks_max(cx.around.brick);
        let mut takes = most;
        // The last range first: the record that sets the length has all of a write that made the shard longer. A range
        // that would fit the next record whole is not begun in this one.
        while let Some((first, blocks)) = left.back().copied()
            && (blocks <= takes || takes == most)
        {
            left.pop_back();
            let wanted = blocks.min(takes);
            let bytes = self.blocks_of(cx, shard, (first, wanted), reconciliation)?;
            let mut reconciled = (bytes.len() / BLOCK_BYTES) as u32;
            if reconciled > 0 {
                commit.changes.push(block_change(shard, record, first, zeros_behind(bytes, first, length)));
            }
            if reconciled < wanted {
                // No copy that was tried can be read. The repair of the block waits for this shard to be closed, so
                // this does not wait for the repair.
                cx.out.branches.push("a damaged block is not reconciled");
                reconciliation.is_damaged = true;
                reconciled += 1;
            }
            let is_whole = reconciled >= blocks || blocks > most || reconciliation.is_damaged;
            require(is_whole, "L23", || format!("{reconciled} of {blocks} blocks of {shard:?} in a record of {most}"))?;
            takes -= reconciled.min(takes);
            if reconciled < blocks {
                left.push_back((first + reconciled, blocks - reconciled));
            }
        }
        if commit.changes.is_empty() {
            // No block can be read. The length is reconciled all the same, unless that would release reserved room; no
            // session makes a shard longer there.
            commit.changes.push(match before.reserved_blocks > before.home_blocks {
                true => Change::Restamp { shard, record },
                false => Change::CutShard { shard, record: record.without_room() },
            });
        }
        Ok(left)
    }

    fn put_off(&mut self, shard: ShardId, reconciliation: Reconciliation) {
        if let Some(closing) = &mut self.fast.closing {
            closing.shards.insert(shard, reconciliation);
        }
    }

    /// Blocks of the copy that counts, up to the first damaged one. Blocks that a power cut took are reconciled later.
    fn blocks_of(
        &self,
        cx: &Context,
        shard: ShardId,
        (first, count): (u32, u32),
        reconciliation: &Reconciliation,
    ) -> Result<Bytes> {
        let mut bytes = BytesMut::with_capacity(count as usize * BLOCK_BYTES);
        for block in first..first + count {
            if let Some(copy) = reconciliation.member_block(block) {
                bytes.extend_from_slice(copy);
                continue;
            }
            require(reconciliation.is_as_leader(), "L24", || {
                format!("block {block} of {shard:?} is read here, others from a member")
            })?;
            match cx.around.brick.read_block(cx.at.ring, shard, block) {
                Ok(Some(found)) => bytes.extend_from_slice(&found),
                Ok(None) => bytes.resize(bytes.len() + BLOCK_BYTES, 0),
                Err(Error::Damaged { .. } | Error::Io { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(bytes.freeze())
    }

    /// Puts writes that are no longer listed into their sessions' slots, as the sessions may repeat them (rule 10a).
    fn remember_writes(&self, cx: &Context, own: &[FastWrite], commit: &mut Commit) -> Result<()> {
        for FastWrite { stamp, .. } in own {
            let slot = stamp.op.0 as u8;
            let key = Key::session(
                cx.at.ring,
                cx.at.own.partition.first_position(cx.at.count),
                stamp.session,
                u16::from(slot),
            );
            let known = cx.around.brick.get(&key)?.map(SessionRecord::from_bytes).transpose().map_err(Error::from)?;
            if known.is_none_or(|known| known.op_id < stamp.op) && !is_planted(Bug::ReconciledWriteForgotten) {
                let reply = Reply::Written { stamp: *stamp, fast: None }.to_bytes();
                commit.put(key, &SessionRecord { op_id: stamp.op, reply });
            }
        }
        Ok(())
    }

    /// Appends a record that closes shards. Returns `None` if the journal has no room.
    fn append_closing(&mut self, cx: &mut Context, commit: &Commit) -> Result<Option<Sequence>> {
        let (session, op_id, step, also) = (SYSTEM_SESSION, OpId(0), None, Vec::new());
        // No session has a pledge about a shard that is open, or that was when an earlier leader ended. What a learner
        // lists is set back to the leader's bytes, which are those that sessions have.
        let draft = Draft { session, op_id, by: None, commit, also, must: true, step, closes: true };
        match self.append(cx, draft)? {
            Appended::Made(sequence) => Ok(Some(sequence)),
            Appended::NoRoom => Ok(None),
            Appended::Refused(error) => Err(error),
        }
    }
}
