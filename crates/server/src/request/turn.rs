//! A turn: an event for a replica and all that follows from it here, done by the thread that brought it.
//!
//! What replicas of this server say to each other does not travel: it is put into mailboxes, in order, and the same thread
//! goes on with them, unless another is there already. Syncs of all bricks
//! are gathered, and done side by side when nothing else is left.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::request::orphans::Orphan;
use crate::request::syncer::Needs;
use hekate_proto::*;
use hekate_replica::{Address, Event, Out, SyncJob, Token};
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
pub struct Turn<'a> {
    node: &'a Node,
    ring: Arc<HostedRing>,
    /// Replicas that have something in their mailboxes.
    visits: VecDeque<Address>,
    syncs: Vec<SyncJob>,
    /// Answers of requests that this thread brought; others' are passed on.
    own: Vec<Token>,
    answers: Vec<(Token, Result<Reply>)>,
}

impl<'a> Turn<'a> {
    pub fn new(node: &'a Node, ring: &Arc<HostedRing>) -> Self {
        let (visits, syncs, own, answers) = Default::default();
        Self { node, ring: ring.clone(), visits, syncs, own, answers }
    }

    /// An event that this thread brings.
    pub fn tell(&mut self, to: Address, event: Event) {
        self.ring.deliver(to, event);
        self.visits.push_back(to);
    }

    /// A request whose answer this thread wants.
    pub fn request(&mut self, to: Address, token: Token, event: Event) {
        self.own.push(token);
        self.tell(to, event);
    }

    /// Goes on until nothing is left to do here.
    pub fn run(&mut self) {
        loop {
            self.visit_all();
            if self.syncs.is_empty() {
                return;
            }
            self.sync();
        }
    }

    /// The same, but the syncs are left to the bricks' threads, which go on with what follows.
    pub fn run_without_syncs(mut self) {
        self.visit_all();
        for job in std::mem::take(&mut self.syncs) {
            self.node.sync_later(&self.ring, job);
        }
    }

    fn visit_all(&mut self) {
        let ring = self.ring.clone();
        while let Some(at) = self.visits.pop_front() {
            ring.work(at, Node::clock(), |out| self.follow(out));
        }
    }

    /// What came of an event that this thread has told a replica itself, and still holds.
    pub fn go_on(&mut self, token: Token, out: Out) {
        self.own.push(token);
        self.follow(out);
    }

    fn follow(&mut self, out: Out) {
        for envelope in out.sends {
            match self.ring.replica(envelope.to) {
                Some(_) => self.tell(envelope.to, Event::Message(envelope)),
                None => self.node.send_to_brick(&self.ring, &envelope),
            }
        }
        for (token, answer) in out.answers {
            match self.own.contains(&token) {
                true => self.answers.push((token, answer)),
                false => self.node.tickets.answer(token, answer),
            }
        }
        self.node.tell_waiters(out.told);
        out.notes.iter().for_each(|note| log::warn!("{note}"));
        if out.wants_room {
            self.node.wants_checkpoint();
        }
        if let Some((partition, epoch)) = out.open {
            self.node.views.is_ready(self.ring.ring, partition, epoch);
            self.node.look_at_views();
        }
        if !out.orphans.is_empty() {
            let ring = self.ring.ring;
            let orphans = out.orphans.into_iter().map(|(volume, inode)| Orphan { ring, volume, inode });
            self.node.orphans.add(orphans);
        }
        self.syncs.extend(out.syncs);
    }

    /// One sync a brick, whatever was asked of it.
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
            self.tell(replica, Event::Synced { ticket, outcome });
        }
    }

    /// The answer of a request of this thread's, if it has come.
    pub fn take(&mut self, token: Token) -> Option<Result<Reply>> {
        let index = self.answers.iter().position(|(known, _)| *known == token)?;
        Some(self.answers.swap_remove(index).1)
    }
}

impl Node {
    /// Brings a request to a replica and waits for its answer; `None` if it does not come in time: it is taken back, as
    /// far as it has not begun.
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
        self.patiently(ring, to, token)
    }

    pub(crate) fn patiently(&self, ring: &Arc<HostedRing>, to: Address, token: Token) -> Option<Result<Reply>> {
        if let Some(answer) = self.tickets.wait(token, self.patience()) {
            return Some(answer);
        }
        let late = self.tickets.abandon(token);
        if late.is_none() {
            let mut turn = Turn::new(self, ring);
            turn.tell(to, Event::Abandon { token });
            turn.run();
        }
        late
    }
}
