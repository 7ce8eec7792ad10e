//! Views: formation, fencing, levelling and opening; and the effects of faults. Rule numbers are those of
//! `docs/fast-lane.md`.

use crate::scope::{Scope, bit, numbers};
use crate::state::*;
use std::rc::Rc;

impl State {
    /// The newest view that the coordinator has recorded, open or not.
    pub fn newest(&self) -> View {
        self.coordinator.forming.as_ref().map_or(self.coordinator.opened, |forming| forming.view)
    }

    fn mask(&self, pleases: impl Fn(&Replica) -> bool) -> Mask {
        (0..self.replica_count()).filter(|at| pleases(&self.replicas[*at as usize])).fold(0, |mask, at| mask | bit(at))
    }

    /// True if no member has its memory any more, whatever the protocol assumes.
    pub fn all_lost(&self) -> bool {
        numbers(self.coordinator.opened.members).all(|at| self.replicas[at as usize].lost)
    }

    /// Rules 15, 17, 18: the view that can be formed without `but`.
    fn compose(&self, scope: &Scope, but: Mask) -> Option<View> {
        let rules = scope.rules;
        let (opened, newest) = (self.coordinator.opened, self.newest());
        let base = match (rules.last_view_leads, rules.opened_counts) {
            (false, _) => bit(self.replica_count()) - 1,
            (true, false) => newest.members,
            (true, true) => opened.members,
        };
        let up = self.mask(|at| at.up) & !but;
        let lost = if rules.incarnations { self.mask(|at| at.lost) } else { 0 };
        let survivors = base & up & !lost;
        let (members, losses) = match survivors {
            0 if base & !up == 0 || !rules.wait_for_memory && base & up != 0 => (base & up, opened.losses + 1),
            0 => return None,
            _ => (survivors, opened.losses),
        };
        let epoch = newest.epoch + 1;
        Some(View { epoch, leader: None, members, learners: up & !members, losses, open: false })
    }

    /// Views that may be formed now, and whether forming it is a fault (a running member is believed dead).
    pub fn formable(&self, scope: &Scope) -> Vec<(View, bool)> {
        let newest = self.newest();
        let participants = newest.members | newest.learners;
        let void = self.coordinator.forming.as_ref().map_or(0, |forming| forming.void);
        let unfit = |at: u8| {
            let replica = &self.replicas[at as usize];
            !replica.up || void & bit(at) != 0 || replica.outside && self.is_past_fence(at)
        };
        let mut found = Vec::new();
        let up = self.mask(|at| at.up);
        if numbers(participants).any(unfit) {
            found.extend(self.compose(scope, 0).map(|view| (view, false)));
        } else if self.coordinator.forming.is_none() {
            if up & !participants != 0 {
                found.extend(self.compose(scope, 0).map(|view| (view, false)));
            } else if let Some(ready) = self.ready_learner() {
                let view = self.compose(scope, 0);
                let promote =
                    |view: View| View { members: view.members | ready, learners: view.learners & !ready, ..view };
                found.extend(view.map(|view| (promote(view), false)));
            }
        }
        if self.budget.suspicions > 0 {
            for suspect in numbers(newest.members & up) {
                let view = self.compose(scope, bit(suspect)).filter(|view| view.losses == newest.losses);
                found.extend(view.map(|view| (view, true)));
            }
        }
        found
    }

    /// A replica in a new incarnation is accepted by a fence of the view that is being formed, not by another view.
    fn is_past_fence(&self, at: u8) -> bool {
        self.coordinator.forming.as_ref().is_none_or(|forming| forming.fenced & bit(at) != 0)
    }

    /// A learner for which no shard is listed any more.
    fn ready_learner(&self) -> Option<Mask> {
        let opened = self.coordinator.opened;
        let leader = opened.leader.filter(|leader| self.leads(*leader))?;
        let listed =
            |at: u8| self.replicas[leader as usize].now.shards.iter().any(|shard| shard.missing & bit(at) != 0);
        let is_there = |at: u8| self.replicas[at as usize].up && self.replicas[at as usize].now.epoch == opened.epoch;
        numbers(opened.learners).find(|at| is_there(*at) && !listed(*at)).map(bit)
    }

    pub fn form(&mut self, view: View, is_suspicion: bool) {
        self.budget.suspicions -= u8::from(is_suspicion);
        self.coordinator.forming = Some(Forming { view, fenced: 0, void: 0 });
    }

    pub fn can_fence(&self, replica: u8) -> bool {
        self.coordinator.forming.as_ref().is_some_and(|forming| {
            let participants = forming.view.members | forming.view.learners;
            participants & !forming.fenced & !forming.void & bit(replica) != 0 && self.replicas[replica as usize].up
        })
    }

