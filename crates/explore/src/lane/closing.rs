//! Fast writes at replicas, ops at the leader, closing, and reads that ask members.

use super::*;
use crate::scope::numbers;

impl Unreconciled {
    pub(super) fn new() -> Self {
        Self { cells: 0, listed: 0, own: 0, everywhere: 0, reported: 0 }
    }

    /// Adds the list of a member.
    pub(super) fn add(&mut self, lane: &Lane, from: u8, list: List) {
        self.cells |= list.cells;
        self.listed |= list.ops;
        self.own |= if lane.rules.own_ids { 0 } else { list.ops };
        // A member that lists a later write of a session has the earlier one, too.
        let holds = |op: &u8| numbers(list.ops).any(|one| one >= *op && lane.scope.op(one).0 == lane.scope.op(*op).0);
        self.everywhere &= numbers(self.everywhere).filter(holds).fold(0, |mask, op| mask | bit(op));
        self.reported |= bit(from);
    }

    pub(super) fn add_own(&mut self, list: List) {
        self.cells |= list.cells;
        self.listed |= list.ops;
        self.own |= list.ops;
        self.everywhere |= list.ops;
    }
}

impl World {
    /// A client's fast write arrives at a replica.
    pub(super) fn fast(&mut self, lane: &Lane, replica: u8, Fast { op, allowed }: Fast) {
        let (client, all) = (lane.scope.op(op).0, self.all());
        let is_whole = self.view_of(replica).is_none_or(|view| view.members == all && view.learners == 0);
        let is_whole = is_whole || !lane.rules.whole_views;
        let is_loose = lane.is_loose(op);
        let at = self.at(replica);
        let is_allowed = match &at.lead {
            Some(lead) => {
                let is_open = lead.open == Some(client as u8) && !(lead.due && lane.rules.due_refuses);
                lead.phase == Phase::Serving && is_open && is_whole && lead.term == allowed.term
            }
            None => at.term == allowed.term || !lane.rules.terms_hold,
        };
        let takes = at.is_in() && at.epoch == allowed.epoch && is_allowed && at.now.stamp == allowed.stamp;
        if takes {
            let (cell, now) = (lane.scope.target(op).1, at.write());
            now.put(cell, op);
            now.stamp = Stamp::Fast(op);
            if lane.rules.listed {
                now.list = List { cells: bit(cell as u8), ops: bit(op) };
            }
            if let Some(lead) = &mut at.lead {
                lead.unsettled = true;
                lead.loose |= is_loose;
            }
            if !is_loose {
                at.sync();
            }
        }
        if let Some((known, Work::Fast { done, failed, .. })) = &mut self.clients[client].work
            && *known == op
        {
            *failed |= !takes;
            *done |= if takes { bit(replica) } else { 0 };
        }
    }

    /// An op through the leader.
    pub(super) fn order(&mut self, lane: &Lane, leader: u8, op: u8) {
        let all = self.all();
        let Some(view) = self.view_of(leader) else { return };
        let client = lane.scope.op(op).0 as u8;
        let at = self.at(leader);
        let (has_id, last, noted) = (at.now.ids & bit(op) != 0, at.now.log.len() as u8, at.now.noted);
        let Some(lead) = at.lead.as_mut() else { return };
        if has_id {
            lead.pending.push((op, last, false));
        } else if lead.open.is_some() && lane.rules.closed_first {
            lead.due = true;
        } else {
            let opens = view.members == all && view.learners == 0 || !lane.rules.whole_views;
            let notes = lane.loose && opens && !noted;
            if notes && lane.rules.note_settled {
                self.append(lane, leader, Change::Note { there: true });
            }
            let sequence = self.append(lane, leader, Change::Write { op });
            if notes && !lane.rules.note_settled {
                self.append(lane, leader, Change::Note { there: true });
            }
            if let Some(lead) = self.at(leader).lead.as_mut() {
                lead.pending.push((op, sequence, opens));
                (lead.open, lead.unsettled, lead.loose) = (opens.then_some(client), false, false);
            }
        }
        self.go_on(lane, leader);
    }

    pub(super) fn may_restamp(&self, lane: &Lane, leader: u8) -> bool {
        let (Some(view), at) = (self.view_of(leader), &self.replicas[leader as usize]) else { return false };
        at.lead.as_ref().is_some_and(|lead| {
            let all_known = view.members & !bit(leader) & !lead.known == 0;
            let all_synced = !self.is_round_due(lane, leader) && lead.round.is_none_or(|round| round == 0);
            at.serves() && lead.due && lead.open.is_some() && lead.closing.is_none() && all_known && all_synced
        })
    }

