//! One replica of one partition: events and messages in; records into its brick, messages, answers and work out.
//!
//! The replica opens no socket, starts no thread, and reads no clock and no random source. It never waits: work that
//! cannot continue is kept until an event permits it. `docs/replication.md` specifies the protocol. Invariants:
//!
//! - A member appends records in the order of their sequence.
//! - A request is answered once all that the answer depends on is on every member.
//! - A replica drops messages from another epoch than that of its view.
//! - An op over partitions has one record as its commit point. An intent in the log says whether
//!   a later leader undoes or finishes an op that a crash interrupted.

use crate::context::{Around, Context, Out, Token};
use crate::heal::Healing;
use crate::heal::proof::Proof;
use crate::leader::Leader;
use crate::log::follower::Follower;
use crate::log::without_bytes::WithoutBytes;
use crate::membership::Membership;
use crate::message::{Address, BlockAt, Envelope, Message};
use crate::ops::step::{Ask, Commit};
use crate::view_start::level::Phase;
use hekate_proto::map::View;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// An input of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The host has opened the brick and knows the views.
    Start,
    /// A client's change, or a read that [`Partition::read`] could not answer at once.
    Request { token: Token, ask: Ask, op: Op },
    /// A change that the host makes for recovery or housekeeping, as one record.
    Change { token: Token, commit: Box<Commit> },
    /// As `Change`, but refused if it would have to wait. The host derived it from a state with nothing in flight, so
    /// it would overwrite changes made since.
    ChangeNow { token: Token, commit: Box<Commit> },
    /// An orphan that no session has open any more: its inode is removed.
    Collect { volume: VolumeId, inode: InodeId },
    /// A session has read an inode. Its access time is updated if an update is due, before the reader gets its answer.
    Accessed { token: Token, volume: VolumeId, inode: InodeId, session: SessionId },
    /// Everything acknowledged so far is to be on stable storage of every member; with `own`, of the leader alone if
    /// the leader may answer early.
    Sync { token: Token, shards: Vec<ShardId>, own: bool },
    /// The client does not wait for the answer any more. A request that has not begun is dropped.
    Abandon { token: Token },
    /// All sessions that had not ended at a moment at which the view of this epoch had begun. Each may hold locks that
    /// an earlier leader granted, so no lock is granted until each has restored its locks or ended.
    Sessions { epoch: Epoch, sessions: Vec<SessionId> },
    /// Sessions that have not restored their locks may be dead. Until each has restored them or ended, lock requests
    /// that would not wait for a lock are refused.
    SessionsDoubtful,
    /// A session has ended. It sends no further request.
    SessionEnded { session: SessionId },
    /// A session has none of these pledges any more, and says what it wrote under grants among them.
    Returned { session: SessionId, volume: VolumeId, term: u64, pledges: Vec<Pledge>, reports: Vec<Report> },
    /// A session has no pledge any more that was given before this term of a leader.
    /// `mapped`: the mapping rights that it keeps.
    Forgot { session: SessionId, volume: VolumeId, term: u64, mapped: Vec<KeptRight> },
    /// Closes all shards that sessions have open for fast writes, since the host is about to make changes of its own.
    CloseShards,
    /// Begins a proof that all members hold the same data. [`Partition::proof`] reports its progress.
    Prove {
        /// Identifies the run of the host's that the proof belongs to.
        run: u64,
    },
    /// Makes everything that this replica holds stable on every member. [`Partition::stable`] reports it.
    Stabilize,
    /// A message from another replica.
    Message(Envelope),
    /// A sync job has ended.
    Synced { ticket: u64, outcome: Result<()> },
    /// The servers of these bricks are connected, each in a new generation of its link.
    Up { bricks: Vec<BrickId> },
    /// The servers of these bricks are not connected any more.
    Down { bricks: Vec<BrickId> },
    /// The brick has written a checkpoint, so its journal has room.
    Room,
    /// The partition's view has changed.
    View,
    /// Work that was put off is tried again.
    Tick,
}

