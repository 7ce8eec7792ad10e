//! The leader: makes records, streams them to the members, and lets nothing out before they have them.
//!
//! `level.rs` is what it does before it serves, `drive.rs` how it takes ops over partitions from step to step, `serve.rs`
//! how requests begin and reads are answered; here is the log: who holds what, what is settled, what is synced.

use crate::context::{Context, Out, Token};
use crate::fast::lane::FastLane;
use crate::fast::times::Times;
use crate::heal::proof::Proving;
use crate::heal::{Learner, not_healed};
use crate::locks::LockTable;
use crate::log::follower::append;
use crate::log::number_allocator::Numbers;
use crate::log::room;
use crate::log::sync_rounds::Round;
use crate::membership::Membership;
use crate::message::{Address, BlockAt, Fresh, HealStep, Message, Outcome};
use crate::ops::recent_truncates::Cuts;
use crate::ops::step::{Ask, Commit};
use crate::partition::Event;
use crate::requests::Waiting;
use crate::transactions::driven::Driven;
use crate::view_start::level::Phase;
use hekate_brick::{Amount, Brick, LogEntry, LogPosition};
use hekate_proto::planted::is_planted;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Another member, as the leader knows it.
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// Where its log ends, since it was last heard anew; none: it is away, or has not answered yet.
    pub position: Option<LogPosition>,
    /// It has all records up to here.
    pub held: Sequence,
    /// Bytes of growing records that it has said it takes.
    pub room: Amount,
    /// It takes no records any more.
    pub failed: bool,
    /// It lacks records that cannot be given to it.
    pub unfed: bool,
}

/// What happens once a record is settled.
#[derive(Debug)]
pub(crate) enum Then {
    Answer(Token, Result<Reply>),
    /// Legs of an op that follow what is in the log up to here.
    SendLegs(IntentId, Sequence),
    EndLeg(Address, IntentId, u16, Result<Reply>),
    Ended(IntentId),
    /// What its name leads to in another partition can not lose the name any more.
    Named(IntentId, Reply),
    Forget(IntentId),
    SayGone(Address, IntentId),
    /// Numbers below this are safe, and all that was in the log before their reservation.
    Reserved(u64),
    /// The members of the view are level: it may begin.
    Open(Epoch),
    /// Fast writes of this term that were loose are on stable storage of all members.
    LooseSynced(u64),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Leader {
    pub phase: Phase,
    pub numbers: Numbers,
    pub members: BTreeMap<BrickId, Member>,
    pub learners: BTreeMap<BrickId, Learner>,
    /// Bytes that may be sent to learners before the next tick, and whether clients have asked for changes since the last.
    pub heal_bytes: usize,
    /// No learner was stuck then, or they were tried again.
    pub stuck_at: Time,
    pub looked_behind_at: Time,
    pub was_asked: bool,
    /// What the host allows with each tick, who knows of other partitions.
    pub heal_limit: Option<usize>,
    /// All members are level and have it on stable storage: the coordinator is asked to record that the view begins.
    pub may_open: bool,
    pub last: Sequence,
    pub settled: Sequence,
    /// Every member has on stable storage what comes up to here.
    pub stable: Sequence,
    /// Records that some member may lack.
    pub window: VecDeque<(LogEntry, Vec<Fresh>)>,
    /// In the order of their records; `true`: not before that is on stable storage of all members.
    pub after: VecDeque<(Sequence, bool, Then)>,
    pub rounds: BTreeMap<u64, Round>,
    pub tickets: u64,
    pub driven: BTreeMap<IntentId, Driven>,
    /// What ops on their way hold against others.
    pub held: BTreeMap<Key, IntentId>,
    pub waiting: VecDeque<Waiting>,
    /// The last op of each session's slot; what is missing is in the brick.
    pub slots: BTreeMap<(SessionId, u8), OpId>,
    /// The last op of each slot that was answered without a record, and how.
    pub kept: BTreeMap<(SessionId, u8), (OpId, Result<Reply>)>,
    /// Data ids whose shards were dropped: what is written to them comes too late.
    pub dropped: VecDeque<DataId>,
    pub cuts: Cuts,
    /// Data ids to collect.
    pub garbage: VecDeque<(Key, GarbageRecord)>,
    pub ticks: u64,
    /// Something was let go: those who wait are asked again.
    pub retry_wanted: bool,
    /// Ops that were undone for a hold elsewhere since one came to its commit point, up to a limit.
    pub collisions: u32,
    /// Names and moves that ops of other partitions hold.
    pub prepared: BTreeSet<Key>,
    /// Directories with the hold keys of new names in them that a power cut could still take, though what they lead to in
    /// another partition would stay: nobody is shown them.
    pub unnamed: BTreeMap<IntentId, Vec<(InodeId, Key)>>,
    /// Directories made by legs of such intents: a power cut may have taken their names, then they are taken back.
    pub unborn: BTreeMap<IntentId, InodeId>,
    /// Whether every member has lost some bytes, so that it is not known any more which writes that are repeated were done;
    /// none once no such write counts as done.
    pub lost_writes: Option<bool>,
    /// Intents of ops that are over, and marks of such intents: to be removed.
    pub swept: Vec<IntentId>,
    pub forgotten: Vec<Key>,
    pub swept_at: Time,
    /// Intents of which marks were found: whether they are gone is asked until it is answered.
    pub doubtful: BTreeSet<IntentId>,
    /// Blocks that power cuts took, and from which members.
    pub lost_on: BTreeMap<BlockAt, BTreeSet<BrickId>>,
    /// Nothing is granted before it is known who may hold locks of an earlier leader.
    pub locks: LockTable,
    pub knows_sessions: bool,
    pub fast: FastLane,
    pub times: Times,
    pub proof: Option<Box<Proving>>,
    /// Who waits for stable storage, with data files to be synced first.
    pub durable: BTreeMap<Token, Vec<ShardId>>,
}

/// Data ids that are remembered; one is forgotten when as many others were dropped after it.
const DROPPED_MAX: usize = 16_384;

/// A record's requirements.
pub(crate) struct Draft<'a> {
    pub session: SessionId,
    pub op_id: OpId,
    pub commit: &'a Commit,
    /// More changes of the same record.
    pub also: Vec<Change>,
    /// It finishes something that has begun: not refused for want of room.
    pub must: bool,
    /// What one who learns does with it.
    pub step: Option<(BrickId, HealStep)>,
    /// It closes shards that a session may write on the fast lane, and waits for none.
    pub closes: bool,
}

