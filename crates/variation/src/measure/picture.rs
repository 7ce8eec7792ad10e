//! The picture in the terminal while measuring: the latest rates as bars, the latest sample in numbers, the time left.

use crate::series::record::Sample;
use crate::series::{Series, Unit};
use std::time::Duration;

const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The progress of a measurement.
pub struct State<'a> {
    pub samples: &'a [Sample],
    /// Samples in the whole measurement.
    pub wanted: u64,
    pub interval: Duration,
    /// Bytes of `total` written to prepare the target, before the first sample.
    pub prepared: Option<(u64, u64)>,
}

/// Bars from 0 to `most`, one a value.
pub fn bars(values: &[f64], most: f64) -> String {
    let bar = |value: &f64| {
        let eighths = if most > 0.0 { (value / most * 8.0).round() } else { 0.0 };
        BARS[(eighths as usize).min(8)]
    };
    values.iter().map(bar).collect()
}

/// A share of the work as a bar.
fn progress(share: f64, width: usize) -> String {
    let full = (share * width as f64) as usize;
    format!("[{}{}]", "=".repeat(full.min(width)), " ".repeat(width - full.min(width)))
}

impl State<'_> {
    /// The lines of the picture, none wider than `width`.
    pub fn lines(&self, width: usize) -> Vec<String> {
        if let Some((done, total)) = self.prepared.filter(|_| self.samples.is_empty()) {
            let share = done as f64 / total.max(1) as f64;
            let line = format!("{} preparing: {} of {} MiB", progress(share, 20), done >> 20, total >> 20);
            return vec![cut(&line, width)];
        }
        let rates: Vec<f64> = self.samples.iter().map(|sample| sample.rate(Unit::Iops)).collect();
        let Some(last) = self.samples.last() else {
            return vec![cut("measuring: the first sample is on its way", width)];
        };
        let shown = &rates[rates.len().saturating_sub(width.saturating_sub(12).max(1))..];
        let peak = rates.iter().copied().fold(0.0, f64::max);
        let at = |share: f64| last.latencies.quantile(share).map_or("-".into(), |ns| time(Duration::from_nanos(ns)));
        let left = self.interval * u32::try_from(self.wanted.saturating_sub(rates.len() as u64)).unwrap_or(u32::MAX);
        let share = rates.len() as f64 / self.wanted.max(1) as f64;
        let errors = if last.errors > 0 { format!(", {} FAILED", last.errors) } else { String::new() };
        let lines = [
            format!("{} {peak:.0} IOPS", bars(shown, peak)),
            format!(
                "now {:.0} IOPS, {:.1} MB/s; p50 {}, p99 {}, most {}{errors}",
                last.rate(Unit::Iops),
                last.rate(Unit::MbPerS),
                at(0.5),
                at(0.99),
                at(1.0)
            ),
            so_far(&rates),
            format!("{} {} of {} samples, {} left", progress(share, 20), rates.len(), self.wanted, rough(left)),
        ];
        lines.iter().map(|line| cut(line, width)).collect()
    }
}

fn so_far(rates: &[f64]) -> String {
    let times = vec![0.0; rates.len()];
    let sorted = Series::new("", Unit::Iops, rates.to_vec(), times).map(|series| series.sorted()).unwrap_or_default();
    if sorted.is_empty() {
        return String::new();
    }
    let at = |share| crate::statistics::quantile(&sorted, share);
    format!(
        "so far: worst {:.0}, median {:.0}, best {:.0}, flatness {:.2}",
        at(0.0),
        at(0.5),
        at(1.0),
        crate::statistics::flatness(&sorted)
    )
}

/// A latency with its unit.
pub fn time(time: Duration) -> String {
    let ns = time.as_nanos() as f64;
    match ns {
        ..1e3 => format!("{ns:.0} ns"),
        ..1e6 => format!("{:.1} us", ns / 1e3),
        ..1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// A remaining time in its two greatest units.
fn rough(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

fn cut(line: &str, width: usize) -> String {
    line.chars().take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_on_zero() {
        assert_eq!(bars(&[0.0, 50.0, 100.0], 100.0), " ▄█");
        assert_eq!(bars(&[0.0], 0.0), " ");
    }

    #[test]
    fn lines_keep_within_the_terminal() {
        let sample = Sample { length_ns: 1_000_000_000, operations: 1234, bytes: 5_000_000, ..Sample::default() };
        let samples = vec![sample; 200];
        let state = State { samples: &samples, wanted: 3600, interval: Duration::from_secs(1), prepared: None };
        let lines = state.lines(40);
        assert!(lines.iter().all(|line| line.chars().count() <= 40), "{lines:?}");
        let wide = state.lines(100).join("\n");
        assert!(wide.contains("now 1234 IOPS") && wide.contains("56 min 40 s left"), "{wide}");
    }
}
