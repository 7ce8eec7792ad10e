//! Counters of events in a run, and in many runs.

use std::collections::BTreeMap;
use std::fmt;

/// Counters by event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    counts: BTreeMap<String, u64>,
}

impl Report {
    pub fn count(&mut self, what: impl Into<String>) {
        self.add(what, 1);
    }

    pub fn add(&mut self, what: impl Into<String>, times: u64) {
        *self.counts.entry(what.into()).or_default() += times;
    }

    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    /// Adds the counters of another run.
    pub fn merge(&mut self, other: &Self) {
        other.counts.iter().for_each(|(what, times)| self.add(what.clone(), *times));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.iter().try_for_each(|(what, times)| writeln!(f, "  {times:>9}  {what}"))
    }
}