/// Why no record was made.
pub(crate) enum Unmade {
    /// The brick must write home first, or a shard be closed.
    NoRoom,
    Refused(Error),
}

impl Leader {
    pub fn new(at: &Membership, brick: &Brick) -> Result<Self> {
        let last = brick.position(at.ring, at.own.partition).sequence;
        Ok(Self {
            phase: Phase::Silent,
            numbers: Numbers::new(brick, at.ring, at.own.partition, at.count)?,
            members: at.others().map(|brick| (brick, Member::default())).collect(),
            learners: at.learners().map(|brick| (brick, Learner::default())).collect(),
            heal_bytes: 0,
            stuck_at: Time(0),
            looked_behind_at: Time(0),
            was_asked: false,
            heal_limit: None,
            may_open: false,
            last,
            settled: Sequence(0),
            stable: Sequence(0),
            window: VecDeque::new(),
            after: VecDeque::new(),
            rounds: BTreeMap::new(),
            tickets: 0,
            driven: BTreeMap::new(),
            held: BTreeMap::new(),
            waiting: VecDeque::new(),
            slots: BTreeMap::new(),
            kept: BTreeMap::new(),
            dropped: VecDeque::new(),
            cuts: Cuts::default(),
            garbage: VecDeque::new(),
            ticks: 0,
            retry_wanted: false,
            collisions: 0,
            prepared: BTreeSet::new(),
            unnamed: BTreeMap::new(),
            lost_writes: None,
            swept: Vec::new(),
            forgotten: Vec::new(),
            swept_at: Time(0),
            doubtful: BTreeSet::new(),
            unborn: BTreeMap::new(),
            lost_on: BTreeMap::new(),
            locks: LockTable::default(),
            knows_sessions: false,
            fast: FastLane::default(),
            times: Times::default(),
            proof: None,
            durable: BTreeMap::new(),
        })
    }

