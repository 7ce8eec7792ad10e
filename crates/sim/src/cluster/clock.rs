//! Clocks of servers: none goes as fast as the others, and people set them.

use super::settings::Micros;
use hekate_brick::storage::Random;
use hekate_proto::Time;

/// Clocks that are set back show times after this, 1970.
const BEGIN: i64 = 1_000_000_000_000;

/// One server's, or the coordinator's.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Goes faster by so many in 1,000.
    faster: i64,
    /// Of the time of day, in ns; leases go by a clock that nobody sets.
    offset: i64,
}

impl Clock {
    /// Up to `drift` in 1,000 faster or slower.
    pub fn new(server: u32, drift: u64, random: &mut Random) -> Self {
        let faster = if drift == 0 { 0 } else { random.below(2 * drift + 1) as i64 - drift as i64 };
        Self { faster, offset: BEGIN + i64::from(server) * 1_700_000 }
    }

    /// The time of day.
    pub fn time(&self, now: Micros) -> Time {
        Time(now as i64 * (1000 + self.faster) + self.offset)
    }

    /// When by this clock so much has passed.
    pub fn after(&self, now: Micros, time: Micros) -> Micros {
        now + time * 1000 / (1000 + self.faster).unsigned_abs()
    }

    /// Somebody sets it.
    pub fn set(&mut self, by_ns: i64) {
        self.offset += by_ns;
    }
}
