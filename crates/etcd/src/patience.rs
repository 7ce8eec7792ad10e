//! How long a request that is soon repeated waits for its answer.
//!
//! An endpoint whose member forwards to a dead leader does not answer at all, and the next one does: so a healthy etcd is
//! given little time. One whose disks are slow answers late, from every endpoint: so each answer that does not arrive
//! doubles the time, and one that arrives sets it by how long it took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(700);
const LONGEST: Duration = Duration::from_secs(3);
/// An answer may take so many times as long as the last one.
const FACTOR: u32 = 3;

/// The limit for the next request.
pub struct Patience(AtomicU64);

impl Patience {
    pub fn new() -> Self {
        Self(AtomicU64::new(SHORTEST.as_millis() as u64))
    }

    pub fn limit(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// An answer has arrived.
    pub fn answered(&self, after: Duration) {
        self.set((after * FACTOR).clamp(SHORTEST, LONGEST));
    }

    /// No answer has arrived within the limit.
    pub fn unanswered(&self, limit: Duration) {
        self.set((limit * 2).clamp(SHORTEST, LONGEST));
    }

    fn set(&self, limit: Duration) {
        self.0.store(limit.as_millis() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_etcd_is_given_more_time_and_a_fast_one_less() {
        let patience = Patience::new();
        assert_eq!(patience.limit(), SHORTEST);
        patience.unanswered(patience.limit());
        patience.unanswered(patience.limit());
        assert_eq!(patience.limit(), SHORTEST * 4);
        patience.unanswered(patience.limit());
        assert_eq!(patience.limit(), LONGEST);
        patience.answered(Duration::from_millis(500));
        assert_eq!(patience.limit(), Duration::from_millis(1500));
        patience.answered(Duration::from_millis(2));
        assert_eq!(patience.limit(), SHORTEST);
    }
}
