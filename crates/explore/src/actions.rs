//! All steps that can happen next.

use crate::ghost::Ghost;
use crate::scope::{Scope, bit, numbers};
use crate::state::*;
use std::rc::Rc;

/// One step. Steps that a budget limits are faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Begin {
        client: u8,
    },
    /// The first request in flight; any request where their order is not kept.
    Arrive {
        client: u8,
        replica: u8,
        at: u8,
    },
    Ack {
        client: u8,
        work: u8,
    },
    ToLeader {
        client: u8,
        work: u8,
    },
    TimeOut {
        client: u8,
        work: u8,
    },
    Refresh {
        client: u8,
    },
    SyncAgain {
        client: u8,
    },
    EndSync {
        client: u8,
    },
    Die {
        client: u8,
    },
    Disconnect {
        client: u8,
        replica: u8,
    },
    Take {
        from: u8,
        to: u8,
    },
    Reconcile {
        leader: u8,
        shard: u8,
    },
    Report {
        member: u8,
        shard: u8,
    },
    Read {
        replica: u8,
        shard: u8,
    },
    Sync {
        replica: u8,
    },
    Stabilise {
        shard: u8,
    },
    Kill {
        replica: u8,
    },
    Cut {
        replica: u8,
        all: bool,
    },
    /// All machines lose power at once; `kept`: replicas whose unsynced writes had reached the disk.
    Blackout {
        kept: Mask,
    },
    Start {
        replica: u8,
    },
    Form {
        number: u8,
        members: Mask,
        is_suspicion: bool,
    },
    Fence {
        replica: u8,
    },
    LeaseEnds {
        replica: u8,
    },
    Choose {
        leader: u8,
    },
    Open,
}

impl State {
    pub fn first(scope: &Scope) -> Self {
        let count = scope.replicas as usize;
        let members = (bit(scope.replicas) - 1) & !scope.new;
        let view = View { epoch: 1, leader: Some(0), members, learners: 0, losses: 0, open: true };
        let shard = Shard { stamp: START, cells: [0; CELLS], list: Vec::new(), unstable: false, missing: 0 };
        let shards = vec![shard; scope.shards as usize];
        let now = Content { shards, ids: 0, position: (1, 0), epoch: 1 };
        let synced = Rc::new(now.clone());
        let replica = Replica { up: true, lease: true, lost: false, outside: false, view, now, synced, pending: 0 };
        let client = Client {
            up: true,
            view,
            knows: vec![START; scope.shards as usize],
            next: 0,
            works: Vec::new(),
            syncing: None,
            unsynced: 0,
            losses: 0,
        };
        let mut replicas = vec![replica; count];
        for new in numbers(scope.new) {
            let new = &mut replicas[new as usize];
            (new.lease, new.lost, new.outside) = (false, true, true);
        }
        Self {
            replicas,
            clients: vec![client; scope.scripts.len()],
            coordinator: Coordinator { opened: view, forming: None },
            front: vec![Vec::new(); scope.scripts.len() * count],
            back: vec![Vec::new(); count * count],
            ghosts: vec![Ghost::new(); scope.shards as usize],
            budget: scope.faults,
            broken: None,
        }
    }

    /// Adds all steps that can happen next.
    pub fn actions(&self, scope: &Scope, found: &mut Vec<Action>) {
        (0..self.clients.len()).for_each(|client| self.client_actions(scope, client, found));
        (0..self.replica_count()).for_each(|replica| self.replica_actions(scope, replica, found));
        for (number, (view, is_suspicion)) in self.formable(scope).into_iter().enumerate() {
            found.push(Action::Form { number: number as u8, members: view.members, is_suspicion });
        }
        found.extend(self.candidates(scope).into_iter().map(|leader| Action::Choose { leader }));
        if self.can_open(scope) {
            found.push(Action::Open);
        }
        if self.budget.blackouts > 0 {
            let unsynced = |at: &u8| *self.replicas[*at as usize].synced != self.replicas[*at as usize].now;
            let unsynced = (0..self.replica_count()).filter(unsynced).fold(0, |mask, at| mask | bit(at));
            found.extend((0..=unsynced).filter(|kept| kept & !unsynced == 0).map(|kept| Action::Blackout { kept }));
        }
    }

