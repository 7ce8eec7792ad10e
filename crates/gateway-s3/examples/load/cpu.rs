//! CPU of processes, from /proc/PID/stat.

/// Ticks a second, which Linux has in all of its ABIs.
const TICKS: f64 = 100.0;

/// CPU seconds since the start of the processes.
pub struct Cpu {
    pub own: f64,
    pub servers: f64,
}

impl Cpu {
    pub fn now(servers: &[u32]) -> Self {
        Self { own: seconds("self"), servers: servers.iter().map(|pid| seconds(&pid.to_string())).sum() }
    }
}

/// User and system time of a process; 0 if it has ended.
fn seconds(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS
}
