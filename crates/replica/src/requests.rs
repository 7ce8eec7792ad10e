//! How requests begin and reads are answered; legs of ops that other partitions drive; what is done now and then.

use crate::context::{Around, Context, Out, Token};
use crate::fast::raw;
use crate::leader::{Draft, Leader, Then, Unmade};
use crate::membership::Membership;
use crate::message::{Address, Message, Outcome};
use crate::ops::dispatch::step;
use crate::ops::footprint::{check_place, keys_of, written_data, written_shard};
use crate::ops::inodes::accessed;
use crate::ops::read::answer;
use crate::ops::step::{Ask, Commit, Here, Next, OpProgress, Stop};
use crate::ops::tree::{Tree, purge_orphan};
use crate::partition::Event;
use crate::transactions::driven::{Aim, Driven, RESEND_TICKS};
use crate::transactions::legs;
use hekate_proto::*;
use std::collections::BTreeSet;

/// What waits for a hold, for room or for a member.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub event: Event,
    /// Ticks before which it is not tried again.
    not_before: u64,
}

impl Waiting {
    /// Tried at once.
    pub fn of(event: Event) -> Self {
        Self { event, not_before: 0 }
    }

    pub fn refuse(self, error: &Error, out: &mut Out) {
        if let Event::Request { token, .. } | Event::Change { token, .. } = self.event {
            out.answers.push((token, Err(error.clone())));
        }
    }
}

/// Data ids whose shards are collected at the same time.
const COLLECT_AT_ONCE: usize = 8;

/// An op that begins again waits for up to two to the power of this ticks.
const COLLISIONS_MAX: u32 = 7;

/// Between two records that remove what ops left: 200 ms.
const SWEEP_PAUSE_NS: u64 = 200_000_000;

impl Leader {
    pub fn arrive(&mut self, cx: &mut Context, event: Event) -> Result<()> {
        if let Event::Request { token, ask, op: op @ Op::Data { op: DataOp::FastWrite { .. } } } = &event {
            return self.fast_write(cx, (*token, ask, op));
        }
        if let Event::Request { token, ask, op: Op::Data { op: op @ DataOp::RawWrite { .. } } } = &event {
            let serves = self.serves() && !cx.at.view.too_few;
            let reply = if serves { raw::take(cx, ask, op)? } else { Err(Error::Conflict { stamp: None }) };
            cx.out.answers.push((*token, reply));
            return Ok(());
        }
        if let Some(event) = self.try_event(cx, event)? {
            self.waiting.push_back(Waiting::of(event));
        }
        Ok(())
    }

    /// What has not begun, and nobody waits for, is dropped.
    pub fn abandon(&mut self, token: Token, out: &mut Out) {
        let is_it = |waiting: &mut Waiting| matches!(&waiting.event, Event::Request { token: known, .. } | Event::Change { token: known, .. } if *known == token);
        if let Some(index) = self.waiting.iter_mut().position(is_it) {
            self.waiting.remove(index);
            self.durable.remove(&token);
            out.answers.push((token, Err(Error::Unavailable { what: "an op that was taken back".into() })));
        }
    }

