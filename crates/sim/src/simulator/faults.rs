//! Random faults of processes, machines, networks, clocks and the coordinator; `disks.rs` has those of disks.

pub mod clock;
pub mod disk;
pub mod disks;

use crate::simulator::world::{Event, Server, World, trace};
use hekate_brick::storage::Survivors;
use hekate_cluster::LEASE;
use hekate_proto::BrickId;
use std::collections::BTreeSet;

/// Longest pause of a process, longest cut of a network and of the way to the coordinator, in µs.
const PAUSE_MAX: u64 = 8_000_000;
const CUT_MAX: u64 = 8_000_000;
/// Longest time in which the coordinator's answers come late, in µs.
const SLOW_MAX: u64 = 6_000_000;
/// Longest time for which a client stands still or reaches no server, in µs: longer than what a pledge delays.
const AWAY_MAX: u64 = 12_000_000;
/// Calls of a disk within which it kills its server.
const CALLS_MAX: u64 = 40;
/// Interval between looks for an opportunity in an ambush, in µs.
const AMBUSH_LOOK: u64 = 500;
/// Time for which a leg counts as in flight, in µs.
const LEG_TAKES: u64 = 20_000;
/// Longest time between two faults of a pair, in µs: nearly at once, or after clients have continued for a while.
const FOLLOWS_MAX: [u64; 2] = [30_000, 1_000_000];
/// The place of the fault that a server is stopped, behind those of `FaultSettings::weights`.
const STOP: usize = 22;