    /// First step of closing: another stamp, and a request for the members' lists.
    pub(super) fn restamp(&mut self, lane: &Lane, leader: u8) {
        let Some(view) = self.view_of(leader) else { return };
        let others = view.members & !bit(leader);
        let at = self.at(leader);
        let sequence = at.now.log.len() as u8 + u8::from(lane.rules.restamped);
        let mut unreconciled = Unreconciled::new();
        unreconciled.add_own(at.now.list);
        let missing = if lane.rules.members_asked { others } else { 0 };
        if !lane.rules.asked_behind {
            self.send_known(leader, missing, Message::List { sequence });
        }
        if lane.rules.restamped {
            let length = self.at(leader).now.length;
            self.append(lane, leader, Change::Restamp { length });
        }
        if lane.rules.asked_behind {
            self.send_known(leader, missing, Message::List { sequence });
        }
        if let Some(lead) = self.at(leader).lead.as_mut() {
            (lead.due, lead.loose, lead.round) = (false, false, None);
            lead.closing = Some(Closing { sequence, missing, unreconciled });
        }
        self.go_on(lane, leader);
    }

    /// Second step: a member reports its list.
    pub(super) fn list_received(&mut self, lane: &Lane, leader: u8, from: u8, sequence: u8) {
        let other = &self.replicas[from as usize];
        let (list, has_it) = (other.now.list, other.now.log.len() as u8 >= sequence);
        if !self.is_accepted(leader, from) || !has_it && lane.rules.asked_behind {
            return;
        }
        let closing = self.at(leader).lead.as_mut().and_then(|lead| lead.closing.as_mut());
        let Some(closing) = closing.filter(|closing| closing.sequence == sequence) else { return };
        if closing.missing & bit(from) != 0 {
            closing.missing &= !bit(from);
            closing.unreconciled.add(lane, from, list);
        }
    }

    pub(super) fn may_reconcile(&self, leader: u8) -> bool {
        let lead = self.replicas[leader as usize].lead.as_ref();
        let closing = lead.and_then(|lead| lead.closing.as_ref());
        self.view_of(leader).is_some() && closing.is_some_and(|closing| closing.missing == 0)
    }

    /// Third step: a record reconciles one range; the last one ends the closing.
    pub(super) fn reconcile(&mut self, lane: &Lane, leader: u8) {
        let Some(view) = self.view_of(leader) else { return };
        let others = view.members & !bit(leader);
        let at = self.at(leader);
        let (bytes, length) = (at.now.shown(), at.now.length);
        let Some(lead) = at.lead.as_mut() else { return };
        let Some(closing) = lead.closing.as_mut() else { return };
        let Unreconciled { cells, listed, own, everywhere, reported } = closing.unreconciled;
        let first = cells & cells.wrapping_neg();
        closing.unreconciled.cells &= !first;
        let last = closing.unreconciled.cells == 0;
        if last {
            (lead.open, lead.unsettled, lead.due, lead.closing) = (None, false, false, None);
        }
        if cells != 0 {
            let own = if last && lane.rules.ids_in_slots { own } else { 0 };
            let ops = if others & !reported == 0 && !last { everywhere } else { 0 };
            let rest = List { cells: cells & !first, ops };
            self.append(lane, leader, Change::Reconcile { cells: first, bytes, length, own, listed, rest });
        }
        self.go_on(lane, leader);
    }

    /// True if a read at the leader has to ask the members.
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
        let is_new = !self.ghost.shows_only(&lane.scope, at.now.shown()) && {
            let mut ghost = self.ghost.clone();
            ghost.read(&lane.scope, at.now.shown()).is_err() || ghost != self.ghost
        };
        self.settled(leader) as usize == at.now.log.len() && is_new
    }

    pub(super) fn read(&mut self, lane: &Lane, leader: u8) {
        let (cells, stamp) = (self.at(leader).now.shown(), self.at(leader).now.stamp);
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

    /// A member reports whether it has the write that a read shows. If it lacks it, the write may never arrive, and the
    /// shard is closed.
    pub(super) fn held_received(&mut self, lane: &Lane, leader: u8, from: u8, stamp: Stamp) {
        let other = &self.replicas[from as usize];
        let owner = |op: u8| lane.scope.op(op).0;
        let came_before = match stamp {
            Stamp::Fast(op) => numbers(other.now.list.ops).any(|listed| owner(op) == owner(listed) && listed > op),
            _ => false,
        };
        let holds = other.now.stamp == stamp || came_before;
        let is_accepted = self.is_accepted(leader, from);
        let at = self.at(leader);
        let (last, list) = (at.now.log.len() as u8, at.now.list.ops);
        let Some(lead) = at.lead.as_mut().filter(|_| is_accepted) else { return };
        let Some(reading) = lead.reading.as_mut().filter(|reading| reading.stamp == stamp) else { return };
        if !holds {
            lead.due |= lead.open.is_some();
            lead.reading = None;
            return;
        }
        reading.missing &= !bit(from);
        if reading.missing == 0 {
            reading.upto = Some(last);
            lead.unsettled &= !numbers(list).any(|op| Stamp::Fast(op) == stamp);
        }
    }
}
