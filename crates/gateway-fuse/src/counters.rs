//! How many requests of each kind a mount has had.

use crate::abi::Opcode;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of requests since the mount.
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

    /// Each kind of request that came, by name.
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
