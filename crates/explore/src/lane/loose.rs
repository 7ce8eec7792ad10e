//! Fast writes that are answered before they are on stable storage: the marker in the log that there may be some, the
//! syncs before a shard is closed, and fsync.

use super::*;
use crate::scope::numbers;

impl World {
    /// True if all members have to sync before a shard is closed.
    pub(super) fn is_round_due(&self, lane: &Lane, leader: u8) -> bool {
        let at = &self.replicas[leader as usize];
        let Some(lead) = at.lead.as_ref().filter(|lead| lead.closing.is_none() && lead.round.is_none()) else {
            return false;
        };
        let is_closed = lead.due && lead.open.is_some() && lead.loose && lane.rules.closing_syncs;
        let is_found = lead.found.is_some() && at.now.noted && lane.rules.found_syncs;
        let is_open = self.view_of(leader).is_some_and(|view| view.open);
        is_open && (is_closed || is_found) && !self.wants_alone(leader) && (at.serves() || self.is_level(leader))
    }

    pub(super) fn begin_round(&mut self, lane: &Lane, leader: u8) {
        if !self.is_round_due(lane, leader) {
            return;
        }
        let others = self.view_of(leader).map_or(0, |view| view.members & !bit(leader));
        let at = self.at(leader);
        at.sync();
        at.lead.iter_mut().for_each(|lead| lead.round = Some(others));
        self.send_known(leader, others, Message::Sync);
    }

    /// A member has synced all its data.
    pub(super) fn synced_received(&mut self, leader: u8, from: u8) {
        self.at(from).sync();
        let is_accepted = self.is_accepted(leader, from);
        if let Some(lead) = self.at(leader).lead.as_mut().filter(|_| is_accepted) {
            lead.round = lead.round.map(|round| round & !bit(from));
        }
    }

    /// In a view without memory, settled writes that are not records may differ between members: the leader asks to be
    /// the only member until it learns of another view.
    pub(super) fn want_alone(&mut self, lane: &Lane, leader: u8) {
        let is_due = |view: &View| view.forgetful && view.members != bit(leader) && view.open != lane.rules.alone_first;
        let is_noted = self.replicas[leader as usize].now.noted && lane.rules.alone;
        if is_noted && self.view_of(leader).as_ref().is_some_and(is_due) && self.is_level(leader) {
            self.at(leader).lead.iter_mut().for_each(|lead| lead.alone = true);
        }
    }

    pub(super) fn wants_alone(&self, leader: u8) -> bool {
        self.replicas[leader as usize].lead.as_ref().is_some_and(|lead| lead.alone)
    }

    pub(super) fn may_unnote(&self, lane: &Lane, leader: u8) -> bool {
        let (Some(view), at) = (self.view_of(leader), &self.replicas[leader as usize]) else { return false };
        let is_whole = view.members == self.all() && view.learners == 0 || !lane.rules.note_whole;
        let Some(lead) = at.lead.as_ref().filter(|_| at.now.noted && at.serves() && is_whole) else { return false };
        let is_open = lead.open.is_some() && lane.rules.note_closed;
        let all_known = view.members & !bit(leader) & !lead.known == 0;
        all_known && !is_open && !lead.due && lead.closing.is_none() && lead.found.is_none() && lead.round.is_none()
    }

    pub(super) fn unnote(&mut self, lane: &Lane, leader: u8) {
        self.append(lane, leader, Change::Note { there: false });
        self.go_on(lane, leader);
    }

    /// A client receives the acknowledgement of its write.
    pub(super) fn acked(&mut self, lane: &Lane, client: usize, op: u8, losses: u8) {
        let is_durable = !lane.is_loose(op);
        let kept = is_durable || losses == self.views.opened.losses && !self.all_lost();
        let mut acked = self.ghost.ack(&lane.scope, op, kept);
        if is_durable {
            acked = acked.and_then(|()| self.ghost.synced(bit(op)));
        } else {
            let unsynced = &mut self.clients[client].unsynced;
            let first = if unsynced.0 == 0 { losses } else { unsynced.1 };
            *unsynced = (unsynced.0 | bit(op), first);
        }
        self.broken = self.broken.or(acked.err());
    }

    /// Members that can sync for a client: in the view and the incarnation that it names.
    pub(super) fn syncs_for(&self, client: usize) -> impl Iterator<Item = u8> {
        let at = &self.clients[client];
        let missing = at.syncing.filter(|_| at.up).map_or(0, |done| at.members & !done);
        let is_meant = |replica: &u8| {
            let other = &self.replicas[*replica as usize];
            other.is_in() && other.epoch == at.epoch
        };
        numbers(missing).filter(is_meant)
    }

    pub(super) fn sync_at(&mut self, client: usize, replica: u8) {
        self.at(replica).sync();
        let at = &mut self.clients[client];
        at.syncing = at.syncing.map(|done| done | bit(replica));
    }

    pub(super) fn all_synced_for(&self, client: usize) -> bool {
        let at = &self.clients[client];
        at.up && at.syncing.is_some_and(|done| at.members & !done == 0)
    }

    /// Rule 19: ends an fsync.
    pub(super) fn end_sync(&mut self, lane: &Lane, client: usize) {
        let at = &mut self.clients[client];
        let (covered, losses) = std::mem::take(&mut at.unsynced);
        at.syncing = None;
        if covered != 0 && (losses == at.losses || !lane.rules.losses_reported) {
            self.broken = self.broken.or(self.ghost.synced(covered).err());
        }
    }
}
