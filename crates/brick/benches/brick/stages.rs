//! `stages`: where the time of a synchronous 4 KiB write and of a create goes, at the brick.
//!
//! Each op is taken apart on the thread that does it: what it spends in the file system is measured in the storage, the
//! clock and the processor's time around each step, switches by the kernel's counters. Waking up is what passes between
//! the end of a sync of the journal and the return to a writer that waited for it.

use crate::counted::{Counts, Snapshot, Sort, own};
use crate::measure::{Random, median, thread_cpu, thread_switches};
use crate::options::{Failed, Options};
use crate::overwrites::Overwrites;
use crate::records::{Creates, Shape};
use crate::report::{self, Table, figure};
use crate::server::Checkpoints;
use hekate_brick::{Brick, LogEntry};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Creates measured for each op of the writes: they are so much shorter.
const CREATES_AN_OP: usize = 10;
const DIRECTORIES: u64 = 100;

/// What one thread spent in each stage, added up.
#[derive(Default)]
struct Stages {
    ops: u64,
    elapsed: BTreeMap<&'static str, Duration>,
    cpu: BTreeMap<&'static str, Duration>,
    /// Microseconds of each op's way from the end of the sync to its return, of those that did not sync themselves.
    wake_us: Vec<f64>,
    calls: Snapshot,
    switches: (u64, u64),
}

impl Stages {
    fn step<T>(&mut self, name: &'static str, act: impl FnOnce() -> T) -> T {
        let (cpu, begun) = (thread_cpu(), Instant::now());
        let value = act();
        *self.elapsed.entry(name).or_default() += begun.elapsed();
        *self.cpu.entry(name).or_default() += thread_cpu() - cpu;
        value
    }

    /// Runs `act` with the kernel's and the storage's counters around it.
    fn counted(act: impl FnOnce(&mut Self) -> Result<(), Failed>) -> Result<Self, Failed> {
        let mut stages = Self::default();
        let (switches, calls) = (thread_switches(), own());
        act(&mut stages)?;
        let after = thread_switches();
        stages.calls = own().since(&calls);
        stages.switches = (after.0 - switches.0, after.1 - switches.1);
        Ok(stages)
    }

    fn merge(mut self, other: Self) -> Self {
        self.ops += other.ops;
        other.elapsed.into_iter().for_each(|(name, time)| *self.elapsed.entry(name).or_default() += time);
        other.cpu.into_iter().for_each(|(name, time)| *self.cpu.entry(name).or_default() += time);
        self.wake_us.extend(other.wake_us);
        self.calls = self.calls.plus(&other.calls);
        self.switches = (self.switches.0 + other.switches.0, self.switches.1 + other.switches.1);
        self
    }

    fn to_json(&self, what: &str, writers: usize) -> Value {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / self.ops as f64;
        let of_step = |name: &&'static str| {
            let (us, cpu_us) = (each(self.elapsed[*name]), each(self.cpu[*name]));
            json!({ "stage": name, "us": us, "cpu_us": cpu_us })
        };
        let tally = |sort: Sort| {
            let tally = self.calls.of(0, sort);
            json!({ "calls": tally.calls as f64 / self.ops as f64, "us": each(Duration::from_nanos(tally.nanos)) })
        };
        json!({
            "op": what, "writers": writers, "ops": self.ops,
            "stages": self.elapsed.keys().map(of_step).collect::<Vec<_>>(),
            "journal_write": tally(Sort::Write), "journal_sync": tally(Sort::Sync),
            "wake_us_median": median(self.wake_us.clone()),
            "woken_share": self.wake_us.len() as f64 / self.ops as f64,
            "voluntary_switches": self.switches.0 as f64 / self.ops as f64,
            "involuntary_switches": self.switches.1 as f64 / self.ops as f64,
        })
    }
}

