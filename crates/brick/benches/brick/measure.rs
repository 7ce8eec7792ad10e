//! Clocks, counters of the kernel, and statistics of readings.

use std::time::Duration;

/// CPU time of this thread.
pub fn thread_cpu() -> Duration {
    clock(rustix::time::ClockId::ThreadCPUTime)
}

/// CPU time of all threads of this process.
pub fn process_cpu() -> Duration {
    clock(rustix::time::ClockId::ProcessCPUTime)
}

fn clock(id: rustix::time::ClockId) -> Duration {
    let now = rustix::time::clock_gettime(id);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// How often this thread gave up its processor to wait, and how often it was taken from it: proc(5).
pub fn thread_switches() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    (field(&text, "voluntary_ctxt_switches:"), field(&text, "nonvoluntary_ctxt_switches:"))
}

/// The most memory that this process ever had resident (VmHWM), in bytes.
pub fn peak_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&text, "VmHWM:") << 10
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// The value that `share` (0 to 1) of all do not exceed.
pub fn quantile(values: &mut [u64], share: f64) -> u64 {
    values.sort_unstable();
    let at = ((values.len() as f64 * share).ceil() as usize).saturating_sub(1);
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// Repeatable random numbers: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
