//! Views, as far as fast writes depend on them; the other model has the rules of views.

use super::*;
use crate::scope::numbers;

impl World {
    fn up(&self) -> Mask {
        self.mask(|at| at.up)
    }

    fn mask(&self, pleases: impl Fn(&Replica) -> bool) -> Mask {
        let pleases = |at: &u8| pleases(&self.replicas[*at as usize]);
        (0..self.replicas.len() as u8).filter(pleases).fold(0, |mask, at| mask | bit(at))
    }

    /// True if no member has its memory.
    pub(super) fn all_lost(&self) -> bool {
        self.views.opened.members & !self.mask(|at| at.lost) == 0
    }

    /// Replicas that may be members of the next view: those with memory; without any, all members must be present
    /// (rules 15, 17, 18).
    fn survivors(&self) -> Mask {
        let (before, up) = (self.views.opened.members, self.up());
        match self.all_lost() {
            true if before & !up == 0 => before,
            _ => before & up & !self.mask(|at| at.lost),
        }
    }

    /// Views that may be formed, and whether forming them is a fault.
    pub(super) fn formable(&self) -> Vec<(View, bool)> {
        let (now, up) = (self.views.now, self.up());
        let participants = now.members | now.learners;
        let mut found = Vec::new();
        let is_out = participants & !self.mask(Replica::is_in) != 0 || now.open && up & !participants != 0;
        if is_out && !self.is_alone() {
            self.compose(self.survivors(), up, None, &mut found);
        }
        if self.may_be_alone() && (is_out || !self.is_alone()) {
            self.compose(bit(now.leader), up, None, &mut found);
        } else if is_out {
            // A missing replica is waited for, or excluded.
        } else if let Some(ready) = self.ready_learner() {
            self.compose(now.members | ready, up, Some(ready), &mut found);
        }
        let mut found: Vec<(View, bool)> = found.into_iter().map(|view| (view, false)).collect();
        if self.budget.suspicions > 0 {
            for suspect in numbers(now.members & up) {
                let mut views = Vec::new();
                let up = up & !bit(suspect);
                let members = if self.all_lost() { 0 } else { self.survivors() & up };
                self.compose(members, up, None, &mut views);
                found.extend(views.into_iter().map(|view| (view, true)));
            }
        }
        found
    }

    /// True for a view without memory that is not open, and whose only member is its leader, in the same incarnation as
    /// then.
    fn is_alone(&self) -> bool {
        let View { leader, members, learners, forgetful, open, .. } = self.views.now;
        let has_all = self.views.opened.members & !(members | learners) == 0;
        !open && forgetful && members == bit(leader) && has_all && !self.replicas[leader as usize].outside
    }

    /// True if the leader may be the only member of the next view, or may stay it: every other replica that might know
    /// its ops is present as a learner. Other replicas need not know that it asks for this, and may form a view of all
    /// once more.
    fn may_be_alone(&self) -> bool {
        let now = self.views.now;
        // Also if it has not learned of this view yet.
        let is_wanted = now.forgetful && self.wants_alone(now.leader);
        let all_there = !self.all_lost() || self.views.opened.members & !self.up() == 0;
        all_there && (is_wanted || self.is_alone())
    }

    /// The leader stays; a joining replica leads if it is the first; otherwise any member leads.
    fn compose(&self, members: Mask, up: Mask, joins: Option<Mask>, found: &mut Vec<View>) {
        let now = self.views.now;
        let stays = members & bit(now.leader) != 0;
        let first = members & members.wrapping_neg();
        let leaders = match stays {
            _ if joins == Some(first) => first,
            true => bit(now.leader),
            false => members,
        };
        let (opened, is_loss) = (self.views.opened, self.all_lost());
        let (losses, learners) = (opened.losses + u8::from(is_loss), up & !members);
        let view =
            |leader| View { epoch: now.epoch + 1, leader, members, learners, losses, forgetful: is_loss, open: false };
        found.extend(numbers(leaders).map(view));
    }

    /// As `Leader::healing`: it has received everything, and no shard is being closed.
    fn ready_learner(&self) -> Option<Mask> {
        let now = self.views.now;
        let lead = self.replicas[now.leader as usize].lead.as_ref().filter(|_| now.open)?;
        self.view_of(now.leader).filter(|view| view.epoch == now.epoch)?;
        let is_closing = lead.closing.is_some() || lead.due || lead.found.is_some();
        let ready = lead.known & lead.whole & now.learners;
        numbers(ready).next().filter(|_| !is_closing).map(bit)
    }

    pub(super) fn form(&mut self, view: View, is_suspicion: bool) {
        self.budget.suspicions -= u8::from(is_suspicion);
        self.views.now = view;
        numbers(view.members | view.learners).for_each(|at| self.at(at).outside = false);
    }

    pub(super) fn may_adopt(&self, replica: u8) -> bool {
        let (now, at) = (self.views.now, &self.replicas[replica as usize]);
        at.is_in() && at.epoch < now.epoch && (now.members | now.learners) & bit(replica) != 0
    }

    /// A replica learns the view; messages of an earlier one are void here (rule 13).
    pub(super) fn adopt(&mut self, lane: &Lane, replica: u8) {
        let now = self.views.now;
        let at = self.at(replica);
        (at.epoch, at.lead) = (now.epoch, None);
        self.forget_queues(replica);
        if now.leader == replica {
            self.begin_to_lead(lane, replica);
        }
    }

    fn forget_queues(&mut self, to: u8) {
        self.front[to as usize].clear();
        (0..self.replicas.len() as u8).for_each(|from| self.back(from, to).clear());
    }

    pub(super) fn may_open(&self) -> bool {
        let now = self.views.now;
        let is_led = !now.open && self.replicas[now.leader as usize].epoch == now.epoch;
        is_led && self.is_level(now.leader) && !self.wants_alone(now.leader)
    }

    /// The view opens. An excluded replica has stopped to serve by then (rule 14).
    pub(super) fn open(&mut self, lane: &Lane) {
        if self.all_lost() {
            self.ghost.lose();
        }
        self.views.now.open = true;
        self.views.opened = self.views.now;
        for at in numbers(self.views.now.members) {
            self.at(at).lost = false;
            if lane.rules.opened_synced {
                self.at(at).sync();
            }
        }
        self.go_on(lane, self.views.now.leader);
    }

    /// A process ends. Its messages may still arrive.
    pub(super) fn kill(&mut self, replica: u8) {
        let at = self.at(replica);
        (at.up, at.term, at.lead) = (false, 0, None);
        self.forget_queues(replica);
        for lead in self.replicas.iter_mut().filter_map(|other| other.lead.as_mut()) {
            (lead.known, lead.whole) = (lead.known & !bit(replica), lead.whole & !bit(replica));
            lead.reading = lead.reading.take().filter(|reading| reading.missing & bit(replica) == 0);
        }
    }

    pub(super) fn start(&mut self, lane: &Lane, replica: u8) {
        self.at(replica).up = true;
        (0..self.replicas.len() as u8).for_each(|to| self.back(replica, to).clear());
        let now = self.views.now;
        if now.leader == replica && self.at(replica).epoch == now.epoch && !self.at(replica).outside {
            self.begin_to_lead(lane, replica);
        }
    }
}
