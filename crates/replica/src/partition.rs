//! One replica of one partition: events and messages in; records into its brick, messages, answers and work out.
//!
//! It opens no socket, starts no thread, and reads no clock and no random source; it never waits: what cannot go on is
//! kept until an event lets it. `docs/replication.md` is the document. Invariants: a member takes records in the order of
//! their sequence; nothing is answered before all that the answer depends on is on every member; a member is heard only
//! in the epoch of the view; an op over partitions has one record as its commit point, and an intent beside it from
//! which a later leader undoes or finishes what a crash left.

use crate::context::{Around, Context, Out, Token};
use crate::heal::Healing;
use crate::heal::proof::Proof;
use crate::leader::Leader;
use crate::log::follower::Follower;
use crate::membership::Membership;
use crate::message::{Address, BlockAt, Envelope, Message};
use crate::ops::step::{Ask, Commit};
use crate::view_start::level::Phase;
use hekate_proto::map::View;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// What happens to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Its host has opened the brick and knows the views.
    Start,
    /// A client asks for a change, or for a read that could not be answered at once.
    Request { token: Token, ask: Ask, op: Op },
    /// The host's own change: recovery and housekeeping, as one record.
    Change { token: Token, commit: Box<Commit> },
    /// The same, made of what was looked at while nothing was under way: it is refused rather than that it waits, since what it says
    /// would be over what came before it.
    ChangeNow { token: Token, commit: Box<Commit> },
    /// An orphan that no session has open any more.
    Collect { volume: VolumeId, inode: InodeId },
    /// An inode was read: its time of access moves, if it is due.
    Accessed { volume: VolumeId, inode: InodeId },
    /// Everything that was answered until now is to be on stable storage of every member; `own`: of the leader alone.
    Sync { token: Token, shards: Vec<ShardId>, own: bool },
    /// Nobody waits for the answer any more: what has not begun is dropped.
    Abandon { token: Token },
    /// All sessions that may hold locks of an earlier leader: until each has told them or ended, no other lock is granted.
    Sessions { sessions: Vec<SessionId> },
    /// Sessions that have yet to tell their locks may be gone: until they have told or ended, who does not wait for a lock is refused.
    SessionsDoubtful,
    /// A session has ended: it sends nothing again.
    SessionEnded { session: SessionId },
    /// Shards that sessions may write past the log are closed: the host changes something by itself.
    CloseShards,
    /// Whether all members hold the same is to be proved: [`Partition::proof`] tells how far that is, and for whom (`run`).
    Prove {
        /// Who asked.
        run: u64,
    },
    /// Everything that this replica holds is to become stable on every member: [`Partition::stable`] tells.
    Stabilize,
    /// Another replica says something.
    Message(Envelope),
    /// A sync job ended.
    Synced { ticket: u64, outcome: Result<()> },
    /// These bricks' servers can be heard from now on, in a new life of theirs or of the network.
    Up { bricks: Vec<BrickId> },
    /// And these no more.
    Down { bricks: Vec<BrickId> },
    /// The brick has written home.
    Room,
    /// The partition's view is another one.
    View,
    /// Time passes: what was put off is tried again.
    Tick,
}

