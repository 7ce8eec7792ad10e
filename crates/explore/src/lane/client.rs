//! A session: it sends a fast write where a leader has permitted it, and sends every other op, and every fast write
//! that fails, to the leader.

use super::*;
use crate::scope::{Line, numbers};

impl World {
    pub(super) fn can_begin(&self, lane: &Lane, client: usize) -> bool {
        let at = &self.clients[client];
        at.up && at.work.is_none() && at.syncing.is_none() && (at.next as usize) < lane.scope.scripts[client].len()
    }

    pub(super) fn begin(&mut self, lane: &Lane, client: usize) {
        let at = &mut self.clients[client];
        let line = at.next as usize;
        at.next += 1;
        if lane.scope.scripts[client][line] == Line::Sync {
            at.syncing = Some(0);
            return;
        }
        let op = lane.scope.number(client, line);
        self.ghost.sent(op);
        let Some(allowed) = at.allowed.take().filter(|allowed| allowed.epoch == at.epoch) else {
            at.work = Some((op, Work::Led));
            return;
        };
        let members = at.members;
        at.work = Some((op, Work::Fast { members, done: 0, failed: false }));
        at.allowed = Some(Allowed { stamp: Stamp::Fast(op), ..allowed });
        for to in numbers(members).filter(|to| self.replicas[*to as usize].up).collect::<Vec<_>>() {
            let queue = &mut self.front[to as usize];
            queue.push(Fast { op, allowed });
            queue.sort_by_key(|fast| fast.op);
        }
    }

    pub(super) fn can_ack(&self, client: usize) -> bool {
        match self.clients[client].work {
            Some((_, Work::Fast { members, done, failed })) => done == members && !failed,
            Some((_, Work::Answered { .. })) => true,
            _ => false,
        }
    }

    pub(super) fn ack(&mut self, lane: &Lane, client: usize) {
        let at = &mut self.clients[client];
        let Some((op, work)) = at.work.take() else { return };
        let mut losses = at.losses;
        if let Work::Answered { allows, losses: then } = work {
            let epoch = at.epoch;
            at.allowed = allows.map(|(term, stamp)| Allowed { epoch, term, stamp });
            losses = then;
        }
        self.acked(lane, client, op, losses);
    }

    /// True if the op was refused, or one of its messages is lost.
    pub(super) fn is_stuck(&self, client: usize) -> bool {
        let Some((op, Work::Fast { members, done, failed })) = self.clients[client].work else { return false };
        let under_way = |to: u8| self.front[to as usize].iter().any(|fast| fast.op == op);
        failed || numbers(members & !done).any(|to| !under_way(to))
    }

    /// Rule 5: under the same id.
    pub(super) fn go_to_leader(&mut self, client: usize) {
        let at = &mut self.clients[client];
        at.allowed = None;
        at.work = at.work.map(|(op, _)| (op, Work::Led));
    }

    pub(super) fn refresh(&mut self, lane: &Lane, client: usize) {
        let opened = self.views.opened;
        let at = &mut self.clients[client];
        (at.epoch, at.members, at.losses) = (opened.epoch, opened.members, opened.losses);
        at.syncing = at.syncing.map(|done| if lane.rules.one_view_syncs { 0 } else { done });
        if let Some((_, Work::Fast { .. })) = self.clients[client].work {
            self.go_to_leader(client);
        }
    }

    /// The leader that would accept its op now.
    pub(super) fn leader_for(&self, client: usize) -> Option<u8> {
        let at = &self.clients[client];
        let Some((op, Work::Led)) = at.work.filter(|_| at.up) else { return None };
        let takes = |leader: &u8| {
            let replica = &self.replicas[*leader as usize];
            let Some(view) = self.view_of(*leader).filter(|view| view.epoch == at.epoch) else { return false };
            replica.lead.as_ref().is_some_and(|lead| {
                let all_known = view.members & !bit(*leader) & !lead.known == 0;
                let waits = lead.due || lead.closing.is_some() || lead.pending.iter().any(|(one, ..)| *one == op);
                replica.serves() && all_known && !waits
            })
        };
        (0..self.replicas.len() as u8).find(takes)
    }
}
