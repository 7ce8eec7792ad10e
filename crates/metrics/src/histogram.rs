//! A histogram of latencies to which any thread can add without waiting.
//!
//! It is log-linear, as HDR histograms are (Tene, hdrhistogram.org): each power of two in nanoseconds has four equal
//! parts, so a value read from it is at most a quarter too high. It covers 1 µs to 137 s; longer latencies are in the
//! last part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Latencies below 2^10 ns (1 µs) share the first part.
const LOWEST_POWER: u32 = 10;
/// Latencies of 2^37 ns (137 s) and more are in the last part.
const HIGHEST_POWER: u32 = 37;
/// Each power of two has 2^2 parts.
const PARTS_POWER: u32 = 2;
const PARTS: usize = 1 + (((HIGHEST_POWER - LOWEST_POWER) as usize) << PARTS_POWER);

/// A histogram of latencies.
#[derive(Debug)]
pub struct Histogram {
    parts: [AtomicU64; PARTS],
    sum_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { parts: std::array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Adds a latency.
    pub fn add(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.parts[part_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// A copy of the current contents.
    pub fn read(&self) -> Latencies {
        let counts = self.parts.iter().map(|part| part.load(Ordering::Relaxed)).collect();
        Latencies { counts, sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)) }
    }
}

/// The contents of a histogram at one moment.
#[derive(Debug, Clone)]
pub struct Latencies {
    counts: Vec<u64>,
    /// Sum of all latencies.
    pub sum: Duration,
}

impl Latencies {
    /// Number of latencies.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Upper bound of the given share (0 to 1) of the latencies. Zero if there are none.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (part, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(end_of(part));
            }
        }
        Duration::ZERO
    }

    /// The parts that are not empty: the end of each, and its count.
    pub fn parts(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let some = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        some.map(|(part, count)| (Duration::from_nanos(end_of(part)), *count))
    }

    /// For each power of two its upper bound in seconds, and the number of latencies between it and the bound before.
    /// The last one has no bound.
    pub(crate) fn powers(&self) -> Vec<(f64, u64)> {
        let whole: u64 = 1 << PARTS_POWER;
        let mut powers = vec![((1u64 << LOWEST_POWER) as f64 / 1e9, self.counts[0])];
        for (index, parts) in self.counts[1..].chunks(whole as usize).enumerate() {
            let end = 1u64 << (LOWEST_POWER + index as u32 + 1);
            powers.push((end as f64 / 1e9, parts.iter().sum()));
        }
        if let Some(last) = powers.last_mut() {
            last.0 = f64::INFINITY;
        }
        powers
    }
}

fn part_of(ns: u64) -> usize {
    let Some(power) = ns.checked_ilog2().filter(|power| *power >= LOWEST_POWER) else { return 0 };
    let within = (ns >> (power - PARTS_POWER)) as usize & ((1 << PARTS_POWER) - 1);
    (1 + (((power - LOWEST_POWER) as usize) << PARTS_POWER) + within).min(PARTS - 1)
}

/// End of a part in ns, exclusive.
fn end_of(part: usize) -> u64 {
    let Some(part) = part.checked_sub(1) else { return 1 << LOWEST_POWER };
    let (power, within) = (LOWEST_POWER + (part >> PARTS_POWER) as u32, part as u64 & ((1 << PARTS_POWER) - 1));
    ((1 << PARTS_POWER) + within + 1) << (power - PARTS_POWER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_are_narrow() {
        let mut begin = 0;
        for part in 0..PARTS {
            let end = end_of(part);
            assert_eq!((part_of(begin), part_of(end - 1)), (part, part));
            assert!(part == 0 || (end - begin) * 4 <= begin, "{begin}..{end}");
            begin = end;
        }
        assert_eq!(begin, 1 << HIGHEST_POWER);
        assert_eq!(part_of(u64::MAX), PARTS - 1);
    }

    #[test]
    fn quantiles_are_at_most_a_quarter_too_high() {
        let histogram = Histogram::default();
        (1..=1000).for_each(|us| histogram.add(Duration::from_micros(us)));
        let found = histogram.read();
        assert_eq!((found.count(), found.sum), (1000, Duration::from_micros(500_500)));
        for (share, us) in [(0.5, 500), (0.99, 990), (1.0, 1000)] {
            let (found, exact) = (found.quantile(share), Duration::from_micros(us));
            assert!(found >= exact && found <= exact * 5 / 4, "{share}: {found:?} for {exact:?}");
        }
        assert_eq!(Histogram::default().read().quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn powers_hold_all() {
        let histogram = Histogram::default();
        [0, 1023, 1024, 4095, 4096, u64::MAX].into_iter().for_each(|ns| histogram.add(Duration::from_nanos(ns)));
        let powers = histogram.read().powers();
        assert_eq!(powers[..4], [(1.024e-6, 2), (2.048e-6, 1), (4.096e-6, 1), (8.192e-6, 1)]);
        assert_eq!(powers.iter().map(|(_, count)| count).sum::<u64>(), 6);
        assert_eq!(powers.last(), Some(&(f64::INFINITY, 1)));
    }
}