impl World {
    /// Causes one fault, and schedules the next.
    pub fn fault(&mut self) {
        if !self.faults_on {
            return;
        }
        let is_ambush = self.settings.workload.ambush;
        if is_ambush && !self.is_busy() {
            return self.after(AMBUSH_LOOK, Event::Fault);
        }
        let is_followed = is_ambush && self.random.once_in(2);
        let every = self.settings.faults.every;
        let follows = if is_followed { FOLLOWS_MAX[self.random.below(2) as usize] } else { 2 * every };
        let delay = self.delay(follows);
        self.after(delay, Event::Fault);
        let mut weights = self.settings.faults.weights().to_vec();
        weights.push(self.settings.stop);
        let mut at = self.random.below(weights.iter().sum());
        let chosen = weights.iter().position(|weight| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        // While a block is damaged, faults that take the other copies would lose data; so would writes that only the
        // damaged brick receives.
        let is_second = !matches!(chosen, Some(4 | 5 | 7 | 8 | 12 | 13 | 17 | 19 | 20 | 21)) && self.rotten.is_some();
        if let Some(chosen) = chosen.filter(|_| !is_second) {
            self.cause(chosen);
        }
    }

    /// Causes a fault, by its place in `FaultSettings::weights`.
    fn cause(&mut self, fault: usize) {
        let (server, brick) = (self.one_server(), self.one_brick());
        match fault {
            0 => self.kill_one(server),
            1 => self.cut_power(BTreeSet::from([self.servers[server as usize].machine])),
            2 => self.cut_power(self.servers.iter().map(|server| server.machine).collect()),
            3 => self.cut_off(server, true),
            4 => self.reset_link(server),
            5 => self.fill_one(brick),
            6 => self.fail_one(brick),
            7 => self.client_dies(),
            8 => self.cut_connection(),
            9 => self.cut_off_from_coordinator(server),
            10 => self.pause(server),
            11 => self.cut_off(server, false),
            12 => self.set_clock(server),
            // Most have something in progress, so several are tried.
            13 => self.bricks().into_iter().cycle().skip(brick.0 as usize).take(4).for_each(|brick| self.rot(brick)),
            14 => self.older_copy(brick),
            15 => self.lose_disk(brick),
            16 => self.split_off(),
            17 => self.rot_journal(brick),
            19 => self.pause_client(),
            20 => self.cut_client_off(),
            21 => self.cut_listener(),
            STOP => {
                trace!(self, "server {server} is stopped");
                self.report.count("fault: a server is stopped");
                self.stop(server);
            }
            _ => {
                trace!(self, "all servers are killed");
                self.report.count("fault: all are killed");
                (0..self.settings.servers).for_each(|server| self.kill(server));
            }
        }
    }

    /// A random server; in an ambush the one that has just sent a leg, if there is one.
    fn one_server(&mut self) -> u32 {
        let server = self.random.below(u64::from(self.settings.servers)) as u32;
        self.waylaid().filter(|_| self.settings.workload.ambush).unwrap_or(server)
    }

    fn waylaid(&self) -> Option<u32> {
        let has_sent = |server: &Server| server.leg_sent.is_some_and(|sent| self.now < sent + LEG_TAKES);
        self.servers.iter().position(has_sent).map(|server| server as u32)
    }

    /// True if it is time for an ambush: a write is in flight to all members, or a leg to another server.
    fn is_busy(&self) -> bool {
        self.messages.values().any(|message| message.is_fast) || self.waylaid().is_some()
    }

    fn one_brick(&mut self) -> BrickId {
        let all = self.bricks();
        all[self.random.below(all.len() as u64) as usize]
    }

    /// Kills a server now, or during a call of one of its disks.
    fn kill_one(&mut self, server: u32) {
        self.report.count("fault: kill");
        let in_calls = (!self.random.once_in(3)).then(|| self.random.below(CALLS_MAX));
        trace!(self, "server {server} is killed, in {in_calls:?} calls of a disk");
        match in_calls {
            None => self.kill(server),
            Some(calls) => {
                let disks = &self.servers[server as usize].disks;
                let chosen = self.random.below(disks.len() as u64) as usize;
                disks.values().nth(chosen).into_iter().for_each(|slot| slot.disk.die_after(calls));
            }
        }
    }

    /// A client that is to be away, and for how long; none while another one is.
    fn leaves(&mut self) -> Option<(u32, u64)> {
        let now = self.now;
        let is_away = |until: &u64| *until > now;
        if self.paused_clients.values().any(is_away) || self.out_of_reach.values().any(is_away) {
            return None;
        }
        let client = self.random.below(self.people.len() as u64) as u32;
        let Some(disks) = &self.settings.disks else { return Some((client, self.delay(AWAY_MAX))) };
        Some((client, disks.away[self.random.below(disks.away.len() as u64) as usize]))
    }

    /// A client stands still. Half of the times its connections end, as they do when its machine stands still.
    fn pause_client(&mut self) {
        let Some((client, time)) = self.leaves() else { return };
        let is_machine = self.random.once_in(2);
        trace!(self, "client {client} stands still for {time}, its machine {is_machine}");
        self.report.count("fault: a client is paused");
        self.paused_clients.insert(client, self.now + time);
        if is_machine {
            self.lose_connections_of(client);
        }
    }

    /// A client reaches no server.
    fn cut_client_off(&mut self) {
        let Some((client, time)) = self.leaves() else { return };
        trace!(self, "client {client} reaches no server for {time}");
        self.report.count("fault: a client is cut off");
        for server in 0..self.settings.servers {
            self.out_of_reach.insert((client, server), self.now + time);
        }
        self.lose_connections_of(client);
    }

    /// Machines lose their power at the same moment, and with it what is not on stable storage.
    fn cut_power(&mut self, machines: BTreeSet<u32>) {
        trace!(self, "machines {machines:?} lose power");
        let is_all = self.servers.iter().all(|server| machines.contains(&server.machine));
        self.report.count(if is_all { "fault: power cut of all" } else { "fault: power cut" });
        let mut bricks = BTreeSet::new();
        for server in 0..self.settings.servers {
            if !machines.contains(&self.servers[server as usize].machine) {
                continue;
            }
            self.kill(server);
            for slot in self.servers[server as usize].disks.values_mut() {
                bricks.insert(slot.brick);
                let seed = self.random.number();
                let survivors = if seed.is_multiple_of(4) { Survivors::Nothing } else { Survivors::Seeded(seed) };
                slot.disk.cut_power(survivors);
            }
        }
        self.lose_memory(&bricks);
    }

    /// SIGSTOP, and SIGCONT after a while.
    fn pause(&mut self, server: u32) {
        let time = self.delay(PAUSE_MAX);
        trace!(self, "server {server} stands still for {time}");
        self.report.count("fault: pause");
        self.paused.insert(server, self.now + time);
    }

    /// A machine does not reach another one, or in both directions.
    fn cut_off(&mut self, server: u32, is_both: bool) {
        let machines = u64::from(self.settings.workload.machines);
        if machines < 2 {
            return;
        }
        let from = self.servers[server as usize].machine;
        let to = (from + 1 + self.random.below(machines - 1) as u32) % machines as u32;
        let time = self.delay(CUT_MAX);
        self.report.count(if is_both { "fault: network cut" } else { "fault: network cut one way" });
        self.cut_network(from, to, time);
        if is_both {
            self.cut_network(to, from, time);
        }
    }

    fn cut_network(&mut self, from: u32, to: u32, time: u64) {
        trace!(self, "machine {to} receives nothing of machine {from} for {time}");
        self.cut.insert((from, to));
        self.after(time, Event::NetworkHeals { from, to });
    }

    /// The link between two servers ends, and begins anew.
    fn reset_link(&mut self, server: u32) {
        let other = self.random.below(u64::from(self.settings.servers)) as u32;
        self.report.count("fault: link reset");
        self.lose_link(server, other);
    }

    /// A server's clock is set by up to 10 s forward or back.
    fn set_clock(&mut self, server: u32) {
        let by = self.random.below(20_000_000_000) as i64 - 10_000_000_000;
        trace!(self, "the clock of server {server} is set, by {by} ns");
        self.report.count("fault: a clock is set");
        self.threads.clocks.entry(server).and_modify(|clock| clock.set(by));
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

    /// A server reaches neither the coordinator nor any other server for longer than its lease, so the others go on
    /// without it. Some clients reach only this server, and read there; the others reach only the rest.
    fn split_off(&mut self) {
        if self.apart.values().any(|until| *until > self.now) {
            return;
        }
        let server = self.leader_of_known().unwrap_or_else(|| self.one_server());
        let lease = LEASE.as_micros() as u64;
        let time = lease + lease / 2 + self.delay(2 * lease);
        trace!(self, "server {server} is split off from all others for {time}");
        self.report.count("fault: a server is split off");
        self.apart.insert(server, self.now + time);
        let machine = self.servers[server as usize].machine;
        for other in (0..self.settings.workload.machines).filter(|other| *other != machine) {
            self.cut_network(machine, other, time);
            self.cut_network(other, machine, time);
        }
        for client in 0..self.people.len() as u32 {
            let stays = self.random.once_in(2);
            if stays {
                self.staying.insert(client, self.now + time);
            }
            let others = (0..self.settings.servers).filter(|other| (*other == server) != stays);
            others.for_each(|other| _ = self.out_of_reach.insert((client, other), self.now + time));
        }
    }

    /// The server that leads the partition of the first file that clients know.
    fn leader_of_known(&self) -> Option<u32> {
        let (ring, inode) = (self.ring().ok()?, self.known.first_file()?);
        let number = inode.position().partition(ring.views.len() as u32);
        self.server_with(ring.view(number)?.leader)
    }

    /// Ends all faults.
    pub fn heal(&mut self) {
        trace!(self, "all faults end");
        self.faults_on = false;
        self.cut.clear();
        self.out_of_reach.clear();
        self.staying.clear();
        self.paused.clear();
        self.paused_clients.clear();
        self.slow.clear();
        self.apart.clear();
        self.servers.iter().flat_map(|server| server.disks.values()).for_each(|slot| slot.disk.heal());
    }
}
