//! The steps of a client: it sends fast writes, counts answers, sends ops to the leader, and syncs.

use crate::scope::{Line, Scope, bit, numbers};
use crate::state::*;

impl State {
    /// True if the next line of a client's script can begin.
    pub fn can_begin(&self, scope: &Scope, client: usize) -> bool {
        let at = &self.clients[client];
        let line = scope.scripts[client].get(at.next as usize);
        let waits = at.works.len();
        at.up
            && at.syncing.is_none()
            && line.is_some_and(|line| waits < if *line == Line::Sync { 1 } else { scope.pipeline })
    }

    pub fn begin(&mut self, scope: &Scope, client: usize) {
        let line = self.clients[client].next as usize;
        self.clients[client].next += 1;
        match scope.scripts[client][line] {
            Line::Fast { shard, .. } => {
                let op = scope.number(client, line);
                let at = &mut self.clients[client];
                let follow = at.knows[shard as usize];
                let own = Stamp { count: follow.count + 1, by: By::Client(client as u8), op };
                let stamp = if scope.rules.bare_counts { Stamp { count: own.count, ..START } } else { own };
                at.knows[shard as usize] = stamp;
                at.works.push((op, Work::Fast { follow, stamp, done: 0, conflict: false }));
                let (epoch, to) = (at.view.epoch, at.view.members | at.view.learners);
                self.ghosts[shard as usize].sent(op);
                numbers(to).for_each(|to| self.send(client, to, Request::Fast { epoch, op, follow, stamp }));
            }
            Line::Led { shard, .. } => {
                let op = scope.number(client, line);
                self.ghosts[shard as usize].sent(op);
                self.clients[client].works.push((op, Work::Led));
                self.send_led(client, op);
            }
            Line::Sync => {
                self.clients[client].syncing = Some(0);
                self.send_syncs(client);
            }
        }
    }

    /// Sends a request, unless the receiving process is down.
    fn send(&mut self, client: usize, to: u8, request: Request) {
        if self.replicas[to as usize].up {
            self.front(client, to).push(request);
        }
    }

    fn send_led(&mut self, client: usize, op: u8) {
        let View { epoch, leader, .. } = self.clients[client].view;
        if let Some(leader) = leader {
            self.send(client, leader, Request::Led { epoch, op });
        }
    }

    fn send_syncs(&mut self, client: usize) {
        let at = &self.clients[client];
        let (epoch, lacking) = (at.view.epoch, at.view.members & !at.syncing.unwrap_or(0));
        for to in numbers(lacking) {
            if !self.front(client, to).contains(&Request::Sync { epoch }) {
                self.send(client, to, Request::Sync { epoch });
            }
        }
    }

    /// Rule 4: all members have accepted the write.
    pub fn can_ack(&self, scope: &Scope, client: usize, work: usize) -> bool {
        let members = self.clients[client].view.members;
        match self.clients[client].works.get(work) {
            Some((_, Work::Fast { done, .. })) => {
                let lacking = (members & !done).count_ones();
                lacking == 0 || !scope.rules.all_members && lacking == 1 && members.count_ones() > 1
            }
            Some((_, Work::Answered { .. })) => true,
            _ => false,
        }
    }

    pub fn ack(&mut self, scope: &Scope, client: usize, work: usize) {
        let (op, work) = self.clients[client].works.remove(work);
        let (shard, _) = scope.target(op);
        let view = self.clients[client].view;
        let losses = match work {
            Work::Fast { stamp, done, .. } => {
                let on_learners = done & view.learners == view.learners;
                if let Some(leader) = view.leader {
                    let note = Request::Settled { epoch: view.epoch, op, stamp, on_learners };
                    if scope.late_notes || !self.front(client, leader).is_empty() {
                        self.send(client, leader, note);
                    } else {
                        self.request(scope, client, leader, note);
                    }
                }
                view.losses
            }
            Work::Answered { stamp, losses } => {
                self.clients[client].knows[shard] = stamp;
                losses
            }
            Work::Led => return,
        };
        let at = &mut self.clients[client];
        if at.unsynced == 0 {
            at.losses = losses;
        }
        at.unsynced |= bit(op);
        let opened = self.coordinator.opened;
        let kept = losses == opened.losses && !self.all_lost();
        if let Err(complaint) = self.ghosts[shard].ack(scope, op, kept) {
            self.broken = Some(complaint);
        }
    }