    fn client_actions(&self, scope: &Scope, client: usize, found: &mut Vec<Action>) {
        let at = &self.clients[client];
        let count = self.replica_count();
        let index = client as u8;
        for replica in 0..count {
            let waits = self.front[client * count as usize + replica as usize].len() as u8;
            let first = if scope.unordered { waits } else { waits.min(1) };
            found.extend((0..first).map(|at| Action::Arrive { client: index, replica, at }));
            if waits > 0 && !at.up {
                found.push(Action::Disconnect { client: index, replica });
            }
        }
        if !at.up {
            return;
        }
        if self.can_begin(scope, client) {
            found.push(Action::Begin { client: index });
        }
        for work in 0..at.works.len() {
            let index_of_work = work as u8;
            if self.can_ack(scope, client, work) {
                found.push(Action::Ack { client: index, work: index_of_work });
            } else if self.is_stuck(client, work) {
                found.push(Action::ToLeader { client: index, work: index_of_work });
            } else if self.budget.timeouts > 0 && matches!(at.works[work].1, Work::Fast { .. }) {
                found.push(Action::TimeOut { client: index, work: index_of_work });
            }
        }
        if at.view.epoch < self.coordinator.opened.epoch {
            found.push(Action::Refresh { client: index });
        }
        if self.is_synced(client) {
            found.push(Action::EndSync { client: index });
        } else if self.is_sync_stuck(client) {
            found.push(Action::SyncAgain { client: index });
        }
        let has_begun = at.next > 0 && (!at.works.is_empty() || at.syncing.is_some());
        if self.budget.deaths > 0 && has_begun {
            found.push(Action::Die { client: index });
        }
    }

    fn replica_actions(&self, scope: &Scope, replica: u8, found: &mut Vec<Action>) {
        let at = &self.replicas[replica as usize];
        let count = self.replica_count();
        for from in 0..count {
            if at.up && !self.back[(from * count + replica) as usize].is_empty() {
                found.push(Action::Take { from, to: replica });
            }
        }
        for shard in 0..scope.shards {
            if self.may_reconcile(scope, replica, shard as usize) {
                found.push(Action::Reconcile { leader: replica, shard });
            }
            if scope.rules.members_report && self.may_report(scope, replica, shard as usize) {
                found.push(Action::Report { member: replica, shard });
            }
            if self.may_read(scope, replica, shard as usize) {
                found.push(Action::Read { replica, shard });
            }
            if self.may_lose_power() && replica == 0 && self.is_stable(scope, shard as usize) {
                found.push(Action::Stabilise { shard });
            }
        }
        if scope.background_syncs && self.may_lose_power() && at.up && *at.synced != at.now {
            found.push(Action::Sync { replica });
        }
        if at.up && self.budget.kills > 0 {
            found.push(Action::Kill { replica });
        }
        if self.budget.cuts > 0 && !(at.lost && *at.synced == at.now) {
            found.push(Action::Cut { replica, all: false });
            if *at.synced != at.now {
                found.push(Action::Cut { replica, all: true });
            }
        }
        if !at.up {
            found.push(Action::Start { replica });
        }
        if self.can_fence(replica) {
            found.push(Action::Fence { replica });
        }
        if at.lease && self.is_revoked(replica) {
            found.push(Action::LeaseEnds { replica });
        }
    }

    /// True if a power cut can still happen; without one it does not matter which data is synced.
    fn may_lose_power(&self) -> bool {
        self.budget.cuts > 0 || self.budget.blackouts > 0
    }

