//! Requests: how they begin, wait and are tried again; durable answers; and what the leader does with each tick. Reads
//! are in `reads.rs`, retries in `retries.rs`.

pub(crate) mod reads;
mod retries;

use crate::context::{Context, Out, Token};
use crate::fast::raw;
use crate::invariants::require;
use crate::leader::Leader;
use crate::log::append::{Appended, Draft};
use crate::log::settle::Then;
use crate::ops::dispatch::step;
use crate::ops::footprint::{check_place, keys_of, written_data, written_shard};
use crate::ops::inodes::accessed;
use crate::ops::step::{Ask, Commit, Here, Next, OpProgress, RecalledGrants, Stop};
use crate::ops::tree::{Tree, purge_orphan};
use crate::partition::{Event, token_of};
use crate::transactions::driven::{Aim, Driven, RESEND_TICKS};
use hekate_proto::*;
use std::collections::{BTreeMap, VecDeque};

/// A request that waits for a hold, for room or for a member.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub event: Event,
    /// The tick before which the request is not tried again.
    not_before: u64,
}

impl Waiting {
    /// A request that may be tried again at once.
    pub fn of(event: Event) -> Self {
        Self { event, not_before: 0 }
    }

    /// The request that waits. `None` for work of the leader's own.
    pub fn into_token(self) -> Option<Token> {
        token_of(&self.event)
    }
}

/// Requests that wait, and answers that are kept for retries.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    waiting: VecDeque<Waiting>,
    /// Waiting requests are to be tried again, since a hold or another cause of their wait may have ended.
    retry_wanted: bool,
    ticks: u64,
    /// The last op of each session's slots. An op that is missing here is in the brick.
    slots: BTreeMap<(SessionId, u8), OpId>,
    /// The last op of each slot that was answered without a record, and its answer.
    kept: BTreeMap<(SessionId, u8), (OpId, Result<Reply>)>,
    /// Requests whose answers wait for stable storage, and the shards whose data files are synced first.
    durable: BTreeMap<Token, Vec<ShardId>>,
}

impl Requests {
    /// Requests that waiting requests be tried again before the current event ends.
    pub fn retry(&mut self) {
        self.retry_wanted = true;
    }

    /// As `retry`, if requests wait.
    pub fn retry_if_any(&mut self) {
        self.retry_wanted |= !self.waiting.is_empty();
    }

    /// True if waiting requests are to be tried again. Resets that.
    pub fn take_retry(&mut self) -> bool {
        std::mem::take(&mut self.retry_wanted)
    }

    /// Ticks since this leader began.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    pub fn waiting(&self) -> &VecDeque<Waiting> {
        &self.waiting
    }

    pub fn wait(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    pub fn wait_all(&mut self, waiting: impl Iterator<Item = Waiting>) {
        self.waiting.extend(waiting);
    }

    pub fn take_waiting(&mut self) -> VecDeque<Waiting> {
        std::mem::take(&mut self.waiting)
    }

    /// Notes that the answer of this request does not wait for stable storage.
    pub fn answer_at_once(&mut self, token: Token) {
        self.durable.remove(&token);
    }

    /// Forgets the last op of a slot in memory, so that it is read from the brick again.
    pub fn forget_slot(&mut self, session: SessionId, slot: u8) {
        self.slots.remove(&(session, slot));
    }
}

