//! Random faults.

use super::judge::RING;
use super::world::{Event, World, trace};
use crate::cluster::network::pair;
use hekate_brick::storage::Survivors;
use hekate_proto::BrickId;
use hekate_replica::{Address, Partition};
use std::collections::BTreeSet;

/// Longest pause of a process, longest cut of a network and of the way to the coordinator, in µs.
const PAUSE_MAX: u64 = 8_000_000;
const CUT_MAX: u64 = 8_000_000;
/// Longest time in which the coordinator's answers come late, in µs.
const SLOW_MAX: u64 = 6_000_000;

impl World {
    /// Causes one fault, and schedules the next.
    pub fn fault(&mut self) {
        if !self.faults_on {
            return;
        }
        let delay = self.delay(2 * self.settings.faults_every);
        self.after(delay, Event::Fault);
        let server = self.random.below(u64::from(self.settings.servers)) as u32;
        if self.random.below(100) < self.settings.coordinator_cuts {
            return self.cut_off_from_coordinator(server);
        }
        match self.random.below(12) {
            0..=2 => {
                trace!(self, "server {server} is killed");
                self.report.count("fault: kill");
                self.kill(server);
            }
            3 => {
                trace!(self, "all servers are killed");
                self.report.count("fault: all are killed");
                (0..self.settings.servers).for_each(|server| self.kill(server));
            }
            4 | 5 => self.pause(server),
            6 => self.cut_off(server),
            7 => self.cut_off_from_coordinator(server),
            8 => self.client_dies(),
            9 => self.cut_power(&[server]),
            10 if self.random.once_in(2) => self.cut_power(&(0..self.settings.servers).collect::<Vec<_>>()),
            _ => self.cut_connection(),
        }
    }

    /// Machines lose their power at the same moment, and with it what is not on stable storage.
    fn cut_power(&mut self, servers: &[u32]) {
        trace!(self, "servers {servers:?} lose power");
        self.report.count("fault: power cut");
        let bricks: BTreeSet<BrickId> = servers.iter().map(|server| self.servers[*server as usize].brick).collect();
        if !self.remembers_without(&bricks) {
            trace!(self, "what was not synced may be lost");
            self.report.count("power cuts after which no replica had its memory");
            let at = self.moment();
            self.history.power_cut(at);
        }
        for server in servers {
            self.kill(*server);
            let seed = self.random.number();
            let survivors = if seed.is_multiple_of(4) { Survivors::Nothing } else { Survivors::Seeded(seed) };
            self.servers[*server as usize].disk.cut_power(survivors);
        }
    }

    /// True if each partition is served by a leader here whose members all have its records, and one of them is not
    /// among these bricks.
    fn remembers_without(&self, bricks: &BTreeSet<BrickId>) -> bool {
        let Ok(ring) = self.ring() else { return false };
        let mut complete = BTreeSet::new();
        for server in &self.servers {
            let look = |at: &Address, partition: &Partition| {
                let view = partition.view();
                let is_current = ring.view(at.partition).is_some_and(|view| *view == *partition.view());
                let serves = is_current && view.opened && view.leader == at.brick && partition.serves();
                let stays = view.members.iter().any(|member| !bricks.contains(&member.brick));
                if serves && partition.waits_for().is_empty() && stays {
                    complete.insert(at.partition);
                }
            };
            if let Some(node) = &server.node {
                node.inspect(RING, look);
            }
        }
        complete.len() == ring.views.len()
    }

    /// SIGSTOP, and SIGCONT after a while.
    fn pause(&mut self, server: u32) {
        let time = self.delay(PAUSE_MAX);
        trace!(self, "server {server} stands still for {time}");
        self.report.count("fault: pause");
        self.paused.insert(server, self.now + time);
    }

    /// A server does not reach another one.
    fn cut_off(&mut self, server: u32) {
        let other = self.random.below(u64::from(self.settings.servers)) as u32;
        let (pair, time) = (pair(server, other), self.delay(CUT_MAX));
        trace!(self, "the network between servers {server} and {other} is cut for {time}");
        self.report.count("fault: network cut");
        self.cut.insert(pair);
        self.after(time, Event::NetworkHeals { pair });
    }

    /// A server does not reach the coordinator; half of the times it has had late answers before that.
    fn cut_off_from_coordinator(&mut self, server: u32) {
        let slow = if self.random.once_in(2) { self.delay(SLOW_MAX) } else { 0 };
        let time = self.delay(CUT_MAX);
        trace!(self, "the coordinator is slow for server {server} for {slow}, and then out of reach for {time}");
        self.report.count("fault: coordinator cut");
        self.slow.insert(server, self.now + slow);
        self.apart.insert(server, self.now + slow + time);
    }

    /// Ends all faults.
    pub fn heal(&mut self) {
        trace!(self, "all faults end");
        self.faults_on = false;
        self.cut.clear();
        self.paused.clear();
        self.slow.clear();
        self.apart.clear();
    }
}
