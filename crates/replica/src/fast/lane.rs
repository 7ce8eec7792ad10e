//! The leader's part of the fast lane: shards that are open for fast writes, and reads of unsettled writes.

use super::closing::Closing;
use super::loose::Loose;
use super::reconciliation::Reconciliation;
use super::{FastOp, read_lists};
use crate::context::{Context, Out, Token};
use crate::invariants::require;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::message::{FastList, Message};
use crate::ops::read::answer;
use crate::ops::step::Ask;
use crate::partition::Event;
use crate::requests::Waiting;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// Shards of a partition that are open at the same time.
const OPEN_MAX: usize = 1024;
/// Writes in succession by one session before a shard that another session wrote is opened again.
const WRITES_ALONE: u32 = 4;
/// Shards whose last writers are remembered.
const WRITERS_MAX: usize = 16_384;
/// Time without a write after which a shard is closed, in ns: 500 ms.
const IDLE_NS: u64 = 500_000_000;

/// The leader's part of the fast lane.
#[derive(Debug, Default)]
pub(crate) struct FastLane {
    /// Identifies the fast writes that this start of the leader allows. Fast writes with another term are refused.
    pub term: u64,
    pub(super) open: BTreeMap<ShardId, Open>,
    /// Shards to be closed next.
    pub(super) due: BTreeSet<ShardId>,
    pub(super) closing: Option<Closing>,
    /// What members and learners listed when they sent `Position`, to be reconciled.
    pub(super) found: BTreeMap<ShardId, Reconciliation>,
    pub loose: Loose,
    /// The session that wrote a shard last on the leader's lane, and how many more writes it needs before the shard is
    /// opened.
    writers: BTreeMap<ShardId, (SessionId, u32)>,
    reads: Vec<Reading>,
}

/// A shard that is open for fast writes of a session.
#[derive(Debug)]
pub(super) struct Open {
    session: SessionId,
    /// Fast writes that some member may lack.
    pub list: Vec<FastWrite>,
    /// The last write that all members are known to have.
    known: Option<Stamp>,
    used_at: Time,
    /// True if a write was taken that need not be on stable storage.
    pub loose: bool,
}

/// A read that is answered once all members are known to have what the answer shows.
#[derive(Debug)]
struct Reading {
    event: Event,
    shard: ShardId,
    stamp: Stamp,
    token: Token,
    reply: Reply,
    missing: BTreeSet<BrickId>,
}

