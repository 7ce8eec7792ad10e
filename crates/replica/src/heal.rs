//! The leader heals those who learn: it goes through what it holds of the partition once, portion by portion, and sends
//! what the learner has otherwise. `learner.rs` is the other side.
//!
//! Each step is a record, empty for the members: so it has its place among the changes, which go on meanwhile. From the
//! record on that compares a portion the learner follows the leader's records there; what differed with that record, and
//! nothing else, is sent. A shard that differs gets a fresh stamp on all replicas first, greater than the learner's own:
//! until it has it, the learner takes nothing for it; then only the blocks that differ are sent.

mod late;
pub(crate) mod learner;
mod learners;
mod mend;
pub(crate) mod proof;

use crate::context::{Around, Context};
pub(crate) use crate::heal::learners::LearnerWork;

use crate::heal::learner::heal_key;
use crate::leader::Leader;
use crate::log::append::{Appended, Draft};
use crate::membership::Membership;
use crate::message::{BlockAt, FastList, Hashed, HealStep, HeldShard, Message};
use crate::ops::step::Commit;
use crate::view_start::compare::sum;
use hekate_brick::{Brick, LogEntry, LogPosition};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Entries of the index that one step compares.
const PORTION: usize = 512;
/// Bytes that a tick may send, unless its host says otherwise; a quarter while clients change something.
const TICK_BYTES: usize = 1 << 20;
const BUSY_SHARE: usize = 4;
/// Bytes that the learner may not have yet.
const WINDOW_BYTES: usize = 2 << 20;
/// What a step costs beside what it brings.
const STEP_BYTES: usize = 256;

/// Who lacks so many records may be a member: it is fed the rest before its view begins.
const NEAR: u64 = 64;

/// How far a learner is, for who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Healing {
    /// Which.
    pub brick: BrickId,
    /// Whether it takes records.
    pub heard: bool,
    /// Something that it is to get cannot be read here.
    pub stuck: bool,
    /// It may be a member: of the last records it lacks a few at most (`NEAR`).
    pub whole: bool,
    /// Of its part of the ring so much was gone through, of 10,000.
    pub done: u32,
    /// Bytes that were sent because it had them otherwise.
    pub sent: u64,
    /// It is compared, and has what comes before this; none: it gets records, and has them up to `held`.
    pub from: Option<Key>,
    /// So.
    pub held: Sequence,
}

/// A learner, as the leader knows it.
#[derive(Debug, Default)]
pub(crate) struct Learner {
    stage: Stage,
    /// It has all records up to here.
    held: Sequence,
    /// It should have all up to here by now.
    due: Sequence,
    /// What comes before this is not in its journal, or is there as its healing needed it: as long as a member lacks some
    /// of it, it may not lead.
    since: Sequence,
    /// Steps that it may not have taken, with what they cost.
    window: VecDeque<(Sequence, usize)>,
    window_bytes: usize,
    from: Option<Key>,
    sent: u64,
}

#[derive(Debug, Default)]
enum Stage {
    /// It has not said where its log ends.
    #[default]
    Away,
    /// It has, and gets no records yet.
    Told(Told),
    /// It gets the records that it lacks, so many with each tick; what is made meanwhile comes behind them.
    Feeding(Feeding),
    /// Once it is near their end it is whole.
    Following,
    /// From here on it is to be compared.
    Next(Key),
    Comparing {
        sequence: Sequence,
        from: Key,
    },
    Mending(Mending),
    /// With this record it has what it was compared for.
    Ending(Sequence),
    Whole,
    /// Something here cannot be read: it is tried again when that was mended, when the learner comes back, and now and then.
    Stuck,
}

/// What a learner lists is evened before it gets records: one that evened the shard earlier, without it, takes its list away, and then
/// only this leader would know.
#[derive(Debug)]
enum Lists {
    Told(Vec<FastList>),
    Evening,
    /// With this record, which all members are to have.
    Evened(Sequence),
}

/// What a learner says of itself.
#[derive(Debug)]
struct Told {
    position: LogPosition,
    /// Fast writes of its that others may not have.
    lists: Lists,
    /// A power cut took blocks from it.
    has_lost: bool,
    heal: Option<HealRecord>,
}

/// Records that a learner is to get. Their fresh blocks are read when they go: all at once they may not fit in memory.
#[derive(Debug)]
struct Feeding {
    records: VecDeque<LogEntry>,
    /// How many there were, with those that were made since; and how many of those since the last step.
    all: usize,
    came: usize,
    heal: Option<HealRecord>,
}

