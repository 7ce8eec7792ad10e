//! The network between servers: packets are lost, duplicated, delayed, and so reordered; machines are cut off.

use super::world::{Event, World, trace};
use hekate_transport::link::Packet;

/// Factor by which a slow packet takes longer.
const SLOW: u64 = 20;

impl World {
    /// Sends a packet.
    pub fn transmit(&mut self, from: u32, to: u32, packet: Packet) {
        self.report.count("packets");
        if self.is_cut(from, to) {
            return;
        }
        let network = self.settings.network;
        if self.faults_on && self.per_mille(network.lost) {
            return self.report.count("fault: a packet lost");
        }
        if self.faults_on && self.per_mille(network.doubled) {
            self.report.count("fault: a packet doubled");
            self.packet(from, to, packet.clone());
        }
        self.packet(from, to, packet);
    }

    fn packet(&mut self, from: u32, to: u32, packet: Packet) {
        let mut delay = self.delay(self.settings.network.delay_max);
        if self.faults_on && self.per_mille(self.settings.network.slow) {
            self.report.count("fault: a slow packet");
            delay *= SLOW;
        }
        self.after(delay, Event::Packet { to, from, packet });
    }

    fn is_cut(&self, one: u32, other: u32) -> bool {
        let machine = |server: u32| self.servers[server as usize].machine;
        self.cut.contains(&pair(machine(one), machine(other))) || self.cut_to.contains(&(machine(one), machine(other)))
    }

    /// Drops packets of one machine to another for a while.
    pub fn cut_from(&mut self, from: u32, to: u32, time: u64) {
        trace!(self, "machine {to} does not hear machine {from}");
        self.cut_to.insert((from, to));
        self.after(time, Event::OneWayHeals { from, to });
    }

    /// Drops all packets between two machines for a while.
    pub fn cut_network(&mut self, one: u32, other: u32, time: u64) {
        trace!(self, "the network between machines {one} and {other} is cut");
        self.cut.insert(pair(one, other));
        self.after(time, Event::NetworkHeals { pair: pair(one, other) });
    }
}

/// Two servers or machines in order.
pub fn pair(one: u32, other: u32) -> (u32, u32) {
    (one.min(other), one.max(other))
}
