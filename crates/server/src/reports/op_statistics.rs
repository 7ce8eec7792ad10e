//! Statistics of the ops that clients ask for: counts and latencies, ops in progress, and the last slow ones.

mod at_work;
mod slow;

use at_work::{AtWork, Busy};
use hekate_threads::{elapsed, now, time_of_day};
use slow::{SlowOp, SlowOps, about};

use hekate_control::status::{Lane, OpStatistics as OpRow, ServerVitals, SlowOpsReport};
use hekate_metrics::{Histogram, Page};
use hekate_proto::op::OP_LABELS;
use hekate_proto::{Error, Op, SessionId, VolumeId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The statistics of a server's ops since it started.
pub struct OpStatistics {
    started: Instant,
    counters: OpCounters,
    at_work: AtWork,
    slow: SlowOps,
}

/// An op that was answered.
pub struct AnsweredOp<'a> {
    pub op: &'a Op,
    pub session: SessionId,
    pub volume: VolumeId,
    /// From the arrival of its batch until it could be answered, with the syncs that it waited for.
    pub took: Duration,
    /// The part of `took` that the syncs of its batch took.
    pub syncing: Duration,
    /// The error, if it failed.
    pub error: Option<&'a Error>,
}

impl Default for OpStatistics {
    fn default() -> Self {
        let (counters, at_work, slow) = Default::default();
        Self { started: now(), counters, at_work, slow }
    }
}

impl OpStatistics {
    /// Time since the server started.
    pub fn uptime(&self) -> Duration {
        elapsed(self.started)
    }

    /// Marks this thread as busy with ops until the guard is dropped.
    pub fn busy(&self) -> Busy<'_> {
        self.at_work.busy()
    }

    /// Counts an op; keeps it and logs it if it was slow.
    pub fn count(&self, answered: &AnsweredOp<'_>) {
        let AnsweredOp { op, session, volume, took, syncing, error } = *answered;
        self.counters.count(op.label(), took, error.is_none());
        if self.slow.is_slow(took) {
            let (at, error) = (time_of_day(), error.map(Error::to_string));
            let slow = SlowOp { at, op: op.label(), about: about(op), session, volume, took, syncing, error };
            self.slow.keep(slow).iter().for_each(|line| log::warn!("{line}"));
        }
    }

    /// Ops that were answered since the server started.
    pub fn answered(&self) -> u64 {
        self.counters.sum()
    }

    /// Sets the duration from which on an op is slow; zero: no op is.
    pub fn set_slow_limit(&self, limit: Duration) {
        self.slow.set_limit(limit);
    }

    /// The state of this server's process.
    pub fn vitals(&self) -> ServerVitals {
        let at_work = self.at_work.look();
        ServerVitals {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_seconds: self.uptime().as_secs(),
            ops_at_work: at_work.len(),
            oldest_op_milliseconds: at_work.first().map(|(_, _, age)| age.as_millis() as u64),
            slow_ops: self.slow.count(),
        }
    }

    /// The kinds of ops that were asked for.
    pub fn rows(&self) -> BTreeMap<String, OpRow> {
        self.counters.rows()
    }

    /// Writes of shards by lane.
    pub fn lanes(&self) -> Vec<Lane> {
        self.counters.lanes()
    }

    /// The last slow ops, and the ops in progress.
    pub fn slow_ops(&self) -> SlowOpsReport {
        SlowOpsReport { at_work: self.at_work.rows(), ..self.slow.report() }
    }

    /// Adds the counters to the page for Prometheus.
    pub fn add_to(&self, page: &mut Page) {
        self.counters.add_to(page);
    }
}

#[derive(Default)]
struct Counter {
    failed: AtomicU64,
    latencies: Histogram,
}

/// A counter for each kind of op.
struct OpCounters([Counter; OP_LABELS.len()]);

impl Default for OpCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl OpCounters {
    /// Counts an op. `took` is the time from the arrival of its batch until it could be answered; for a durable op it
    /// includes the syncs.
    fn count(&self, label: &str, took: Duration, ok: bool) {
        let Some(counter) = OP_LABELS.binary_search(&label).ok().map(|index| &self.0[index]) else { return };
        counter.latencies.add(took);
        if !ok {
            counter.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ops since the server started.
    fn sum(&self) -> u64 {
        self.0.iter().map(|counter| counter.latencies.read().count()).sum()
    }

    /// The kinds of ops that were asked for.
    fn rows(&self) -> BTreeMap<String, OpRow> {
        let row = |(label, counter): (&&str, &Counter)| {
            let found = counter.latencies.read();
            let us = |time: Duration| (time.as_nanos() as f64 / 1000.0).round();
            let row = OpRow {
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
    fn lanes(&self) -> Vec<Lane> {
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
    fn add_to(&self, page: &mut Page) {
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
