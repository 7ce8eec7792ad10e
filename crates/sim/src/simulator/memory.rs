//! What the servers know, and which bricks have everything: looks at the cluster that change nothing.

use crate::simulator::judge::RING;
use crate::simulator::servers::coordinator::AtHand;
use crate::simulator::settings::workload::Micros;
use crate::simulator::world::{Event, World, trace};
use hekate_cluster::{Registry, RingInfo};
use hekate_proto::*;
use hekate_replica::{Address, Partition};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Time between two looks at the servers.
const LOOK: Micros = 50_000;
/// Longest time until an operator starts a server again of which a brick has stopped.
const RESTART_MAX: Micros = 4_000_000;

impl World {
    /// The ring's record.
    ///
    /// # Errors
    ///
    /// The ring is not recorded.
    pub fn ring(&self) -> Result<Arc<RingInfo>> {
        let changes = self.store.lock().ring_changes();
        if let Some((_, ring)) = self.ring_read.borrow().as_ref().filter(|(read, _)| *read == changes) {
            return Ok(ring.clone());
        }
        let registry = Registry::new(Arc::new(AtHand(self.store.clone())));
        let ring = Arc::new(registry.ring(RING)?.ok_or_else(|| Error::bug("there is no ring"))?);
        *self.ring_read.borrow_mut() = Some((changes, ring.clone()));
        Ok(ring)
    }

    /// Looks at all servers, now and again.
    pub fn watch(&mut self) {
        self.after(LOOK, Event::Watch);
        if let Ok(ring) = self.ring() {
            self.note_complete(&ring);
            self.count_views(&ring);
        }
        (0..self.settings.servers).for_each(|server| self.look_for_stopped(server));
    }

    /// Counts the views that were formed since the last look.
    fn count_views(&mut self, ring: &RingInfo) {
        let before = std::mem::replace(&mut self.views_seen, ring.views.clone());
        for (before, view) in before.iter().zip(&ring.views).filter(|(before, view)| before.epoch != view.epoch) {
            self.report.count("new views");
            self.report.add("branch: a view with learners", u64::from(!view.learners.is_empty()));
            self.report.add("branch: a view that is forgetful", u64::from(view.forgetful));
            self.report.add("branch: another leader", u64::from(view.leader != before.leader));
        }
    }

    /// Notes the bricks that have all records of the partitions that are served.
    fn note_complete(&mut self, ring: &RingInfo) {
        self.complete.resize(ring.views.len(), BTreeSet::new());
        for server in &self.servers {
            let Some(node) = &server.node else { continue };
            let (complete, forgot, lost) = (&mut self.complete, &self.forgot, &mut self.lost);
            let look = |at: &Address, partition: &Partition| {
                let view = partition.view();
                let is_current = ring.view(at.partition) == Some(view);
                let serves = is_current && view.opened && view.leader == at.brick && partition.serves();
                if serves && !partition.hides_loss() {
                    lost.remove(&at.partition.0);
                }
                if serves && partition.waits_for().is_empty() {
                    // It learns late that a member is down.
                    let remembers = view.members.iter().filter(|member| !forgot.contains(member));
                    complete[at.partition.0 as usize] = remembers.map(|member| member.brick).collect();
                }
            };
            node.inspect(RING, look);
        }
    }

    /// A brick that has stopped does not serve until its server is started again.
    fn look_for_stopped(&mut self, server: u32) {
        let own = &self.servers[server as usize];
        let Some(node) = own.node.clone().filter(|_| !own.is_to_restart) else { return };
        let stopped = |brick| Some((brick, node.open_brick(brick)?.stopped()?));
        let Some((brick, why)) = own.disks.values().find_map(|slot| stopped(slot.brick)) else { return };
        trace!(self, "brick {} of server {server} has stopped: {why}", brick.0);
        self.report.count("bricks that stopped");
        if !self.disk(brick).is_some_and(|disk| disk.take_failed()) {
            self.wrong.push(format!("brick {} stopped, and nothing had failed: {why}", brick.0));
        }
        self.servers[server as usize].is_to_restart = true;
        let delay = self.delay(RESTART_MAX);
        self.after(delay, Event::Kill { server });
    }

    /// These bricks have only what is on stable storage. If no other brick has everything of a partition, changes of it
    /// that were acknowledged may be lost. The set of bricks that have everything is that of the last look: an answer
    /// since then is lost with any member, and a view that has begun since may have answered for changes that only its
    /// members have.
    pub fn lose_memory(&mut self, bricks: &BTreeSet<BrickId>) {
        let Ok(ring) = self.ring() else { return };
        let numbers = (0..ring.views.len() as u32).map(PartitionNumber);
        let views = numbers.flat_map(|number| ring.view(number).into_iter().chain(ring.opened(number)));
        for member in views.flat_map(|view| view.all()).filter(|member| bricks.contains(&member.brick)) {
            if !self.forgot.contains(member) {
                self.forgot.push(*member);
            }
        }
        let mut lost = Vec::new();
        for (number, complete) in (0..).map(PartitionNumber).zip(&mut self.complete) {
            let is_member = |brick: &BrickId| ring.opened(number).is_none_or(|opened| opened.has_member(*brick));
            complete.retain(|brick| !bricks.contains(brick) && is_member(brick));
            let held = ring.view(number).is_some_and(|view| view.members.iter().any(|one| bricks.contains(&one.brick)));
            if complete.is_empty() && held {
                lost.push(number.0);
            }
        }
        if lost.is_empty() {
            return self.report.count("power cuts after which each partition had its memory");
        }
        let at = self.moment();
        trace!(self, "what was not synced of partitions {lost:?} may be lost, moment {at}");
        self.report.count("power cuts after which no replica had its memory");
        self.history.power_cut(at);
        self.lost.extend(lost);
    }

    /// A client has answered from memory. Until its lease is over it may show what a power cut has taken; no leader of
    /// that partition serves yet, so the loss may come afterwards.
    pub fn answered_from_memory(&mut self) {
        if !self.lost.is_empty() {
            let at = self.moment();
            self.history.power_cut_may_come_later(at);
        }
    }
}