/// A replica of a partition: its address and view, and its role in that view.
#[derive(Debug)]
pub struct Partition {
    pub(crate) at: Membership,
    pub(crate) role: Role,
    pub(crate) failed: Option<Error>,
}

#[derive(Debug)]
pub(crate) enum Role {
    Leader(Box<Leader>),
    Follower(Box<Follower>),
}

impl Partition {
    /// A replica that does nothing until [`Event::Start`]. `lost`: blocks that its brick lost in a power cut.
    ///
    /// # Errors
    ///
    /// `Error::Bug` if the ring has no such partition; the brick's error if the replica's state cannot be read.
    pub fn new(ring: RingId, own: Address, around: &Around, lost: Vec<BlockAt>) -> Result<Self> {
        let count = around.views.len() as u32;
        let view = around.views.get(own.partition.0 as usize);
        let view = view.ok_or_else(|| Error::bug(format!("partition {} of ring {ring} has no view", own.partition)))?;
        let (life, joins) = (around.brick.incarnation(), !view.opened);
        let without_bytes = WithoutBytes::default();
        let at = Membership { ring, own, count, view: view.clone(), life, lost, without_bytes, joins };
        let role = match at.leads() {
            true => Role::Leader(Box::new(Leader::new(&at, around.brick)?)),
            false => Role::Follower(Box::new(Follower::new(&at, around.brick)?)),
        };
        Ok(Self { at, role, failed: None })
    }

    /// Handles an event and adds what it produces to `out`. A replica that fails refuses everything until its view
    /// changes.
    pub fn handle(&mut self, event: Event, around: &Around, out: &mut Out) {
        if let Some(error) = &self.failed {
            return match self.after_failure(&event, around) {
                Some(anew) => {
                    *self = anew;
                    self.handle(Event::Start, around, out);
                }
                None => refuse(event, error, out),
            };
        }
        let asked = token_of(&event);
        let (sends, answers, open) = (out.sends.len(), out.answers.len(), out.open);
        let (ended_waits, recalls) = (out.ended_waits.len(), out.recalls.len());
        let outcome = match event {
            Event::Message(envelope) => self.message(envelope, around, out),
            Event::View => self.renew_view(around, out),
            event => match &mut self.role {
                Role::Leader(leader) => leader.handle(&mut Context { at: &mut self.at, around, out }, event),
                Role::Follower(follower) => follower.handle(&mut Context { at: &mut self.at, around, out }, event),
            },
        };
        if let Err(error) = outcome {
            if matches!(error, Error::Bug { .. }) {
                // A rule of the protocol does not hold, so messages and answers of this event may be wrong.
                out.sends.truncate(sends);
                out.ended_waits.truncate(ended_waits);
                out.recalls.truncate(recalls);
                out.open = open;
                out.answers[answers..].iter_mut().for_each(|(_, answer)| *answer = Err(error.clone()));
            }
            // Other replicas on the brick need not wait until this one has room for its records.
            if let Role::Follower(follower) = &mut self.role {
                follower.forget(&mut Context { at: &mut self.at, around, out });
            }
            let is_bug = matches!(error, Error::Bug { .. });
            self.fail(error.clone(), out);
            if let Some(token) = asked.filter(|_| is_bug)
                && !out.answers[answers..].iter().any(|(answered, _)| *answered == token)
            {
                out.answers.push((token, Err(error)));
            }
        }
    }

    /// A new replica in place of a failed one, if the view has changed: the view may be without the brick that failed.
    fn after_failure(&self, event: &Event, around: &Around) -> Option<Self> {
        let view = around.views.get(self.at.own.partition.0 as usize)?;
        let is_new = *event == Event::View && *view != self.at.view;
        if !is_new {
            return None;
        }
        let mut anew = Self::new(self.at.ring, self.at.own, around, self.at.lost.clone()).ok()?;
        anew.take_over(self);
        Some(anew)
    }