/// What differs in a portion.
#[derive(Debug)]
struct Mending {
    to: Key,
    entries: VecDeque<Key>,
    shards: VecDeque<HeldShard>,
    blocks: Blocks,
}

#[derive(Debug, PartialEq, Eq)]
enum Blocks {
    None,
    Asked(ShardId),
    /// First block, how many, and whether they are holes here.
    Differ(ShardId, VecDeque<(u32, u32, bool)>),
}

impl Learner {
    /// Whether it takes the leader's records.
    pub fn is_attached(&self) -> bool {
        !matches!(self.stage, Stage::Away | Stage::Told(_))
    }

    /// Whether it was heard.
    pub fn is_heard(&self) -> bool {
        !matches!(self.stage, Stage::Away)
    }

    /// Whether the next tick brings it on.
    pub fn wants_tick(&self) -> bool {
        matches!(self.stage, Stage::Told(_) | Stage::Feeding(_) | Stage::Next(_) | Stage::Mending(_))
    }

    fn holds(&mut self, sequence: Sequence, (stable, last): (Sequence, Sequence)) {
        self.held = self.held.max(sequence);
        while let Some((_, cost)) = self.window.front().copied().filter(|(step, _)| *step <= self.held) {
            self.window.pop_front();
            self.window_bytes -= cost;
        }
        if let Stage::Ending(end) = self.stage
            && self.held >= end
        {
            (self.stage, self.since) = (Stage::Following, end);
        }
        // What it lacks is in the members' journals, and is soon fed.
        if matches!(self.stage, Stage::Following) && self.held >= stable && self.held.0 + NEAR >= last.0 {
            self.stage = Stage::Whole;
        }
    }

    fn is_ahead(&self) -> bool {
        self.window_bytes >= WINDOW_BYTES
    }

    fn goes(&mut self, sequence: Sequence, cost: usize) {
        self.window.push_back((sequence, cost));
        self.window_bytes += cost;
    }
}

impl Leader {
    /// How far the learners are.
    pub fn healing(&self, at: &Membership) -> Vec<Healing> {
        let of = |(brick, learner): (&BrickId, &Learner)| Healing {
            brick: *brick,
            heard: learner.is_attached(),
            stuck: matches!(learner.stage, Stage::Stuck),
            whole: self.is_whole(learner) && !self.fast.is_closing(),
            done: match (&learner.stage, &learner.from) {
                (Stage::Whole | Stage::Following, _) => 10_000,
                (Stage::Feeding(Feeding { records, all, .. }), _) => {
                    ((all - records.len()) * 10_000 / (all + 1)) as u32
                }
                (_, Some(from)) => share_before(at, from),
                (_, None) => 0,
            },
            sent: learner.sent,
            from: learner.from.clone(),
            held: learner.held,
        };
        self.healing.learners.iter().map(of).collect()
    }

    /// Whether it may be a member, and lead: all others that are, or may be, have what its journal does not have.
    fn is_whole(&self, learner: &Learner) -> bool {
        let may_join = |other: &&Learner| matches!(other.stage, Stage::Whole);
        let joining = self.healing.learners.values().filter(may_join).map(|other| other.held).min();
        may_join(&learner) && self.log.settled().min(joining.unwrap_or(self.log.settled())) >= learner.since
    }

    pub fn learner_told(
        &mut self,
        brick: BrickId,
        position: LogPosition,
        (lost, lists): (&[BlockAt], Vec<FastList>),
        heal: Option<HealRecord>,
    ) {
        if let Some(learner) = self.healing.learners.get_mut(&brick).filter(|learner| !learner.is_attached()) {
            let lists = Lists::Told(lists);
            learner.stage = Stage::Told(Told { position, lists, has_lost: !lost.is_empty(), heal });
        }
    }

    pub fn learner_holds(&mut self, brick: BrickId, sequence: Sequence) {
        let ends = (self.log.stable(), self.log.last());
        if let Some(learner) = self.healing.learners.get_mut(&brick) {
            learner.holds(sequence, ends);
        }
    }

    /// It is not heard any more, or anew.
    pub fn learner_away(&mut self, brick: BrickId) {
        if let Some(learner) = self.healing.learners.get_mut(&brick) {
            *learner = Learner { sent: learner.sent, ..Learner::default() };
        }
    }

