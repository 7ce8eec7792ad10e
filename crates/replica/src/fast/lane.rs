//! The leader's fast lane: which shards are open, and reads of what is not settled.

use super::closing::Closing;
use super::loose::Loose;
use super::uneven::Uneven;
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
/// A shard that two sessions wanted is opened for one that has written it so often without another in between.
const WRITES_ALONE: u32 = 4;
/// Shards of which it is remembered who wrote them last.
const WRITERS_MAX: usize = 16_384;
/// A shard that nobody writes for so long is closed: 500 ms.
const IDLE_NS: u64 = 500_000_000;

/// See `fast.rs`.
#[derive(Debug, Default)]
pub(crate) struct FastLane {
    /// What an earlier life of the leader has allowed counts no more.
    pub term: u64,
    pub(super) open: BTreeMap<ShardId, Open>,
    /// To be closed next.
    pub(super) due: BTreeSet<ShardId>,
    pub(super) closing: Option<Closing>,
    /// What members list when a leader begins.
    pub(super) found: BTreeMap<ShardId, Uneven>,
    pub loose: Loose,
    /// Who wrote a shard last on the leader's lane, and how often it has to do so again before the shard is opened for it.
    writers: BTreeMap<ShardId, (SessionId, u32)>,
    reads: Vec<Reading>,
}

/// A shard that a session may write on the fast lane.
#[derive(Debug)]
pub(super) struct Open {
    session: SessionId,
    /// Writes that some member may lack.
    pub list: Vec<FastWrite>,
    /// All members are known to have this one.
    known: Option<Stamp>,
    used_at: Time,
    /// Some write was taken that need not be on stable storage.
    pub loose: bool,
}

/// A read whose answer is told when all members are known to have what it shows.
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

    /// Writes that some member may lack, of all open shards.
    pub fn unsettled_count(&self) -> usize {
        self.open.values().map(|open| open.list.len()).sum()
    }

    /// Whether it waits for room, or for members.
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

    /// Of those whose keys are in `from..to`.
    pub fn open_between(&self, ring: RingId, from: &Key, to: &Key) -> Vec<ShardId> {
        let is_between = |shard: &&ShardId| (from..to).contains(&&Key::shard(ring, **shard));
        self.open.keys().filter(is_between).copied().collect()
    }

    /// All that is open, for who changes things past the log.
    pub fn close_all(&mut self) {
        self.due.extend(self.open.keys());
    }

    fn close_idle(&mut self, now: Time) {
        // A clock that was set back has not to come as far again.
        let is_idle = |open: &Open| now.0.abs_diff(open.used_at.0) > IDLE_NS;
        self.due.extend(self.open.iter().filter(|(_, open)| is_idle(open)).map(|(shard, _)| *shard));
    }

    pub fn take_reads(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        std::mem::take(&mut self.reads).into_iter().map(|reading| Waiting::of(reading.event))
    }

    /// Whether a session that writes a shard on the leader's lane may go on on the fast one.
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

    /// Somebody else wanted it, or nobody does any more.
    pub(super) fn closed(&mut self, shard: ShardId) {
        if let Some(open) = self.open.remove(&shard) {
            self.writers.insert(shard, (open.session, WRITES_ALONE));
        }
    }

    /// Members hold the stamp of its closing, whatever they have of the writes before. Where it is only due, and cannot begin, they
    /// would give the same answer again and again.
    pub fn is_closing_for(&self, ask: &Ask, op: &Op) -> bool {
        let is_it =
            |shard| self.due.contains(&shard) || self.closing.as_ref().is_some_and(|closing| closing.has(shard));
        read_shard(ask, op).is_some_and(is_it)
    }

    fn is_unsettled(&self, shard: ShardId) -> bool {
        let open = self.open.get(&shard);
        open.is_some_and(|open| open.list.last().is_some_and(|last| open.known != Some(last.stamp)))
            && !is_planted(Bug::UnsettledWriteRead)
    }
}

/// The shard that a read of bytes is about.
fn read_shard(ask: &Ask, op: &Op) -> Option<ShardId> {
    match op {
        Op::Data { op: DataOp::ReadShard { data, index, .. } } => {
            Some(ShardId { volume: ask.volume, data: *data, index: *index })
        }
        _ => None,
    }
}