impl FastLane {
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.reads.is_empty() && !self.is_closing()
    }

    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// The first open shard that the changes affect.
    pub fn first_open(&self, changes: &[Change]) -> Option<ShardId> {
        changes.iter().filter_map(Change::shard).find(|shard| self.open.contains_key(shard))
    }

    /// The number of fast writes to open shards that some member may lack.
    pub fn unsettled_count(&self) -> usize {
        self.open.values().map(|open| open.list.len()).sum()
    }

    /// True if reads or closings wait for room, or for members.
    pub fn wants_tick(&self) -> bool {
        !self.reads.is_empty() || self.is_closing()
    }

    pub fn is_closing(&self) -> bool {
        self.closing.is_some() || !self.due.is_empty() || !self.found.is_empty()
    }

    pub fn close_all_of(&mut self, session: SessionId) {
        let of_it = self.open.iter().filter(|(_, open)| open.session == session);
        self.due.extend(of_it.map(|(shard, _)| *shard));
    }

    /// Marks the open shards of these data ids to be closed.
    pub fn close_all_with(&mut self, volume: VolumeId, pieces: &[Piece]) {
        let has = |shard: &&ShardId| shard.volume == volume && pieces.iter().any(|piece| piece.data == shard.data);
        self.due.extend(self.open.keys().filter(has));
    }

    /// Open shards whose keys are in `from..to`.
    pub fn open_between(&self, ring: RingId, from: &Key, to: &Key) -> Vec<ShardId> {
        let is_between = |shard: &&ShardId| (from..to).contains(&&Key::shard(ring, **shard));
        self.open.keys().filter(is_between).copied().collect()
    }

    /// Marks all open shards to be closed, before the host makes changes outside of the log.
    pub fn close_all(&mut self) {
        self.due.extend(self.open.keys());
    }

    fn close_idle(&mut self, now: Time) {
        // A clock that was set back does not keep shards open until it has caught up.
        let is_idle = |open: &Open| now.0.abs_diff(open.used_at.0) > IDLE_NS;
        self.due.extend(self.open.iter().filter(|(_, open)| is_idle(open)).map(|(shard, _)| *shard));
    }

    pub fn take_reads(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        std::mem::take(&mut self.reads).into_iter().map(|reading| Waiting::of(reading.event))
    }

    /// Counts a write of a session on the leader's lane. Returns true if the shard may be opened for the session.
    fn is_alone(&mut self, shard: ShardId, session: SessionId) -> bool {
        if self.writers.len() >= WRITERS_MAX {
            self.writers.clear();
        }
        let (writer, left) = self.writers.entry(shard).or_insert((session, 1));
        if *writer != session {
            (*writer, *left) = (session, WRITES_ALONE);
        }
        *left = left.saturating_sub(1);
        *left == 0
    }

    /// Removes a shard that was closed. Its session needs [`WRITES_ALONE`] more writes before the shard is opened
    /// again.
    pub(super) fn closed(&mut self, shard: ShardId) {
        if let Some(open) = self.open.remove(&shard) {
            self.writers.insert(shard, (open.session, WRITES_ALONE));
        }
    }

    /// True if a read of the shard has to wait until the shard is closed (rule L8). While it is being closed, members
    /// have the stamp of its `Restamp`, whichever of the writes before they have. While it is due, members would be
    /// asked again with each try.
    pub fn is_closing_for(&self, ask: &Ask, op: &Op) -> bool {
        let is_it =
            |shard| self.due.contains(&shard) || self.closing.as_ref().is_some_and(|closing| closing.has(shard));
        read_shard(ask, op).is_some_and(is_it)
    }

    /// True if the op reads a shard that may change without a record of its own: nobody is pledged its bytes.
    pub fn may_be_changed(&self, ask: &Ask, op: &Op) -> bool {
        let is_reconciled = |shard: &ShardId| {
            self.closing.as_ref().is_some_and(|closing| closing.has(*shard)) || self.found.contains_key(shard)
        };
        let may_change = |shard: ShardId| self.open.contains_key(&shard) || is_reconciled(&shard);
        read_shard(ask, op).is_some_and(may_change) && !is_planted(Bug::OpenShardPledged)
    }

    fn is_unsettled(&self, shard: ShardId) -> bool {
        let open = self.open.get(&shard);
        open.is_some_and(|open| open.list.last().is_some_and(|last| open.known != Some(last.stamp)))
            && !is_planted(Bug::UnsettledWriteRead)
    }
}

/// The shard whose bytes, or whose holes, an op reads.
fn read_shard(ask: &Ask, op: &Op) -> Option<ShardId> {
    match op {
        Op::Data { op: DataOp::ReadShard { data, index, .. } | DataOp::SeekShard { data, index, .. } } => {
            Some(ShardId { volume: ask.volume, data: *data, index: *index })
        }
        _ => None,
    }
}

impl Leader {
    /// Starts the fast lane with a new term and no open shards.
    ///
    /// # Errors
    ///
    /// `Error::Bug` if the term is not new (rule L10).
    pub fn begin_fast_lane(&mut self, cx: &Context) -> Result<()> {
        let ticket = self.log.next_ticket();
        self.requests.wait_all(self.fast.take_reads());
        // The term contains the epoch, the opening of the brick, and a number for this start of the leader.
        let parts = [(cx.at.view.epoch.0, 24), (u64::from(cx.around.brick.generation()), 16), (ticket, 24)];
        let term = parts.iter().fold(0, |term, (part, bits)| term << bits | part & ((1 << bits) - 1));
        require(term != self.fast.term, "L10", || format!("term {term:#x} is given twice"))?;
        self.fast = FastLane { term, ..FastLane::default() };
        Ok(())
    }

    /// Adds the leader's own lists to what is to be reconciled. They are read once the leader has all records, since
    /// one that it fetched may have reconciled a shard (rule L13).
    pub fn add_own_lists(&mut self, cx: &Context) -> Result<()> {
        self.fast.found.values_mut().for_each(Reconciliation::forget_own);
        for (shard, writes) in read_lists(cx.at, cx.around.brick)? {
            self.fast.found.entry(shard).or_default().add_own(&writes);
        }
        Ok(())
    }

