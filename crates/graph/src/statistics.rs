//! Counts and times of the ops of a layer, and the curve of its latencies.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of classes of a [`Histogram`]: four for each power of two of nanoseconds.
const CLASSES: usize = 4 * 44;

/// Times, in classes of a quarter of a power of two. All methods may be called by several threads at once.
pub struct Histogram {
    classes: [AtomicU64; CLASSES],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { classes: [const { AtomicU64::new(0) }; CLASSES] }
    }
}

/// The class of a time in nanoseconds.
fn class_of(nanoseconds: u64) -> usize {
    let at = nanoseconds.max(4);
    let power = at.ilog2() as usize;
    (((power - 2) * 4) + ((at >> (power - 2)) & 3) as usize).min(CLASSES - 1)
}

/// The greatest time of a class.
fn end_of(class: usize) -> u64 {
    let (power, quarter) = (class / 4 + 2, class as u64 % 4);
    (1u64 << power) + ((quarter + 1) << (power - 2)) - 1
}

impl Histogram {
    pub fn add(&self, time: Duration) {
        self.classes[class_of(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))].fetch_add(1, Ordering::Relaxed);
    }

    /// For each class that has times its upper end and its count, shortest first.
    pub fn rows(&self) -> Vec<(Duration, u64)> {
        let count = |class: usize| self.classes[class].load(Ordering::Relaxed);
        (0..CLASSES).map(|class| (Duration::from_nanos(end_of(class)), count(class))).filter(|row| row.1 > 0).collect()
    }

    /// The time that this share of all times does not exceed; `None` without times.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rows = self.rows();
        let total: u64 = rows.iter().map(|row| row.1).sum();
        let wanted = (total as f64 * share).ceil().max(1.0) as u64;
        let mut sum = 0;
        rows.into_iter().find_map(|(end, count)| {
            sum += count;
            (sum >= wanted).then_some(end)
        })
    }
}

/// What a layer has done. Times include the layers below.
#[derive(Default)]
pub struct LayerStatistics {
    ops: AtomicU64,
    errors: AtomicU64,
    nanoseconds: AtomicU64,
    times: Histogram,
}

impl LayerStatistics {
    pub fn add(&self, time: Duration, is_error: bool) {
        self.ops.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        if is_error {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        self.times.add(time);
    }

    /// The present counts.
    pub fn counts(&self) -> LayerCounts {
        let micros = |share| self.times.quantile(share).unwrap_or_default().as_nanos() as f64 / 1000.0;
        let (ops, nanoseconds) = (self.ops.load(Ordering::Relaxed), self.nanoseconds.load(Ordering::Relaxed));
        LayerCounts {
            ops,
            errors: self.errors.load(Ordering::Relaxed),
            mean_us: if ops == 0 { 0.0 } else { nanoseconds as f64 / ops as f64 / 1000.0 },
            p50_us: micros(0.5),
            p99_us: micros(0.99),
        }
    }
}

/// Counts of a layer. Times are in microseconds and include the layers below.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerCounts {
    /// Ops that it was given.
    pub ops: u64,
    /// Of these, the ones that it answered with an error.
    pub errors: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_a_quarter_of_a_power_of_two_wide() {
        for nanoseconds in [0, 3, 4, 5, 7, 8, 1000, 65_535, 65_536, 1 << 40, u64::MAX] {
            let class = class_of(nanoseconds);
            assert!(nanoseconds <= end_of(class) || class == CLASSES - 1, "{nanoseconds}");
            assert!(class == 0 || nanoseconds > end_of(class - 1), "{nanoseconds}");
        }
    }

    #[test]
    fn quantiles_are_the_ends_of_classes() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        (0..99).for_each(|_| histogram.add(Duration::from_micros(10)));
        histogram.add(Duration::from_millis(10));
        assert!(histogram.quantile(0.5).unwrap().as_micros() < 13);
        assert!(histogram.quantile(0.99).unwrap().as_micros() < 13);
        assert!(histogram.quantile(1.0).unwrap() >= Duration::from_millis(10));
    }
}
