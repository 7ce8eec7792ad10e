//! All steps that can happen next, and the conditions on every state.

use super::*;
use crate::scope::numbers;
use crate::search::Model;

/// One step. Steps that a budget limits are faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Begin {
        client: u8,
    },
    Ack {
        client: u8,
    },
    ToLeader {
        client: u8,
    },
    TimeOut {
        client: u8,
    },
    Refresh {
        client: u8,
    },
    Die {
        client: u8,
    },
    Arrive {
        replica: u8,
        index: u8,
    },
    Order {
        leader: u8,
        client: u8,
    },
    Idle {
        leader: u8,
    },
    Restamp {
        leader: u8,
    },
    Reconcile {
        leader: u8,
    },
    Read {
        leader: u8,
    },
    Ask {
        leader: u8,
        to: u8,
    },
    Fetch {
        leader: u8,
        from: u8,
    },
    Take {
        from: u8,
        to: u8,
    },
    /// The marker is removed.
    Unnote {
        leader: u8,
    },
    /// A member syncs for a client; once all have, the fsync ends.
    SyncAt {
        client: u8,
        replica: u8,
    },
    EndSync {
        client: u8,
    },
    /// All members of a view sync for an op that is answered as durable.
    SyncAll {
        leader: u8,
    },
    Kill {
        replica: u8,
    },
    /// Machines lose power: this much of each one's unsynced tail is left.
    Cut {
        replica: u8,
        kept: u8,
    },
    Blackout {
        kept: [u8; 3],
    },
    Start {
        replica: u8,
    },
    Form {
        number: u8,
        view: View,
        is_suspicion: bool,
    },
    Adopt {
        replica: u8,
    },
    Open,
}

impl Model for Lane {
    type State = World;
    type Action = Action;

