//! Number of requests of each kind that a mount has received.

use crate::abi::Opcode;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of requests since the mount.
#[derive(Debug)]
pub struct Counters([AtomicU64; 64]);

impl Default for Counters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    pub(crate) fn count(&self, opcode: Opcode) {
        self.0[opcode as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The kinds of requests that were received, with their numbers.
    pub fn requests(&self) -> Vec<(&'static str, u64)> {
        let counts = Opcode::ALL.iter().map(|opcode| (opcode.name(), self.0[*opcode as usize].load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_is_listed() {
        let counters = Counters::default();
        counters.count(Opcode::Lookup);
        counters.count(Opcode::Lookup);
        counters.count(Opcode::Statx);
        assert_eq!(counters.requests(), [("Lookup", 2), ("Statx", 1)]);
    }
}