    /// An op that met a hold elsewhere: not before the next tick. Drivers that hold what the other wants must not come back
    /// at the same time for ever: the longer it goes on, the further apart (exponential backoff).
    pub fn wait_again(&mut self, tokens: Vec<Token>, ask: Ask, op: Op) {
        self.collisions = (self.collisions + 1).min(COLLISIONS_MAX);
        let mixed = (self.numbers.tag() ^ self.ticks.rotate_left(20) ^ self.last.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let apart = (mixed >> 32) % (1 << self.collisions);
        for token in tokens {
            let event = Event::Request { token, ask, op: op.clone() };
            self.waiting.push_back(Waiting { event, not_before: self.ticks + 1 + apart });
        }
    }

    /// Those who wait are tried again, in their order.
    pub fn retry(&mut self, cx: &mut Context) -> Result<()> {
        for Waiting { event, not_before } in std::mem::take(&mut self.waiting) {
            let again = match not_before > self.ticks {
                true => Some(event),
                false => self.try_event(cx, event)?,
            };
            if let Some(event) = again {
                self.waiting.push_back(Waiting { event, not_before });
            }
        }
        Ok(())
    }

    /// An op lets go of what it held.
    pub fn release(&mut self, intent: IntentId) {
        self.held.retain(|_, holder| *holder != intent);
        self.retry_wanted |= !self.waiting.is_empty();
    }

    /// -> the event, if it must wait.
    fn try_event(&mut self, cx: &mut Context, event: Event) -> Result<Option<Event>> {
        if let Event::Request { token, ask, op } = &event
            && let Err(stray) = check_place(cx.at, ask, op)
        {
            cx.out.answers.push((*token, Err(stray)));
            return Ok(None);
        }
        let is_asked = matches!(event, Event::Request { .. } | Event::Change { .. });
        if !self.serves() || is_asked && cx.at.view.too_few {
            return Ok(Some(event));
        }
        let done = match &event {
            Event::Request { token, ask, op: Op::Lock { op } } => {
                self.lock_op(cx, *token, ask, op);
                true
            }
            Event::Request { ask, op, .. } if self.shows_unsettled(ask, op) && self.fast.is_closing_for(ask, op) => {
                false
            }
            Event::Request { token, ask, op } if op.is_read() && self.shows_unsettled(ask, op) => {
                self.confirm_read(cx, (*token, ask, op))? || self.try_read(cx, (*token, ask, op))?
            }
            Event::Request { token, ask, op, .. } if op.is_read() => self.try_read(cx, (*token, ask, op))?,
            Event::Accessed { .. } if !self.all_present() => true,
            _ if !self.all_present() => false,
            Event::Request { token, ask, op, .. } => {
                if ask.durable {
                    self.durable.insert(*token, written_shard(ask.volume, op).into_iter().collect());
                }
                self.begin_op(cx, *token, ask, op)?
            }
            Event::Change { token, commit } => self.change(cx, *token, (**commit).clone())?,
            Event::Collect { volume, inode } => {
                let ask = self.ask(cx, *volume);
                match purge_orphan(cx.around.brick, &ask, *inode).map_err(error_of)? {
                    Some(commit) => self.append_own(cx, commit)?.is_ok(),
                    None => true,
                }
            }
            // For a full disk, or who moves it at the same time, it is not worth waiting.
            Event::Accessed { volume, inode } => {
                let ask = self.ask(cx, *volume);
                let tree = Tree::new(cx.around.brick, &ask, cx.at.own.partition);
                if let Ok(Some(commit)) = accessed(&tree, *inode, ask.now) {
                    let _ = self.append_own(cx, commit)?;
                }
                true
            }
            _ => true,
        };
        Ok((!done).then_some(event))
    }

    /// A record of the host's.
    fn change(&mut self, cx: &mut Context, token: Token, commit: Commit) -> Result<bool> {
        match self.append_own(cx, commit)? {
            Ok(sequence) => self.when(sequence, false, Then::Answer(token, Ok(Reply::Done))),
            Err(Unmade::NoRoom) => return Ok(false),
            Err(Unmade::Refused(error)) => self.answer(token, Err(error)),
        }
        self.ask_stuck(cx);
        Ok(true)
    }

    /// The same, at once or not at all.
    pub fn change_now(&mut self, cx: &mut Context, token: Token, commit: Commit) -> Result<()> {
        let may = self.serves() && self.all_present() && self.is_settled() && self.fast.is_idle();
        if !may || !self.change(cx, token, commit)? {
            cx.out.answers.push((token, Err(Error::Unavailable { what: "a partition that is busy".into() })));
        }
        Ok(())
    }

    /// Answers a read at once, if what it depends on is settled and nobody holds it.
    pub fn read(&self, at: &Membership, around: &Around, ask: &Ask, op: &Op) -> Option<Result<Reply>> {
        if let Err(stray) = check_place(at, ask, op) {
            return Some(Err(stray));
        }
        let is_lock = matches!(op, Op::Lock { .. });
        if !self.serves()
            || at.view.too_few
            || is_lock
            || self.is_prepared(at, ask, op)
            || self.shows_unsettled(ask, op)
        {
            return None;
        }
        let found = match answer(around.brick, ask, at.own.partition, op) {
            Ok(reply) => Ok(reply),
            Err(Stop::Error(error)) => Err(error),
            Err(_) => return None,
        };
        let is_untold = found.as_ref().is_ok_and(|reply| !self.times.untold_in(ask.volume, reply).is_empty());
        (!self.depends_on_unsettled(op, &found) && !self.shows_cut(&found) && !is_untold).then_some(found)
    }

    fn try_read(&mut self, cx: &mut Context, (token, ask, op): (Token, &Ask, &Op)) -> Result<bool> {
        if self.is_prepared(cx.at, ask, op) {
            return Ok(false);
        }
        match answer(cx.around.brick, ask, cx.at.own.partition, op) {
            Ok(reply) if self.shows_cut(&Ok(reply.clone())) => return Ok(false),
            Ok(reply) if !self.tells_times_of(cx, ask, &reply)? => return Ok(false),
            Ok(reply) => self.answer(token, Ok(reply)),
            Err(Stop::Error(error)) => self.answer(token, Err(error)),
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Whether a truncate of the inode still has shards to cut: who knew the new layout by then would write to them and
    /// be cut with them.
    pub fn is_cutting(&self, inode: InodeId) -> bool {
        self.driven.values().any(|driven| driven.cuts() == Some(inode))
    }

    /// Whether an answer shows the layout of such an inode.
    fn shows_cut(&self, found: &Result<Reply>) -> bool {
        match found {
            Ok(Reply::Node { attr, .. } | Reply::FileData { attr, .. }) => self.is_cutting(attr.id),
            _ => false,
        }
    }

    /// Whether the answer may be another one if the last records are lost with this leader.
    fn depends_on_unsettled(&self, op: &Op, found: &Result<Reply>) -> bool {
        if self.window.is_empty() {
            return false;
        }
        let mut ids: BTreeSet<u128> = BTreeSet::new();
        match op {
            Op::Name { op: NameOp::Lookup { dir, .. } | NameOp::Stub { dir, .. } } => drop(ids.insert(dir.bits())),
            Op::Data { op: DataOp::ReadShard { data, .. } | DataOp::SeekShard { data, .. } } => {
                ids.insert(data.0);
            }
            Op::Data { op: DataOp::Read { inode, .. } | DataOp::Seek { inode, .. } } => drop(ids.insert(inode.bits())),
            Op::Inode { op } => drop(ids.insert(op.inode().bits())),
            _ => return true,
        }
        if let Ok(Reply::Node { attr, .. } | Reply::FileData { attr, .. }) = found {
            ids.insert(attr.id.bits());
        }
        self.unsettled().any(|change| match change {
            Change::Put { key, .. } | Change::Delete { key } => key.id().is_some_and(|id| ids.contains(&id)),
            of_shard => of_shard.shard().is_some_and(|shard| ids.contains(&shard.data.0)),
        })
    }

    /// -> whether it has begun, or was answered.
    fn begin_op(&mut self, cx: &mut Context, token: Token, ask: &Ask, op: &Op) -> Result<bool> {
        let same = |driven: &&mut Driven| matches!(&driven.aim, Aim::Op(known, _) if (known.session, known.op_id) == (ask.session, ask.op_id));
        if let Some(driven) = self.driven.values_mut().find(same).filter(|driven| !driven.tokens.is_empty()) {
            driven.tokens.push(token);
            cx.out.branches.push("a retry joins what it repeats");
            return Ok(true);
        }
        if let Some(reply) = self.remembered(cx, ask)? {
            cx.out.branches.push("a retry is answered from its slot");
            self.answer(token, reply);
            return Ok(true);
        }
        if !self.numbers.has_room()
            && let Some(error) = self.reserve_numbers(cx)?
        {
            self.answer_op(token, ask, Err(error));
            return Ok(true);
        }
        let (op, carried) = self.cuts.carry_over(ask.volume, op);
        let op = &*op;
        let keys = keys_of(cx.at, ask, op);
        let links_cut = matches!(op, Op::Name { op: NameOp::Link { inode, .. } } if self.is_cutting(*inode));
        let is_held = keys.iter().any(|key| self.held.contains_key(key)) || self.is_prepared(cx.at, ask, op);
        if links_cut || is_held || self.is_listed_soon(op) || self.copies_unsettled(ask, op) || !self.numbers.has_room()
        {
            cx.out.branches.push("an op waits for what another holds");
            return Ok(false);
        }
        if let Some(data) = written_data(op)
            && self.dropped.contains(&data)
        {
            self.answer_op(token, ask, Err(Error::LayoutChanged));
            return Ok(true);
        }
        let now = self.numbers.time(cx.around.now);
        let mut progress = OpProgress::default();
        let (brick, at_own, numbers) = (cx.around.brick, cx.at.own.partition, &mut self.numbers);
        let mut here = Here { brick, ask, at: at_own, now, numbers, progress: &mut progress, read: 0, carried };
        match step(&mut here, op) {
            Ok(Next::Reply(reply)) if self.shows_cut(&Ok(reply.clone())) => return Ok(false),
            Ok(Next::Reply(reply)) if !self.tells_times_of(cx, ask, &reply)? => return Ok(false),
            Ok(Next::Reply(reply)) => self.answer_op(token, ask, Ok(reply)),
            Ok(Next::Commit(commit, legs)) if legs.is_empty() => {
                return self.one_record(cx, token, (ask, op), commit);
            }
            Ok(Next::Commit(..)) | Err(Stop::Leg(_)) => {
                let intent = IntentId(u128::from(self.numbers.next()));
                self.held.extend(keys.into_iter().map(|key| (key, intent)));
                let aim = Aim::Op(*ask, Box::new(op.clone()));
                self.driven.insert(intent, Driven::new(aim, vec![token], progress));
                self.go_on(cx, intent)?;
            }
            Err(Stop::Wait) => return Ok(false),
            Err(Stop::Error(error)) => self.answer_op(token, ask, Err(error)),
        }
        Ok(true)
    }

    fn one_record(&mut self, cx: &mut Context, token: Token, (ask, op): (&Ask, &Op), commit: Commit) -> Result<bool> {
        let mut reply = commit.reply.clone().unwrap_or(Reply::Done);
        if let Reply::Written { stamp, .. } = &mut reply {
            *stamp = Stamp::of_leader(stamp.count, cx.at.view.epoch, Sequence(self.last.0 + 1));
        }
        self.was_asked = true;
        if self.keep_times((token, ask), &commit, cx) {
            return Ok(true);
        }
        let times = commit.times_of.map(|inode| (ask.volume, inode));
        let note = times.and_then(|file| self.times.note(cx.at.ring, file));
        let loose = self.loose_note(cx.at, ask, op);
        let is_noted = loose.is_some();
        let also = self.session_change(cx.at, ask, &reply).into_iter().chain(note).chain(loose).collect();
        let (session, op_id, step, closes) = (ask.session, ask.op_id, None, false);
        let draft = Draft { session, op_id, commit: &commit, also, must: false, step, closes };
        match self.append(cx, draft)? {
            Ok(sequence) => {
                self.remember_slot(ask);
                if is_noted {
                    self.loosely_noted(sequence, cx.around.now);
                }
                if let Reply::Written { fast, .. } = &mut reply {
                    *fast = self.open_shard(cx, ask, op);
                }
                times.iter().for_each(|file| self.times.noted(*file, sequence, cx.around.now));
                let early = ask.early && self.may_be_early();
                // With the record itself: the members need not be told twice.
                match self.durable.remove(&token) {
                    Some(shards) if early => self.round_alone(cx, shards, (token, Ok(reply))),
                    None if early => cx.out.answers.push((token, Ok(reply))),
                    Some(shards) => self.round(cx, sequence, shards, vec![Then::Answer(token, Ok(reply))]),
                    None => self.when(sequence, false, Then::Answer(token, Ok(reply))),
                }
            }
            Err(Unmade::NoRoom) => return Ok(false),
            Err(Unmade::Refused(error)) => self.answer_op(token, ask, Err(error)),
        }
        Ok(true)
    }

    /// A leg of an op that another partition drives. No leg waits: see `legs.rs`.
    #[allow(clippy::too_many_arguments, reason = "a leg and where it came from")]
    pub fn take_leg(
        &mut self,
        cx: &mut Context,
        from: Address,
        ask: &Ask,
        (intent, number): (IntentId, u16),
        leg: &Leg,
    ) -> Result<()> {
        // Its driver sends it again.
        if !self.takes_legs() || !self.all_present() {
            return Ok(());
        }
        let busy = Message::LegEnded { intent, number, outcome: Outcome::Busy };
        if self.is_busy(cx.at, ask, leg) {
            cx.out.branches.push("a leg meets a busy op");
            cx.send(from, busy);
            return Ok(());
        }
        let now = self.numbers.time(cx.around.now);
        let elsewhere = !cx.has_same_bricks(from.partition);
        let taken = match legs::take(cx.around.brick, ask, cx.at.own.partition, (intent, number), leg, now) {
            Ok(taken) => taken,
            Err(Stop::Error(error)) => {
                self.when(self.last, false, Then::EndLeg(from, intent, number, Err(error)));
                return Ok(());
            }
            Err(_) => {
                cx.out.branches.push("a leg meets a hold");
                cx.send(from, busy);
                return Ok(());
            }
        };
        if let Some(commit) = &taken.commit {
            let must = !matches!(leg, Leg::MakeDirectory { .. } | Leg::FillShard { .. } | Leg::AddLink { .. });
            let (session, op_id, also, step, closes) = (ask.session, ask.op_id, Vec::new(), None, false);
            let draft = Draft { session, op_id, commit, also, must, step, closes };
            match self.append(cx, draft)? {
                Ok(_) => {
                    // That it may forget the mark is told once, and may not arrive.
                    if !matches!(leg, Leg::DropShards { .. }) {
                        self.doubtful.insert(intent);
                    }
                    self.leg_taken(cx.at, ask, leg);
                }
                Err(Unmade::NoRoom) => {
                    cx.send(from, busy);
                    return Ok(());
                }
                Err(Unmade::Refused(error)) => {
                    self.when(self.last, false, Then::EndLeg(from, intent, number, Err(error)));
                    return Ok(());
                }
            }
        }
        if taken.more {
            cx.send(from, busy);
            return Ok(());
        }
        self.when(self.last, elsewhere, Then::EndLeg(from, intent, number, Ok(taken.reply)));
        Ok(())
    }

    fn leg_taken(&mut self, at: &Membership, ask: &Ask, leg: &Leg) {
        let key = |dir: InodeId, name: &Name| ask.hold_key(at.own.partition, dir, name);
        match leg {
            Leg::HoldName { dir, name } => drop(self.prepared.insert(key(*dir, name))),
            Leg::ReleaseName { dir, name } | Leg::ReplaceName { dir, name, .. } => {
                self.prepared.remove(&key(*dir, name));
            }
            Leg::UnmakeDirectory { inode } => self.unborn.retain(|_, unborn| unborn != inode),
            _ => {}
        }
        self.retry_wanted |= !self.waiting.is_empty();
    }

    /// An intent is gone for good.
    pub fn forget_marks(&mut self, cx: &Context, intent: IntentId) -> Result<()> {
        let first = Key::leg_done(cx.at.ring, cx.at.own.partition.first_position(cx.at.count), intent, 0);
        let last = Key::leg_done(cx.at.ring, cx.at.own.partition.first_position(cx.at.count), intent, u16::MAX);
        let found = cx.around.brick.scan(&first, &last.successor(), usize::from(u16::MAX))?;
        self.forgotten.extend(found.into_iter().map(|(key, _)| key));
        self.doubtful.remove(&intent);
        self.retry_wanted |= self.unborn.remove(&intent).is_some();
        Ok(())
    }

    /// The brick has written home.
    pub fn has_room(&mut self, cx: &mut Context) -> Result<()> {
        self.retry_wanted = true;
        self.level_again(cx)?;
        self.drive_again(cx)
    }

    pub fn tick(&mut self, cx: &mut Context) -> Result<()> {
        self.ticks += 1;
        self.look_after_fast_lane(cx.around.now);
        self.end_idle_times(cx)?;
        self.end_loose_note(cx)?;
        self.allow_healing();
        self.ask_stuck_again(cx, cx.around.now);
        self.leave_behind(cx.around.now, cx.out);
        if self.may_open && !cx.at.view.opened {
            cx.out.open = Some((cx.at.own.partition, cx.at.view.epoch));
        }
        self.ask_positions(cx);
        self.level_again(cx)?;
        self.drive_again(cx)?;
        self.retry_wanted |= !self.waiting.is_empty();
        if self.serves() && self.all_present() {
            if self.is_time_to_sweep(cx.around.now) {
                self.sweep(cx)?;
            }
            self.collect(cx.at);
            if self.ticks.is_multiple_of(RESEND_TICKS) {
                self.ask_whether_gone(cx);
            }
        }
        self.heal(cx)
    }

    /// Not with each tick: one record removes what many ops left.
    fn is_time_to_sweep(&mut self, now: Time) -> bool {
        let due = now.0.abs_diff(self.swept_at.0) >= SWEEP_PAUSE_NS;
        if due {
            self.swept_at = now;
        }
        due
    }

    /// Data ids that were given up: each partition that may have shards of them drops them.
    fn collect(&mut self, at: &Membership) {
        while self.numbers.has_room()
            && self.driven.values().filter(|driven| matches!(driven.aim, Aim::Collect(..))).count() < COLLECT_AT_ONCE
        {
            let Some((key, record)) = self.garbage.pop_front() else { return };
            let (Some(place), Some(data)) = (key.prefix(), key.id()) else { continue };
            let shard = |index| ShardId { volume: place.volume, data: DataId(data), index };
            let partitions: BTreeSet<PartitionNumber> = match record.shards > u64::from(at.count) * 8 {
                true => (0..at.count).map(PartitionNumber).collect(),
                false => (0..record.shards).map(|index| shard(index).position().partition(at.count)).collect(),
            };
            let leg = |(number, partition): (usize, PartitionNumber)| IntentLeg {
                position: partition.first_position(at.count),
                number: number as u16,
                leg: Leg::DropShards { data: DataId(data), to: record.shards },
            };
            let legs = partitions.into_iter().enumerate().map(leg).collect();
            let intent = IntentId(u128::from(self.numbers.next()));
            self.driven.insert(intent, Driven::collecting(key, record, legs, at.count));
            self.when(self.last, true, Then::SendLegs(intent, self.last));
        }
    }
}

fn error_of(stop: Stop) -> Error {
    match stop {
        Stop::Error(error) => error,
        Stop::Wait | Stop::Leg(_) => Error::bug("housekeeping that would wait"),
    }
}
