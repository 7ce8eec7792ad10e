//! A turn: one thread delivers an event to a replica and carries out everything that follows from it in this process.
//!
//! A message between two replicas of this server is put into the receiver's mailbox, in order, and the same thread then
//! has the receiver handle it, unless another thread is at that replica already: that one empties the mailbox. Syncs
//! are collected, and the bricks are synced in parallel when no message is left.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::request::orphans::Orphan;
use crate::request::syncer::Needs;
use hekate_proto::*;
use hekate_replica::{Address, Event, Out, SyncJob, Token};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How long a thread waits for a replica's answer before the client gets an error that says what the partition waits
/// for. The client's library asks again.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// What one thread has yet to carry out for a ring's replicas.
pub struct Turn<'a> {
    node: &'a Node,
    ring: Arc<HostedRing>,
    /// Replicas with events in their mailboxes.
    visits: VecDeque<Address>,
    syncs: Vec<SyncJob>,
    /// Requests of this thread. The answers of others are handed over through `tickets`.
    own: Vec<Token>,
    answers: Vec<(Token, Result<Reply>)>,
}

impl<'a> Turn<'a> {
    pub fn new(node: &'a Node, ring: &Arc<HostedRing>) -> Self {
        let (visits, syncs, own, answers) = Default::default();
        Self { node, ring: ring.clone(), visits, syncs, own, answers }
    }

    /// Puts an event into a replica's mailbox. It is handled by `run`.
    pub fn deliver(&mut self, to: Address, event: Event) {
        self.ring.deliver(to, event);
        self.visits.push_back(to);
    }

    /// Like `deliver`, for a request whose answer this thread takes.
    pub fn request(&mut self, to: Address, token: Token, event: Event) {
        self.own.push(token);
        self.deliver(to, event);
    }

    /// Has the replicas handle their events, and syncs what they ask for, until nothing is left to do in this process.
    pub fn run(&mut self) {
        loop {
            self.visit_all();
            if self.syncs.is_empty() {
                return;
            }
            self.sync();
        }
    }

    /// Like `run`, but queues the syncs for the bricks' threads, which deliver their outcomes.
    pub fn run_without_syncs(&mut self) {
        self.visit_all();
        for job in std::mem::take(&mut self.syncs) {
            self.node.sync_later(&self.ring, job);
        }
    }

    fn visit_all(&mut self) {
        let ring = self.ring.clone();
        while let Some(at) = self.visits.pop_front() {
            ring.work(at, Node::clock(), |out| self.carry_out(out));
        }
    }

    /// Carries out the output of an event that this thread gave to a replica itself, whose lock it still holds.
    pub fn carry_out_request(&mut self, token: Token, out: Out) {
        self.own.push(token);
        self.carry_out(out);
    }

    fn carry_out(&mut self, out: Out) {
        for envelope in out.sends {
            // Another leader may have changed what the message shows. The driver sends the leg again.
            if envelope.message.needs_lease() && self.node.views.lease().check().is_err() {
                continue;
            }
            match self.ring.replica(envelope.to) {
                Some(_) => self.deliver(envelope.to, Event::Message(envelope)),
                None => self.node.send_to_brick(&self.ring, &envelope),
            }
        }
        for (token, answer) in out.answers {
            match self.own.contains(&token) {
                true => self.answers.push((token, answer)),
                false => self.node.tickets.answer(token, answer),
            }
        }
        self.node.notify_waiters(out.ended_waits);
        for (session, recall) in out.recalls {
            if let Ok(session) = self.node.sessions.get(session) {
                session.notify(&recall);
            }
        }
        out.notes.iter().for_each(|note| log::warn!("{note}"));
        out.branches.into_iter().for_each(|branch| self.node.surroundings.reached(branch));
        if out.wants_room {
            self.node.wake_checkpoints();
        }
        if let Some((partition, epoch)) = out.open {
            self.node.views.set_ready(self.ring.ring, partition, epoch);
            self.node.wake_views();
        }
        if !out.orphans.is_empty() {
            let ring = self.ring.ring;
            let orphans = out.orphans.into_iter().map(|(volume, inode)| Orphan { ring, volume, inode });
            self.node.orphans.add(orphans, self.node.sessions.moment());
        }
        self.syncs.extend(out.syncs);
    }

    /// Syncs each brick once for all that was asked of it.
    fn sync(&mut self) {
        let jobs = std::mem::take(&mut self.syncs);
        let mut needs = Needs::default();
        for job in &jobs {
            if let Some(hosted) = self.ring.replica(job.replica) {
                needs.journal(&hosted.brick, hosted.brick.end());
                needs.shards(&hosted.brick, &job.shards);
            }
        }
        let outcomes = self.node.syncers.sync(needs);
        for SyncJob { replica, ticket, .. } in jobs {
            let outcome = outcomes.get(&replica.brick).cloned().unwrap_or(Ok(()));
            self.deliver(replica, Event::Synced { ticket, outcome });
        }
    }

    /// The answer to a request of this thread, if it has arrived.
    pub fn take(&mut self, token: Token) -> Option<Result<Reply>> {
        let index = self.answers.iter().position(|(known, _)| *known == token)?;
        Some(self.answers.swap_remove(index).1)
    }
}

impl Node {
    /// Brings a request to a replica and waits for its answer, at most 2 s. `None`: the request was cancelled, if it
    /// had not begun; otherwise it is carried out and its answer is dropped.
    pub(crate) fn ask(
        &self,
        ring: &Arc<HostedRing>,
        to: Address,
        event: impl FnOnce(Token) -> Event,
    ) -> Option<Result<Reply>> {
        let token = self.tickets.token();
        let mut turn = Turn::new(self, ring);
        turn.request(to, token, event(token));
        turn.run();
        if let Some(answer) = turn.take(token) {
            return Some(answer);
        }
        self.wait_for_answer(ring, to, token, ANSWER_LIMIT)
    }

    /// Waits for an answer that another thread brings, at most `limit`; then cancels the request and returns `None`.
    pub(crate) fn wait_for_answer(
        &self,
        ring: &Arc<HostedRing>,
        to: Address,
        token: Token,
        limit: Duration,
    ) -> Option<Result<Reply>> {
        if let Some(answer) = self.tickets.wait(token, limit) {
            return Some(answer);
        }
        let late = self.tickets.abandon(token);
        if late.is_none() {
            let mut turn = Turn::new(self, ring);
            turn.deliver(to, Event::Abandon { token });
            turn.run();
        }
        late
    }
}
