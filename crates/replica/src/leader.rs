//! The leader of a partition: its parts, and the part that handles each event and message.
//!
//! `view_start/` is what a leader does before it serves. `requests.rs` begins requests and answers reads. `log/` makes
//! records, replicates them, and delays answers until the records that they depend on are settled. `transactions/`
//! drives ops over several partitions.

use crate::context::Context;
use crate::fast::lane::FastLane;
use crate::fast::times::Times;
use crate::heal::{LearnerWork, not_healed};
use crate::locks::locking::Locking;
use crate::log::LeaderLog;
use crate::log::number_allocator::Numbers;
use crate::log::settle::Then;
use crate::membership::Membership;
use crate::message::{Address, Message};
use crate::ops::discarded::Discarded;
use crate::ops::step::{Ask, RecalledGrants};
use crate::partition::Event;
use crate::pledges::{Late, Pledges, Recalls};
use crate::requests::Requests;
use crate::transactions::Transactions;
use crate::view_start::ViewStart;
use crate::view_start::level::Phase;
use hekate_brick::{Amount, Brick, LogPosition};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// What the leader knows of another member.
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// The end of the member's log when it last sent `Position`. `None` while the member's server is not connected, or
    /// the member has not answered.
    pub position: Option<LogPosition>,
    /// The member's journal has all records up to this one.
    pub held: Sequence,
    /// Bytes and files of growing records that the member's brick has room for, as it last reported.
    pub room: Amount,
    /// The member cannot append records any more.
    pub failed: bool,
    /// The member lacks records that the leader cannot send it.
    pub unfed: bool,
}

/// A leader. Each part has private fields; the folder that defines it holds the methods that change it.
#[derive(Debug)]
pub(crate) struct Leader {
    /// The other members of the view.
    pub members: BTreeMap<BrickId, Member>,
    /// Where the leader is between the start of its view and serving.
    pub start: ViewStart,
    pub numbers: Numbers,
    pub log: LeaderLog,
    /// Requests that wait, and answers kept for retries.
    pub requests: Requests,
    /// Ops over several partitions.
    pub transactions: Transactions,
    pub discarded: Discarded,
    pub locking: Locking,
    pub pledges: Pledges,
    /// Files whose times this leader has renewed, and whose old ones sessions may still have.
    pub renewed: BTreeSet<(VolumeId, InodeId)>,
    pub fast: FastLane,
    pub times: Times,
    /// Learners, and the proof that members are equal.
    pub healing: LearnerWork,
}