/// See the module.
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
    /// A replica that a brick holds; silent until [`Event::Start`]. `lost`: blocks that its brick lost in a power cut.
    pub fn new(ring: RingId, own: Address, around: &Around, lost: Vec<BlockAt>) -> Result<Self> {
        let count = around.views.len() as u32;
        let view = around.views.get(own.partition.0 as usize);
        let view = view.ok_or_else(|| Error::bug(format!("partition {} of ring {ring} has no view", own.partition)))?;
        let (life, joins) = (around.brick.incarnation(), !view.opened);
        let at = Membership { ring, own, count, view: view.clone(), life, lost, joins };
        let role = match at.leads() {
            true => Role::Leader(Box::new(Leader::new(&at, around.brick)?)),
            false => Role::Follower(Box::new(Follower::new(&at, around.brick)?)),
        };
        Ok(Self { at, role, failed: None })
    }

    /// What happened, and what comes of it.
    pub fn handle(&mut self, event: Event, around: &Around, out: &mut Out) {
        if let Some(error) = &self.failed {
            return match self.begins_anew(&event, around) {
                Some(anew) => {
                    *self = anew;
                    self.handle(Event::Start, around, out);
                }
                None => refuse(event, error, out),
            };
        }
        let (sends, answers) = (out.sends.len(), out.answers.len());
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
                // A rule does not hold: what this event produced may be wrong.
                out.sends.truncate(sends);
                out.answers[answers..].iter_mut().for_each(|(_, answer)| *answer = Err(error.clone()));
            }
            // Others on the brick need not wait for it.
            if let Role::Follower(follower) = &mut self.role {
                follower.forget(&mut Context { at: &mut self.at, around, out });
            }
            self.fail(error, out);
        }
    }

    /// What failed with another member's brick is served again once that one is back, in a new view.
    fn begins_anew(&self, event: &Event, around: &Around) -> Option<Self> {
        let view = around.views.get(self.at.own.partition.0 as usize)?;
        let is_new = *event == Event::View && *view != self.at.view;
        if !is_new {
            return None;
        }
        let mut anew = Self::new(self.at.ring, self.at.own, around, self.at.lost.clone()).ok()?;
        anew.goes_on_from(self);
        Some(anew)
    }

    /// Tickets that the host still works on are not given again.
    fn goes_on_from(&mut self, before: &Self) {
        self.at.joins &= before.at.joins || !before.at.view.has_member(self.at.own.brick);
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
        // Who speaks in another view is not heard; when the views are known everywhere it will speak again.
        let may_speak = |view: &View| {
            (view.epoch == epoch || is_planted(Bug::EpochIgnored))
                && (view.has_member(from.brick) || inside && view.has_learner(from.brick))
        };
        let is_heard = view.is_some_and(may_speak) || is_planted(Bug::LegOfOldViewAccepted) && !inside;
        if !is_heard || !self.at.is_meant() {
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
        self.at.joins = !view.opened && (self.at.joins || !before.has_member(self.at.own.brick));
        match &mut self.role {
            Role::Leader(leader) if before.epoch == view.epoch => {
                leader.opened(&mut Context { at: &mut self.at, around, out })
            }
            Role::Follower(_) if before.epoch == view.epoch => Ok(()),
            Role::Leader(leader) if self.at.leads() => leader.begin(&mut Context { at: &mut self.at, around, out }),
            Role::Follower(follower) if !self.at.leads() => {
                follower.forget(&mut Context { at: &mut self.at, around, out });
                Ok(())
            }
            // Another leads: nothing of the old role is worth keeping.
            role => {
                match role {
                    Role::Follower(follower) => follower.forget(&mut Context { at: &mut self.at, around, out }),
                    Role::Leader(leader) => leader.refuse_all(&Error::StaleView { epoch: view.epoch }, out),
                }
                let lost = std::mem::take(&mut self.at.lost);
                let mut anew = Self::new(self.at.ring, self.at.own, around, lost)?;
                anew.goes_on_from(self);
                *self = anew;
                self.handle(Event::Start, around, out);
                Ok(())
            }
        }
    }

    /// Nothing is served any more until the server starts anew; the members may differ by what was on its way.
    fn fail(&mut self, error: Error, out: &mut Out) {
        match &mut self.role {
            Role::Leader(leader) => leader.refuse_all(&error, out),
            Role::Follower(_) => {
                self.at.send_member(out, self.at.view.leader, Message::Failed { error: error.clone() })
            }
        }
        self.failed = Some(error);
    }

    /// Answers a read at once, if what it depends on is settled and nobody holds it; `None`: ask with an event.
    pub fn read(&self, around: &Around, ask: &Ask, op: &Op) -> Option<Result<Reply>> {
        if let Some(error) = &self.failed {
            return Some(Err(error.clone()));
        }
        match &self.role {
            Role::Leader(leader) => leader.read(&self.at, around, ask, op),
            Role::Follower(_) => Some(Err(Error::StaleView { epoch: self.at.view.epoch })),
        }
    }

    /// The view that it is in.
    pub fn view(&self) -> &View {
        &self.at.view
    }

    /// Which replica this is.
    pub fn address(&self) -> Address {
        self.at.own
    }

    /// Why nothing is served.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Whether clients are served here; a follower never serves them.
    pub fn serves(&self) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if leader.serves())
    }

    /// Members that the leader waits for.
    pub fn waits_for(&self) -> Vec<BrickId> {
        match &self.role {
            Role::Leader(leader) => leader.waits_for(),
            Role::Follower(_) => Vec::new(),
        }
    }

    /// Members that the leader has not heard since their server was linked last.
    pub fn away(&self) -> Vec<BrickId> {
        match &self.role {
            Role::Leader(leader) => leader.away(),
            Role::Follower(_) => Vec::new(),
        }
    }

    /// Members that cannot take the leader's records any more.
    pub fn failed_members(&self) -> Vec<BrickId> {
        match &self.role {
            Role::Leader(leader) => leader.failed_members(),
            Role::Follower(_) => Vec::new(),
        }
    }

    /// Members that the leader cannot give what they lack.
    pub fn unfed_members(&self) -> Vec<BrickId> {
        match &self.role {
            Role::Leader(leader) if self.failed.is_none() => leader.unfed_members(),
            _ => Vec::new(),
        }
    }

    /// Who is to lead instead: it has what this leader lacks, and cannot give it.
    pub fn yields_to(&self) -> Option<BrickId> {
        let Role::Leader(leader) = &self.role else { return None };
        match *leader.start.phase() {
            Phase::Yielding { to } if self.failed.is_none() => Some(to),
            _ => None,
        }
    }

    /// Whether its view, which is without memory, is to have one member only, who decides what is kept (rule L20).
    pub fn wants_alone(&self) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if leader.fast.loose.wants_alone)
    }

    /// Whether members have agreed on the blocks that power cuts took from them.
    pub fn has_settled_lost(&self) -> bool {
        self.at.lost.is_empty()
    }

    /// Whether every member has all records.
    pub fn is_settled(&self) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.serves() && leader.is_settled() && leader.fast.is_idle())
    }

    /// All records up to this one are known to be on stable storage of every member.
    pub fn stable(&self) -> Sequence {
        match &self.role {
            Role::Leader(leader) => leader.log.stable(),
            Role::Follower(follower) if self.at.view.has_member(self.at.own.brick) => follower.stable,
            // Before the view has begun who is left out may still have to lead.
            Role::Follower(follower) if !self.at.view.opened => follower.stable,
            // For who learns, or is left out, nobody needs its journal.
            Role::Follower(_) => Sequence(u64::MAX),
        }
    }

    /// How far those are who learn, if it leads.
    pub fn healing(&self) -> Vec<Healing> {
        match &self.role {
            Role::Leader(leader) => leader.healing(&self.at),
            Role::Follower(_) => Vec::new(),
        }
    }

    /// From now on so many bytes may go to those who learn with each tick.
    pub fn limit_healing(&mut self, bytes: usize) {
        if let Role::Leader(leader) = &mut self.role {
            leader.healing.limit(bytes);
        }
    }

    /// How far a proof is that all members hold the same, if one was begun and nobody went away meanwhile.
    pub fn proof(&self) -> Option<Proof> {
        self.proofs().into_iter().next()
    }

    /// The same, and the one that had ended when it was begun.
    pub fn proofs(&self) -> Vec<Proof> {
        match &self.role {
            Role::Leader(leader) => leader.proofs().cloned().collect(),
            Role::Follower(_) => Vec::new(),
        }
    }

    /// Whether it lacks something that it is being brought.
    pub fn is_being_healed(&self) -> bool {
        match &self.role {
            Role::Leader(_) => false,
            Role::Follower(follower) => follower.is_being_healed(),
        }
    }

    /// Entries that a leader has compared with the members' so far, while it does.
    pub fn compared(&self) -> Option<u64> {
        match &self.role {
            Role::Leader(leader) => leader.compared_entries(),
            Role::Follower(_) => None,
        }
    }

    /// Whether something was put off that the next tick may let go on.
    pub fn wants_tick(&self) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if leader.wants_tick())
    }

    /// Whether it is a leader that has not been told of the sessions.
    pub fn wants_sessions(&self) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if !leader.locking.knows_sessions())
    }

    /// Whether the session has yet to tell the locks that it held under an earlier leader.
    pub fn awaits(&self, session: SessionId) -> bool {
        self.failed.is_none() && matches!(&self.role, Role::Leader(leader) if leader.awaits(session))
    }

    /// Sessions that have yet to tell the locks that they held under an earlier leader.
    pub fn untold(&self) -> Vec<SessionId> {
        match &self.role {
            Role::Leader(leader) if self.failed.is_none() => leader.untold(),
            _ => Vec::new(),
        }
    }

    /// Data ids to collect, ops on their way, and what ops left that is to be removed.
    pub fn work_left(&self) -> usize {
        match &self.role {
            Role::Leader(leader) => leader.work_left(),
            Role::Follower(_) => 0,
        }
    }

    /// Nothing is on its way: no op, no leg, no record that some member lacks.
    pub fn is_idle(&self) -> bool {
        match &self.role {
            Role::Leader(leader) => leader.is_idle(),
            Role::Follower(follower) => follower.is_idle(),
        }
    }
}

fn refuse(event: Event, error: &Error, out: &mut Out) {
    if let Event::Request { token, .. }
    | Event::Change { token, .. }
    | Event::ChangeNow { token, .. }
    | Event::Sync { token, .. } = event
    {
        out.answers.push((token, Err(error.clone())));
    }
}