    /// True if the read shows a write that some member may lack.
    pub fn shows_unsettled(&self, ask: &Ask, op: &Op) -> bool {
        read_shard(ask, op).is_some_and(|shard| self.fast.is_unsettled(shard))
    }

    /// Asks the members whether they have what the answer to a read shows (rule 7). Returns false if the read is to be
    /// tried without that.
    pub fn confirm_read(&mut self, cx: &mut Context, (token, ask, op): (Token, &Ask, &Op)) -> Result<bool> {
        let Some(shard) = read_shard(ask, op) else { return Ok(false) };
        require(!self.fast.is_closing_for(ask, op), "L8", || format!("a read asks for {shard:?}, which is closed"))?;
        let Some(record) = cx.around.brick.shard(cx.at.ring, shard)? else { return Ok(false) };
        let Ok(reply) = answer(cx.around.brick, ask, cx.at.own.partition, op) else { return Ok(false) };
        cx.out.branches.push("a read asks whether a fast write is everywhere");
        let (stamp, missing): (_, BTreeSet<BrickId>) = (record.stamp, cx.at.others().collect());
        missing.iter().for_each(|brick| cx.send_member(*brick, Message::AskFast { shard, stamp }));
        let event = Event::Request { token, ask: *ask, op: op.clone() };
        self.fast.reads.push(Reading { event, shard, stamp, token, reply, missing });
        Ok(true)
    }

    /// Takes a member's answer. If the member lacks the write it may never receive it, so the shard is closed.
    pub fn fast_held(&mut self, from: BrickId, shard: ShardId, stamp: Stamp, held: bool, out: &mut Out) {
        let mut reads = std::mem::take(&mut self.fast.reads);
        for reading in &mut reads {
            if held && (reading.shard, reading.stamp) == (shard, stamp) {
                reading.missing.remove(&from);
            }
        }
        for reading in reads {
            let is_it = (reading.shard, reading.stamp) == (shard, stamp);
            if is_it && !held {
                out.branches.push("a read closes a shard");
                self.fast.due.extend(self.fast.open.contains_key(&shard).then_some(shard));
                self.requests.wait(Waiting::of(reading.event));
                self.requests.retry();
            } else if reading.missing.is_empty() {
                if let Some(open) = self.fast.open.get_mut(&reading.shard) {
                    open.known = Some(reading.stamp);
                }
                self.answer(reading.token, Ok(reading.reply));
            } else {
                self.fast.reads.push(reading);
            }
        }
    }

    /// Tries reads again that wait for a member which went away or came back.
    pub fn read_again(&mut self, brick: BrickId) {
        for reading in std::mem::take(&mut self.fast.reads) {
            if reading.missing.contains(&brick) {
                self.requests.wait(Waiting::of(reading.event));
                self.requests.retry();
            } else {
                self.fast.reads.push(reading);
            }
        }
    }

    /// Takes a client's fast write on the leader's copy, which is one of those that must take it.
    pub fn fast_write(&mut self, cx: &mut Context, (token, ask, op): (Token, &Ask, &Op)) -> Result<()> {
        let conflict = Err(Error::Conflict { stamp: None });
        let serves = self.serves() && cx.at.view.whole && !cx.at.view.too_few && self.may_be_loose(ask);
        let reply = match op {
            Op::Data { op } if serves => match FastOp::of(ask, op) {
                Some(write) if write.term == self.fast.term && !self.fast.is_due(write.shard) => {
                    match self.fast.open.get_mut(&write.shard).filter(|open| open.session == ask.session) {
                        Some(open) => {
                            open.used_at = cx.around.now;
                            open.loose |= ask.loose;
                            write.take(cx.at, cx.around.brick, ask, &mut open.list)?
                        }
                        None => conflict,
                    }
                }
                _ => conflict,
            },
            _ => conflict,
        };
        if reply.is_ok() && ask.loose {
            self.note_loose_write(cx.around.now)?;
        }
        cx.out.branches.push(match (&reply, ask.loose) {
            (Ok(_), false) => "a fast write",
            (Ok(_), true) => "a loose fast write",
            _ => "a fast write is refused by the leader",
        });
        cx.out.answers.push((token, reply));
        Ok(())
    }

