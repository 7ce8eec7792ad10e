//! The latency of an operation that waits for several servers, from theirs: a read that asks n servers and waits for
//! all, a write that waits for all replicas or a quorum.
//!
//! The servers are taken to be independent. Then at least k of them have answered by a time t with the probability that
//! at least k of n coins show heads, where coin i does so with F_i(t), the share of server i's operations that took no
//! longer (David and Nagaraja, Order Statistics, 3rd ed., 2003, section 2.1; for unequal servers the Poisson binomial
//! distribution).

use crate::error::{Error, Result};
use crate::series::{Latencies, Recording, read_bounded, record};
use serde::Serialize;
use std::path::Path;

/// Most parts of a whole: when it waits for all of them, and when it waits for a number of them, which takes more
/// computing.
const PARTS_MAX_ALL: usize = 1_000_000;
const PARTS_MAX_SOME: usize = 2_000;
/// Quantiles of the whole.
const SHARES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 0.9999];
/// Operations that must be slower than a quantile for it to be founded.
const OPERATIONS_MIN: f64 = 10.0;

/// Servers of one kind.
#[derive(Debug, Clone)]
pub struct Part {
    pub name: String,
    pub latencies: Latencies,
    pub count: usize,
}

/// One quantile of the whole, and of its parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Quantile {
    pub share: f64,
    pub whole_us: f64,
    /// Of one part, in µs; of the slowest kind if there are several.
    pub part_us: f64,
    /// True if at least ten measured operations were slower; if not, the value is accidental.
    pub is_founded: bool,
}

/// The latency of the whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Whole {
    pub parts: usize,
    pub wait_for: usize,
    pub quantiles: Vec<Quantile>,
    /// Share of wholes that are slower than the time that one part in a hundred exceeds.
    pub slower_than_part_p99: f64,
}

/// The latencies in a recording, or in a CSV file's column `latency_us`.
///
/// # Errors
///
/// The file cannot be read, is neither, or has no latencies.
pub fn read(path: &Path) -> Result<Latencies> {
    decode(&path.display().to_string(), &read_bounded(path)?)
}

/// The latencies in a file's bytes; errors call the file `shown`.
///
/// # Errors
///
/// The bytes are neither a recording nor a CSV file, or have no latencies.
pub fn decode(shown: &str, bytes: &[u8]) -> Result<Latencies> {
    let found = match record::is_recording(bytes) {
        true => {
            let recording = Recording::decode(shown, bytes)?;
            Latencies::merge(&recording.samples.iter().map(|sample| &sample.latencies).collect::<Vec<_>>())
        }
        false => crate::series::csv::latencies(shown, bytes)?,
    };
    if found.count() == 0 {
        return Err(Error::bad_data(shown, "it holds no latencies; measure with `hekate variation measure`"));
    }
    Ok(found)
}

/// The whole of these parts, when `wait_for` of them must have answered.
///
/// # Errors
///
/// There are too many parts, or `wait_for` is not between 1 and their number.
pub fn whole(parts: &[Part], wait_for: usize) -> Result<Whole> {
    let count: usize = parts.iter().map(|part| part.count).sum();
    let most = if wait_for == count { PARTS_MAX_ALL } else { PARTS_MAX_SOME };
    if count == 0 || count > most {
        return Err(Error::wrong_use(format!("there are {count} servers; this is computed for 1 to {most}")));
    }
    if wait_for == 0 || wait_for > count {
        return Err(Error::wrong_use(format!("of {count} servers 1 to {count} can be waited for, not {wait_for}")));
    }
    let mut values: Vec<u64> =
        parts.iter().flat_map(|part| part.latencies.pairs().iter().map(|(value, _)| *value)).collect();
    values.sort_unstable();
    values.dedup();
    let curves: Vec<Curve> = parts.iter().map(|part| Curve::new(&part.latencies)).collect();
    let done_by = |value: u64| {
        let each: Vec<(f64, usize)> =
            curves.iter().zip(parts).map(|(curve, part)| (curve.share_by(value), part.count)).collect();
        at_least(&each, wait_for)
    };
    let quantile = |share: f64| {
        let at = values.partition_point(|value| done_by(*value) < share);
        let value = values[at.min(values.len() - 1)];
        let slower: f64 = curves.iter().map(|curve| curve.count as f64 * (1.0 - curve.share_by(value))).sum();
        let part = parts.iter().filter_map(|part| part.latencies.quantile(share)).max().unwrap_or(0);
        Quantile {
            share,
            whole_us: value as f64 / 1e3,
            part_us: part as f64 / 1e3,
            is_founded: slower >= OPERATIONS_MIN,
        }
    };
    let p99 = parts.iter().filter_map(|part| part.latencies.quantile(0.99)).max().unwrap_or(0);
    Ok(Whole {
        parts: count,
        wait_for,
        quantiles: SHARES.iter().map(|share| quantile(*share)).collect(),
        slower_than_part_p99: 1.0 - done_by(p99),
    })
}