/// The exponent of the longest backoff: an op that begins again waits for 2^7 ticks at most.
const COLLISIONS_MAX: u32 = 7;

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
        if !self.try_event(cx, &event)? {
            self.requests.waiting.push_back(Waiting::of(event));
        }
        Ok(())
    }

    /// Delays answers that are to wait for stable storage, each with a sync round. Returns whether there were any.
    pub fn make_durable(&mut self, cx: &mut Context) -> bool {
        if self.requests.durable.is_empty() {
            return false;
        }
        let mut waits = Vec::new();
        for (token, reply) in std::mem::take(&mut cx.out.answers) {
            match (self.requests.durable.remove(&token), &reply) {
                (Some(shards), Ok(_)) => waits.push((shards, Then::Answer(token, reply))),
                _ => cx.out.answers.push((token, reply)),
            }
        }
        let sequence = self.log.settled().min(self.log.last());
        let held_back = !waits.is_empty();
        waits.into_iter().for_each(|(shards, then)| self.round(cx, sequence, shards, vec![then]));
        held_back
    }

    /// Drops a request that has not begun and whose client does not wait any more.
    pub fn abandon(&mut self, token: Token, out: &mut Out) {
        let is_it = |waiting: &mut Waiting| match &waiting.event {
            Event::Request { token: known, .. }
            | Event::Change { token: known, .. }
            | Event::Accessed { token: known, .. } => *known == token,
            _ => false,
        };
        if let Some(index) = self.requests.waiting.iter_mut().position(is_it) {
            self.requests.waiting.remove(index);
            self.requests.durable.remove(&token);
            out.answers.push((token, Err(Error::Unavailable { what: "the op was cancelled before it began".into() })));
        }
    }

    /// Lets an op that met a hold elsewhere wait, until the next tick at least. Two drivers, each of which holds what
    /// the other needs, must not try again at the same time: the delay grows with each collision (exponential backoff)
    /// and differs between partitions.
    pub fn wait_again(&mut self, tokens: Vec<Token>, ask: Ask, op: Op) {
        let collisions = self.transactions.note_collision(COLLISIONS_MAX);
        let mixed = (self.numbers.tag() ^ self.requests.ticks.rotate_left(20) ^ self.log.last().0)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let apart = (mixed >> 32) % (1 << collisions);
        for token in tokens {
            let event = Event::Request { token, ask, op: op.clone() };
            self.requests.waiting.push_back(Waiting { event, not_before: self.requests.ticks + 1 + apart });
        }
    }

    /// Tries all waiting requests again, in their order.
    ///
    /// # Errors
    ///
    /// The error that stops the replica. Requests that were not tried wait again, so [`Leader::refuse_all`] answers
    /// them. The request that met the error waits again only after `Error::Bug`: after an error of the brick the journal
    /// may have its record.
    pub fn retry(&mut self, cx: &mut Context) -> Result<()> {
        let mut untried = std::mem::take(&mut self.requests.waiting);
        while let Some(waiting) = untried.pop_front() {
            let is_due = waiting.not_before <= self.requests.ticks;
            match if is_due { self.try_event(cx, &waiting.event) } else { Ok(false) } {
                Ok(true) => {}
                Ok(false) => self.requests.waiting.push_back(waiting),
                Err(error) => {
                    let is_bug = matches!(error, Error::Bug { .. });
                    self.requests.waiting.extend(is_bug.then_some(waiting).into_iter().chain(untried));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Tries an event. Returns false if the event must wait.
    fn try_event(&mut self, cx: &mut Context, event: &Event) -> Result<bool> {
        if let Event::Request { token, ask, op } = event
            && let Err(stray) = check_place(cx.at, ask, op)
        {
            cx.out.answers.push((*token, Err(stray)));
            return Ok(true);
        }
        let is_asked = matches!(event, Event::Request { .. } | Event::Change { .. });
        if !self.serves() || is_asked && cx.at.view.too_few {
            return Ok(false);
        }
        Ok(match event {
            Event::Request { token, ask, op: Op::Lock { op } } => {
                self.lock_op(cx, *token, ask, op);
                true
            }
            Event::Request { token, ask, op: Op::Inode { op: InodeOp::Map { inode } } } => {
                self.map(cx, *token, ask, *inode)
            }
            Event::Request { ask, op, .. } if self.shows_unsettled(ask, op) && self.fast.is_closing_for(ask, op) => {
                false
            }
            Event::Request { ask, op: Op::Data { op: DataOp::NextShard { data, .. } }, .. }
                if self.closes_unsettled_of(ask.volume, *data) =>
            {
                false
            }
            Event::Request { token, ask, op } if op.is_read() && self.shows_unsettled(ask, op) => {
                self.confirm_read(cx, (*token, ask, op))? || self.try_read(cx, (*token, ask, op))?
            }
            Event::Request { token, ask, op, .. } if op.is_read() => self.try_read(cx, (*token, ask, op))?,
            Event::Accessed { token, .. } if !self.all_present() => {
                cx.out.answers.push((*token, Ok(Reply::Done)));
                true
            }
            _ if !self.all_present() => false,
            Event::Request { token, ask, op, .. } => {
                if ask.durable {
                    self.requests.durable.insert(*token, written_shard(ask.volume, op).into_iter().collect());
                }
                self.begin_op(cx, *token, ask, op)?
            }
            Event::Change { token, commit } => self.change(cx, *token, (**commit).clone())?,
            Event::Collect { volume, inode } => {
                let ask = self.ask(cx, *volume);
                match purge_orphan(cx.around.brick, &ask, *inode).map_err(error_of)? {
                    Some(commit) => self.append_own(cx, commit)?.is_made(),
                    None => true,
                }
            }
            // An access time is not worth waiting for a full disk, or for an op that holds the inode.
            Event::Accessed { token, volume, inode, session } => {
                let ask = self.ask(cx, *volume);
                let tree = Tree::new(cx.around.brick, &ask, cx.at.own.partition);
                if let Ok(Some(commit)) = accessed(&tree, *inode, ask.now) {
                    if self.is_pledged(cx, *session, &commit.changes, RecalledGrants::All) {
                        return Ok(false);
                    }
                    let _ = self.append_own_for(cx, Some(*session), commit)?;
                }
                cx.out.answers.push((*token, Ok(Reply::Done)));
                true
            }
            _ => true,
        })
    }

    /// Makes a record of the host's. Returns false if it must wait.
    fn change(&mut self, cx: &mut Context, token: Token, commit: Commit) -> Result<bool> {
        match self.append_own(cx, commit)? {
            Appended::Made(sequence) => self.when(sequence, false, Then::Answer(token, Ok(Reply::Done))),
            Appended::NoRoom => return Ok(false),
            Appended::Refused(error) => self.answer(token, Err(error)),
        }
        self.ask_stuck(cx);
        Ok(true)
    }

    /// As `change`, but refuses the change if it would have to wait.
    pub fn change_now(&mut self, cx: &mut Context, token: Token, commit: Commit) -> Result<()> {
        let may = self.serves() && self.all_present() && self.is_settled() && self.fast.is_idle();
        if !may || !self.change(cx, token, commit)? {
            cx.out
                .answers
                .push((token, Err(Error::Unavailable { what: "the partition has changes in flight".into() })));
        }
        Ok(())
    }

    /// Begins a client's change. Returns true if it has begun or was answered.
    fn begin_op(&mut self, cx: &mut Context, token: Token, ask: &Ask, op: &Op) -> Result<bool> {
        require(self.serves() && self.all_present(), "R4", || format!("an op begins without {:?}", self.away()))?;
        if let Some(driven) = self.transactions.driven_for(ask) {
            driven.tokens.push(token);
            cx.out.branches.push("a retry joins what it repeats");
            return Ok(true);
        }
        if let Some(reply) = self.remembered(cx, ask)? {
            cx.out.branches.push("a retry is answered from its slot");
            self.answer(token, reply);
            return Ok(true);
        }
        if self.waits_for_mapping(cx, ask, op) {
            return Ok(false);
        }
        if !self.numbers.has_room()
            && let Some(error) = self.reserve_numbers(cx)?
        {
            self.answer_op(token, ask, Err(error));
            return Ok(true);
        }
        let (op, carried) = self.discarded.carry_over(ask.volume, op);
        let op = &*op;
        let keys = keys_of(cx.at, ask, op);
        let links_cut = linked_inode(op).is_some_and(|inode| self.is_cutting(inode));
        let is_held = keys.iter().any(|key| self.transactions.is_held(key)) || self.is_prepared(cx.at, ask, op);
        if links_cut
            || is_held
            || self.is_listed_soon(op)
            || self.builds_on_unsettled(ask, op)
            || !self.numbers.has_room()
        {
            cx.out.branches.push("an op waits for what another holds");
            return Ok(false);
        }
        if let Some(data) = written_data(op)
            && self.discarded.is_dropped(data)
        {
            self.answer_op(token, ask, Err(Error::LayoutChanged));
            return Ok(true);
        }
        if lacks_room(cx, ask, op) {
            return Ok(false);
        }
        let ask = &Ask { pledge: ask.pledge && self.may_give_size(cx, ask, op), ..*ask };
        let now = self.numbers.time(cx.around.now);
        let mut progress = OpProgress::default();
        let (brick, at_own, numbers) = (cx.around.brick, cx.at.own.partition, &mut self.numbers);
        let mut here = Here { brick, ask, at: at_own, now, numbers, progress: &mut progress, read: 0, carried };
        match step(&mut here, op) {
            Ok(Next::Reply(reply)) if self.is_hidden(ask.volume, &reply) => return Ok(false),
            Ok(Next::Reply(reply)) if !self.shows_recorded_times(cx, ask, &reply)? => return Ok(false),
            Ok(Next::Reply(reply)) => self.answer_op(token, ask, Ok(reply)),
            Ok(Next::Commit(commit, legs)) if legs.is_empty() => {
                return self.one_record(cx, token, (ask, op), commit);
            }
            Ok(Next::Commit(..)) | Err(Stop::Leg(_)) if self.waits_to_link(cx, ask, op) => return Ok(false),
            Ok(Next::Commit(..)) | Err(Stop::Leg(_)) => {
                let intent = IntentId(u128::from(self.numbers.next()));
                let aim = Aim::Op(*ask, Box::new(op.clone()));
                self.transactions.begin(intent, keys, Driven::new(aim, vec![token], progress));
                self.take_next_step(cx, intent)?;
            }
            Err(Stop::Wait) => return Ok(false),
            Err(Stop::Error(error)) => self.answer_op(token, ask, Err(error)),
        }
        Ok(true)
    }

    fn one_record(&mut self, cx: &mut Context, token: Token, (ask, op): (&Ask, &Op), commit: Commit) -> Result<bool> {
        self.check_slot(ask)?;
        let mut reply = commit.reply.clone().unwrap_or(Reply::Done);
        if let Reply::Written { stamp, .. } = &mut reply {
            *stamp = Stamp::of_leader(stamp.count, cx.at.view.epoch, Sequence(self.log.last().0 + 1));
        }
        self.healing.note_request();
        if commit.times_of.is_some() && self.is_pledged(cx, ask.session, &commit.changes, RecalledGrants::None) {
            return Ok(false);
        }
        if self.keep_times((token, ask), &commit, cx) {
            self.pledges.changed(ask.session, &commit.changes);
            return Ok(true);
        }
        let times = commit.times_of.map(|(inode, _)| (ask.volume, inode));
        let marker = match commit.size_granted() {
            Some((file, _)) => self.times.size_marker(cx.at.ring, file),
            None => times.and_then(|file| self.times.marker(cx.at.ring, file)),
        };
        let loose = self.loose_marker(cx.at, ask, op);
        let is_marked = loose.is_some();
        let also = self.session_change(cx.at, ask, &reply).into_iter().chain(marker).chain(loose).collect();
        let (session, op_id, step, closes) = (ask.session, ask.op_id, None, false);
        let draft = Draft { session, op_id, by: Some(session), commit: &commit, also, must: false, step, closes };
        match self.append(cx, draft)? {
            Appended::Made(sequence) => {
                self.remember_slot(ask);
                if is_marked {
                    self.loose_marker_set(sequence, cx.around.now);
                }
                if let Reply::Written { stamp, fast } = &mut reply {
                    let is_own = *stamp == Stamp::of_leader(stamp.count, cx.at.view.epoch, sequence);
                    require(is_own, "F2", || format!("{stamp:?} is answered for record {sequence}"))?;
                    *fast = self.open_shard(cx, ask, op);
                }
                times.iter().for_each(|file| self.times.marked(*file, sequence, cx.around.now));
                if let Some((file, limit)) = commit.size_granted() {
                    self.times.marked(file, sequence, cx.around.now);
                    let (at, given_for) = (cx.at.own.partition, GivenFor::Size { limit });
                    reply = self.pledges.grant(at, ask, file.1, given_for, cx.around.elapsed);
                }
                let early = ask.early && self.may_be_early();
                // The sync follows the record itself: members need no second message.
                match self.requests.durable.remove(&token) {
                    Some(shards) if early => self.round_alone(cx, shards, (token, Ok(reply))),
                    None if early => cx.out.answers.push((token, Ok(reply))),
                    Some(shards) => self.round(cx, sequence, shards, vec![Then::Answer(token, Ok(reply))]),
                    None => self.when(sequence, false, Then::Answer(token, Ok(reply))),
                }
            }
            Appended::NoRoom => return Ok(false),
            Appended::Refused(error) => self.answer_op(token, ask, Err(error)),
        }
        Ok(true)
    }

    /// Continues work that waited for room: the brick has written a checkpoint.
    pub fn has_room(&mut self, cx: &mut Context) -> Result<()> {
        self.requests.retry_wanted = true;
        self.level_again(cx)?;
        self.drive_again(cx)
    }

    pub fn tick(&mut self, cx: &mut Context) -> Result<()> {
        self.requests.ticks += 1;
        self.look_after_fast_lane(cx.around.now);
        self.look_after_pledges(cx)?;
        self.end_idle_times(cx)?;
        self.remove_loose_marker(cx)?;
        self.allow_healing();
        self.ask_stuck_again(cx, cx.around.now);
        self.leave_behind(cx.around.now, cx.out);
        if self.start.may_open() && !cx.at.view.opened {
            cx.out.open = Some((cx.at.own.partition, cx.at.view.epoch));
        }
        self.ask_positions(cx);
        self.level_again(cx)?;
        self.drive_again(cx)?;
        self.requests.retry_wanted |= !self.requests.waiting.is_empty();
        if self.serves() && self.all_present() {
            if self.is_time_to_sweep(cx.around.now) {
                self.sweep(cx)?;
            }
            self.collect(cx.at);
            if self.requests.ticks.is_multiple_of(RESEND_TICKS) {
                self.ask_whether_gone(cx);
            }
        }
        self.heal(cx)
    }
}

fn error_of(stop: Stop) -> Error {
    match stop {
        Stop::Error(error) => error,
        Stop::Wait | Stop::Leg(_) => Error::bug("housekeeping would have to wait"),
    }
}

/// True if a write has to wait for room in the journal. To make its record, in vain, would copy and sum what it writes.
/// Where the disk is full the record is made, so that the write is refused and does not wait.
fn lacks_room(cx: &mut Context, ask: &Ask, op: &Op) -> bool {
    let brick = cx.around.brick;
    let has_disk = |left: hekate_brick::Amount| left.bytes >= SHARD_BYTES && left.files > 0;
    let lacks_room =
        written_shard(ask.volume, op).is_some() && !brick.has_room_for_new() && has_disk(brick.room_left());
    if lacks_room {
        cx.out.wants_room = true;
        cx.out.branches.push("the leader's journal has no room");
    }
    lacks_room
}

/// The inode that an op gives a name.
fn linked_inode(op: &Op) -> Option<InodeId> {
    match op {
        Op::Name { op: NameOp::Link { inode, .. } | NameOp::Put { source: PutSource::Inode { inode }, .. } } => {
            Some(*inode)
        }
        _ => None,
    }
}
