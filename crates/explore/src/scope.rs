//! The bounds of an exploration: numbers of replicas, clients and writes, and how often each fault may happen.

use crate::rules::Rules;
use crate::state::{Budget, Mask};

/// A line of a client's script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Writes one cell of a shard; sent as a fast write first.
    Fast { shard: u8, cell: u8 },
    /// Writes one cell of a shard through the leader.
    Led { shard: u8, cell: u8 },
    /// fsync of this client's writes.
    Sync,
}

/// One configuration.
#[derive(Debug, Clone)]
pub struct Scope {
    pub name: &'static str,
    pub replicas: u8,
    pub shards: u8,
    /// A script for each client.
    pub scripts: Vec<Vec<Line>>,
    /// Ops of one client that may be in flight at once.
    pub pipeline: usize,
    pub faults: Budget,
    /// True if synced and unsynced data are distinguished.
    pub power: bool,
    /// New replicas: they run, and are in no view.
    pub new: Mask,
    /// True if a brick may sync at any moment; false if only when a client asks for it.
    pub background_syncs: bool,
    /// Requests of a client to a replica may overtake each other.
    pub unordered: bool,
    /// Notes that a write is settled may arrive late.
    pub late_notes: bool,
    pub rules: Rules,
    /// Limit of the number of states; an exploration that reaches it fails.
    pub states_max: usize,
}

impl Scope {
    /// An op's client and line; ops are numbered through all scripts, from 1.
    pub fn op(&self, op: u8) -> (usize, Line) {
        let mut number = 0;
        for (client, script) in self.scripts.iter().enumerate() {
            for line in script.iter().filter(|line| **line != Line::Sync) {
                number += 1;
                if number == op {
                    return (client, *line);
                }
            }
        }
        unreachable!("there is no op {op}")
    }

    /// The op number of a line of a client's script.
    pub fn number(&self, client: usize, line: usize) -> u8 {
        let lines = self.scripts[..client].iter().flatten().chain(&self.scripts[client][..=line]);
        lines.filter(|line| **line != Line::Sync).count() as u8
    }

    /// Shard and cell that an op writes.
    pub fn target(&self, op: u8) -> (usize, usize) {
        match self.op(op).1 {
            Line::Fast { shard, cell } | Line::Led { shard, cell } => (shard as usize, cell as usize),
            Line::Sync => unreachable!("a sync writes nothing"),
        }
    }

    /// Ops of a shard, as a mask.
    pub fn ops_of(&self, shard: usize) -> u8 {
        let writes = self.scripts.iter().flatten().filter(|line| **line != Line::Sync).count() as u8;
        (1..=writes).filter(|op| self.target(*op).0 == shard).fold(0, |mask, op| mask | bit(op))
    }
}

/// A mask with one op, replica or cell.
pub fn bit(number: u8) -> u8 {
    1 << number
}

/// The elements of a mask.
pub fn numbers(mask: u8) -> impl Iterator<Item = u8> {
    (0..8).filter(move |number| mask & bit(*number) != 0)
}