pub fn run(options: Options) -> Result<(), Failed> {
    let ops: usize = options.get("ops", 2000)?;
    let writers = options.list("writers", &[1, 8])?;
    let scratch = options.directory()?;
    let (brick, counts) = scratch.brick(options.settings()?)?;
    let overwrites = Overwrites::new(&brick, 8)?;
    let mut rows = Vec::new();
    for threads in writers {
        let checkpoints = Checkpoints::start(&brick);
        rows.push(writes(&brick, &counts, &overwrites, threads, ops)?.to_json("synchronous 4 KiB write", threads));
        checkpoints.stop()?;
        brick.checkpoint()?;
    }
    drop(overwrites);
    drop(brick);
    drop(scratch);
    // Its logs begin again.
    let scratch = options.directory()?;
    let (brick, _) = scratch.brick(options.settings()?)?;
    rows.push(creates(&brick, ops * CREATES_AN_OP)?.to_json("create", 1));
    let outcome = json!({ "rows": rows, "machine": report::machine() });
    if options.has("json") {
        report::json(&outcome)
    } else {
        print(&outcome)
    }
    Ok(())
}

fn writes(
    brick: &Arc<Brick>,
    counts: &Counts,
    overwrites: &Overwrites,
    threads: usize,
    ops: usize,
) -> Result<Stages, Failed> {
    let one = |number: usize| {
        Stages::counted(|stages| {
            let mut random = Random(number as u64);
            for _ in 0..ops {
                let draw = random.next();
                let (shard, block) = (draw as usize % overwrites.shards(), (draw >> 32) as u32);
                let bytes = vec![draw as u8; hekate_proto::BLOCK_BYTES];
                let mut last = stages.step("1 wait for the partition", || overwrites.lock(shard));
                let entry = stages.step("2 checksum and encode", || last.make(block, bytes));
                let upto = stages.step("3 append and apply", || brick.append(&entry))?;
                drop((last, entry));
                let synced = own().of(0, Sort::Sync).calls;
                stages.step("4 sync", || brick.sync(upto))?;
                if own().of(0, Sort::Sync).calls == synced {
                    stages.wake_us.push(counts.since_journal_sync() as f64 / 1000.0);
                }
                stages.ops += 1;
            }
            Ok(())
        })
    };
    std::thread::scope(|scope| {
        let one = &one;
        let running: Vec<_> = (0..threads).map(|number| scope.spawn(move || one(number))).collect();
        let mut all = Stages::default();
        for thread in running {
            all = all.merge(thread.join().unwrap_or_else(|_| Err("a writer panicked".into()))?);
        }
        Ok(all)
    })
}

fn creates(brick: &Arc<Brick>, ops: usize) -> Result<Stages, Failed> {
    let (mut creates, first) = Creates::new(Shape::Random, DIRECTORIES, true);
    crate::cycles::append(brick, first)?;
    brick.checkpoint()?;
    let checkpoints = Checkpoints::start(brick);
    let stages = Stages::counted(|stages| {
        for _ in 0..ops {
            let mut records = Vec::new();
            stages.step("1 make the records", || creates.next(&mut records));
            let entries: Vec<LogEntry> =
                stages.step("2 encode and checksum", || records.into_iter().map(LogEntry::new).collect());
            stages.step("3 append and apply", || entries.iter().try_for_each(|entry| brick.append(entry).map(drop)))?;
            stages.ops += 1;
        }
        Ok(())
    });
    checkpoints.stop()?;
    stages
}

fn print(outcome: &Value) {
    for row in outcome["rows"].as_array().into_iter().flatten() {
        let number = |value: &Value| figure(value.as_f64().unwrap_or(f64::NAN));
        println!("{}, {} writers, {} ops; of each op:", row["op"].as_str().unwrap_or(""), row["writers"], row["ops"]);
        let mut table = Table::new(&["stage", "us", "CPU us", "calls"]);
        for stage in row["stages"].as_array().into_iter().flatten() {
            let name = stage["stage"].as_str().unwrap_or("").to_string();
            table.row(vec![name, number(&stage["us"]), number(&stage["cpu_us"]), String::new()]);
        }
        for (name, of) in [("  of this: journal write", "journal_write"), ("  of this: journal sync", "journal_sync")] {
            table.row(vec![name.into(), number(&row[of]["us"]), String::new(), number(&row[of]["calls"])]);
        }
        let woken = format!("  woken after another's sync ({} of all)", number(&row["woken_share"]));
        table.row(vec![woken, number(&row["wake_us_median"]), String::new(), String::new()]);
        table.print();
        println!(
            "  switches: {} voluntary, {} involuntary\n",
            number(&row["voluntary_switches"]),
            number(&row["involuntary_switches"])
        );
    }
    println!("machine: {}", outcome["machine"]);
}
