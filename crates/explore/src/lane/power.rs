//! The journals after a power cut: each machine keeps a prefix of its journal that contains everything that was synced.
//! This also covers syncs at any moment of their own.

use super::*;
use crate::scope::numbers;

impl Replica {
    pub(super) fn sync(&mut self) {
        self.tail.iter_mut().for_each(Vec::clear);
    }

    /// Number of changes in its journal that it has not synced.
    pub(super) fn tail_length(&self) -> u8 {
        self.tail.as_ref().map_or(0, |tail| tail.len() as u8)
    }

    fn synced_records(&self) -> u8 {
        let first = self.tail.as_ref().and_then(|tail| tail.first());
        first.unwrap_or(&self.now).log.len() as u8
    }
}

impl World {
    /// Records that all members have on stable storage, at most `settled`.
    pub(super) fn stable(&self, leader: u8, settled: u8) -> u8 {
        let members = self.view_of(leader).map_or(0, |view| view.members);
        numbers(members).map(|at| self.replicas[at as usize].synced_records()).fold(settled, u8::min)
    }

    pub(super) fn may_sync_all(&self, lane: &Lane, leader: u8) -> bool {
        let (at, settled) = (&self.replicas[leader as usize], self.settled(leader));
        let waits =
            |lead: &Lead| lead.pending.iter().any(|(op, sequence, _)| !lane.is_loose(*op) && *sequence <= settled);
        let is_there = |member: u8| {
            let other = &self.replicas[member as usize];
            other.is_in() && other.epoch == at.epoch
        };
        let all_there = self.view_of(leader).is_some_and(|view| numbers(view.members).all(is_there));
        all_there && at.lead.as_ref().is_some_and(|lead| waits(lead))
    }

    /// Syncs all members; the leader knows at once.
    pub(super) fn sync_all(&mut self, lane: &Lane, leader: u8) {
        let members = self.view_of(leader).map_or(0, |view| view.members);
        numbers(members).for_each(|at| self.at(at).sync());
        self.go_on(lane, leader);
    }

    /// Power cuts of all machines at once: each may have kept any prefix.
    pub(super) fn blackouts(&self, found: &mut Vec<Action>) {
        let lengths: Vec<u8> = self.replicas.iter().map(Replica::tail_length).collect();
        let mut kept = [0; 3];
        loop {
            found.push(Action::Blackout { kept });
            let Some(next) = (0..lengths.len()).find(|at| kept[*at] < lengths[*at]) else { return };
            kept[next] += 1;
            kept[..next].fill(0);
        }
    }

    pub(super) fn cut(&mut self, lane: &Lane, replica: u8, kept: u8) {
        self.budget.cuts -= 1;
        self.lose(lane, replica, kept);
        self.forget_tails();
    }

    pub(super) fn blackout(&mut self, lane: &Lane, kept: [u8; 3]) {
        self.budget.blackouts -= 1;
        (0..self.replicas.len() as u8).for_each(|at| self.lose(lane, at, kept[at as usize]));
        self.forget_tails();
    }

    fn lose(&mut self, lane: &Lane, replica: u8, kept: u8) {
        self.kill(replica);
        let at = self.at(replica);
        if let Some(tail) = &mut at.tail {
            if let Some(left) = tail.get(kept as usize) {
                at.now = Rc::clone(left);
            }
            tail.clear();
        }
        if lane.rules.lives {
            // It is in no view until one names its new incarnation.
            (at.lost, at.outside, at.epoch) = (true, true, 0);
        }
    }

    /// Drops the tails once no power cut can come any more.
    fn forget_tails(&mut self) {
        if self.budget.cuts + self.budget.blackouts == 0 {
            self.replicas.iter_mut().for_each(|at| at.tail = None);
        }
    }
}
