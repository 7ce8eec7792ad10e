//! Clocks and sleeps.

use crate::scheduler::current;
use std::time::{Duration, Instant, SystemTime};

/// The time of a clock that never goes back.
pub fn now() -> Instant {
    current().map_or_else(Instant::now, |scheduler| scheduler.now())
}

/// The time that has passed since a moment of [`now`].
pub fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

/// The time since the machine was started, also while it slept (CLOCK_BOOTTIME).
pub fn boot_time() -> Duration {
    let machine = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    current().map_or_else(machine, |scheduler| scheduler.boot_time())
}

/// The time of day.
pub fn time_of_day() -> SystemTime {
    current().map_or_else(SystemTime::now, |scheduler| scheduler.time_of_day())
}

/// Suspends the thread for this long.
pub fn sleep(time: Duration) {
    match current() {
        Some(scheduler) => scheduler.sleep(time),
        None => std::thread::sleep(time),
    }
}