    /// True if an op must be sent to the leader, or sent again: it was refused, or one of its messages is lost.
    pub fn is_stuck(&self, client: usize, work: usize) -> bool {
        let at = &self.clients[client];
        let count = self.replicas.len();
        let under_way = |to: u8, op: u8| {
            self.front[client * count + to as usize].iter().any(|request| match request {
                Request::Fast { op: one, .. } | Request::Led { op: one, .. } => *one == op,
                _ => false,
            })
        };
        match at.works.get(work) {
            Some((op, Work::Fast { done, conflict, .. })) => {
                *conflict || numbers(at.view.members & !done).any(|to| !under_way(to, *op))
            }
            Some((op, Work::Led)) => at.view.leader.is_some_and(|leader| {
                let is_up = self.replicas[leader as usize].up && self.can_serve(leader, at.view.epoch);
                let waits = self.replicas[leader as usize].pending & bit(*op) != 0;
                is_up && !waits && !under_way(leader, *op)
            }),
            _ => false,
        }
    }

    fn can_serve(&self, leader: u8, epoch: u8) -> bool {
        self.leads(leader)
            && self.replicas[leader as usize].view.open
            && self.replicas[leader as usize].now.epoch == epoch
    }

    /// Rule 5: the op is sent to the leader under the same id.
    pub fn to_leader(&mut self, client: usize, work: usize) {
        let (op, _) = self.clients[client].works[work];
        self.clients[client].works[work].1 = Work::Led;
        self.send_led(client, op);
    }

    pub fn is_sync_stuck(&self, client: usize) -> bool {
        let at = &self.clients[client];
        let count = self.replicas.len();
        let epoch = at.view.epoch;
        let lacks = |to: u8| {
            let replica = &self.replicas[to as usize];
            let sent = self.front[client * count + to as usize].contains(&Request::Sync { epoch });
            replica.up && replica.now.epoch == epoch && !replica.outside && !sent
        };
        at.up && at.syncing.is_some_and(|done| numbers(at.view.members & !done).any(lacks))
    }

    pub fn sync_again(&mut self, client: usize) {
        self.send_syncs(client);
    }

    pub fn is_synced(&self, client: usize) -> bool {
        let at = &self.clients[client];
        at.syncing.is_some_and(|done| at.view.members & !done == 0)
    }

    /// Rule 19: ends an fsync.
    pub fn end_sync(&mut self, scope: &Scope, client: usize) {
        let at = &mut self.clients[client];
        at.syncing = None;
        let covered = std::mem::take(&mut at.unsynced);
        let is_reported = covered != 0 && at.losses != at.view.losses && scope.rules.losses_reported;
        if is_reported {
            return;
        }
        for shard in 0..self.ghosts.len() {
            if let Err(complaint) = self.ghosts[shard].synced(covered & scope.ops_of(shard)) {
                self.broken = Some(complaint);
            }
        }
    }

    /// A client learns the view that opened last.
    pub fn refresh(&mut self, scope: &Scope, client: usize) {
        let opened = self.coordinator.opened;
        self.clients[client].view = opened;
        for work in 0..self.clients[client].works.len() {
            let (op, state) = self.clients[client].works[work];
            match state {
                Work::Fast { follow, stamp, done, .. } if !scope.rules.one_epoch => {
                    self.clients[client].works[work].1 = Work::Fast { follow, stamp, done, conflict: false };
                    let (epoch, to) = (opened.epoch, opened.members & !done);
                    numbers(to).for_each(|to| self.send(client, to, Request::Fast { epoch, op, follow, stamp }));
                }
                Work::Fast { .. } | Work::Led => self.to_leader(client, work),
                Work::Answered { .. } => {}
            }
        }
        if self.clients[client].syncing.is_some() {
            self.clients[client].syncing = Some(0);
            self.send_syncs(client);
        }
    }
}