    /// Takes over what outlives a role: the last ticket, since the host may still run sync jobs, whether a sync is due,
    /// and which blocks came without their bytes.
    fn take_over(&mut self, before: &Self) {
        self.at.joins &= before.at.joins || !before.at.view.has_member(self.at.own.brick);
        self.at.without_bytes = before.at.without_bytes.clone();
        let tickets = match &before.role {
            Role::Leader(leader) => leader.log.tickets(),
            Role::Follower(follower) => follower.tickets,
        };
        match &mut self.role {
            Role::Leader(leader) => leader.log.continue_tickets(tickets),
            Role::Follower(follower) => follower.tickets = tickets,
        }
    }

    fn message(&mut self, envelope: Envelope, around: &Around, out: &mut Out) -> Result<()> {
        let Envelope { from, epoch, message, .. } = envelope;
        let inside = from.partition == self.at.own.partition;
        let view = if inside { Some(&self.at.view) } else { around.views.get(from.partition.0 as usize) };
        // A message of a sender in another view is dropped. The sender repeats it once both sides know the same views.
        let may_send = |view: &View| {
            (view.epoch == epoch || is_planted(Bug::EpochIgnored))
                && (view.has_member(from.brick) || inside && view.has_learner(from.brick))
        };
        let is_accepted = view.is_some_and(may_send) || is_planted(Bug::LegOfOldViewAccepted) && !inside;
        if !is_accepted || !self.at.names_this_incarnation() {
            return Ok(());
        }
        let cx = &mut Context { at: &mut self.at, around, out };
        match &mut self.role {
            Role::Leader(leader) => leader.message(cx, from, message),
            Role::Follower(follower) => follower.message(cx, from, message),
        }
    }

    fn renew_view(&mut self, around: &Around, out: &mut Out) -> Result<()> {
        let Some(view) = around.views.get(self.at.own.partition.0 as usize) else { return Ok(()) };
        if *view == self.at.view {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.at.view, view.clone());
        let is_next = view.epoch.0 == before.epoch.0 + 1;
        self.at.joins = !view.opened && (self.at.joins || !before.has_member(self.at.own.brick));
        match &mut self.role {
            Role::Leader(leader) if before.epoch == view.epoch => {
                leader.opened(&mut Context { at: &mut self.at, around, out })
            }
            Role::Follower(_) if before.epoch == view.epoch => Ok(()),
            Role::Leader(leader) if is_next && self.at.leads() => {
                leader.begin(&mut Context { at: &mut self.at, around, out })
            }
            Role::Follower(follower) if !self.at.leads() => {
                follower.forget(&mut Context { at: &mut self.at, around, out });
                Ok(())
            }
            // Another replica leads, or has led in a view that was not seen here, and has granted locks of which this
            // one knows nothing: nothing of the old role is kept.
            role => {
                match role {
                    Role::Follower(follower) => follower.forget(&mut Context { at: &mut self.at, around, out }),
                    Role::Leader(leader) => leader.refuse_all(&Error::StaleView { epoch: view.epoch }, out),
                }
                let lost = std::mem::take(&mut self.at.lost);
                let mut anew = Self::new(self.at.ring, self.at.own, around, lost)?;
                anew.take_over(self);
                *self = anew;
                self.handle(Event::Start, around, out);
                Ok(())
            }
        }
    }

    /// Stops the replica until its view changes or the server restarts. Members may differ by the records that were in
    /// flight.
    fn fail(&mut self, error: Error, out: &mut Out) {
        match &mut self.role {
            Role::Leader(leader) => leader.refuse_all(&error, out),
            Role::Follower(_) => {
                self.at.send_member(out, self.at.view.leader, Message::Failed { error: error.clone() })
            }
        }
        self.failed = Some(error);
    }

    /// Answers a read at once if all that it depends on is settled and no op holds it. `None`: the host sends it as
    /// [`Event::Request`].
    pub fn read(&self, around: &Around, ask: &Ask, op: &Op) -> Option<Result<Reply>> {
        if let Some(error) = &self.failed {
            return Some(Err(error.clone()));
        }
        match &self.role {
            Role::Leader(leader) => leader.read(&self.at, around, ask, op),
            Role::Follower(_) => Some(Err(Error::StaleView { epoch: self.at.view.epoch })),
        }
    }

    /// The replica's view.
    pub fn view(&self) -> &View {
        &self.at.view
    }

