//! Clocks of servers, which run at different rates and can be set.

use crate::simulator::settings::workload::Micros;
use hekate_brick::storage::Random;
use hekate_proto::Time;
use std::time::Duration;

/// Initial time in ns since 1970, so that clocks that are set back still show times after 1970.
const BEGIN: i64 = 1_000_000_000_000;

/// The clock of one server, or of the coordinator.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Rate: it gains this many per 1,000.
    faster: i64,
    /// Offset of the time of day, in ns. Leases use a clock that cannot be set.
    offset: i64,
}

impl Clock {
    /// A clock with a rate within `drift` per 1,000.
    pub fn new(server: u32, drift: u64, random: &mut Random) -> Self {
        let faster = if drift == 0 { 0 } else { random.below(2 * drift + 1) as i64 - drift as i64 };
        Self { faster, offset: BEGIN + i64::from(server) * 1_700_000 }
    }

    /// The time of day.
    pub fn time(&self, now: Micros) -> Time {
        Time(now as i64 * (1000 + self.faster) + self.offset)
    }

    /// Time that has passed on a clock which cannot be set.
    pub fn elapsed(&self, now: Micros) -> Duration {
        Duration::from_nanos((now as i64 * (1000 + self.faster)).unsigned_abs())
    }

    /// Simulated time at which this clock has advanced by `time`.
    pub fn after(&self, now: Micros, time: Micros) -> Micros {
        now + time * 1000 / (1000 + self.faster).unsigned_abs()
    }

    /// Sets the clock forward or back, by ns.
    pub fn set(&mut self, by_ns: i64) {
        self.offset += by_ns;
    }
}
