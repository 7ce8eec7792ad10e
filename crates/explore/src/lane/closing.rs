//! Fast writes at replicas, ops at the leader, closing, and reads that ask.

use super::*;

impl Uneven {
    /// What a member lists.
    pub(super) fn add(&mut self, lane: &Lane, op: u8) {
        self.cells |= bit(lane.scope.target(op).1 as u8);
        self.listed |= bit(op);
        self.own |= if lane.rules.own_ids { 0 } else { bit(op) };
    }

    pub(super) fn add_own(&mut self, lane: &Lane, op: u8) {
        self.add(lane, op);
        self.own |= bit(op);
    }
}

impl World {
    /// A client's fast write comes to a replica.
    pub(super) fn fast(&mut self, lane: &Lane, replica: u8, Fast { op, allowed }: Fast) {
        let (client, all) = (lane.scope.op(op).0, self.all());
        let is_whole = self.view_of(replica).is_none_or(|view| view.members == all && view.learners == 0);
        let is_whole = is_whole || !lane.rules.whole_views;
        let at = self.at(replica);
        let is_allowed = match &at.lead {
            Some(lead) => {
                let is_open = lead.open == Some(client as u8) && !lead.due;
                lead.phase == Phase::Serving && is_open && is_whole && lead.term == allowed.term
            }
            None => at.term == allowed.term || !lane.rules.terms_hold,
        };
        let takes = at.epoch == allowed.epoch && is_allowed && at.stamp == allowed.stamp;
        if takes {
            at.cells[lane.scope.target(op).1] = op;
            at.stamp = Stamp::Fast(op);
            at.list = if lane.rules.listed { Some(op) } else { at.list };
            at.lead.iter_mut().for_each(|lead| lead.unsettled = true);
        }
        if let Some((known, Work::Fast { done, failed, .. })) = &mut self.clients[client].work
            && *known == op
        {
            *failed |= !takes;
            *done |= if takes { bit(replica) } else { 0 };
        }
    }

    /// An op on the leader's lane.
    pub(super) fn order(&mut self, lane: &Lane, leader: u8, op: u8) {
        let all = self.all();
        let Some(view) = self.view_of(leader) else { return };
        let client = lane.scope.op(op).0 as u8;
        let at = self.at(leader);
        let (has_id, last) = (at.ids & bit(op) != 0, at.log.len() as u8);
        let Some(lead) = at.lead.as_mut() else { return };
        if has_id {
            lead.pending.push((op, last, false));
        } else if lead.open.is_some() && lane.rules.closed_first {
            lead.due = true;
        } else {
            let opens = view.members == all && view.learners == 0 || !lane.rules.whole_views;
            let sequence = self.append(lane, leader, Change::Write { op });
            if let Some(lead) = self.at(leader).lead.as_mut() {
                lead.pending.push((op, sequence, opens));
                (lead.open, lead.unsettled) = (opens.then_some(client), false);
            }
        }
        self.go_on(lane, leader);
    }

    pub(super) fn may_restamp(&self, leader: u8) -> bool {
        let (Some(view), at) = (self.view_of(leader), &self.replicas[leader as usize]) else { return false };
        at.lead.as_ref().is_some_and(|lead| {
            let all_known = view.members & !bit(leader) & !lead.known == 0;
            at.serves() && lead.due && lead.open.is_some() && lead.closing.is_none() && all_known
        })
    }

    /// The first step: another stamp, and members are asked what they list.
    pub(super) fn restamp(&mut self, lane: &Lane, leader: u8) {
        let Some(view) = self.view_of(leader) else { return };
        let others = view.members & !bit(leader);
        let at = self.at(leader);
        let sequence = at.log.len() as u8 + u8::from(lane.rules.restamped);
        let mut uneven = Uneven::default();
        at.list.into_iter().for_each(|op| uneven.add_own(lane, op));
        let missing = if lane.rules.members_asked { others } else { 0 };
        if !lane.rules.asked_behind {
            self.send_known(leader, missing, Message::List { sequence });
        }
        if lane.rules.restamped {
            self.append(lane, leader, Change::Restamp);
        }
        if lane.rules.asked_behind {
            self.send_known(leader, missing, Message::List { sequence });
        }
        if let Some(lead) = self.at(leader).lead.as_mut() {
            lead.due = false;
            lead.closing = Some(Closing { sequence, missing, uneven });
        }
        self.go_on(lane, leader);
    }