    /// Rule 13: from here on messages of an earlier epoch are refused. Rule 20: lists are begun for excluded replicas.
    pub fn fence(&mut self, scope: &Scope, replica: u8) {
        let Some(forming) = self.coordinator.forming.as_mut() else { return };
        forming.fenced |= bit(replica);
        let view = forming.view;
        let is_new = view.members & !self.coordinator.opened.members & bit(replica) != 0;
        let itself = if scope.rules.own_list { 0 } else { bit(replica) };
        let outside = (bit(self.replica_count()) - 1) & !view.members & !itself;
        let at = &mut self.replicas[replica as usize];
        at.view = view;
        at.now.epoch = view.epoch;
        at.outside = false;
        at.lease = true;
        at.pending = 0;
        for shard in &mut at.now.shards {
            shard.list.iter_mut().for_each(|one| one.held = 0);
            if shard.unstable && scope.rules.unstable_listed || !shard.list.is_empty() {
                shard.missing |= outside;
            }
        }
        if is_new && scope.rules.synced_promotion {
            self.sync(scope, replica);
        }
        if scope.rules.epochs_fence {
            // Messages of an earlier epoch would be refused.
            for client in 0..self.clients.len() {
                self.front(client, replica).clear();
            }
            for from in 0..self.replica_count() {
                self.back(from, replica).clear();
            }
        }
    }

    /// True if the replica's lease is not renewed any more.
    pub fn is_revoked(&self, replica: u8) -> bool {
        let newest = self.newest();
        (newest.members | newest.learners) & bit(replica) == 0
    }

    /// Of the replicas that may lead, those with the greatest (epoch, sequence).
    pub fn candidates(&self, scope: &Scope) -> Vec<u8> {
        let Some(forming) = &self.coordinator.forming else { return Vec::new() };
        let view = forming.view;
        let participants = view.members | view.learners;
        let is_up = numbers(participants)
            .all(|at| self.replicas[at as usize].up && self.replicas[at as usize].now.epoch == view.epoch);
        if view.leader.is_some() || forming.fenced != participants || !is_up || forming.void != 0 {
            return Vec::new();
        }
        let rules = scope.rules;
        let base = if rules.last_view_leads && rules.opened_counts { self.coordinator.opened.members } else { !0 };
        let entitled = view.members & base;
        let position = |at: u8| self.replicas[at as usize].now.position;
        let best = numbers(entitled).map(position).max();
        numbers(entitled).filter(|at| Some(position(*at)) == best || !rules.longest_leads).collect()
    }

    /// The leader of a view that is being formed brings all members to its own state: rules 16, 20 to 22.
    pub fn choose(&mut self, scope: &Scope, leader: u8) {
        let Some(forming) = self.coordinator.forming.as_mut() else { return };
        forming.view.leader = Some(leader);
        let view = forming.view;
        let (participants, rules) = (view.members | view.learners, scope.rules);
        for at in numbers(participants) {
            self.replicas[at as usize].view.leader = Some(leader);
        }
        let loses = view.losses != self.coordinator.opened.losses;
        let opened = self.coordinator.opened.members;
        for shard in 0..scope.shards as usize {
            let copy = |at: u8| &self.replicas[at as usize].now.shards[shard];
            let own_changes = |at: u8| copy(at).unstable || !copy(at).list.is_empty();
            let asked = if rules.all_lists { view.members } else { bit(leader) };
            let is_open = rules.level_unsettled && numbers(asked).any(|at| !copy(at).list.is_empty());
            let also = numbers(asked).flat_map(|at| &copy(at).list).fold(0, |mask, one| mask | one.cells);
            let known = match rules.lists_handed_on {
                true => numbers(participants).fold(0, |mask, at| mask | copy(at).missing),
                false => copy(leader).missing,
            };
            let new = view.members & !opened & if rules.own_list { !0 } else { 0 };
            let is_lacking = match rules.fenced_promotion {
                true => known & view.members != 0 || numbers(new).any(own_changes),
                false => known & view.members & opened != 0,
            };
            let is_unsure = loses && numbers(asked).any(|at| copy(at).unstable);
            let learners = numbers(view.learners).filter(|at| own_changes(*at)).fold(0, |mask, at| mask | bit(at));
            let listed = known | if rules.own_list { learners } else { 0 };
            self.replicas[leader as usize].now.shards[shard].missing = listed & !view.members;
            if is_open || is_lacking || is_unsure {
                self.reconcile(scope, leader, shard, also, is_lacking || is_unsure);
            }
        }
    }