    /// A record on its way to those who learn; one of them does a step with it.
    pub fn stream(
        &mut self,
        cx: &mut Context,
        entry: &LogEntry,
        commit: &Commit,
        mut step: Option<(BrickId, HealStep)>,
    ) {
        for (brick, learner) in self.healing.learners.iter_mut().filter(|(_, learner)| learner.is_attached()) {
            let (brick, entry) = (*brick, entry.clone());
            if let Stage::Feeding(feeding) = &mut learner.stage {
                feeding.records.push_back(entry);
                (feeding.all, feeding.came) = (feeding.all + 1, feeding.came + 1);
                continue;
            }
            let fresh = commit.fresh.clone();
            let message = match step.take_if(|(learner, _)| *learner == brick) {
                Some((_, step)) => Message::Heal { entry, fresh, step },
                None => Message::Append { entry, fresh, copied: false },
            };
            cx.send_member(brick, message);
        }
    }

    /// With each tick: so much may be sent.
    pub fn allow_healing(&mut self) {
        let is_busy = std::mem::take(&mut self.healing.was_asked);
        let share = if is_busy { TICK_BYTES / BUSY_SHARE } else { TICK_BYTES };
        self.healing.heal_bytes = self.healing.heal_limit.unwrap_or(share);
    }

    /// Brings learners on, as far as it may.
    pub fn heal(&mut self, cx: &mut Context) -> Result<()> {
        if !self.serves() || !self.all_present() || self.healing.learners.is_empty() {
            return Ok(());
        }
        for brick in self.healing.learners.keys().copied().collect::<Vec<_>>() {
            while self.healing.heal_bytes > 0 {
                let stepped = self.heal_step(cx, brick);
                if !self.stop_at_damage(cx, brick, stepped)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// What cannot be read here must not end the partition, whose only replica this may be: the learner waits.
    pub fn stop_at_damage<T: Default>(&mut self, cx: &mut Context, brick: BrickId, outcome: Result<T>) -> Result<T> {
        match outcome {
            Err(error @ (Error::Damaged { .. } | Error::Io { .. })) => {
                cx.out.notes.push(not_healed(cx.at, brick, &error));
                self.set_stage(brick, Stage::Stuck);
                Ok(T::default())
            }
            settled => settled,
        }
    }

    /// -> whether there may be another one at once.
    fn heal_step(&mut self, cx: &mut Context, brick: BrickId) -> Result<bool> {
        let Some(learner) = self.healing.learners.get_mut(&brick) else { return Ok(false) };
        if learner.is_ahead() {
            return Ok(false);
        }
        // It takes records while its next stage is found, if it takes any.
        let meanwhile = if learner.is_attached() { Stage::Stuck } else { Stage::Away };
        match std::mem::replace(&mut learner.stage, meanwhile) {
            Stage::Told(told) => self.attach(cx, brick, told),
            Stage::Feeding(feeding) => self.feed_learner(cx, brick, feeding),
            Stage::Next(from) => self.compare_next(cx, brick, from),
            Stage::Mending(mending) => self.mend(cx, brick, mending),
            other => {
                self.set_stage(brick, other);
                Ok(false)
            }
        }
    }

    fn set_stage(&mut self, brick: BrickId, stage: Stage) {
        if let Some(learner) = self.healing.learners.get_mut(&brick) {
            if let Stage::Next(from) | Stage::Comparing { from, .. } = &stage {
                learner.from = Some(from.clone());
            }
            learner.stage = stage;
        }
    }

    /// An empty record with a step. -> its number; none if there is no room for it.
    fn step_record(
        &mut self,
        cx: &mut Context,
        (brick, step): (BrickId, HealStep),
        commit: &Commit,
        cost: usize,
    ) -> Result<Option<Sequence>> {
        let (session, op_id, step) = (SYSTEM_SESSION, OpId(0), Some((brick, step)));
        let draft = Draft { session, op_id, commit, also: Vec::new(), must: true, step, closes: false };
        match self.append(cx, draft)? {
            Appended::Made(sequence) => {
                let cost = cost + STEP_BYTES;
                self.healing.heal_bytes = self.healing.heal_bytes.saturating_sub(cost);
                if let Some(learner) = self.healing.learners.get_mut(&brick) {
                    learner.goes(sequence, cost);
                }
                Ok(Some(sequence))
            }
            Appended::NoRoom => Ok(None),
            Appended::Refused(error) => Err(error),
        }
    }

    /// If its log is the beginning of this one, and the rest is still in the journal, it gets that. Otherwise it goes on
    /// from here, and is compared.
    fn attach(&mut self, cx: &mut Context, brick: BrickId, mut told: Told) -> Result<bool> {
        if !self.has_evened(&mut told.lists) {
            self.set_stage(brick, Stage::Told(told));
            return Ok(false);
        }
        // What it lacks of loose writes is in no log, and records that follow these would hide that (rule L19). Who is being compared
        // already has got none since.
        let is_loose = self.fast.loose.is_marked() && told.heal.is_none() && !is_planted(Bug::LooseWritesIgnored);
        let lacks_more = told.has_lost && !is_planted(Bug::LostBlocksIgnored) || is_loose;
        let missing = if lacks_more { None } else { missing(cx.at, cx.around.brick, told.position)? };
        let Some(missing) = missing else { return self.restart(cx, brick, told) };
        let Told { position, heal, .. } = told;
        cx.out.branches.push("a learner goes on with its log");
        self.goes_on_at(brick, position.sequence);
        self.learner_holds(brick, position.sequence);
        let feeding = Feeding { all: missing.len(), came: 0, records: missing.into(), heal };
        self.feed_learner(cx, brick, feeding)
    }

    /// What is in no log: writes that were on their way to all when it was left out (rule 21).
    fn has_evened(&mut self, lists: &mut Lists) -> bool {
        match lists {
            Lists::Told(told) if told.is_empty() => return true,
            Lists::Told(told) => {
                self.fast.add_lists_of_learner(std::mem::take(told));
                *lists = Lists::Evening;
            }
            Lists::Evening if !self.fast.is_closing() => *lists = Lists::Evened(self.log.last()),
            Lists::Evening | Lists::Evened(_) => {}
        }
        matches!(lists, Lists::Evened(sequence) if self.log.settled() >= *sequence)
    }

    /// As many records as may go now, and never fewer than twice those that have come since: so there is an end to it.
    fn feed_learner(&mut self, cx: &mut Context, brick: BrickId, mut feeding: Feeding) -> Result<bool> {
        let mut must = 2 * std::mem::take(&mut feeding.came);
        while let Some(entry) = feeding.records.pop_front() {
            let fresh = crate::view_start::feed::fresh_of(cx.around.brick, &entry.record)?;
            let bytes = fresh.iter().map(|one| one.bytes.len()).sum::<usize>() + entry.encoded_bytes();
            let sequence = entry.record.sequence;
            cx.send_member(brick, Message::Append { entry, fresh, copied: true });
            self.healing.heal_bytes = self.healing.heal_bytes.saturating_sub(bytes);
            must = must.saturating_sub(1);
            let Some(learner) = self.healing.learners.get_mut(&brick) else { return Ok(false) };
            learner.goes(sequence, bytes);
            learner.sent += bytes as u64;
            if must == 0 && (self.healing.heal_bytes == 0 || learner.is_ahead()) && !feeding.records.is_empty() {
                self.set_stage(brick, Stage::Feeding(feeding));
                return Ok(false);
            }
        }
        self.set_stage(brick, feeding.heal.map_or(Stage::Following, |heal| Stage::Next(heal.healed)));
        self.learner_holds(brick, Sequence(0));
        Ok(true)
    }

    fn restart(&mut self, cx: &mut Context, brick: BrickId, told: Told) -> Result<bool> {
        // Of this view, so that no position that the learner may have had is behind it.
        let sequence = match self.append_own(cx, Commit::default())? {
            Appended::Made(sequence) => sequence,
            Appended::NoRoom => {
                self.set_stage(brick, Stage::Told(told));
                return Ok(false);
            }
            Appended::Refused(error) => return Err(error),
        };
        cx.out.branches.push("a learner is compared from the beginning");
        cx.send_member(brick, Message::Restart { sequence });
        let (first, _) = Key::object_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        self.set_stage(brick, Stage::Next(first));
        self.goes_on_at(brick, sequence);
        Ok(true)
    }

    fn goes_on_at(&mut self, brick: BrickId, sequence: Sequence) {
        if let Some(learner) = self.healing.learners.get_mut(&brick) {
            learner.since = sequence;
        }
    }

    fn compare_next(&mut self, cx: &mut Context, brick: BrickId, from: Key) -> Result<bool> {
        let (_, objects_end) = Key::object_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        let (work, work_end) = Key::work_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        let (begin, end) =
            if from < objects_end { (from.clone(), objects_end) } else { (from.clone().max(work), work_end) };
        if begin >= end {
            let stage = match self.step_record(cx, (brick, HealStep::End), &Commit::default(), 0)? {
                Some(sequence) => Stage::Ending(sequence),
                None => Stage::Next(from),
            };
            self.set_stage(brick, stage);
            return Ok(false);
        }
        let (hashes, next) = cx.around.brick.entry_hashes(&begin, &end, PORTION)?;
        let to = next.unwrap_or(end);
        let (sum, count) = sum(hashes.into_iter().map(|(_, hash)| hash));
        let shards = cx.around.brick.shards_between(cx.at.ring, &begin, &to)?;
        let shards: Vec<HeldShard> =
            shards.into_iter().map(|(shard, record)| HeldShard { shard, record: Some(record) }).collect();
        let step = HealStep::Compare { from: begin.clone(), to, sum, count, shards };
        let stage = match self.step_record(cx, (brick, step), &Commit::default(), STEP_BYTES)? {
            Some(sequence) => Stage::Comparing { sequence, from: begin },
            None => Stage::Next(from),
        };
        self.set_stage(brick, stage);
        Ok(false)
    }

    /// What it holds otherwise is looked at as it is here by now: what changed since comes to the learner as well.
    pub fn differs(
        &mut self,
        brick: BrickId,
        (sequence, to): (Sequence, Key),
        entries: Option<Vec<Hashed>>,
        shards: Vec<HeldShard>,
        around: &Around,
    ) -> Result<()> {
        let Some(learner) = self.healing.learners.get(&brick) else { return Ok(()) };
        let Stage::Comparing { sequence: asked, from } = &learner.stage else { return Ok(()) };
        if *asked != sequence || to < *from {
            return Ok(());
        }
        let mut differing = VecDeque::new();
        if let Some(theirs) = entries {
            let ours = all_hashes(around.brick, from, &to)?;
            let theirs: BTreeMap<Key, u128> = theirs.into_iter().map(|hashed| (hashed.key, hashed.hash)).collect();
            let keys: BTreeSet<&Key> = ours.keys().chain(theirs.keys()).collect();
            differing.extend(keys.into_iter().filter(|key| ours.get(*key) != theirs.get(*key)).cloned());
        }
        let shards = if is_planted(Bug::DifferingShardsKept) { VecDeque::new() } else { shards.into() };
        let mending = Mending { to, entries: differing, shards, blocks: Blocks::None };
        self.set_stage(brick, Stage::Mending(mending));
        Ok(())
    }
}

/// For the operator.
pub(crate) fn not_healed(at: &Membership, brick: BrickId, error: &Error) -> String {
    let (number, ring) = (at.own.partition, at.ring);
    let other = brick.text();
    format!(
        "partition {number} of ring {ring}: brick {other} is not healed: {error}; `hekate brick scrub` reads all of a brick"
    )
}

/// The records after a position, if it is one of this log and the journal still has them. Who was made to lead before it was
/// healed (`hekate partition force`) has none that others could take; and who was never a member lacks fast writes, which are in no log.
fn missing(at: &Membership, brick: &Brick, position: LogPosition) -> Result<Option<Vec<LogEntry>>> {
    let own = brick.position(at.ring, at.own.partition);
    if brick.get(&heal_key(at))?.is_some() {
        return Ok(None);
    }
    if position == own {
        return Ok(Some(Vec::new()));
    }
    if position.sequence >= own.sequence || position.sequence == Sequence(0) {
        return Ok(None);
    }
    let since = brick.records_since(at.ring, at.own.partition, Sequence(position.sequence.0 - 1))?;
    let Some(mut records) = since.all().filter(|records| !records.is_empty()) else { return Ok(None) };
    let is_of_this_log = records.remove(0).record.epoch == position.epoch || is_planted(Bug::LearnerTailTrusted);
    Ok(is_of_this_log.then_some(records))
}

fn all_hashes(brick: &Brick, from: &Key, to: &Key) -> Result<BTreeMap<Key, u128>> {
    let (mut found, mut from) = (BTreeMap::new(), from.clone());
    while from < *to {
        let (hashes, next) = brick.entry_hashes(&from, to, PORTION)?;
        found.extend(hashes);
        let Some(next) = next else { break };
        from = next;
    }
    Ok(found)
}

/// How much of a partition lies before a key: ids are spread evenly over its positions, and there are few entries of work.
fn share_before(at: &Membership, key: &Key) -> u32 {
    let (_, objects_end) = Key::object_range(at.ring, at.own.partition, at.count);
    let Some(place) = key.prefix() else { return if *key < objects_end { 0 } else { 9_999 } };
    if *key >= objects_end {
        return 9_999;
    }
    let first = u64::from(at.own.partition.first_position(at.count).0);
    let (behind, all) = (u64::from(place.position.0).saturating_sub(first), (1u64 << 32) / u64::from(at.count));
    (behind * 10_000 / all).min(9_999) as u32
}
