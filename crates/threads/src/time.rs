//! Clocks and sleeps.

use crate::scheduler::current;
use std::time::{Duration, Instant, SystemTime};

/// The time of the monotonic clock (CLOCK_MONOTONIC).
pub fn now() -> Instant {
    current().map_or_else(Instant::now, |scheduler| scheduler.now())
}

/// Time since `since`, a result of [`now`].
pub fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

/// Time since the machine booted, including suspends (CLOCK_BOOTTIME).
pub fn boot_time() -> Duration {
    let machine = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    current().map_or_else(machine, |scheduler| scheduler.boot_time())
}

/// The time of day (CLOCK_REALTIME).
pub fn time_of_day() -> SystemTime {
    current().map_or_else(SystemTime::now, |scheduler| scheduler.time_of_day())
}

/// Suspends the thread for `time`.
pub fn sleep(time: Duration) {
    match current() {
        Some(scheduler) => scheduler.sleep(time),
        None => std::thread::sleep(time),
    }
}