    /// The second step: a member says what it lists.
    pub(super) fn told_list(&mut self, lane: &Lane, leader: u8, from: u8, sequence: u8) {
        let other = &self.replicas[from as usize];
        let (list, has_it) = (other.list, other.log.len() as u8 >= sequence);
        if !self.is_heard(leader, from) || !has_it && lane.rules.asked_behind {
            return;
        }
        let closing = self.at(leader).lead.as_mut().and_then(|lead| lead.closing.as_mut());
        let Some(closing) = closing.filter(|closing| closing.sequence == sequence) else { return };
        if closing.missing & bit(from) != 0 {
            closing.missing &= !bit(from);
            list.into_iter().for_each(|op| closing.uneven.add(lane, op));
        }
    }

    pub(super) fn may_even(&self, leader: u8) -> bool {
        let lead = self.replicas[leader as usize].lead.as_ref();
        let closing = lead.and_then(|lead| lead.closing.as_ref());
        self.view_of(leader).is_some() && closing.is_some_and(|closing| closing.missing == 0)
    }

    /// The third step: a record evens one range; the last one is the end of it.
    pub(super) fn even(&mut self, lane: &Lane, leader: u8) {
        let at = self.at(leader);
        let bytes = at.cells;
        let Some(lead) = at.lead.as_mut() else { return };
        let Some(closing) = lead.closing.as_mut() else { return };
        let Uneven { cells, listed, own } = closing.uneven;
        let first = cells & cells.wrapping_neg();
        closing.uneven.cells &= !first;
        let last = closing.uneven.cells == 0;
        if last {
            (lead.open, lead.unsettled, lead.due, lead.closing) = (None, false, false, None);
        }
        if cells != 0 {
            let own = if last && lane.rules.ids_in_slots { own } else { 0 };
            self.append(lane, leader, Change::Even { cells: first, bytes, own, last, listed });
        }
        self.go_on(lane, leader);
    }

    /// Whether a read at the leader has to ask the members.
    pub(super) fn reads_ask(&self, lane: &Lane, leader: u8) -> bool {
        let lead = self.replicas[leader as usize].lead.as_ref();
        lead.is_some_and(|lead| lead.open.is_some() && lead.unsettled) && lane.rules.reads_ask
    }

    pub(super) fn may_read(&self, lane: &Lane, leader: u8) -> bool {
        let at = &self.replicas[leader as usize];
        let Some(lead) = at.lead.as_ref().filter(|_| at.up && at.serves()) else { return false };
        if self.view_of(leader).is_none() || at.epoch != self.views.opened.epoch {
            return false;
        }
        if self.reads_ask(lane, leader) {
            let is_closing = lead.closing.is_some() && lane.rules.closing_reads;
            return self.budget.hasty_reads > 0 && lead.reading.is_none() && !is_closing;
        }
        let is_new = !self.ghost.shows_only(&lane.scope, at.cells) && {
            let mut ghost = self.ghost.clone();
            ghost.read(&lane.scope, at.cells).is_err() || ghost != self.ghost
        };
        self.settled(leader) as usize == at.log.len() && is_new
    }

    pub(super) fn read(&mut self, lane: &Lane, leader: u8) {
        let (cells, stamp) = (self.at(leader).cells, self.at(leader).stamp);
        let done = self.ghost.done();
        if !self.reads_ask(lane, leader) {
            return self.show(lane, cells, done);
        }
        let Some(view) = self.view_of(leader) else { return };
        let missing = view.members & !bit(leader);
        self.budget.hasty_reads -= 1;
        self.send_known(leader, missing, Message::AskFast { stamp });
        if let Some(lead) = self.at(leader).lead.as_mut() {
            lead.reading = Some(Reading { cells, stamp, done, missing, upto: None });
        }
    }

    /// A member has what a read shows, or has not: then it may never come, and the shard is closed.
    pub(super) fn told_held(&mut self, lane: &Lane, leader: u8, from: u8, stamp: Stamp) {
        let other = &self.replicas[from as usize];
        let owner = |op: u8| lane.scope.op(op).0;
        let came_before = match (stamp, other.list) {
            (Stamp::Fast(op), Some(listed)) => owner(op) == owner(listed) && listed > op,
            _ => false,
        };
        let holds = other.stamp == stamp || came_before;
        let is_heard = self.is_heard(leader, from);
        let at = self.at(leader);
        let (last, list) = (at.log.len() as u8, at.list);
        let Some(lead) = at.lead.as_mut().filter(|_| is_heard) else { return };
        let Some(reading) = lead.reading.as_mut().filter(|reading| reading.stamp == stamp) else { return };
        if !holds {
            lead.due |= lead.open.is_some();
            lead.reading = None;
            return;
        }
        reading.missing &= !bit(from);
        if reading.missing == 0 {
            reading.upto = Some(last);
            lead.unsettled &= list.map(Stamp::Fast) != Some(stamp);
        }
    }
}