    fn name(&self) -> &'static str {
        self.scope.name
    }

    fn states_max(&self) -> usize {
        self.scope.states_max
    }

    fn first(&self) -> World {
        World::first(self)
    }

    fn actions(&self, world: &World, found: &mut Vec<Action>) {
        (0..world.clients.len()).for_each(|client| world.client_actions(self, client, found));
        (0..world.replicas.len() as u8).for_each(|replica| world.replica_actions(self, replica, found));
        let views = world.formable().into_iter().enumerate();
        found.extend(views.map(|(number, (view, is_suspicion))| Action::Form {
            number: number as u8,
            view,
            is_suspicion,
        }));
        if world.budget.blackouts > 0 {
            world.blackouts(found);
        }
        if world.may_open() {
            found.push(Action::Open);
        }
    }

    fn step(&self, world: &mut World, action: Action) {
        match action {
            Action::Begin { client } => world.begin(self, client as usize),
            Action::Ack { client } => world.ack(self, client as usize),
            Action::ToLeader { client } => world.go_to_leader(client as usize),
            Action::TimeOut { client } => {
                world.budget.timeouts -= 1;
                world.go_to_leader(client as usize);
            }
            Action::Refresh { client } => world.refresh(self, client as usize),
            Action::Die { client } => {
                world.budget.deaths -= 1;
                let at = &mut world.clients[client as usize];
                (at.up, at.work, at.allowed) = (false, None, None);
            }
            Action::Arrive { replica, index } => {
                let fast = world.front[replica as usize].remove(index as usize);
                world.fast(self, replica, fast);
            }
            Action::Order { leader, client } => {
                let op = world.clients[client as usize].work.map(|(op, _)| op);
                op.into_iter().for_each(|op| world.order(self, leader, op));
            }
            Action::Idle { leader } => {
                world.at(leader).lead.iter_mut().for_each(|lead| lead.due = true);
                world.go_on(self, leader);
            }
            Action::Restamp { leader } => world.restamp(self, leader),
            Action::Reconcile { leader } => world.reconcile(self, leader),
            Action::Read { leader } => world.read(self, leader),
            Action::Ask { leader, to } => world.ask(leader, to),
            Action::Fetch { leader, from } => world.fetch(self, leader, from),
            Action::Take { from, to } => {
                let (epoch, message) = world.back(from, to).remove(0);
                if world.at(to).epoch == epoch && world.at(to).is_in() {
                    world.receive(self, from, to, message);
                }
            }
            Action::Kill { replica } => {
                world.budget.kills -= 1;
                world.kill(replica);
            }
            Action::Unnote { leader } => world.unnote(self, leader),
            Action::SyncAt { client, replica } => world.sync_at(client as usize, replica),
            Action::EndSync { client } => world.end_sync(self, client as usize),
            Action::SyncAll { leader } => world.sync_all(self, leader),
            Action::Cut { replica, kept } => world.cut(self, replica, kept),
            Action::Blackout { kept } => world.blackout(self, kept),
            Action::Start { replica } => world.start(self, replica),
            Action::Form { view, is_suspicion, .. } => world.form(view, is_suspicion),
            Action::Adopt { replica } => world.adopt(self, replica),
            Action::Open => world.open(self),
        }
    }

    fn complaint(&self, world: &World) -> Option<&'static str> {
        world.broken.or_else(|| world.stamps_mean_bytes()).or_else(|| world.level_is_equal())
    }

    /// True if there is one view with all replicas, no message in flight, every shard closed and equal, every script
    /// done.
    fn is_whole(&self, world: &World) -> bool {
        let now = world.views.now;
        let is_quiet = world.front.iter().all(Vec::is_empty) && world.back.iter().all(Vec::is_empty);
        let is_done = |(client, at): (usize, &Client)| {
            !at.up || at.work.is_none() && at.syncing.is_none() && at.next as usize == self.scope.scripts[client].len()
        };
        let is_closed = |lead: &Lead| lead.open.is_none() && lead.closing.is_none() && lead.reading.is_none();
        now.open
            && now.members == world.all()
            && is_quiet
            && world.clients.iter().enumerate().all(is_done)
            && world.replicas[now.leader as usize].lead.as_ref().is_some_and(|lead| is_closed(lead))
            && world.replicas[now.leader as usize].serves()
            && world.is_level(now.leader)
            && world
                .replicas
                .iter()
                .all(|at| at.is_in() && at.now.list.is_empty() && !at.now.noted && at.epoch == now.epoch)
    }

    fn budget<'a>(&self, world: &'a World) -> &'a Budget {
        &world.budget
    }

    fn in_words(&self, world: &World) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for (number, at) in world.replicas.iter().enumerate() {
            let life = match (at.up, at.outside) {
                (false, _) => "down",
                (true, true) => "new life",
                (true, false) => "up",
            };
            let leads = if at.lead.is_some() { ", leads" } else { "" };
            let Content { stamp, cells, length, list, ids, noted, .. } = *at.now;
            let _ = write!(
                text,
                "    replica {number}: {life}, epoch {}{leads}; {stamp:?} {cells:?} of length {length}",
                at.epoch
            );
            let note = if noted { ", noted" } else { "" };
            let _ = writeln!(text, " lists {list:?}, slots {:?}{note}", numbers(ids).collect::<Vec<_>>());
        }
        text
    }

    fn step_in_words(&self, world: &World, action: Action) -> String {
        match action {
            Action::Arrive { replica, index } => {
                format!("to replica {replica}: {:?}", world.front[replica as usize][index as usize])
            }
            Action::Take { from, to } => {
                let queue = &world.back[from as usize * world.replicas.len() + to as usize];
                let message = queue.first().map_or_else(String::new, |(_, message)| format!("{message:?}"));
                format!("replica {from} to replica {to}: {message}")
            }
            Action::Order { client, .. } => {
                format!("{action:?}: {:?}", world.clients[client as usize].work)
            }
            Action::Read { leader } => format!("{action:?}: {:?}", world.replicas[leader as usize].now.shown()),
            other => format!("{other:?}"),
        }
    }
}

impl World {
    fn client_actions(&self, lane: &Lane, client: usize, found: &mut Vec<Action>) {
        let at = &self.clients[client];
        let index = client as u8;
        if self.can_begin(lane, client) {
            found.push(Action::Begin { client: index });
        }
        let is_fast = matches!(at.work, Some((_, Work::Fast { .. })));
        if self.can_ack(client) {
            found.push(Action::Ack { client: index });
        } else if self.is_stuck(client) {
            found.push(Action::ToLeader { client: index });
        } else if self.budget.timeouts > 0 && is_fast {
            found.push(Action::TimeOut { client: index });
        }
        if at.up && at.epoch < self.views.opened.epoch {
            found.push(Action::Refresh { client: index });
        }
        if self.budget.deaths > 0 && at.work.is_some() {
            found.push(Action::Die { client: index });
        }
        found.extend(self.leader_for(client).map(|leader| Action::Order { leader, client: index }));
        found.extend(self.syncs_for(client).map(|replica| Action::SyncAt { client: index, replica }));
        if self.all_synced_for(client) {
            found.push(Action::EndSync { client: index });
        }
    }

