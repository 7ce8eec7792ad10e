//! A latency histogram as stored in a file: only the buckets that are not empty.

use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Significant decimal digits that are kept: a value is at most 1 % off.
pub const DIGITS: u8 = 2;
/// Latencies above this one, an hour, are not distinguished.
pub const LONGEST_NS: u64 = 3_600_000_000_000;

/// Values in nanoseconds (the upper end of a bucket) with their counts, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latencies(Vec<(u64, u64)>);

impl Latencies {
    /// A histogram of pairs in any order.
    pub fn of(pairs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut counts = BTreeMap::new();
        for (value, count) in pairs {
            let sum: &mut u64 = counts.entry(value).or_default();
            *sum = sum.saturating_add(count);
        }
        Self(counts.into_iter().filter(|(_, count)| *count > 0).collect())
    }

    pub fn of_histogram(histogram: &Histogram<u64>) -> Self {
        Self(histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect())
    }

    pub fn pairs(&self) -> &[(u64, u64)] {
        &self.0
    }

    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// The sum of several histograms.
    pub fn merge(all: &[&Latencies]) -> Self {
        Self::of(all.iter().flat_map(|one| one.0.iter().copied()))
    }

    /// The least value that this share of all does not exceed; none if there are no operations.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0u64;
        let mut reaches = |count: u64| {
            seen = seen.saturating_add(count);
            seen >= rank
        };
        let found = self.0.iter().find(|(_, count)| reaches(*count));
        found.or(self.0.last()).map(|(value, _)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_values() {
        let latencies = Latencies::of([(30, 1), (10, 90), (20, 9)]);
        assert_eq!(
            [0.0, 0.5, 0.9, 0.91, 0.99, 1.0].map(|share| latencies.quantile(share)),
            [10, 10, 10, 20, 20, 30].map(Some)
        );
        assert_eq!(Latencies::default().quantile(0.5), None);
    }

    #[test]
    fn a_histogram_keeps_its_values_within_a_percent() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, DIGITS).unwrap();
        let values = [1u64, 999, 123_456, 7_654_321_000, LONGEST_NS];
        values.iter().for_each(|value| histogram.record(*value).unwrap());
        let kept = Latencies::of_histogram(&histogram);
        for ((found, count), value) in kept.pairs().iter().zip(values) {
            assert!(*count == 1 && (*found as f64 / value as f64 - 1.0).abs() < 0.01, "{found} for {value}");
        }
        assert_eq!(Latencies::merge(&[&kept, &kept]).count(), 10);
    }
}