/// Cumulative counts of the operations by value.
struct Curve {
    values: Vec<u64>,
    /// Operations that took no longer than the value at the same index.
    counts: Vec<u64>,
    count: u64,
}

impl Curve {
    fn new(latencies: &Latencies) -> Self {
        let mut sum = 0u64;
        let mut add = |count: u64| {
            sum = sum.saturating_add(count);
            sum
        };
        let (values, counts) = latencies.pairs().iter().map(|(value, count)| (*value, add(*count))).unzip();
        Self { values, counts, count: sum }
    }

    fn share_by(&self, value: u64) -> f64 {
        let at = self.values.partition_point(|mine| *mine <= value);
        if at == 0 { 0.0 } else { self.counts[at - 1] as f64 / self.count as f64 }
    }
}

/// The probability that at least `wanted` coins show heads; each entry is a coin's probability and the number of such
/// coins.
fn at_least(coins: &[(f64, usize)], wanted: usize) -> f64 {
    let total: usize = coins.iter().map(|(_, count)| count).sum();
    if wanted == total {
        return coins.iter().map(|(share, count)| share.powf(*count as f64)).product();
    }
    // Indexed by the number of tails so far, up to the last relevant one.
    let tails_max = total - wanted;
    let mut tails = vec![0.0; tails_max + 1];
    tails[0] = 1.0;
    for (share, count) in coins {
        for _ in 0..*count {
            for at in (0..=tails_max).rev() {
                let before = if at > 0 { tails[at - 1] } else { 0.0 };
                tails[at] = tails[at] * share + before * (1.0 - share);
            }
        }
    }
    tails.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(pairs: &[(u64, u64)], count: usize) -> Part {
        Part { name: "p".into(), latencies: Latencies::of(pairs.iter().copied()), count }
    }

    #[test]
    fn a_rare_stall_becomes_common_in_a_wide_read() {
        // One in a hundred takes 1 s (Dean and Barroso, The tail at scale, 2013): with 100 servers 63 % of the reads
        // do.
        let parts = [part(&[(10_000_000, 9_900), (1_000_000_000, 100)], 100)];
        let all = whole(&parts, 100).unwrap();
        assert!((all.slower_than_part_p99 - 0.634).abs() < 0.001, "{all:?}");
        assert_eq!((all.quantiles[0].part_us, all.quantiles[0].whole_us), (10_000.0, 1_000_000.0));
        assert!(whole(&parts, 95).unwrap().quantiles[1].whole_us < 20_000.0);
    }

    #[test]
    fn two_of_three_is_the_middle_one() {
        let parts = [part(&[(1_000, 50), (2_000, 50)], 3)];
        let quorum = whole(&parts, 2).unwrap();
        // Two or three of three coins: a half. All three: an eighth.
        assert_eq!(quorum.quantiles[0].whole_us, 1.0);
        assert!((at_least(&[(0.5, 3)], 2) - 0.5).abs() < 1e-12 && (at_least(&[(0.5, 3)], 3) - 0.125).abs() < 1e-12);
        assert!(!quorum.quantiles[4].is_founded);
    }

    #[test]
    fn impossible_input_is_refused() {
        let parts = [part(&[(1, 1)], 3)];
        assert!(whole(&parts, 0).is_err() && whole(&parts, 4).is_err());
        assert!(whole(&[part(&[(1, 1)], 0)], 0).is_err());
        assert!(whole(&[part(&[(1, 1)], 5_000)], 3).unwrap_err().text.contains("1 to 2000"));
    }

    fn by_enumeration(coins: &[f64], wanted: usize) -> f64 {
        match coins.split_first() {
            None => f64::from(wanted == 0),
            Some((first, rest)) => {
                first * by_enumeration(rest, wanted.saturating_sub(1)) + (1.0 - first) * by_enumeration(rest, wanted)
            }
        }
    }

    proptest! {
        #[test]
        fn coins_are_those_of_enumeration(coins in prop::collection::vec((0.0f64..=1.0, 1usize..4), 1..4), wanted in 1usize..10) {
            let all: Vec<f64> = coins.iter().flat_map(|(share, count)| vec![*share; *count]).collect();
            prop_assume!(wanted <= all.len());
            prop_assert!((at_least(&coins, wanted) - by_enumeration(&all, wanted)).abs() < 1e-12);
        }

        #[test]
        fn waiting_for_more_is_never_faster(pairs in prop::collection::vec((1u64..1_000_000, 1u64..1000), 1..20), count in 1usize..12) {
            let parts = [part(&pairs, count)];
            let all: Vec<Whole> = (1..=count).map(|wait| whole(&parts, wait).unwrap()).collect();
            for pair in all.windows(2) {
                for (one, other) in pair[0].quantiles.iter().zip(&pair[1].quantiles) {
                    prop_assert!(one.whole_us <= other.whole_us);
                }
            }
        }
    }
}