    /// Rules 14 and 16: true if the newest view can open.
    pub fn can_open(&self, scope: &Scope) -> bool {
        let Some(Forming { view: View { leader: Some(leader), members, learners, .. }, void: 0, .. }) =
            self.coordinator.forming
        else {
            return false;
        };
        let at = &self.replicas[leader as usize];
        let own = By::Leader(at.view.epoch);
        let waits = |one: &Unsettled| scope.rules.level_unsettled || one.stamp.by == own;
        let is_level = self.leads(leader) && !at.now.shards.iter().flat_map(|shard| &shard.list).any(waits);
        let left_out = (bit(self.replica_count()) - 1) & !members & !learners;
        let is_quiet = numbers(left_out).all(|at| !self.replicas[at as usize].lease) || !scope.rules.lease_wait;
        is_level && is_quiet
    }

    pub fn open(&mut self, scope: &Scope) {
        let Some(forming) = self.coordinator.forming.take() else { return };
        if self.all_lost() {
            self.ghosts.iter_mut().for_each(|ghost| ghost.lose());
        }
        let view = View { open: true, ..forming.view };
        self.coordinator.opened = view;
        let Some(leader) = view.leader else { return };
        let handed: Vec<Mask> = self.replicas[leader as usize].now.shards.iter().map(|shard| shard.missing).collect();
        for at in numbers(view.members | view.learners) {
            let is_member = view.members & bit(at) != 0;
            let at = &mut self.replicas[at as usize];
            at.view = view;
            at.lost &= !is_member;
            for (shard, handed) in at.now.shards.iter_mut().zip(&handed) {
                if scope.rules.lists_handed_on {
                    shard.missing |= handed;
                }
                shard.missing &= !view.members;
            }
        }
    }

    /// A process ends. Messages that it sent may still arrive, messages to it do not.
    pub fn kill(&mut self, replica: u8) {
        let at = &mut self.replicas[replica as usize];
        at.up = false;
        at.lease = false;
        at.pending = 0;
        at.now.shards.iter_mut().flat_map(|shard| &mut shard.list).for_each(|one| one.held = 0);
        for client in 0..self.clients.len() {
            self.front(client, replica).clear();
        }
        for from in 0..self.replica_count() {
            self.back(from, replica).clear();
        }
    }

    /// A machine loses power: unsynced data is gone, or (`all`) was written nevertheless.
    pub fn cut(&mut self, scope: &Scope, replica: u8, all: bool) {
        self.kill(replica);
        let at = &mut self.replicas[replica as usize];
        if all {
            at.synced = Rc::new(at.now.clone());
        } else {
            at.now = (*at.synced).clone();
            at.now.shards.iter_mut().flat_map(|shard| &mut shard.list).for_each(|one| one.held = 0);
        }
        at.lost = true;
        at.outside = scope.rules.incarnations;
        if let Some(forming) = self.coordinator.forming.as_mut().filter(|_| scope.rules.lives_in_forming) {
            forming.void |= forming.view.members & bit(replica);
        }
    }

    pub fn start(&mut self, scope: &Scope, replica: u8) {
        let is_revoked = self.is_revoked(replica);
        let opened = self.coordinator.opened.epoch;
        let at = &mut self.replicas[replica as usize];
        at.up = true;
        if !scope.rules.fence_survives {
            at.view = State::first(scope).coordinator.opened;
            at.now.epoch = at.view.epoch;
        }
        at.lease = !is_revoked && (at.view.epoch == opened || !scope.rules.lease_for_view);
        for to in 0..self.replica_count() {
            self.back(replica, to).clear();
        }
    }

    /// Rule 20: true if all have synced a shard as it is.
    pub fn is_stable(&self, scope: &Scope, shard: usize) -> bool {
        let (opened, rules) = (self.coordinator.opened, scope.rules);
        let Some(leader) = opened.leader else { return false };
        let asked = opened.members | if rules.learners_sync { opened.learners } else { 0 };
        let stamp = self.replicas[leader as usize].now.shards[shard].stamp;
        let is_synced = |at: u8| {
            let at = &self.replicas[at as usize];
            let is_same = at.synced.shards[shard].stamp == stamp && at.now.shards[shard].stamp == stamp;
            at.up && !at.outside && is_same && at.view.epoch == opened.epoch
        };
        let is_known = numbers(opened.members).all(|at| !self.replicas[at as usize].now.shards[shard].unstable);
        let is_settled = self.leads(leader) && self.replicas[leader as usize].now.shards[shard].list.is_empty();
        self.coordinator.forming.is_none() && !is_known && is_settled && numbers(asked).all(is_synced)
    }

    /// The leader has learned that from all, and reported it to them.
    pub fn stabilise(&mut self, shard: usize) {
        let opened = self.coordinator.opened;
        for at in numbers(opened.members | opened.learners) {
            self.replicas[at as usize].now.shards[shard].unstable = false;
        }
    }
}