    /// Opens a shard after a write on the leader's lane. Returns the term for the session's next write, or `None`.
    pub fn open_shard(&mut self, cx: &Context, ask: &Ask, op: &Op) -> Option<u64> {
        let Op::Data { op: DataOp::WriteShard { data, index, fast: true, .. } } = op else { return None };
        let shard = ShardId { volume: ask.volume, data: *data, index: *index };
        let may_open = self.opens_shards(cx.at) && self.may_be_loose(ask);
        let lane = &mut self.fast;
        if !may_open || lane.open.len() >= OPEN_MAX || !lane.is_alone(shard, ask.session) {
            return None;
        }
        let (session, used_at) = (ask.session, cx.around.now);
        lane.open.insert(shard, Open { session, list: Vec::new(), known: None, used_at, loose: false });
        Some(lane.term)
    }

    /// True if shards may be opened: the view lacks no replica, as no log has the fast writes (rule L16).
    pub fn opens_shards(&self, at: &Membership) -> bool {
        at.view.whole && at.learners().next().is_none() && at.others().next().is_some()
    }

    /// True if the op copies a run, or reserves room beside bytes, that some member may lack. The shard is then closed
    /// first.
    pub fn builds_on_unsettled(&mut self, ask: &Ask, op: &Op) -> bool {
        let Op::Data { op } = op else { return false };
        let (DataOp::CopyShard { from: ShardRange { data, index, .. }, .. }
        | DataOp::AllocateShard { data, index, .. }) = op
        else {
            return false;
        };
        self.closes_unsettled(ShardId { volume: ask.volume, data: *data, index: *index })
    }

    /// True if a shard of the data id has a fast write that some member may lack. Such shards are closed then.
    pub fn closes_unsettled_of(&mut self, volume: VolumeId, data: DataId) -> bool {
        let is_of_it = |shard: &ShardId| (shard.volume, shard.data) == (volume, data) && self.fast.is_unsettled(*shard);
        let shards: Vec<ShardId> = self.fast.open.keys().copied().filter(is_of_it).collect();
        self.fast.due.extend(&shards);
        !shards.is_empty()
    }

    /// True if the shard has a fast write that some member may lack. The shard is closed then.
    pub fn closes_unsettled(&mut self, shard: ShardId) -> bool {
        let is_unsettled = self.fast.is_unsettled(shard);
        self.fast.due.extend(is_unsettled.then_some(shard));
        is_unsettled
    }

    /// Closes idle shards. Called with each tick.
    pub fn look_after_fast_lane(&mut self, now: Time) {
        if self.serves() {
            self.fast.close_idle(now);
        }
    }

    /// Marks the open shards that a record changes to be closed. Returns true if the record must wait: for them, or for
    /// a shard that is being reconciled, as a member's blocks would overwrite the record's.
    pub fn must_close(&mut self, changes: &[Change], out: &mut Out) -> bool {
        let lane = &mut self.fast;
        if lane.open.is_empty() && lane.closing.is_none() || is_planted(Bug::OpenShardChanged) {
            return false;
        }
        let is_closing = |shard: &ShardId| lane.closing.as_ref().is_some_and(|closing| closing.has(*shard));
        let waits = |shard: &ShardId| lane.open.contains_key(shard) || is_closing(shard);
        let shards: Vec<ShardId> = changes.iter().filter_map(Change::shard).filter(waits).collect();
        if !shards.is_empty() {
            out.branches.push("a record waits for a shard to be closed");
        }
        lane.due.extend(shards.iter().filter(|shard| lane.open.contains_key(shard)));
        !shards.is_empty()
    }
}

impl FastLane {
    fn is_due(&self, shard: ShardId) -> bool {
        self.due.contains(&shard)
    }

    /// Adds a member's lists to what is to be reconciled.
    pub fn add_lists_of_member(&mut self, brick: BrickId, lists: Vec<FastList>) {
        for FastList { shard, writes } in lists {
            self.found.entry(shard).or_default().add_member(brick, writes);
        }
    }

    /// Adds a learner's lists to what is to be reconciled.
    pub fn add_lists_of_learner(&mut self, lists: Vec<FastList>) {
        for FastList { shard, writes } in lists {
            self.found.entry(shard).or_default().add(&writes);
        }
    }
}
