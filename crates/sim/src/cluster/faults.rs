//! Random faults.

use super::world::{Event, World, trace};
use std::collections::BTreeSet;

/// Interval between looks for an opportunity in an ambush, in µs.
const AMBUSH_LOOK: u64 = 500;
/// Time for which a leg counts as in flight, in µs.
const LEG_TAKES: u64 = 2_000;
/// Longest time between two faults of a pair, in µs: nearly at once, or after clients have continued for a while.
const FOLLOWS_MAX: [u64; 2] = [3_000, 60_000];

impl World {
    /// Causes one fault, and schedules the next.
    pub fn fault(&mut self) {
        if !self.faults_on {
            return;
        }
        if self.settings.ambush && !self.is_busy() {
            return self.after(AMBUSH_LOOK, Event::Fault);
        }
        let every = self.settings.faults.every;
        let is_followed = self.settings.ambush && self.random.once_in(2);
        let follows = if is_followed { FOLLOWS_MAX[self.random.below(2) as usize] } else { 2 * every };
        let delay = self.delay(follows);
        self.after(delay, Event::Fault);
        let weights = self.settings.faults.weights();
        let mut at = self.random.below(weights.iter().sum());
        let chosen = weights.iter().position(|weight| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        // While a block is damaged, faults that take the other copies would lose data; so would writes that only the
        // damaged brick receives.
        let is_second = !matches!(chosen, Some(4 | 5 | 7 | 8 | 12 | 13 | 17)) && self.rotten.is_some();
        match chosen.filter(|_| !is_second) {
            Some(0) => self.kill_one(),
            Some(1) => self.cut_one(),
            Some(2) => self.cut_all(),
            Some(3) => self.cut_between(),
            Some(4) => self.reset_one(),
            Some(5) => self.fill_one(),
            Some(6) => self.fail_one(),
            Some(7) => self.client_dies(),
            Some(8) => self.cut_connection(),
            Some(9) => self.cut_coordinator(),
            Some(10) => self.pause_one(),
            Some(11) => self.cut_one_way(),
            Some(12) => self.set_one_clock(),
            Some(13) => self.rot_one(),
            Some(14) => {
                let brick = self.one_brick();
                self.older_copy(brick);
            }
            Some(15) => {
                let brick = self.one_brick();
                self.wipe(brick);
            }
            Some(16) => self.split_one(),
            Some(17) => self.rot_journal(),
            Some(_) => self.kill_all(),
            None => {}
        }
    }

    /// Damages a brick; most have something in progress, so several are tried.
    fn rot_one(&mut self) {
        let bricks: Vec<_> = (0..4).map(|_| self.one_brick()).collect();
        bricks.into_iter().for_each(|brick| self.rot(brick));
    }

    /// A random server; in an ambush the one that has just sent a leg, if there is one.
    fn one_server(&mut self) -> u32 {
        let server = self.random.below(u64::from(self.settings.servers)) as u32;
        self.waylaid().filter(|_| self.settings.ambush).unwrap_or(server)
    }

    pub fn waylaid(&self) -> Option<u32> {
        let has_sent = |server: &super::world::Server| {
            let sent = server.process.as_ref().and_then(|process| process.leg_sent);
            sent.is_some_and(|sent| self.now < sent + LEG_TAKES)
        };
        self.servers.iter().position(has_sent).map(|server| server as u32)
    }

    fn one_brick(&mut self) -> hekate_proto::BrickId {
        let all: Vec<_> = self.disks.keys().copied().collect();
        all[self.random.below(all.len() as u64) as usize]
    }

    /// Kills a server now, or during a storage call of one of its disks.
    fn kill_one(&mut self) {
        let server = self.one_server();
        if self.servers[server as usize].process.is_none() {
            return;
        }
        self.report.count("fault: kill");
        if self.random.once_in(3) {
            trace!(self, "server {server} is killed");
            return self.kill(server);
        }
        let bricks = self.servers[server as usize].bricks.clone();
        let brick = bricks[self.random.below(bricks.len() as u64) as usize];
        let calls = self.random.below(40);
        trace!(self, "server {server} is to be killed in {calls} calls of brick {}", brick.0);
        self.disk(brick).die_after(calls);
    }

    fn bricks_on(&self, machine: u32) -> BTreeSet<hekate_proto::BrickId> {
        let on = self.servers.iter().filter(|server| server.machine == machine);
        on.flat_map(|server| server.bricks.iter().copied()).collect()
    }

    fn cut_one(&mut self) {
        let machine = self.random.below(u64::from(self.settings.machines)) as u32;
        trace!(self, "machine {machine} loses power");
        self.report.count("fault: power cut");
        self.cut_power(machine);
        self.lose_memory(&self.bricks_on(machine));
    }

    /// Kills all processes at once: each may have records that the others lack.
    fn kill_all(&mut self) {
        trace!(self, "all servers are killed");
        self.report.count("fault: all are killed");
        (0..self.settings.servers).for_each(|server| self.kill(server));
    }

    fn cut_all(&mut self) {
        trace!(self, "all machines lose power");
        self.report.count("fault: power cut of all");
        (0..self.settings.machines).for_each(|machine| self.cut_power(machine));
        let all = self.disks.keys().copied().collect();
        self.lose_memory(&all);
    }

    fn cut_between(&mut self) {
        if self.settings.machines < 2 {
            return;
        }
        let one = self.random.below(u64::from(self.settings.machines)) as u32;
        let step = 1 + self.random.below(u64::from(self.settings.machines) - 1) as u32;
        let time = self.delay(800_000);
        self.report.count("fault: network cut");
        self.cut_network(one, (one + step) % self.settings.machines, time);
    }

    /// Packets of one machine to another are lost, those of the other direction are not.
    fn cut_one_way(&mut self) {
        if self.settings.machines < 2 {
            return;
        }
        let from = self.random.below(u64::from(self.settings.machines)) as u32;
        let waylaid = self.waylaid().filter(|_| self.settings.ambush);
        let from = waylaid.map_or(from, |server| self.servers[server as usize].machine);
        let step = 1 + self.random.below(u64::from(self.settings.machines) - 1) as u32;
        let time = self.delay(800_000);
        self.report.count("fault: network cut one way");
        self.cut_from(from, (from + step) % self.settings.machines, time);
    }

    /// SIGSTOP, and SIGCONT after a while: messages wait meanwhile.
    fn pause_one(&mut self) {
        let server = self.one_server();
        let time = self.delay(3 * self.settings.lease.max(50_000));
        trace!(self, "server {server} stands still for {time}");
        self.report.count("fault: pause");
        self.paused.insert(server, self.now + time);
    }

    /// By up to 10 s forward or back.
    fn set_one_clock(&mut self) {
        let server = self.one_server();
        let by = self.random.below(20_000_000_000) as i64 - 10_000_000_000;
        trace!(self, "the clock of server {server} is set, by {by} ns");
        self.report.count("fault: a clock is set");
        self.clocks[server as usize].set(by);
        let clock = self.clocks[server as usize];
        self.act_in(server, None, |process, _| process.clock = clock);
    }

    fn cut_coordinator(&mut self) {
        let server = self.one_server();
        let time = self.delay(4 * self.settings.lease.max(50_000));
        trace!(self, "server {server} cannot reach the coordinator for {time}");
        self.report.count("fault: coordinator cut");
        self.apart.insert(server, self.now + time);
    }

    /// A leader on that server continues until its lease ends; meanwhile some clients reach it, and others reach the
    /// rest of the cluster.
    fn split_one(&mut self) {
        if self.apart.values().any(|until| *until > self.now) {
            return;
        }
        let server = self.one_server();
        let machine = self.servers[server as usize].machine;
        let time = self.settings.lease + self.delay(2 * self.settings.lease);
        trace!(self, "server {server} is split off from all others for {time}");
        self.report.count("fault: a server is split off");
        self.apart.insert(server, self.now + time);
        let others = (0..self.settings.machines).filter(|other| *other != machine);
        others.for_each(|other| self.cut_network(machine, other, time));
    }

    fn reset_one(&mut self) {
        let (one, other) = (self.one_server(), self.one_server());
        self.report.count("fault: link reset");
        let peer = hekate_proto::ServerId(other + 1);
        self.act_in(one, None, |process, now| process.reset_link(peer, now));
    }

    fn fill_one(&mut self) {
        let brick = self.one_brick();
        let taken = self.random.below(2) == 0;
        trace!(self, "the disk of brick {} is full, {}", brick.0, if taken { "and nothing is left" } else { "nearly" });
        self.report.count(if taken { "fault: full disk without any room" } else { "fault: full disk" });
        self.disks[&brick].fill(taken);
        let server = self.servers.iter().position(|server| server.bricks.contains(&brick)).unwrap_or_default();
        self.refresh_room(server as u32, brick);
        let delay = self.delay(300_000);
        self.after(delay, Event::DiskHeals { brick });
    }

    fn refresh_room(&mut self, server: u32, brick: hekate_proto::BrickId) {
        let _ = self.act_in(server, None, |process, _| process.bricks.get(&brick).map(|brick| brick.refresh_room()));
    }

    fn fail_one(&mut self) {
        let brick = self.one_brick();
        let after = self.random.below(10);
        trace!(self, "a sync of brick {} is to fail after {after}", brick.0);
        self.report.count("fault: failed sync");
        self.disks[&brick].fail_sync(after);
    }

    /// Ends all faults, and starts everything.
    pub fn heal(&mut self) {
        trace!(self, "all faults end");
        self.faults_on = false;
        self.cut.clear();
        self.cut_to.clear();
        self.paused.clear();
        self.apart.clear();
        self.disks.values().for_each(|disk| disk.heal());
    }
}