impl Leader {
    /// A leader that has not begun its view. Its log ends where the brick's does.
    ///
    /// # Errors
    ///
    /// The brick's error if the partition's reserved numbers cannot be read.
    pub fn new(at: &Membership, brick: &Brick) -> Result<Self> {
        Ok(Self {
            members: at.others().map(|brick| (brick, Member::default())).collect(),
            start: ViewStart::default(),
            numbers: Numbers::new(brick, at.ring, at.own.partition, at.count)?,
            log: LeaderLog::new(brick.position(at.ring, at.own.partition).sequence),
            requests: Requests::default(),
            transactions: Transactions::default(),
            discarded: Discarded::default(),
            locking: Locking::default(),
            pledges: Pledges::default(),
            renewed: BTreeSet::new(),
            fast: FastLane::default(),
            times: Times::default(),
            healing: LearnerWork::new(at.learners()),
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
                    false => self.round(cx, self.log.last(), shards, vec![Then::Answer(answer.0, answer.1)]),
                }
            }
            Event::CloseShards => self.fast.close_all(),
            Event::Prove { run } => self.begin_proof(cx, run)?,
            Event::Stabilize => self.stabilize(cx, cx.at.own.brick),
            Event::Synced { ticket, outcome } => {
                if !is_planted(Bug::SyncFailureIgnored) {
                    outcome?;
                }
                self.synced(cx, cx.at.own.brick, ticket);
            }
            Event::Up { bricks } => self.up(cx, &bricks),
            Event::Down { bricks } => self.down(&bricks),
            Event::Tick => self.tick(cx)?,
            Event::Abandon { token } => self.abandon(token, cx.out),
            Event::Sessions { epoch, sessions } => self.know_sessions(cx, epoch, sessions)?,
            Event::SessionsDoubtful => self.locking.refuse_meanwhile(),
            Event::SessionEnded { session } => {
                self.fast.close_all_of(session);
                self.forget_session(session);
                self.end_locks(session, cx.out);
                let is_freed = self.pledges.end_session(session);
                self.go_on_after_pledges(cx, is_freed)?;
            }
            Event::Returned { session, volume, term, pledges, reports } => {
                let is_freed = self.pledges.returned((session, volume), term, &pledges, &reports);
                self.go_on_after_pledges(cx, is_freed)?;
            }
            Event::Forgot { session, volume, term, mapped } => {
                self.keep_mapped(cx, (session, volume), term, &mapped)?;
                let is_freed = self.pledges.forgot(session, term);
                self.go_on_after_pledges(cx, is_freed)?;
            }
            Event::Room => self.has_room(cx)?,
            Event::View | Event::Message(_) => {}
        }
        self.settle(cx)
    }

    pub fn message(&mut self, cx: &mut Context, from: Address, message: Message) -> Result<()> {
        match message {
            Message::Held { sequence, .. } if self.healing.has_learner(from.brick) => {
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
            // A learner that fails does not stop the members.
            Message::Failed { error } if self.healing.has_learner(from.brick) => {
                cx.out.notes.push(not_healed(cx.at, from.brick, &error));
                self.learner_away(from.brick);
            }
            Message::Synced { ticket } => self.synced(cx, from.brick, ticket),
            Message::WantStable => self.stabilize(cx, from.brick),
            // The logs are equal, so it is unknown which of the two copies is right: the leader stops.
            Message::Failed { error } if matches!(self.start.phase(), Phase::Comparing(_)) => return Err(error),
            Message::Failed { error } => self.member_failed(cx, from.brick, &error),
            // A late copy: the leg may have been taken in an earlier view, and its mark removed since.
            Message::Leg { view, .. } if view != cx.at.view.epoch && !is_planted(Bug::LegOfOldViewAccepted) => {
                cx.out.branches.push("a leg of another view");
            }
            Message::Leg { intent, number, volume, session, op_id, leg, .. } => {
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

    /// The context of an op that the server itself begins.
    pub fn ask(&self, cx: &Context, volume: VolumeId) -> Ask {
        Ask::new(cx.at.ring, cx.at.count, volume, (SYSTEM_SESSION, OpId(0)), cx.around.now)
    }

    /// True if a record with these changes has to wait for pledges of other sessions than `by`. Also before the leader
    /// serves: it takes legs then, and goes on with ops of the view before.
    pub fn is_pledged(&self, cx: &mut Context, by: SessionId, changes: &[Change], grants: RecalledGrants) -> bool {
        if !self.serves() && is_planted(Bug::PledgesIgnoredBeforeServing) {
            return false;
        }
        let mut recalls = Recalls::default();
        let is_blocked = self.pledges.block(by, (changes, grants), cx.around.elapsed, &mut recalls);
        recalls.send(cx.at.own.partition, self.pledges.term(), cx.out);
        if is_blocked {
            cx.out.branches.push("a change waits for pledges");
        }
        is_blocked
    }

    /// Goes on with what waited for pledges, if they are gone.
    fn go_on_after_pledges(&mut self, cx: &mut Context, is_freed: bool) -> Result<()> {
        self.note_granted_writes(cx);
        if !is_freed {
            return self.find_ends(cx);
        }
        self.requests.retry_if_any();
        self.show_renewed(cx);
        self.find_ends(cx)?;
        if self.serves() { self.drive_again(cx) } else { Ok(()) }
    }

    /// Has sessions forget times that this leader has renewed.
    fn show_renewed(&mut self, cx: &mut Context) {
        for (volume, inode) in std::mem::take(&mut self.renewed) {
            if is_planted(Bug::RenewedTimesNotRecalled) {
                continue;
            }
            let changes = [Change::Delete { key: Key::inode(cx.at.ring, volume, inode, Kind::Inode) }];
            if self.is_pledged(cx, SYSTEM_SESSION, &changes, RecalledGrants::All) {
                self.renewed.insert((volume, inode));
            }
        }
    }

    /// Called with each tick.
    pub fn look_after_pledges(&mut self, cx: &mut Context) -> Result<()> {
        let mut recalls = Recalls::default();
        let Late { sessions: late, rights } = self.pledges.tick(cx.around.elapsed, &mut recalls);
        recalls.send(cx.at.own.partition, self.pledges.term(), cx.out);
        self.pass_rights_on(cx, rights)?;
        if !late.is_empty() {
            cx.out.branches.push("pledges have expired");
            let (number, ring) = (cx.at.own.partition, cx.at.ring);
            let sessions: Vec<String> = late.iter().map(SessionId::to_string).collect();
            cx.out.notes.push(format!(
                "partition {number} of ring {ring}: changes go on without sessions {}, whose pledges have expired",
                sessions.join(", ")
            ));
        }
        self.go_on_after_pledges(cx, !late.is_empty() || !self.renewed.is_empty())
    }

    /// Marks a member as failed. Records are not settled any more until a view without the member begins.
    pub fn member_failed(&mut self, cx: &mut Context, brick: BrickId, error: &Error) {
        if let Some(member) = self.members.get_mut(&brick).filter(|member| !member.failed) {
            (member.position, member.failed) = (None, true);
            let (number, ring) = (cx.at.own.partition, cx.at.ring);
            cx.out.notes.push(format!(
                "partition {number} of ring {ring}: brick {} appends no more records: {error}",
                brick.text()
            ));
        }
    }

    fn member_holds(&mut self, brick: BrickId, sequence: Sequence, room: Amount) {
        if let Some(member) = self.members.get_mut(&brick).filter(|member| member.position.is_some()) {
            member.held = member.held.max(sequence);
            member.room = room;
        }
    }

    /// Members that are not connected or lack the last record.
    pub fn waits_for(&self) -> Vec<BrickId> {
        let lacks = |member: &Member| member.position.is_none() || member.held < self.log.last();
        self.members.iter().filter(|(_, member)| lacks(member)).map(|(brick, _)| *brick).collect()
    }

    /// Members that the leader cannot send records to.
    pub fn away(&self) -> Vec<BrickId> {
        self.members.iter().filter(|(_, member)| member.position.is_none()).map(|(brick, _)| *brick).collect()
    }

    /// True if the leader can send records to every member.
    pub fn all_present(&self) -> bool {
        self.members.values().all(|member| member.position.is_some() && !member.unfed)
    }

    pub fn is_idle(&self) -> bool {
        self.serves()
            && self.is_settled()
            && self.log.is_idle()
            && self.transactions.is_idle()
            && self.requests.waiting().is_empty()
            && self.discarded.garbage_count() == 0
            && self.fast.is_idle()
            && self.times.is_idle()
            && !self.fast.loose.is_marked()
    }

    pub fn wants_tick(&self) -> bool {
        !self.serves()
            || !self.requests.waiting().is_empty()
            || self.transactions.is_stuck()
            || self.fast.wants_tick()
            || self.pledges.wants_tick()
            || self.healing.wants_tick()
    }

    pub fn work_left(&self) -> usize {
        self.discarded.garbage_count() + self.transactions.work_left()
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
