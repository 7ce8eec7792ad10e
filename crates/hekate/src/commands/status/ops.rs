//! The table of ops in `hekate status --watch`: rates and latencies since the last look.

use crate::output::table;
use hekate_control::status::{ClusterStatus, OpStatistics};
use std::collections::BTreeMap;
use std::time::Duration;

/// Prints the ops that the server has answered since an earlier state, or since it started. `since`: the age of that
/// state, and the state.
pub fn print_ops(status: &ClusterStatus, since: Option<(Duration, &ClusterStatus)>) {
    let seconds = since.map_or(status.uptime_seconds as f64, |(age, _)| age.as_secs_f64()).max(0.001);
    let mut shown = Vec::new();
    for (name, now) in &status.ops {
        let old = since.and_then(|(_, old)| old.ops.get(name));
        let grown = |count: fn(&OpStatistics) -> u64| count(now) - old.map_or(0, count).min(count(now));
        let (done, failed) = (grown(|row| row.done), grown(|row| row.failed));
        if done > 0 {
            let latencies = difference(now, old);
            let at = |share: f64| format!("{} us", quantile(&latencies, share));
            let rate = format!("{:.1}", done as f64 / seconds);
            shown.push((done, vec![name.clone(), rate, failed.to_string(), at(0.5), at(0.99), at(1.0)]));
        }
    }
    shown.sort_by_key(|(done, _)| std::cmp::Reverse(*done));
    println!();
    table(
        &["OP", "A SECOND", "FAILED", "P50", "P99", "MOST"],
        &shown.into_iter().map(|(_, row)| row).collect::<Vec<_>>(),
    );
}

/// The histogram of the ops that `old` does not count: counts by the upper end of their part, in µs.
fn difference(now: &OpStatistics, old: Option<&OpStatistics>) -> BTreeMap<u64, u64> {
    let parts = |row: &OpStatistics| -> BTreeMap<u64, u64> {
        row.latencies.iter().map(|(end, count)| (*end as u64, *count)).collect()
    };
    let mut found = parts(now);
    for (end, count) in old.map(parts).unwrap_or_default() {
        if let Some(now) = found.get_mut(&end) {
            *now = now.saturating_sub(count);
        }
    }
    found
}

/// The upper end, in µs, of the part that has this share of the ops at or below it.
fn quantile(parts: &BTreeMap<u64, u64>, share: f64) -> u64 {
    let rank = ((parts.values().sum::<u64>() as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    let reaches = |(_, count): &(&u64, &u64)| {
        seen += **count;
        seen >= rank
    };
    parts.iter().find(reaches).map_or(0, |(end, _)| *end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(latencies: &[(f64, u64)]) -> OpStatistics {
        OpStatistics { latencies: latencies.to_vec(), ..OpStatistics::default() }
    }

    #[test]
    fn quantiles_are_of_what_came_since() {
        let old = with(&[(10.0, 100), (20.0, 1)]);
        let now = with(&[(10.0, 101), (20.0, 2), (40.0, 2)]);
        let found = difference(&now, Some(&old));
        assert_eq!(found, BTreeMap::from([(10, 1), (20, 1), (40, 2)]));
        assert_eq!([0.25, 0.5, 0.51, 1.0].map(|share| quantile(&found, share)), [10, 20, 40, 40]);
        assert_eq!(quantile(&difference(&now, None), 0.5), 10);
    }
}