    /// Rule 8: when a client reads the shard, when a member differs, or to heal a replica; and only if all replicas can
    /// apply the record.
    fn may_reconcile(&self, scope: &Scope, leader: u8, shard: usize) -> bool {
        let at = &self.replicas[leader as usize];
        if !self.leads(leader) {
            return false;
        }
        let accepts = |to: u8| {
            let other = &self.replicas[to as usize];
            other.up && !other.outside && other.now.epoch == at.now.epoch
        };
        let copy = &at.now.shards[shard];
        let others = at.view.members & !bit(leader);
        let waits = |to: u8| !self.back[(leader * self.replica_count() + to) as usize].is_empty();
        let lacks = |one: &Unsettled| numbers(others & !one.held).any(|to| !waits(to));
        let is_led = |one: &Unsettled| matches!(one.stamp.by, By::Leader(_));
        let is_left = |one: &Unsettled| !is_led(one) && numbers(one.ops).all(|op| !self.is_worked_on(scope, op));
        let is_hasty = self.budget.hasty_reads > 0 && copy.list.iter().any(|one| !is_led(one));
        let is_open = is_hasty || copy.list.iter().any(|one| is_left(one) || is_led(one) && lacks(one));
        let heals = at.view.open && numbers(copy.missing & at.view.learners).any(|to| accepts(to) && !waits(to));
        numbers(others).all(accepts) && (is_open || heals)
    }

    /// Rule 12: a write that stays unsettled although no client works on it.
    fn may_report(&self, scope: &Scope, member: u8, shard: usize) -> bool {
        let at = &self.replicas[member as usize];
        let Some(leader) = at.view.leader.filter(|leader| *leader != member && self.leads(*leader)) else {
            return false;
        };
        let is_member = at.up && !at.outside && at.view.open && at.view.members & bit(member) != 0;
        let other = &self.replicas[leader as usize];
        let count = self.replica_count();
        if !is_member || other.now.epoch != at.now.epoch || !self.back[(leader * count + member) as usize].is_empty() {
            return false;
        }
        let list = &at.now.shards[shard].list;
        let ops = list.iter().fold(0, |mask, one| mask | one.ops);
        !list.is_empty()
            && other.now.shards[shard].list.is_empty()
            && !numbers(ops).any(|op| self.is_worked_on(scope, op))
    }

    /// True if a client still works on an op, or has yet to report that it is settled.
    fn is_worked_on(&self, scope: &Scope, op: u8) -> bool {
        let client = scope.op(op).0;
        let at = &self.clients[client];
        let count = self.replicas.len();
        let tells = |request: &Request| matches!(request, Request::Settled { op: one, .. } if *one == op);
        let is_answered = self.front[client * count..(client + 1) * count].iter().flatten().any(tells);
        is_answered || at.up && at.works.iter().any(|(one, work)| *one == op && matches!(work, Work::Fast { .. }))
    }

    /// True if a replica answers reads.
    pub fn serves(&self, replica: u8) -> bool {
        let at = &self.replicas[replica as usize];
        let is_member = at.view.members & bit(replica) != 0;
        at.up && !at.outside && at.lease && at.view.open && at.view.epoch == at.now.epoch && is_member
    }

    /// Rule 7, of the leader and of the others. A read that could add no observation is left out.
    fn may_read(&self, scope: &Scope, replica: u8, shard: usize) -> bool {
        let copy = &self.replicas[replica as usize].now.shards[shard];
        let is_settled = copy.list.is_empty() || !scope.rules.settled_reads;
        self.serves(replica) && is_settled && !self.ghosts[shard].shows_only(scope, copy.cells) && {
            let mut ghost = self.ghosts[shard].clone();
            ghost.read(scope, copy.cells).is_err() || ghost != self.ghosts[shard]
        }
    }

