//! The line of JSON that is printed.

use super::cpu::Cpu;
use super::options::Options;

/// What clients have done.
#[derive(Default)]
pub struct Done {
    /// Of each request, in microseconds.
    pub latencies: Vec<u32>,
    /// Of objects, in either direction.
    pub bytes: u64,
    /// Answers of an unexpected status.
    pub errors: u64,
    /// Status of the last of them.
    pub error_status: u16,
}

impl Done {
    pub fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.error_status = self.error_status.max(other.error_status);
    }
}

pub struct Report(Vec<(&'static str, String)>);

impl Report {
    pub fn new(options: &Options, mut done: Done, seconds: f64, before: &Cpu, after: &Cpu) -> Self {
        done.latencies.sort_unstable();
        let count = done.latencies.len();
        let at = |share: f64| {
            let index = ((count as f64 * share) as usize).min(count.saturating_sub(1));
            f64::from(done.latencies.get(index).copied().unwrap_or(0)) / 1000.0
        };
        Self(vec![
            ("work", format!("\"{:?}\"", options.work).to_lowercase()),
            ("size", options.size.to_string()),
            ("clients", options.clients.to_string()),
            ("requests", count.to_string()),
            ("errors", done.errors.to_string()),
            ("error_status", done.error_status.to_string()),
            ("seconds", format!("{seconds:.3}")),
            ("per_s", format!("{:.1}", count as f64 / seconds)),
            ("mib_per_s", format!("{:.1}", done.bytes as f64 / seconds / f64::from(1 << 20))),
            ("p50_ms", format!("{:.3}", at(0.5))),
            ("p99_ms", format!("{:.3}", at(0.99))),
            ("max_ms", format!("{:.3}", at(1.0))),
            ("client_cpus", format!("{:.3}", (after.own - before.own) / seconds)),
            ("server_cpus", format!("{:.3}", (after.servers - before.servers) / seconds)),
            (
                "server_cpu_ms_per_request",
                format!("{:.4}", (after.servers - before.servers) * 1e3 / count.max(1) as f64),
            ),
        ])
    }

    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.0.push((name, value));
        self
    }

    pub fn json(&self) -> String {
        let fields: Vec<String> = self.0.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
        format!("{{{}}}", fields.join(", "))
    }
}