    fn replica_actions(&self, lane: &Lane, replica: u8, found: &mut Vec<Action>) {
        let at = &self.replicas[replica as usize];
        let (leader, count) = (replica, self.replicas.len() as u8);
        if at.up {
            let waits = self.front[replica as usize].len() as u8;
            found.extend((0..waits).map(|index| Action::Arrive { replica, index }));
            let comes = |from: &u8| !self.back[(from * count + replica) as usize].is_empty();
            found.extend((0..count).filter(comes).map(|from| Action::Take { from, to: replica }));
        }
        if let Some(lead) = &at.lead {
            let is_idle = at.serves() && lead.open.is_some() && lead.closing.is_none() && !lead.due;
            if is_idle && self.may_idle(lane, leader) {
                found.push(Action::Idle { leader });
            }
            if self.may_restamp(lane, leader) {
                found.push(Action::Restamp { leader });
            }
            if self.may_reconcile(leader) {
                found.push(Action::Reconcile { leader });
            }
            if self.may_read(lane, leader) {
                found.push(Action::Read { leader });
            }
            if self.may_unnote(lane, leader) {
                found.push(Action::Unnote { leader });
            }
            if self.may_sync_all(lane, leader) {
                found.push(Action::SyncAll { leader });
            }
            found.extend((0..count).filter(|to| self.may_ask(leader, *to)).map(|to| Action::Ask { leader, to }));
            found.extend(self.fetches_from(leader).map(|from| Action::Fetch { leader, from }));
        }
        if at.up && self.budget.kills > 0 {
            found.push(Action::Kill { replica });
        }
        if self.budget.cuts > 0 {
            found.extend((0..=at.tail_length()).map(|kept| Action::Cut { replica, kept }));
        }
        if !at.up {
            found.push(Action::Start { replica });
        }
        if self.may_adopt(replica) {
            found.push(Action::Adopt { replica });
        }
    }

    /// Idle time of a shard matters once its session has no more writes, or waits for another one's answer.
    fn may_idle(&self, lane: &Lane, leader: u8) -> bool {
        let Some(session) = self.replicas[leader as usize].lead.as_ref().and_then(|lead| lead.open) else {
            return false;
        };
        let at = &self.clients[session as usize];
        !at.up || at.work.is_some() || at.next as usize == lane.scope.scripts[session as usize].len()
    }

    /// Cells that no replica lists, no leader is about to reconcile, and no record in flight changes, are equal where
    /// the stamps are.
    fn stamps_mean_bytes(&self) -> Option<&'static str> {
        let is_reconciling = |lead: &Lead| lead.found.is_some() || lead.closing.is_some();
        if self.replicas.iter().filter_map(|at| at.lead.as_ref()).any(|lead| is_reconciling(lead)) {
            return None;
        }
        let last = self.replicas[self.views.now.leader as usize].now.log.len();
        for (number, one) in self.replicas.iter().enumerate() {
            for other in &self.replicas[..number] {
                let is_settled = one.now.list.is_empty() && other.now.list.is_empty();
                let has_all = one.now.log.len() == last && other.now.log.len() == last;
                if is_settled && has_all && one.now.stamp == other.now.stamp && !one.now.is_equal(&other.now) {
                    return Some("equal stamps, different bytes");
                }
            }
        }
        None
    }

    /// While the shard is not open, and all replicas have the leader's records, they hold equal cells.
    fn level_is_equal(&self) -> Option<&'static str> {
        let now = self.views.now;
        let leader = &self.replicas[now.leader as usize];
        let lead = leader.lead.as_ref().filter(|lead| lead.open.is_none() && lead.closing.is_none())?;
        let is_in_step = now.open && leader.epoch == now.epoch && leader.serves();
        if !is_in_step || lead.found.is_some() || !self.is_level(now.leader) {
            return None;
        }
        let own = &leader.now;
        let is_same = |at: &Replica| at.now.list.is_empty() && at.now.is_equal(own) && at.now.ids == own.ids;
        let all_same = numbers(now.members).all(|at| is_same(&self.replicas[at as usize]));
        (!all_same).then_some("members differ though the shard is closed")
    }
}