    pub fn handle(&mut self, cx: &mut Context, event: Event) -> Result<()> {
        match event {
            Event::Start => self.begin(cx)?,
            Event::Request { .. } | Event::Change { .. } | Event::Collect { .. } | Event::Accessed { .. } => {
                self.arrive(cx, event)?;
            }
            Event::ChangeNow { token, commit } => self.change_now(cx, token, *commit)?,
            Event::Sync { token, shards, own } => {
                let (answer, alone) = ((token, Ok(Reply::Done)), own && self.may_be_early());
                match alone {
                    true => self.round_alone(cx, shards, answer),
                    false => self.round(cx, self.last, shards, vec![Then::Answer(answer.0, answer.1)]),
                }
            }
            Event::CloseShards => self.fast.close_all(),
            Event::Prove { run } => self.begin_proof(cx, run)?,
            Event::Stabilize => self.stabilize(cx, cx.at.own.brick),
            Event::Synced { ticket, outcome } => {
                if !is_planted(23) {
                    outcome?;
                }
                self.synced(cx, cx.at.own.brick, ticket);
            }
            Event::Up { bricks } => self.up(cx, &bricks),
            Event::Down { bricks } => self.down(&bricks),
            Event::Tick => self.tick(cx)?,
            Event::Abandon { token } => self.abandon(token, cx.out),
            Event::Sessions { sessions } => self.know_sessions(sessions),
            Event::SessionsDoubtful => self.locks.refuse_meanwhile(),
            Event::SessionEnded { session } => {
                self.fast.close_all_of(session);
                self.forget_session(session);
                self.end_locks(session, cx.out);
            }
            Event::Room => self.has_room(cx)?,
            Event::View | Event::Message(_) => {}
        }
        self.settle(cx)
    }

    pub fn message(&mut self, cx: &mut Context, from: Address, message: Message) -> Result<()> {
        match message {
            Message::Held { sequence, .. } if self.learners.contains_key(&from.brick) => {
                self.learner_holds(from.brick, sequence);
                self.heal(cx)?;
            }
            Message::Held { sequence, room } => self.member_holds(from.brick, sequence, room),
            Message::Differs { sequence, to, entries, shards } => {
                let looked = self.differs(from.brick, (sequence, to), entries, shards, cx.around);
                self.stop_at_damage(cx, from.brick, looked)?;
                self.heal(cx)?;
            }
            Message::BlockHashes { shard, hashes } => {
                let looked = self.blocks_held(cx, from.brick, shard, &hashes);
                self.stop_at_damage(cx, from.brick, looked)?;
                self.heal(cx)?;
            }
            // One who learns stops alone.
            Message::Failed { error } if self.learners.contains_key(&from.brick) => {
                cx.out.notes.push(not_healed(cx.at, from.brick, &error));
                self.learner_away(from.brick);
            }
            Message::Synced { ticket } => self.synced(cx, from.brick, ticket),
            Message::WantStable => self.stabilize(cx, from.brick),
            // With equal logs nothing tells which of the two is right.
            Message::Failed { error } if matches!(self.phase, Phase::Comparing(_)) => return Err(error),
            Message::Failed { error } => self.member_failed(cx, from.brick, &error),
            Message::Leg { intent, number, volume, session, op_id, leg } => {
                let ask = Ask { session, op_id, ..self.ask(cx, volume) };
                self.take_leg(cx, from, &ask, (intent, number), &leg)?;
            }
            Message::LegEnded { intent, number, outcome } => self.leg_ended(cx, intent, number, outcome)?,
            Message::Forget { intent } => self.forget_marks(cx, intent)?,
            Message::FastListed { sequence, lists } => self.fast.listed(from.brick, sequence, lists),
            Message::Proved { sequence, sum, count } => {
                self.proved(cx, from.brick, sequence, (sum, count))?;
            }
            Message::FastHeld { shard, stamp, held } => self.fast_held(from.brick, shard, stamp, held, cx.out),
            Message::IsGone { intent } => self.is_gone(cx, from, intent)?,
            other => self.level_message(cx, from, other)?,
        }
        self.settle(cx)
    }

