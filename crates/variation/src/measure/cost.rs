//! What measuring itself costs: the processor time of this process, kernel included.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Processor time of the process so far.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
