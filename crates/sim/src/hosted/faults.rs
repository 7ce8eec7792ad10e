//! Random faults.

use super::servers::pair;
use super::world::{Event, World, trace};

/// Longest pause of a process, longest cut of a network and of the way to the coordinator, in µs.
const PAUSE_MAX: u64 = 8_000_000;
const CUT_MAX: u64 = 8_000_000;

impl World {
    /// Causes one fault, and schedules the next.
    pub fn fault(&mut self) {
        if !self.faults_on {
            return;
        }
        let delay = self.delay(2 * self.settings.faults_every);
        self.after(delay, Event::Fault);
        let server = self.random.below(u64::from(self.settings.servers)) as u32;
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
            7 => {
                let time = self.delay(CUT_MAX);
                trace!(self, "server {server} cannot reach the coordinator for {time}");
                self.report.count("fault: coordinator cut");
                self.apart.insert(server, self.now + time);
            }
            8 => self.client_dies(),
            _ => self.cut_connection(),
        }
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

    /// Ends all faults.
    pub fn heal(&mut self) {
        trace!(self, "all faults end");
        self.faults_on = false;
        self.cut.clear();
        self.paused.clear();
        self.apart.clear();
    }
}