    /// An ask of the server's own.
    pub fn ask(&self, cx: &Context, volume: VolumeId) -> Ask {
        Ask::new(cx.at.ring, cx.at.count, volume, (SYSTEM_SESSION, OpId(0)), cx.around.now)
    }

    /// The others wait until there is a view without it.
    pub fn member_failed(&mut self, cx: &mut Context, brick: BrickId, error: &Error) {
        if let Some(member) = self.members.get_mut(&brick).filter(|member| !member.failed) {
            (member.position, member.failed) = (None, true);
            let (number, ring) = (cx.at.own.partition, cx.at.ring);
            cx.out
                .notes
                .push(format!("partition {number} of ring {ring}: brick {} cannot go on: {error}", brick.text()));
        }
    }

    fn member_holds(&mut self, brick: BrickId, sequence: Sequence, room: Amount) {
        if let Some(member) = self.members.get_mut(&brick).filter(|member| member.position.is_some()) {
            member.held = member.held.max(sequence);
            member.room = room;
        }
    }

    /// Members that are away, or that lack what is on its way.
    pub fn waits_for(&self) -> Vec<BrickId> {
        let lacks = |member: &Member| member.position.is_none() || member.held < self.last;
        self.members.iter().filter(|(_, member)| lacks(member)).map(|(brick, _)| *brick).collect()
    }

    /// Members that cannot be told of a change.
    pub fn away(&self) -> Vec<BrickId> {
        self.members.iter().filter(|(_, member)| member.position.is_none()).map(|(brick, _)| *brick).collect()
    }

    /// Whether every member can be told of a change.
    pub fn all_present(&self) -> bool {
        self.members.values().all(|member| member.position.is_some() && !member.unfed)
    }

    pub fn is_idle(&self) -> bool {
        self.serves()
            && self.is_settled()
            && self.after.is_empty()
            && self.rounds.is_empty()
            && self.driven.is_empty()
            && self.waiting.is_empty()
            && self.swept.is_empty()
            && self.forgotten.is_empty()
            && self.doubtful.is_empty()
            && self.garbage.is_empty()
            && self.fast.is_idle()
            && self.times.is_idle()
            && !self.fast.loose.is_noted()
    }

    pub fn wants_tick(&self) -> bool {
        !self.serves()
            || !self.waiting.is_empty()
            || self.driven.values().any(Driven::is_stuck)
            || self.fast.wants_tick()
            || self.learners.values().any(Learner::wants_tick)
    }

    pub fn work_left(&self) -> usize {
        self.garbage.len() + self.driven.len() + self.forgotten.len() + self.doubtful.len()
    }

    pub fn refuse_all(&mut self, error: &Error, out: &mut Out) {
        let after = self.after.drain(..).map(|(_, _, then)| then);
        let rounds = std::mem::take(&mut self.rounds).into_values().flat_map(|round| {
            let alone = round.alone.map(|(token, reply)| Then::Answer(token, reply));
            round.then.into_iter().chain(alone)
        });
        for then in after.chain(rounds) {
            if let Then::Answer(token, _) = then {
                out.answers.push((token, Err(error.clone())));
            }
        }
        let driven = std::mem::take(&mut self.driven).into_values().flat_map(|driven| driven.tokens);
        out.answers.extend(driven.map(|token| (token, Err(error.clone()))));
        for waiting in self.waiting.drain(..).chain(self.fast.take_reads()) {
            waiting.refuse(error, out);
        }
    }

