//! Statistics of the ops that clients ask for: counts and latencies, ops in progress, and the last slow ones.

mod at_work;
mod slow;

pub use at_work::AtWork;
pub use slow::{SlowOp, SlowOps, about};

use hekate_control::status::{Lane, OpStatistics};
use hekate_metrics::{Histogram, Page};
use hekate_proto::op::OP_LABELS;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Default)]
struct Counter {
    failed: AtomicU64,
    latencies: Histogram,
}

/// A counter for each kind of op.
pub struct OpCounters([Counter; OP_LABELS.len()]);

impl Default for OpCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl OpCounters {
    /// Counts an op. `took` is the time from the arrival of its batch until it could be answered; for a durable op it
    /// includes the syncs.
    pub fn count(&self, label: &str, took: Duration, ok: bool) {
        let Some(counter) = OP_LABELS.binary_search(&label).ok().map(|index| &self.0[index]) else { return };
        counter.latencies.add(took);
        if !ok {
            counter.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ops since the server started.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|counter| counter.latencies.read().count()).sum()
    }

    /// The kinds of ops that were asked for.
    pub fn rows(&self) -> BTreeMap<String, OpStatistics> {
        let row = |(label, counter): (&&str, &Counter)| {
            let found = counter.latencies.read();
            let us = |time: Duration| (time.as_nanos() as f64 / 1000.0).round();
            let row = OpStatistics {
                done: found.count(),
                failed: counter.failed.load(Ordering::Relaxed),
                microseconds: us(found.sum),
                p50_us: us(found.quantile(0.5)),
                p99_us: us(found.quantile(0.99)),
                latencies: found.parts().map(|(end, count)| (us(end), count)).collect(),
            };
            (row.done > 0).then(|| ((*label).to_string(), row))
        };
        OP_LABELS.iter().zip(&self.0).filter_map(row).collect()
    }

    /// Writes of shards by lane: on the leader's lane each is counted by the leader, on the fast and the raw lane by
    /// each member.
    pub fn lanes(&self) -> Vec<Lane> {
        let all = self.rows();
        let lane = |(lane, label): (&str, &str)| {
            let row = all.get(label)?;
            Some(Lane {
                lane: lane.into(),
                writes: row.done,
                refused: row.failed,
                p50_us: row.p50_us,
                p99_us: row.p99_us,
            })
        };
        [("leader", "write-shard"), ("fast", "fast-write"), ("raw", "raw-write")].into_iter().filter_map(lane).collect()
    }

    /// Adds the counters to the page for Prometheus.
    pub fn add_to(&self, page: &mut Page) {
        for (label, counter) in OP_LABELS.iter().zip(&self.0) {
            let (found, failed) = (counter.latencies.read(), counter.failed.load(Ordering::Relaxed));
            if found.count() > 0 {
                let labels = || vec![("op", (*label).to_string())];
                page.latencies("hekate_op_duration_seconds", "Ops and how long they took", labels(), found);
                page.counter("hekate_op_failures", "Ops that answered an error", labels(), failed as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_that_happened_are_shown() {
        let counters = OpCounters::default();
        counters.count("lookup", Duration::from_micros(100), true);
        counters.count("lookup", Duration::from_micros(300), false);
        counters.count("no such op", Duration::ZERO, true);
        let shown = counters.rows();
        assert_eq!(shown.len(), 1);
        let lookup = &shown["lookup"];
        assert_eq!((lookup.done, lookup.failed, lookup.microseconds), (2, 1, 400.0));
        assert!((100.0..=125.0).contains(&lookup.p50_us), "{lookup:?}");
        let mut page = Page::default();
        counters.add_to(&mut page);
        let text = page.text();
        assert!(text.contains("hekate_op_duration_seconds_count{op=\"lookup\"} 2"), "{text}");
        assert!(text.contains("hekate_op_failures_total{op=\"lookup\"} 1"), "{text}");
    }
}