    /// The replica's partition and brick.
    pub fn address(&self) -> Address {
        self.at.own
    }

    /// The error that stopped the replica.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// True if the replica is a leader that serves clients.
    pub fn serves(&self) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if leader.serves())
    }

    /// True if the replica is a leader whose reads wait until sessions have forgotten what all members have lost.
    pub fn hides_loss(&self) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.pledges.hides_loss())
    }

    /// Members that are not connected or lack the last record. Empty for a follower.
    pub fn waits_for(&self) -> Vec<BrickId> {
        match &self.role {
            Role::Leader(leader) => leader.waits_for(),
            Role::Follower(_) => Vec::new(),
        }
    }

    /// Members that have not answered since their server was last connected. Empty for a follower.
    pub fn away(&self) -> Vec<BrickId> {
        match &self.role {
            Role::Leader(leader) => leader.away(),
            Role::Follower(_) => Vec::new(),
        }
    }

    /// Members that cannot append the leader's records any more.
    pub fn failed_members(&self) -> Vec<BrickId> {
        match &self.role {
            Role::Leader(leader) => leader.failed_members(),
            Role::Follower(_) => Vec::new(),
        }
    }

    /// Members that lack records which the leader cannot send them.
    pub fn unfed_members(&self) -> Vec<BrickId> {
        match &self.role {
            Role::Leader(leader) if self.failed.is_none() => leader.unfed_members(),
            _ => Vec::new(),
        }
    }

    /// The member that is to lead instead: it has records that this leader lacks, and cannot send them.
    pub fn yields_to(&self) -> Option<BrickId> {
        let Role::Leader(leader) = &self.role else { return None };
        match *leader.start.phase() {
            Phase::Yielding { to } if self.failed.is_none() => Some(to),
            _ => None,
        }
    }

    /// True if the view is forgetful and is to have one member only, whose copy decides what is kept (rule L20 of
    /// `docs/fast-lane.md`).
    pub fn wants_alone(&self) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if leader.fast.loose.wants_alone)
    }

    /// True if the members have reconciled the blocks that this brick lost in a power cut.
    pub fn has_settled_lost(&self) -> bool {
        self.at.lost.is_empty()
    }

    /// True if the replica is a leader that serves, every member has all records, and no shard is open for fast writes.
    pub fn is_settled(&self) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.serves() && leader.is_settled() && leader.fast.is_idle())
    }

    /// All records up to this one are known to be on stable storage of every member. The brick may discard its journal
    /// up to there.
    pub fn stable(&self) -> Sequence {
        match &self.role {
            Role::Leader(leader) => leader.log.stable(),
            Role::Follower(follower) if self.at.view.has_member(self.at.own.brick) => follower.stable,
            // Until the view has begun, a replica that it leaves out may still have to lead.
            Role::Follower(follower) if !self.at.view.opened => follower.stable,
            // No other replica needs the journal of a learner, or of a replica that the view leaves out.
            Role::Follower(_) => Sequence(u64::MAX),
        }
    }

    /// The progress of each learner. Empty for a follower.
    pub fn healing(&self) -> Vec<Healing> {
        match &self.role {
            Role::Leader(leader) => leader.healing(&self.at),
            Role::Follower(_) => Vec::new(),
        }
    }

    /// Sets how many bytes the leader may send to its learners, for each tick from now on.
    pub fn limit_healing(&mut self, bytes: usize) {
        if let Role::Leader(leader) = &mut self.role {
            leader.healing.limit(bytes);
        }
    }

    /// The progress of the last proof that was begun, unless a member went away since.
    pub fn proof(&self) -> Option<Proof> {
        self.proofs().into_iter().next()
    }

    /// The last proof, and the one that had ended when it was begun.
    pub fn proofs(&self) -> Vec<Proof> {
        match &self.role {
            Role::Leader(leader) => leader.proofs().cloned().collect(),
            Role::Follower(_) => Vec::new(),
        }
    }

    /// True if the replica is a learner that lacks data.
    pub fn is_being_healed(&self) -> bool {
        match &self.role {
            Role::Leader(_) => false,
            Role::Follower(follower) => follower.is_being_healed(),
        }
    }

    /// Entries that the leader has compared with the members' so far, while it compares.
    pub fn compared(&self) -> Option<u64> {
        match &self.role {
            Role::Leader(leader) => leader.compared_entries(),
            Role::Follower(_) => None,
        }
    }

    /// True if work was put off that the next tick may continue.
    pub fn wants_tick(&self) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if leader.wants_tick())
    }

    /// The epoch for which the host is to read the sessions and deliver [`Event::Sessions`]. `None`: the replica does
    /// not lead, knows them, or its view has not begun, so that an earlier leader may still grant locks to new
    /// sessions.
    pub fn wants_sessions(&self) -> Option<Epoch> {
        let Role::Leader(leader) = &self.role else { return None };
        let wants = self.failed.is_none() && self.at.view.opened && !leader.locking.knows_sessions();
        wants.then_some(self.at.view.epoch)
    }

    /// True if the session has yet to restore the locks that an earlier leader granted it.
    pub fn awaits(&self, session: SessionId) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if leader.awaits(session))
    }

    /// Sessions that have yet to restore the locks that an earlier leader granted them.
    pub fn unrestored_sessions(&self) -> Vec<SessionId> {
        match &self.role {
            Role::Leader(leader) if self.failed.is_none() => leader.unrestored_sessions(),
            _ => Vec::new(),
        }
    }

    /// The leader's term, if this session's pledges are renewed now.
    pub fn pledge_term(&self, session: SessionId, elapsed: Duration) -> Option<u64> {
        match &self.role {
            Role::Leader(leader) if self.failed.is_none() => leader.pledges.term_for(session, elapsed),
            _ => None,
        }
    }

    /// True if the leader waits for this session to forget pledges of an earlier leader.
    pub fn awaits_forgetting(&self, session: SessionId) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if leader.pledges.awaits(session))
    }

    /// True if the replica is a leader that undoes or finishes ops before it serves. Their legs may be in other
    /// partitions.
    pub fn recovers(&self) -> bool {
        self.failed.is_none()
            && matches!(&self.role, Role::Leader(leader) if matches!(leader.start.phase(), Phase::Recovering))
    }

    /// True if the replica is a leader with a record, or a leg, that waits until sessions have forgotten pledges of an
    /// earlier leader.
    pub fn delays_for_forgetting(&self) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if leader.pledges.delay_for_forgetting())
    }

    /// Sessions that delay changes, since they have not returned or forgotten pledges for more than a second.
    pub fn slow_sessions(&self, elapsed: Duration) -> BTreeMap<SessionId, Duration> {
        match &self.role {
            Role::Leader(leader) if self.failed.is_none() => leader.pledges.slow_sessions(elapsed),
            _ => BTreeMap::new(),
        }
    }

    /// Number of pledges that sessions have.
    pub fn pledge_count(&self) -> usize {
        match &self.role {
            Role::Leader(leader) => leader.pledges.count(),
            Role::Follower(_) => 0,
        }
    }

    /// Data ids to collect, ops in flight, and marks of ops to be removed.
    pub fn work_left(&self) -> usize {
        match &self.role {
            Role::Leader(leader) => leader.work_left(),
            Role::Follower(_) => 0,
        }
    }

    /// True if nothing is in flight: no op, no leg, no record that some member lacks.
    pub fn is_idle(&self) -> bool {
        match &self.role {
            Role::Leader(leader) => leader.is_idle(),
            Role::Follower(follower) => follower.is_idle(),
        }
    }
}

fn refuse(event: Event, error: &Error, out: &mut Out) {
    out.answers.extend(token_of(&event).map(|token| (token, Err(error.clone()))));
}

/// The token of the request that an event begins.
pub(crate) fn token_of(event: &Event) -> Option<Token> {
    match event {
        Event::Request { token, .. }
        | Event::Change { token, .. }
        | Event::ChangeNow { token, .. }
        | Event::Accessed { token, .. }
        | Event::Sync { token, .. } => Some(*token),
        _ => None,
    }
}