    /// Makes a record, and sends it on its way. It is settled once every member has it.
    pub fn append(&mut self, cx: &mut Context, draft: Draft) -> Result<std::result::Result<Sequence, Unmade>> {
        let (session, op_id, commit) = (draft.session, draft.op_id, draft.commit);
        let mut changes = commit.changes.clone();
        changes.extend(draft.also);
        let unnoted = if commit.times_of.is_none() { self.changes_times(cx, &changes) } else { Vec::new() };
        if self.must_tell_times(cx, &unnoted)? {
            return Ok(Err(Unmade::NoRoom));
        }
        changes.extend(Times::ends(cx.at.ring, &unnoted));
        let reservation = self.numbers.reservation();
        changes.extend(reservation.iter().map(|(_, change)| change.clone()));
        if !draft.closes && self.must_close(&changes, cx.out) {
            return Ok(Err(Unmade::NoRoom));
        }
        let grows = room::takes_room(&changes) && !draft.must;
        let sequence = Sequence(self.last.0 + 1);
        let (ring, partition, epoch) = (cx.at.ring, cx.at.own.partition, cx.at.view.epoch);
        set_stamps(&mut changes, epoch, sequence);
        let entry = LogEntry::new(Record { ring, partition, epoch, sequence, session, op_id, changes });
        if grows && let Err(error) = self.check_room(&entry, cx.around.brick) {
            // Of what cannot be read it is not known.
            if !room::has_its_room(cx.around.brick, cx.at.ring, &entry.record.changes).unwrap_or(false) {
                cx.out.branches.push("a record is refused for want of room");
                return Ok(Err(Unmade::Refused(error)));
            }
        }
        let takes_now = !(grows && cx.around.brick.has_starving()) && cx.around.brick.takes_now(&entry);
        let taken =
            if takes_now { append(cx.around.brick, cx.at.ring, &entry, &commit.fresh, false) } else { Ok(false) };
        if !matches!(taken, Ok(true)) {
            room::fresh_shards(&entry).for_each(|shard| cx.around.brick.forget_fresh(shard));
        }
        match taken {
            Ok(true) => {}
            // There may have been room when it was asked for; or no file descriptor is free.
            Ok(false) | Err(Error::Unavailable { .. }) => {
                cx.out.wants_room = true;
                cx.out.branches.push("the leader's journal has no room");
                return Ok(Err(Unmade::NoRoom));
            }
            // Refused for what it is: nobody has it.
            Err(error @ (Error::Invalid { .. } | Error::Bug { .. } | Error::NoSpace { .. })) => {
                return Ok(Err(Unmade::Refused(error)));
            }
            Err(error) => return Err(error),
        }
        if let Some((upto, _)) = reservation {
            self.numbers.reserved(upto);
            self.when(sequence, true, Then::Reserved(upto));
        }
        self.times.unnote(&unnoted);
        self.last = sequence;
        self.note(&entry, cx.out);
        commit.cut.into_iter().for_each(|cut| self.cuts.note(cut));
        for brick in self.members.keys() {
            let message = Message::Append { entry: entry.clone(), fresh: commit.fresh.clone(), copied: false };
            cx.send_member(*brick, message);
        }
        self.stream(cx, &entry, commit, draft.step);
        self.window.push_back((entry, commit.fresh.clone()));
        Ok(Ok(sequence))
    }

    /// What a record leaves to be done later.
    fn note(&mut self, entry: &LogEntry, out: &mut Out) {
        for change in &entry.record.changes {
            match change {
                Change::DropShard { shard } => {
                    if self.dropped.back() != Some(&shard.data) {
                        self.dropped.push_back(shard.data);
                    }
                    if self.dropped.len() > DROPPED_MAX {
                        self.dropped.pop_front();
                    }
                }
                Change::Put { key, value } => self.note_work(key, value, out),
                _ => {}
            }
        }
    }

    /// Something to collect.
    pub fn note_work(&mut self, key: &Key, value: &bytes::Bytes, out: &mut Out) {
        let (Some(place), Some(id)) = (key.prefix(), key.id()) else { return };
        match key.kind() {
            Some(Kind::Orphan) => out.orphans.push((place.volume, InodeId::from_bits(id))),
            Some(Kind::Garbage) => {
                if let Ok(record) = GarbageRecord::from_bytes(value.clone()) {
                    self.garbage.push_back((key.clone(), record));
                }
            }
            _ => {}
        }
    }

    /// `then`, once the record is settled, or (`stable`) on stable storage of every member.
    pub fn when(&mut self, sequence: Sequence, stable: bool, then: Then) {
        self.after.push_back((sequence, stable, then));
    }

