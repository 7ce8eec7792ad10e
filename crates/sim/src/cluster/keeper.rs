//! The work of `server/hosting/views.rs`: a server renews its lease, learns the views, forms the next view where one is
//! due and it is its turn, and records views as opened whose leaders are ready.

use super::settings::Micros;
use super::world::{Event, World, server_number, trace};
use hekate_cluster::views::{Due, Outlook, Seen, outlook, serves_for, waits_for};
use hekate_proto::*;
use hekate_transport::link::Boot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A process's lease, and its notes about its views.
#[derive(Debug, Default)]
pub struct Lease {
    until: Micros,
    started: Micros,
    due: BTreeMap<PartitionNumber, Micros>,
    silent: BTreeMap<(PartitionNumber, BrickId), Micros>,
    formed: BTreeMap<(PartitionNumber, Epoch), Micros>,
    /// Views whose leader in this process is ready.
    pub ready: BTreeSet<(PartitionNumber, Epoch)>,
}

impl Lease {
    /// A lease that must be renewed.
    pub fn new(now: Micros) -> Self {
        Self { started: now, ..Self::default() }
    }

    /// A lease that never ends.
    pub fn endless() -> Self {
        Self { until: Micros::MAX, ..Self::default() }
    }

    pub fn is_valid(&self, now: Micros) -> bool {
        now < self.until
    }
}

impl World {
    /// Renews the lease and handles views; called at intervals.
    pub fn keep(&mut self, server: u32, boot: Boot) {
        let lease = self.settings.lease;
        if self.servers[server as usize].process.as_ref().is_none_or(|process| process.boot != boot) {
            return;
        }
        let delay = self.delay(lease / 5);
        self.after(delay, Event::Keep { server, boot });
        if self.apart.get(&server).is_some_and(|until| *until > self.now) {
            return;
        }
        let coordinator = self.clocks[self.settings.servers as usize];
        self.coordinator.alive.insert(server, coordinator.after(self.now, lease));
        self.take_views(server, boot);
        let now = self.now;
        let kept = self.act_in(server, Some(boot), |process, _| {
            let serves = serves_for(Duration::from_micros(lease)).as_micros() as Micros;
            process.lease.until = process.clock.after(now, serves);
        });
        if kept.is_none() {
            return;
        }
        let seen = self.look_around(server);
        self.form_views(server, &seen);
        self.open_views(server, &seen);
        self.take_views(server, boot);
    }

    fn take_views(&mut self, server: u32, boot: Boot) {
        let views = self.coordinator.ring.views.clone();
        self.act_in(server, Some(boot), |process, now| process.learn_views(&views, now));
    }

    fn look_around(&mut self, server: u32) -> Seen {
        let bricks = self.servers.iter().enumerate().map(|(number, server)| (number as u32, &server.bricks[..]));
        let mut seen = self.coordinator.seen(bricks, self.now);
        let (now, silence) = (self.now, self.settings.lease * 4 / 3);
        let Some(process) = self.servers[server as usize].process.as_mut() else { return seen };
        for (at, partition) in &process.partitions {
            if partition.view().leader != at.brick {
                continue;
            }
            let away = partition.away();
            process.lease.silent.retain(|(number, brick), _| *number != at.partition || away.contains(brick));
            for brick in away {
                let since = *process.lease.silent.entry((at.partition, brick)).or_insert(now);
                if now >= since + silence {
                    seen.lost.insert((at.partition, brick));
                }
            }
            seen.lost.extend(partition.failed_members().into_iter().map(|brick| (at.partition, brick)));
            seen.alone.extend(partition.wants_alone().then_some(at.partition));
            seen.unfed.extend(partition.unfed_members().into_iter().map(|brick| (at.partition, brick)));
            seen.heirs.extend(partition.yields_to().map(|heir| (at.partition, heir)));
            let whole = partition.healing().into_iter().filter(|one| one.whole);
            seen.whole.extend(whole.map(|one| (at.partition, one.brick)));
        }
        seen
    }

    fn form_views(&mut self, server: u32, seen: &Seen) {
        let own = ServerId(server + 1);
        for number in (0..self.settings.partitions).map(PartitionNumber) {
            let info = &self.coordinator.ring;
            let Some(view) = info.view(number).cloned() else { continue };
            let (now, lease) = (self.now, self.settings.lease);
            let found = outlook(info, number, seen);
            let opened = info.opened(number).cloned();
            let Some(process) = self.servers[server as usize].process.as_mut() else { return };
            if !view.opened {
                process.lease.formed.entry((number, view.epoch)).or_insert(now);
            }
            let Outlook::Due(Due { view: next, servers }) = found else {
                process.lease.due.remove(&number);
                continue;
            };
            let since = *process.lease.due.entry(number).or_insert(now);
            let Some(turn) = servers.iter().position(|one| *one == own) else { continue };
            let is_unheard = |brick: BrickId| !seen.bricks.get(&brick).is_some_and(|seen| seen.serves);
            let leaves_out = opened.is_some_and(|opened| {
                opened.members.iter().any(|member| !next.has_member(member.brick) && is_unheard(member.brick))
            });
            let is_early = leaves_out && now < process.lease.started + 2 * lease;
            if is_early || now < since + lease / 3 * turn as u64 {
                continue;
            }
            process.lease.due.remove(&number);
            self.report.count("new views");
            self.report.add("branch: a view with learners", u64::from(!next.learners.is_empty()));
            self.report.add("branch: a view that is forgetful", u64::from(next.forgetful));
            self.report.add("branch: another leader", u64::from(next.leader != view.leader));
            trace!(self, "server {server} forms {next:?} of partition {number}");
            self.coordinator.ring.form(number, next);
            self.new_leaders();
        }
    }

    fn open_views(&mut self, server: u32, seen: &Seen) {
        let (now, lease) = (self.now, self.settings.lease);
        let Some(process) = self.servers[server as usize].process.as_mut() else { return };
        let clock = process.clock;
        let waits = waits_for(Duration::from_micros(lease)).as_micros() as Micros;
        let mut has_begun = false;
        for (number, epoch) in process.lease.ready.clone() {
            let info = &mut self.coordinator.ring;
            let is_due = info.view(number).is_some_and(|view| view.epoch == epoch && !view.opened);
            let Some(before) = info.opened(number).filter(|_| is_due).cloned() else {
                process.lease.ready.remove(&(number, epoch));
                continue;
            };
            let is_here = info.view(number).is_some_and(|view| view.has_member(before.leader));
            let alive = server_number(&self.settings, before.leader)
                .is_some_and(|server| self.coordinator.alive.get(&server).is_some_and(|until| *until > now));
            let waited =
                process.lease.formed.get(&(number, epoch)).is_some_and(|since| now >= clock.after(*since, waits));
            if is_here || !(alive && seen.remembers_leader(&before)) || waited {
                info.open(number, epoch);
                process.lease.ready.remove(&(number, epoch));
                has_begun = true;
                trace!(self, "view {epoch} of partition {number} begins");
            }
        }
        if has_begun && self.settings.rivals {
            self.an_idle_client_looks();
        }
    }
}
