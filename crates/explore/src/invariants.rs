//! Conditions that hold in every state; each complaint says what a user would lose.

use crate::actions::Action;
use crate::scope::{Scope, numbers};
use crate::search::Model;
use crate::state::*;

impl State {
    /// The first promise that this state breaks.
    pub fn complaint(&self, scope: &Scope) -> Option<&'static str> {
        self.broken
            .or_else(|| self.stamps_mean_bytes())
            .or_else(|| self.one_leader())
            .or_else(|| self.acknowledged_is_held(scope))
            .or_else(|| self.settled_is_equal())
    }

    fn stamps_mean_bytes(&self) -> Option<&'static str> {
        for (number, one) in self.replicas.iter().enumerate() {
            for other in &self.replicas[..number] {
                let mut pairs = one.now.shards.iter().zip(&other.now.shards);
                if pairs.any(|(one, other)| one.stamp == other.stamp && one.cells != other.cells) {
                    return Some("equal stamps, different bytes");
                }
            }
        }
        None
    }

    fn one_leader(&self) -> Option<&'static str> {
        let leaders = (0..self.replica_count()).filter(|at| self.serves(*at) && self.leads(*at)).count();
        (leaders > 1).then_some("two leaders answer")
    }

    /// Every member with its memory, of the view that opened last, holds all acknowledged writes.
    fn acknowledged_is_held(&self, scope: &Scope) -> Option<&'static str> {
        if self.all_lost() {
            return None;
        }
        for at in numbers(self.coordinator.opened.members).map(|at| &self.replicas[at as usize]).filter(|at| !at.lost) {
            for (shard, ghost) in self.ghosts.iter().enumerate() {
                if ghost.kept & !at.now.ids & scope.ops_of(shard) != 0 {
                    return Some("an acknowledged write is not on every member");
                }
            }
        }
        None
    }

    /// In an open view, cells that no member lists are equal on all members.
    fn settled_is_equal(&self) -> Option<&'static str> {
        let opened = self.coordinator.opened;
        let members: Vec<&Replica> = numbers(opened.members).map(|at| &self.replicas[at as usize]).collect();
        let is_in_step = |at: &&Replica| !at.lost && at.now.epoch == opened.epoch;
        if self.coordinator.forming.is_some() || !members.iter().all(is_in_step) {
            return None;
        }
        for shard in 0..self.ghosts.len() {
            let copies = || members.iter().map(|at| &at.now.shards[shard]);
            let is_settled = copies().all(|copy| copy.list.is_empty());
            let first = copies().next()?;
            if is_settled && copies().any(|copy| copy.stamp != first.stamp || copy.cells != first.cells) {
                return Some("members differ though all is settled");
            }
        }
        None
    }
}

impl Model for Scope {
    type State = State;
    type Action = Action;

    fn name(&self) -> &'static str {
        self.name
    }
    fn states_max(&self) -> usize {
        self.states_max
    }
    fn first(&self) -> State {
        State::first(self)
    }
    fn actions(&self, state: &State, found: &mut Vec<Action>) {
        state.actions(self, found);
    }
    fn step(&self, state: &mut State, action: Action) {
        state.step(self, action);
    }
    fn complaint(&self, state: &State) -> Option<&'static str> {
        state.complaint(self)
    }
    fn is_whole(&self, state: &State) -> bool {
        state.is_whole(self)
    }
    fn budget<'a>(&self, state: &'a State) -> &'a Budget {
        &state.budget
    }
    fn in_words(&self, state: &State) -> String {
        in_words(state)
    }
    fn step_in_words(&self, state: &State, action: Action) -> String {
        step_in_words(state, action)
    }
}

/// A step as text, with the message that it delivers.
fn step_in_words(state: &State, action: Action) -> String {
    let count = state.replicas.len();
    match action {
        Action::Arrive { client, replica, at } => {
            let request = state.front[client as usize * count + replica as usize].get(at as usize);
            format!(
                "client {client} to replica {replica}: {}",
                request.map_or_else(String::new, |it| format!("{it:?}"))
            )
        }
        Action::Take { from, to } => {
            let message = state.back[from as usize * count + to as usize].first();
            format!("replica {from} to replica {to}: {}", message.map_or_else(String::new, |it| format!("{it:?}")))
        }
        Action::Read { replica, shard } => {
            format!("{action:?}: {:?}", state.replicas[replica as usize].now.shards[shard as usize].cells)
        }
        Action::Begin { client } => format!("{action:?}: line {}", state.clients[client as usize].next + 1),
        other => format!("{other:?}"),
    }
}

/// A state as text, in a few lines.
fn in_words(state: &State) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for (number, at) in state.replicas.iter().enumerate() {
        let life = match (at.up, at.outside) {
            (false, _) => "down",
            (true, true) => "new life",
            (true, false) => "up",
        };
        let _ = write!(text, "    replica {number}: {life}, epoch {}", at.now.epoch);
        let _ = write!(text, "{}", if at.view.leader == Some(number as u8) { ", leads" } else { "" });
        for shard in &at.now.shards {
            let stamps: Vec<Stamp> = shard.list.iter().map(|one| one.stamp).collect();
            let _ = write!(text, "; {:?} {:?} unsettled {stamps:?}", shard.stamp, shard.cells);
            if shard.missing != 0 {
                let missing: Vec<u8> = numbers(shard.missing).collect();
                let _ = write!(text, " listed for {missing:?}");
            }
        }
        let _ = writeln!(text);
    }
    text
}

impl std::fmt::Debug for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.by {
            By::Start => write!(f, "start"),
            By::Client(client) => write!(f, "({}, client {client}, op {})", self.count, self.op),
            By::Leader(epoch) => write!(f, "({}, epoch {epoch}, record {})", self.count, self.op),
        }
    }
}
