//! Healing, at the leader: the leader compares its data of the partition with each learner's once, portion by portion,
//! and sends the learner the entries and blocks that differ. `learner.rs` is the learner's side.
//!
//! Each step belongs to a record that is empty for the members, so it has its place among the changes that go on
//! meanwhile. From the record that compares a portion on, the learner applies the leader's records to that portion.
//! What differed at that record, and nothing else, is sent. A shard that differs first gets a new stamp on all
//! replicas, greater than the learner's: until the learner has it, it applies no changes of the shard. Then only the
//! blocks that differ are sent.

mod late;
pub(crate) mod learner;
mod learners;
mod mend;
pub(crate) mod proof;

use crate::context::{Around, Context};
pub(crate) use crate::heal::learners::LearnerWork;

use crate::heal::learner::heal_key;
use crate::invariants::require;
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
/// Bytes that may be sent with each tick, unless the host sets a limit.
const TICK_BYTES: usize = 1 << 20;
/// Divides `TICK_BYTES` while clients make changes.
const BUSY_SHARE: usize = 4;
/// Bytes that may be sent and not acknowledged by the learner.
const WINDOW_BYTES: usize = 2 << 20;
/// Bytes that are counted for a step in addition to those that it carries, by estimate.
const STEP_BYTES: usize = 256;

/// Records that a learner may lack and still become a member: it is sent them before its view begins.
const NEAR: u64 = 64;

/// The progress of a learner, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Healing {
    /// The learner.
    pub brick: BrickId,
    /// True if the learner is sent records.
    pub heard: bool,
    /// True if the leader cannot read an entry or block that the learner needs.
    pub stuck: bool,
    /// True if the learner may become a member: it lacks a few of the last records at most (`NEAR`).
    pub whole: bool,
    /// The part of the partition that was compared, in 1/10,000.
    pub done: u32,
    /// Bytes of entries and blocks that were sent because the learner's differed.
    pub sent: u64,
    /// While the learner is compared: it has everything before this key. `None`: it is sent records only.
    pub from: Option<Key>,
    /// The learner has all records up to this one.
    pub held: Sequence,
}

/// What the leader knows of a learner.
#[derive(Debug, Default)]
pub(crate) struct Learner {
    stage: Stage,
    /// The learner has all records up to this one.
    held: Sequence,
    /// The record that the learner must have at the next check (`late.rs`). Otherwise it counts as fallen behind.
    due: Sequence,
    /// The learner's journal lacks the records before this one, or has only what its healing needed of them. It may not
    /// lead while a member lacks one of these.
    since: Sequence,
    /// Records with steps that the learner has not acknowledged, and the bytes of each.
    window: VecDeque<(Sequence, usize)>,
    window_bytes: usize,
    from: Option<Key>,
    sent: u64,
}

#[derive(Debug, Default)]
enum Stage {
    /// The learner has not sent `Position`.
    #[default]
    Away,
    /// The learner has sent `Position`, and is sent no records yet.
    Positioned(LearnerPosition),
    /// The learner is sent the records that it lacks, some with each tick. New records are queued behind them.
    Feeding(Feeding),
    /// The learner has been sent all records. It is whole once it has all stable ones and lacks at most `NEAR` others.
    Following,
    /// The portion from this key on is compared next.
    Next(Key),
    Comparing {
        sequence: Sequence,
        from: Key,
    },
    Mending(Mending),
    /// The learner has everything once it has this record.
    Ending(Sequence),
    Whole,
    /// The leader cannot read an entry or block that the learner needs. It tries again after a repair, when the learner
    /// comes back, and every 10 s.
    Stuck,
}

/// The learner's lists of fast writes. They are reconciled before the learner is sent records: a record that reconciled
/// such a shard without the learner would remove its list, and only this leader would know of the write.
#[derive(Debug)]
enum Lists {
    Reported(Vec<FastList>),
    Reconciling,
    /// All is reconciled once all members have this record.
    Reconciled(Sequence),
}

/// What a learner sent with `Position`.
#[derive(Debug)]
struct LearnerPosition {
    position: LogPosition,
    /// Fast writes of the learner that other replicas may lack.
    lists: Lists,
    /// A power cut took blocks from the learner.
    has_lost: bool,
    heal: Option<HealRecord>,
}