    /// The answer of an op whose state was read just now.
    pub fn answer(&mut self, token: Token, reply: Result<Reply>) {
        self.when(self.last, false, Then::Answer(token, reply));
    }

    /// What all members have is let out, and what waited for it goes on.
    pub fn settle(&mut self, cx: &mut Context) -> Result<()> {
        loop {
            self.go_on_closing(cx)?;
            self.let_out(cx);
            self.go_on_levelling(cx)?;
            if std::mem::take(&mut self.retry_wanted) {
                self.retry(cx)?;
            } else if !self.make_durable(cx) && self.is_let_out(cx.at) {
                return Ok(());
            }
        }
    }

    fn let_out(&mut self, cx: &mut Context) {
        let mut held = self.members.values().map(|member| member.held).min();
        if is_planted(1) {
            held = None;
        }
        self.settled = self.settled.max(held.unwrap_or(self.last).min(self.last));
        while self.window.front().is_some_and(|(entry, _)| entry.record.sequence <= self.settled) {
            self.window.pop_front();
        }
        while let Some(next) = self.after.iter().position(|waits| self.may_go(cx.at, waits)) {
            let Some((sequence, stable, then)) = self.after.remove(next) else { break };
            match stable {
                true => self.round(cx, sequence, Vec::new(), vec![then]),
                false => self.fire(cx, then),
            }
        }
    }

    /// Nothing that is settled waits any more.
    fn is_let_out(&self, at: &Membership) -> bool {
        let held = self.members.values().map(|member| member.held).min().unwrap_or(self.last);
        self.settled >= held.min(self.last) && !self.after.iter().any(|waits| self.may_go(at, waits))
    }

    /// What all members of a view have that has not begun may not be what counts: if it never begins, others may lead without
    /// it. So nobody is told before (rule 15).
    fn may_go(&self, at: &Membership, (sequence, _, then): &(Sequence, bool, Then)) -> bool {
        *sequence <= self.settled && (at.view.opened || matches!(then, Then::Open(_)) || is_planted(25))
    }

    /// Whether every member has all records.
    pub fn is_settled(&self) -> bool {
        self.settled >= self.last
    }

    /// Changes that some member may lack, newest last.
    pub fn unsettled(&self) -> impl Iterator<Item = &Change> {
        self.window.iter().flat_map(|(entry, _)| &entry.record.changes)
    }

    fn fire(&mut self, cx: &mut Context, then: Then) {
        match then {
            Then::Answer(token, reply) => cx.out.answers.push((token, reply)),
            Then::SendLegs(intent, upto) => self.send_legs(cx, intent, upto),
            Then::EndLeg(to, intent, number, reply) => {
                let outcome = match reply {
                    Ok(reply) => Outcome::Taken { reply },
                    Err(error) => Outcome::Refused { error },
                };
                cx.send(to, Message::LegEnded { intent, number, outcome });
            }
            Then::Ended(intent) => self.op_ended(cx, intent),
            Then::Named(intent, reply) => self.named(cx, intent, reply),
            Then::Forget(intent) => self.tell_forget(cx, intent),
            Then::Reserved(upto) => {
                self.numbers.made_safe(upto);
                self.retry_wanted = true;
            }
            Then::SayGone(to, intent) => cx.send(to, Message::Forget { intent }),
            Then::Open(epoch) if epoch == cx.at.view.epoch && !cx.at.view.opened => {
                self.may_open = true;
                self.fast.loose.view_begins();
                cx.out.open = Some((cx.at.own.partition, epoch));
            }
            Then::Open(_) => {}
            Then::LooseSynced(term) => self.loose_synced(term),
        }
    }

    fn down(&mut self, bricks: &[BrickId]) {
        self.end_proof();
        for brick in bricks {
            if let Some(member) = self.members.get_mut(brick) {
                member.position = None;
            }
            self.learner_away(*brick);
        }
    }
}

/// A leader's record gives shards stamps of its own, whoever asked for it (rule 2).
fn set_stamps(changes: &mut [Change], epoch: Epoch, sequence: Sequence) {
    for change in changes {
        if let Some(record) = change.shard_record_mut() {
            record.stamp = Stamp::of_leader(record.stamp.count, epoch, sequence);
        }
    }
}
