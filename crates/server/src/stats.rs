//! Counters of ops: how many, how many failed, how long they took in all.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The names of `Op::label`, in byte order.
const LABELS: &[&str] = &[
    "create",
    "end-session",
    "fsync",
    "getattr",
    "getxattr",
    "heartbeat",
    "leg",
    "link",
    "list",
    "list-part",
    "listxattr",
    "lookup",
    "read",
    "read-shard",
    "readlink",
    "removexattr",
    "rename",
    "rmdir",
    "setattr",
    "setxattr",
    "spill",
    "statfs",
    "stub",
    "sync",
    "unlink",
    "write",
    "write-shard",
    "wrote",
];

#[derive(Default)]
struct Counter {
    done: AtomicU64,
    failed: AtomicU64,
    microseconds: AtomicU64,
}

/// One counter a kind of op.
pub struct OpCounters(BTreeMap<&'static str, Counter>);

impl Default for OpCounters {
    fn default() -> Self {
        Self(LABELS.iter().map(|label| (*label, Counter::default())).collect())
    }
}

impl OpCounters {
    /// Counts an op; times do not include waiting for the disk, which a batch does as one.
    pub fn count(&self, label: &str, took: Duration, ok: bool) {
        if let Some(counter) = self.0.get(label) {
            let which = if ok { &counter.done } else { &counter.failed };
            which.fetch_add(1, Ordering::Relaxed);
            counter.microseconds.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        }
    }

    /// Those that happened.
    pub fn to_json(&self) -> Value {
        let mut all = Map::new();
        for (label, counter) in &self.0 {
            let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
            let (done, failed) = (load(&counter.done), load(&counter.failed));
            if done + failed > 0 {
                let microseconds = load(&counter.microseconds);
                let row = json!({ "done": done, "failed": failed, "microseconds": microseconds });
                all.insert((*label).into(), row);
            }
        }
        Value::Object(all)
    }
}