impl Leader {
    /// A leader begins: nothing is open.
    ///
    /// # Errors
    ///
    /// `Bug` if a rule does not hold.
    pub fn begin_fast_lane(&mut self, cx: &Context) -> Result<()> {
        let ticket = self.log.next_ticket();
        self.requests.wait_all(self.fast.take_reads());
        // Of this view, of this life of the brick, and of this beginning in it.
        let parts = [(cx.at.view.epoch.0, 24), (u64::from(cx.around.brick.generation()), 16), (ticket, 24)];
        let term = parts.iter().fold(0, |term, (part, bits)| term << bits | part & ((1 << bits) - 1));
        require(term != self.fast.term, "L10", || format!("term {term:#x} is given twice"))?;
        self.fast = FastLane { term, ..FastLane::default() };
        Ok(())
    }

    /// What is listed here is to be evened: as it is once all records are here, since an evening record may be among those that
    /// were fetched.
    pub fn find_own_lists(&mut self, cx: &Context) -> Result<()> {
        self.fast.found.values_mut().for_each(Uneven::forget_own);
        for (shard, writes) in read_lists(cx.at, cx.around.brick)? {
            self.fast.found.entry(shard).or_default().add_own(&writes);
        }
        Ok(())
    }

    /// Whether what a read shows may not be on every member.
    pub fn shows_unsettled(&self, ask: &Ask, op: &Op) -> bool {
        read_shard(ask, op).is_some_and(|shard| self.fast.is_unsettled(shard))
    }

    /// Rule 7: members are asked whether they have what the answer shows.
    pub fn confirm_read(&mut self, cx: &mut Context, (token, ask, op): (Token, &Ask, &Op)) -> Result<bool> {
        let Some(shard) = read_shard(ask, op) else { return Ok(false) };
        let Some(record) = cx.around.brick.shard(cx.at.ring, shard)? else { return Ok(false) };
        let Ok(reply) = answer(cx.around.brick, ask, cx.at.own.partition, op) else { return Ok(false) };
        cx.out.branches.push("a read asks whether a fast write is everywhere");
        let (stamp, missing): (_, BTreeSet<BrickId>) = (record.stamp, cx.at.others().collect());
        missing.iter().for_each(|brick| cx.send_member(*brick, Message::AskFast { shard, stamp }));
        let event = Event::Request { token, ask: *ask, op: op.clone() };
        self.fast.reads.push(Reading { event, shard, stamp, token, reply, missing });
        Ok(true)
    }

    /// A member has a write, or has not: then it may never come, and the shard is closed.
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

    /// A member went away, or came back: reads that wait for it begin again.
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

    /// A client's fast write: the leader's copy is one of those that take it.
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
            self.used_loosely(cx.around.now);
        }
        cx.out.branches.push(match (&reply, ask.loose) {
            (Ok(_), false) => "a fast write",
            (Ok(_), true) => "a loose fast write",
            _ => "a fast write is refused by the leader",
        });
        cx.out.answers.push((token, reply));
        Ok(())
    }

    /// The session's next write to the shard may come on the fast lane.
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

    /// Only where nobody is missing: what goes over the fast lane is in no log (rule L16).
    pub fn opens_shards(&self, at: &Membership) -> bool {
        at.view.whole && at.learners().next().is_none() && at.others().next().is_some()
    }

    /// Whether an op copies what may not be on every member: then the shard is closed first.
    pub fn copies_unsettled(&mut self, ask: &Ask, op: &Op) -> bool {
        matches!(op, Op::Data { op: DataOp::CopyShard { from, .. } } if self.is_open_and_unsettled(ask.volume, from))
    }

    /// The same, of a run that is read for another partition.
    pub fn is_open_and_unsettled(&mut self, volume: VolumeId, range: &ShardRange) -> bool {
        let shard = ShardId { volume, data: range.data, index: range.index };
        let is_unsettled = self.fast.is_unsettled(shard);
        self.fast.due.extend(is_unsettled.then_some(shard));
        is_unsettled
    }

    /// With each tick.
    pub fn look_after_fast_lane(&mut self, now: Time) {
        if self.serves() {
            self.fast.close_idle(now);
        }
    }

    /// Of an open shard that a record changes nothing may come on the fast lane meanwhile; and what a member lends for one that is being
    /// made even would be put over the record. -> whether the record must wait.
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

    /// What a member lists when a leader begins is to be evened.
    pub fn found_on(&mut self, brick: BrickId, lists: Vec<FastList>) {
        for FastList { shard, writes } in lists {
            self.found.entry(shard).or_default().add_member(brick, writes);
        }
    }

    /// What one who learns lists when it comes.
    pub fn found_on_learner(&mut self, lists: Vec<FastList>) {
        for FastList { shard, writes } in lists {
            self.found.entry(shard).or_default().add(&writes);
        }
    }
}
