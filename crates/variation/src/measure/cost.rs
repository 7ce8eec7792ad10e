//! Processor time used by measuring and planning, kernel included.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Processor time of the process so far.
pub fn processor_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// Processor time of this thread so far.
pub fn thread_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