    /// Takes one step.
    pub fn step(&mut self, scope: &Scope, action: Action) {
        match action {
            Action::Begin { client } => self.begin(scope, client as usize),
            Action::Arrive { client, replica, at } => {
                let request = self.front(client as usize, replica).remove(at as usize);
                self.request(scope, client as usize, replica, request);
            }
            Action::Ack { client, work } => self.ack(scope, client as usize, work as usize),
            Action::ToLeader { client, work } => self.to_leader(client as usize, work as usize),
            Action::TimeOut { client, work } => {
                self.budget.timeouts -= 1;
                self.to_leader(client as usize, work as usize);
            }
            Action::Refresh { client } => self.refresh(scope, client as usize),
            Action::SyncAgain { client } => self.sync_again(client as usize),
            Action::EndSync { client } => self.end_sync(scope, client as usize),
            Action::Die { client } => {
                self.budget.deaths -= 1;
                let at = &mut self.clients[client as usize];
                at.up = false;
                at.works.clear();
                at.syncing = None;
            }
            Action::Disconnect { client, replica } => self.front(client as usize, replica).clear(),
            Action::Take { from, to } => {
                let message = self.back(from, to).remove(0);
                self.message(scope, from, to, message);
            }
            other => self.step_of_replicas(scope, other),
        }
    }

    fn step_of_replicas(&mut self, scope: &Scope, action: Action) {
        match action {
            Action::Reconcile { leader, shard } => {
                let without = State { budget: Budget { hasty_reads: 0, ..self.budget }, ..self.clone() };
                self.budget.hasty_reads -= u8::from(!without.may_reconcile(scope, leader, shard as usize));
                self.reconcile(scope, leader, shard as usize, 0, false);
            }
            Action::Report { member, shard } => {
                let (leader, epoch) =
                    (self.replicas[member as usize].view.leader, self.replicas[member as usize].now.epoch);
                leader.into_iter().for_each(|leader| self.needs(scope, leader, member, shard as usize, epoch));
            }
            Action::Read { replica, shard } => {
                let cells = self.replicas[replica as usize].now.shards[shard as usize].cells;
                if let Err(complaint) = self.ghosts[shard as usize].read(scope, cells) {
                    self.broken = Some(complaint);
                }
            }
            Action::Sync { replica } => self.sync(scope, replica),
            Action::Stabilise { shard } => self.stabilise(shard as usize),
            Action::Kill { replica } => {
                self.budget.kills -= 1;
                self.kill(replica);
            }
            Action::Cut { replica, all } => {
                self.budget.cuts -= 1;
                self.cut(scope, replica, all);
            }
            Action::Blackout { kept } => {
                self.budget.blackouts -= 1;
                (0..self.replica_count()).for_each(|at| self.cut(scope, at, kept & bit(at) != 0));
            }
            Action::Start { replica } => self.start(scope, replica),
            Action::Form { number, .. } => {
                let (view, is_suspicion) = self.formable(scope)[number as usize];
                self.form(view, is_suspicion);
            }
            Action::Fence { replica } => self.fence(scope, replica),
            Action::LeaseEnds { replica } => self.replicas[replica as usize].lease = false,
            Action::Choose { leader } => self.choose(scope, leader),
            Action::Open => self.open(scope),
            _ => unreachable!("a client's step"),
        }
    }

    /// True if the system is whole: one view with all replicas, no message in flight, every write settled, every script
    /// done.
    pub fn is_whole(&self, scope: &Scope) -> bool {
        let opened = self.coordinator.opened;
        let all = bit(self.replica_count()) - 1;
        let is_quiet = self.front.iter().all(Vec::is_empty) && self.back.iter().all(Vec::is_empty);
        let is_done = |(client, at): (usize, &Client)| {
            !at.up || at.works.is_empty() && at.syncing.is_none() && at.next as usize == scope.scripts[client].len()
        };
        let is_even = |at: &Replica| {
            at.up
                && !at.outside
                && at
                    .now
                    .shards
                    .iter()
                    .zip(&self.replicas[0].now.shards)
                    .all(|(own, other)| own.list.is_empty() && own.stamp == other.stamp && own.cells == other.cells)
        };
        self.coordinator.forming.is_none()
            && opened.members == all
            && is_quiet
            && self.clients.iter().enumerate().all(is_done)
            && self.replicas.iter().all(is_even)
    }
}
