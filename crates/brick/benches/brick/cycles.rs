//! Creates with checkpoints in the same thread: appends until the brick wants a checkpoint, the checkpoint, and again.
//!
//! Whole cycles are compared, so neither the place of a checkpoint nor another thread decides what a tenth costs; bytes
//! and calls are the same in every run. `creates --inline` prints them, and `tests/creates.rs` asserts on them.

use crate::counted::{Counts, Snapshot};
use crate::measure::thread_cpu;
use crate::records::Creates;
use hekate_brick::{Brick, LogEntry};
use hekate_proto::{Record, Result};
use std::time::{Duration, Instant};

/// The cost of some creates, with their share of checkpoints.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Number of creates.
    pub creates: u64,
    /// CPU time of the brick, without making the records.
    pub cpu: Duration,
    /// CPU time of this in checkpoints.
    pub checkpoint_cpu: Duration,
    /// Elapsed time.
    pub elapsed: Duration,
    /// Calls to the file system.
    pub calls: Snapshot,
    /// The largest number of bytes of overlays, by the brick's own estimate, before a checkpoint.
    pub overlay_bytes: usize,
}

impl Cost {
    fn add(&mut self, other: &Self) {
        self.creates += other.creates;
        self.cpu += other.cpu;
        self.checkpoint_cpu += other.checkpoint_cpu;
        self.elapsed += other.elapsed;
        self.calls = self.calls.plus(&other.calls);
        self.overlay_bytes = self.overlay_bytes.max(other.overlay_bytes);
    }

    /// CPU time of a create, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.creates as f64
    }

    /// A figure of all calls, divided by the creates.
    pub fn each(&self, of: impl Fn(&Snapshot) -> u64) -> f64 {
        of(&self.calls) as f64 / self.creates as f64
    }
}

/// Makes `count` creates. -> one [`Cost`] for each cycle. At the beginning and the end nothing waits for a checkpoint.
pub fn run(brick: &Brick, counts: &Counts, creates: &mut Creates, count: u64) -> Result<Vec<Cost>> {
    let mut cycles = Vec::new();
    let mut made = 0;
    while made < count {
        let mut cycle = Cost::default();
        let before = counts.snapshot();
        while made < count && !brick.wants_checkpoint() {
            let mut records: Vec<Record> = Vec::new();
            let batch = (count - made).min(64);
            (0..batch).for_each(|_| creates.next(&mut records));
            measured(&mut cycle, || append(brick, records))?;
            cycle.creates += batch;
            made += batch;
        }
        cycle.overlay_bytes = brick.status()?.overlay_bytes;
        let cpu_of_appends = cycle.cpu;
        measured(&mut cycle, || brick.checkpoint())?;
        cycle.checkpoint_cpu = cycle.cpu - cpu_of_appends;
        cycle.calls = counts.snapshot().since(&before);
        cycles.push(cycle);
    }
    Ok(cycles)
}

fn measured(cost: &mut Cost, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let (cpu, begun) = (thread_cpu(), Instant::now());
    let outcome = act();
    cost.cpu += thread_cpu() - cpu;
    cost.elapsed += begun.elapsed();
    outcome
}

/// Appends records as a server does: encoded once, in order, without a sync.
pub fn append(brick: &Brick, records: Vec<Record>) -> Result<()> {
    for record in records {
        brick.append(&LogEntry::new(record))?;
    }
    Ok(())
}

/// The cycles of each tenth: a cycle belongs to the tenth in which its middle lies.
pub fn tenths(cycles: &[Cost]) -> Vec<Cost> {
    let total: u64 = cycles.iter().map(|cycle| cycle.creates).sum();
    let mut tenths = vec![Cost::default(); 10];
    let mut begun = 0;
    for cycle in cycles {
        let middle = begun + cycle.creates / 2;
        tenths[(middle * 10 / total.max(1)).min(9) as usize].add(cycle);
        begun += cycle.creates;
    }
    tenths
}
