//! All steps that can happen next.

use super::*;
use crate::search::Model;

/// One step. Steps that a budget limits are faults. `StaleAnswer`: an excluded leader answers times at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Begin { client: u8 },
    Order { client: u8 },
    Answer { client: u8 },
    StaleAnswer { client: u8 },
    StaleRead,
    Read,
    Idle,
    Renew,
    Serve,
    Take { replica: u8 },
    Sync { replica: u8 },
    Kill { replica: u8 },
    Cut { replica: u8, all: bool },
    Blackout { kept: Mask },
    Start { replica: u8 },
    Form { members: Mask, is_suspicion: bool },
    Open,
}

impl Model for Times {
    type State = World;
    type Action = Action;

    fn name(&self) -> &'static str {
        self.name
    }

    fn states_max(&self) -> usize {
        self.states_max
    }

    fn first(&self) -> World {
        World::first(self)
    }

    fn actions(&self, world: &World, found: &mut Vec<Action>) {
        (0..world.clients.len()).for_each(|client| world.client_actions(self, client, found));
        (0..world.replicas.len() as u8).for_each(|replica| world.replica_actions(replica, found));
        let stale_news = world.stale.as_ref().and_then(|stale| stale.shows).is_some_and(|shows| world.is_news(shows));
        let may = [
            (stale_news, Action::StaleRead),
            (world.may_read(self), Action::Read),
            (world.may_idle(), Action::Idle),
            (world.may_renew(self), Action::Renew),
            (world.may_serve(self), Action::Serve),
            (world.may_open(), Action::Open),
        ];
        found.extend(may.into_iter().filter(|(may, _)| *may).map(|(_, action)| action));
        let views = world.formable().into_iter();
        found.extend(views.map(|(members, is_suspicion)| Action::Form { members, is_suspicion }));
        if world.budget.blackouts > 0 {
            let unsynced = |at: &u8| world.replicas[*at as usize].synced != world.replicas[*at as usize].held();
            let unsynced = (0..self.replicas).filter(unsynced).fold(0, |mask, at| mask | bit(at));
            found.extend((0..=unsynced).filter(|kept| kept & !unsynced == 0).map(|kept| Action::Blackout { kept }));
        }
    }

    fn step(&self, world: &mut World, action: Action) {
        match action {
            Action::Begin { client } => world.begin(self, client as usize),
            Action::Order { client } => world.order(self, client as usize),
            Action::Answer { client } => world.done(self, client as usize),
            Action::StaleAnswer { client } => {
                world.stale.iter_mut().for_each(|stale| stale.shows = None);
                world.done(self, client as usize);
            }
            Action::StaleRead => {
                let shows = world.stale.as_ref().and_then(|stale| stale.shows);
                shows.into_iter().for_each(|shows| world.show(shows));
            }
            Action::Read => world.show(world.inode().mtime),
            Action::Idle => world.idle(self),
            Action::Renew => world.renew(self),
            Action::Serve => world.serves = true,
            Action::Take { replica } => world.take(replica),
            Action::Sync { replica } => {
                let at = world.at(replica);
                at.synced = at.held();
            }
            Action::Kill { replica } => {
                world.budget.kills -= 1;
                world.kill(replica);
            }
            Action::Cut { replica, all } => {
                world.budget.cuts -= 1;
                world.cut(replica, all);
            }
            Action::Blackout { kept } => {
                world.budget.blackouts -= 1;
                world.blackout(kept);
            }
            Action::Start { replica } => world.at(replica).up = true,
            Action::Form { members, is_suspicion } => world.form(self, members, is_suspicion),
            Action::Open => world.open(self),
        }
    }

    fn complaint(&self, world: &World) -> Option<&'static str> {
        world.broken
    }

    fn is_whole(&self, world: &World) -> bool {
        let is_done = |(client, at): (usize, &Client)| at.next as usize == self.scripts[client].len();
        let is_here = |at: &Replica| at.up && !at.lost;
        world.clients.iter().enumerate().all(is_done)
            && world.view.members == bit(self.replicas) - 1
            && world.replicas.iter().all(is_here)
            && world.serves
            && world.is_level()
            && !world.inode().noted
    }

    fn budget<'a>(&self, world: &'a World) -> &'a Budget {
        &world.budget
    }

    fn in_words(&self, world: &World) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for (number, at) in world.replicas.iter().enumerate() {
            let life = if at.up { "up" } else { "down" };
            let leads = if world.view.leader as usize == number { ", leads" } else { "" };
            let _ =
                writeln!(text, "    replica {number}: {life}{leads}, has {} records, {} synced", at.held(), at.synced);
        }
        let times: Vec<(u8, bool)> = world.leader().log.iter().map(|record| (record.mtime, record.noted)).collect();
        let _ = writeln!(text, "    records (mtime, noted): {times:?}; seen {:?}", world.seen);
        text
    }

    fn step_in_words(&self, world: &World, action: Action) -> String {
        match action {
            Action::Begin { client } => {
                let line = world.clients[client as usize].next as usize;
                format!("{action:?}: {:?} at {}", self.scripts[client as usize][line], world.now + 1)
            }
            Action::Read => format!("Read: {}", world.inode().mtime),
            other => format!("{other:?}"),
        }
    }
}

impl World {
    fn client_actions(&self, times: &Times, client: usize, found: &mut Vec<Action>) {
        let index = client as u8;
        let at = &self.clients[client];
        if !at.works && (at.next as usize) < times.scripts[client].len() {
            found.push(Action::Begin { client: index });
        }
        if self.may_order(client) {
            found.push(Action::Order { client: index });
        }
        if self.may_answer(client) {
            found.push(Action::Answer { client: index });
        }
        let is_write = at.works && self.line(times, client) == Line::Write;
        if is_write && self.stale.as_ref().is_some_and(|stale| stale.is_safe) {
            found.push(Action::StaleAnswer { client: index });
        }
    }

    /// A member takes the leader's next record.
    fn take(&mut self, replica: u8) {
        let log = &self.leader().log;
        let own = &self.replicas[replica as usize].log;
        let (next, follows) = (log[own.len()], log.starts_with(own));
        self.broken = self.broken.or((!follows).then_some("logs of members differ"));
        self.at(replica).log.push(next);
    }

    fn replica_actions(&self, replica: u8, found: &mut Vec<Action>) {
        let at = &self.replicas[replica as usize];
        let is_member = self.view.members & bit(replica) != 0 && self.is_there(replica);
        if is_member && self.leads() && at.held() < self.last() {
            found.push(Action::Take { replica });
        }
        if is_member && at.synced < at.held() {
            found.push(Action::Sync { replica });
        }
        if at.up && self.budget.kills > 0 {
            found.push(Action::Kill { replica });
        }
        if self.budget.cuts > 0 {
            found.extend([false, true].map(|all| Action::Cut { replica, all }));
        }
        if !at.up {
            found.push(Action::Start { replica });
        }
    }
}