/// Records that a learner is to be sent. Their fresh blocks are read when they are sent, since all of them may not fit
/// in memory.
#[derive(Debug)]
struct Feeding {
    records: VecDeque<LogEntry>,
    /// Records that were queued so far.
    all: usize,
    /// Records that were queued since the last step.
    came: usize,
    heal: Option<HealRecord>,
}

/// The differences in a portion that are left to be sent.
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
    /// Runs of blocks that differ: first block, number of blocks, and true if the blocks are holes at the leader.
    Differ(ShardId, VecDeque<(u32, u32, bool)>),
}

impl Learner {
    /// True if the learner is sent the leader's records.
    pub fn is_attached(&self) -> bool {
        !matches!(self.stage, Stage::Away | Stage::Positioned(_))
    }

    /// True if the learner has sent `Position`.
    pub fn has_position(&self) -> bool {
        !matches!(self.stage, Stage::Away)
    }

    /// True if the next tick may take the learner further.
    pub fn wants_tick(&self) -> bool {
        matches!(self.stage, Stage::Positioned(_) | Stage::Feeding(_) | Stage::Next(_) | Stage::Mending(_))
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
        // The members' journals have what the learner lacks, which is sent before its view begins.
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
    /// The progress of each learner.
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

    /// True if the learner may be a member, and lead: all members, and all other learners that may be members, have the
    /// records that its journal lacks.
    fn is_whole(&self, learner: &Learner) -> bool {
        let may_join = |other: &&Learner| matches!(other.stage, Stage::Whole);
        let joining = self.healing.learners.values().filter(may_join).map(|other| other.held).min();
        may_join(&learner) && self.log.settled().min(joining.unwrap_or(self.log.settled())) >= learner.since
    }

    pub fn learner_position(
        &mut self,
        brick: BrickId,
        position: LogPosition,
        (lost, lists): (&[BlockAt], Vec<FastList>),
        heal: Option<HealRecord>,
    ) {
        if let Some(learner) = self.healing.learners.get_mut(&brick).filter(|learner| !learner.is_attached()) {
            let lists = Lists::Reported(lists);
            learner.stage = Stage::Positioned(LearnerPosition { position, lists, has_lost: !lost.is_empty(), heal });
        }
    }

    pub fn learner_holds(&mut self, brick: BrickId, sequence: Sequence) {
        let ends = (self.log.stable(), self.log.last());
        if let Some(learner) = self.healing.learners.get_mut(&brick) {
            learner.holds(sequence, ends);
        }
    }

    /// Handles the end or the renewal of the connection to a learner: it has to send `Position` again.
    pub fn learner_away(&mut self, brick: BrickId) {
        if let Some(learner) = self.healing.learners.get_mut(&brick) {
            *learner = Learner { sent: learner.sent, ..Learner::default() };
        }
    }

    /// Sends a record to all learners, to one of them with a step.
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

    /// Renews the number of bytes that may be sent before the next tick.
    pub fn allow_healing(&mut self) {
        let is_busy = std::mem::take(&mut self.healing.was_asked);
        let share = if is_busy { TICK_BYTES / BUSY_SHARE } else { TICK_BYTES };
        self.healing.heal_bytes = self.healing.heal_limit.unwrap_or(share);
    }

    /// Takes the learners further, as far as the limits allow.
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

    /// Turns damage that the leader finds into a learner that is stuck, with a note for the operator. The leader may be
    /// the only replica of the partition, so it must not stop.
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

    /// Takes the learner one step further. Returns true if there may be another one at once.
    fn heal_step(&mut self, cx: &mut Context, brick: BrickId) -> Result<bool> {
        let Some(learner) = self.healing.learners.get_mut(&brick) else { return Ok(false) };
        if learner.is_ahead() {
            return Ok(false);
        }
        // Records are sent to an attached learner while its next stage is determined.
        let meanwhile = if learner.is_attached() { Stage::Stuck } else { Stage::Away };
        match std::mem::replace(&mut learner.stage, meanwhile) {
            Stage::Positioned(reported) => self.attach(cx, brick, reported),
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

    /// Makes an empty record with a step. Returns `None` if the journal has no room.
    fn step_record(
        &mut self,
        cx: &mut Context,
        (brick, step): (BrickId, HealStep),
        commit: &Commit,
        cost: usize,
    ) -> Result<Option<Sequence>> {
        let (session, op_id, step) = (SYSTEM_SESSION, OpId(0), Some((brick, step)));
        let draft =
            Draft { session, op_id, by: Some(session), commit, also: Vec::new(), must: true, step, closes: false };
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

    /// Sends the learner the records that it lacks, if its log is the beginning of this one and the journal still has
    /// the rest. Otherwise the learner is compared from the beginning.
    fn attach(&mut self, cx: &mut Context, brick: BrickId, mut reported: LearnerPosition) -> Result<bool> {
        if !self.has_reconciled(&mut reported.lists) {
            self.set_stage(brick, Stage::Positioned(reported));
            return Ok(false);
        }
        // No log has the loose writes that the learner lacks, and records after them would hide that (rule L19). A
        // learner that is being compared already has taken none since.
        let is_loose = self.fast.loose.is_marked() && reported.heal.is_none() && !is_planted(Bug::LooseWritesIgnored);
        let lacks_more = reported.has_lost && !is_planted(Bug::LostBlocksIgnored) || is_loose;
        let missing = if lacks_more { None } else { missing(cx.at, cx.around.brick, reported.position)? };
        let Some(missing) = missing else { return self.restart(cx, brick, reported) };
        let LearnerPosition { position, heal, .. } = reported;
        cx.out.branches.push("a learner goes on with its log");
        self.goes_on_at(brick, position.sequence);
        self.learner_holds(brick, position.sequence);
        let feeding = Feeding { all: missing.len(), came: 0, records: missing.into(), heal };
        self.feed_learner(cx, brick, feeding)
    }

    /// True once the learner's fast writes, which are in no log, are reconciled: they were in flight when the learner
    /// was left out (rule 21).
    fn has_reconciled(&mut self, lists: &mut Lists) -> bool {
        match lists {
            Lists::Reported(reported) if reported.is_empty() => return true,
            Lists::Reported(reported) => {
                self.fast.add_lists_of_learner(std::mem::take(reported));
                *lists = Lists::Reconciling;
            }
            Lists::Reconciling if !self.fast.is_closing() => *lists = Lists::Reconciled(self.log.last()),
            Lists::Reconciling | Lists::Reconciled(_) => {}
        }
        matches!(lists, Lists::Reconciled(sequence) if self.log.settled() >= *sequence)
    }

    /// Sends as many records as the limits allow, and at least twice as many as were queued since, so that the queue
    /// becomes empty.
    fn feed_learner(&mut self, cx: &mut Context, brick: BrickId, mut feeding: Feeding) -> Result<bool> {
        let is_compared = feeding.heal.is_some() || is_planted(Bug::LooseWritesIgnored);
        require(is_compared || !self.fast.loose.is_marked(), "L19", || {
            format!("brick {} is sent records, and loose writes are marked", brick.text())
        })?;
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

    fn restart(&mut self, cx: &mut Context, brick: BrickId, reported: LearnerPosition) -> Result<bool> {
        // A record of this view, so it comes after any position that the learner may have had.
        let sequence = match self.append_own(cx, Commit::default())? {
            Appended::Made(sequence) => sequence,
            Appended::NoRoom => {
                self.set_stage(brick, Stage::Positioned(reported));
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

    /// Notes what a learner holds differently. It is sent as the leader has it when it is sent: the learner applies the
    /// changes since `Compare` too.
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

/// The note for the operator about a learner that cannot be healed.
pub(crate) fn not_healed(at: &Membership, brick: BrickId, error: &Error) -> String {
    let (number, ring) = (at.own.partition, at.ring);
    let other = brick.text();
    format!(
        "partition {number} of ring {ring}: brick {other} is not healed: {error}. `hekate brick scrub` reads all of a \
         brick"
    )
}

/// The records after a position, if it is a position of this log and the journal has them. `None` if this brick was
/// made to lead before it had healed (`hekate partition force`), since its journal then has none that others could
/// append, and for a replica that was never a member, since it lacks fast writes, which are in no log.
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

/// The part of a partition before a key, in 1/10,000. Ids are spread evenly over the positions, and other entries are
/// few.
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
