//! `rate`: a brick's durable 4 KiB writes beside the disk's own, in one run, in turn.

use crate::disk::Disk;
use crate::measure::{Random, median, process_cpu, quantile};
use crate::options::{Failed, Options, Scratch};
use crate::overwrites::Overwrites;
use crate::report::{self, Table, figure, micros};
use crate::server::Checkpoints;
use hekate_brick::Brick;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Partitions: enough that writers of different ones meet, and few enough that checkpoints write the same blocks again.
const SHARDS: usize = 8;

/// The readings of some threads: nanoseconds of each op, and the elapsed time.
#[derive(Default)]
pub struct Readings {
    nanos: Vec<u64>,
    elapsed: Duration,
    cpu: Duration,
}

impl Readings {
    /// Measures one op.
    pub fn time<T, E: Into<Failed>>(&mut self, op: impl FnOnce() -> Result<T, E>) -> Result<T, Failed> {
        let begun = Instant::now();
        let outcome = op();
        self.nanos.push(begun.elapsed().as_nanos() as u64);
        outcome.map_err(Into::into)
    }

    fn row(&mut self) -> Row {
        let iops = self.nanos.len() as f64 / self.elapsed.as_secs_f64();
        let cpu_us = self.cpu.as_secs_f64() * 1e6 / self.nanos.len().max(1) as f64;
        let (p50, p99) = (quantile(&mut self.nanos, 0.5), quantile(&mut self.nanos, 0.99));
        Row { iops, p50_us: micros(p50), p99_us: micros(p99), cpu_us }
    }
}

/// One round of one kind.
#[derive(Clone, Copy)]
struct Row {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
}

/// Runs `act` in threads, each with readings of its own. -> all of them.
pub fn in_threads(
    threads: usize,
    act: impl Fn(usize, &mut Readings) -> Result<(), Failed> + Sync,
) -> Result<Readings, Failed> {
    let (begun, cpu) = (Instant::now(), process_cpu());
    let outcomes: Vec<Result<Readings, Failed>> = std::thread::scope(|scope| {
        let run = |number| {
            let act = &act;
            scope.spawn(move || -> Result<Readings, Failed> {
                let mut readings = Readings::default();
                act(number, &mut readings)?;
                Ok(readings)
            })
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        let panicked = |_| Err(Failed::from("a writer panicked"));
        running.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let mut all = Readings { elapsed: begun.elapsed(), cpu: process_cpu() - cpu, ..Readings::default() };
    for outcome in outcomes {
        all.nanos.extend(outcome?.nanos);
    }
    Ok(all)
}

pub fn run(options: Options) -> Result<(), Failed> {
    let seconds = Duration::from_secs_f64(options.get("seconds", 2.0)?);
    let rounds: usize = options.get("rounds", 5)?;
    let writers = options.list("writers", &[1, 8, 64])?;
    let scratch = options.directory()?;
    let disk = Disk::new(&scratch.0, options.has("direct"))?;
    let brick_directory = Scratch::new(scratch.0.join("brick"))?;
    let (brick, _) = brick_directory.brick(options.settings()?)?;
    let overwrites = Overwrites::new(&brick, SHARDS)?;
    let checkpoints = Checkpoints::start(&brick);
    let mut of_brick: Vec<Vec<Row>> = vec![Vec::new(); writers.len()];
    let mut of_disk: Vec<Vec<Row>> = vec![Vec::new(); writers.len()];
    let mut sequential = Vec::new();
    for _ in 0..rounds.max(1) {
        for (at, threads) in writers.iter().enumerate() {
            of_disk[at].push(disk.random_writes(*threads, seconds)?.row());
            of_brick[at].push(brick_writes(&brick, &overwrites, *threads, seconds)?.row());
        }
        sequential.push(disk.sequential_writes(seconds)?.row());
    }
    let checkpoints = checkpoints.stop()?;
    let rows: Vec<Value> = (writers.iter().enumerate())
        .map(|(at, threads)| {
            let (brick, disk) = (summary(&of_brick[at]), summary(&of_disk[at]));
            let shares = of_brick[at].iter().zip(&of_disk[at]).map(|(brick, disk)| brick.iops / disk.iops);
            json!({ "writers": threads, "share": median(shares.collect()), "brick": brick, "disk": disk })
        })
        .collect();
    let outcome = json!({
        "seconds": seconds.as_secs_f64(), "rounds": rounds, "direct": options.has("direct"), "rows": rows,
        "disk_64k_sequential": summary(&sequential), "checkpoints": checkpoints, "machine": report::machine(),
    });
    if options.has("json") {
        report::json(&outcome)
    } else {
        print(&outcome)
    }
    Ok(())
}

fn brick_writes(
    brick: &Arc<Brick>,
    overwrites: &Overwrites,
    threads: usize,
    time: Duration,
) -> Result<Readings, Failed> {
    in_threads(threads, |number, readings| {
        let mut random = Random(1000 + number as u64);
        let begun = Instant::now();
        while begun.elapsed() < time {
            let draw = random.next();
            let shard = draw as usize % overwrites.shards();
            let bytes = vec![draw as u8; hekate_proto::BLOCK_BYTES];
            readings.time(|| brick.sync(overwrites.write(brick, shard, (draw >> 32) as u32, bytes)?))?;
        }
        Ok(())
    })
}

/// Medians of the rounds, and the range of the rates.
fn summary(rows: &[Row]) -> Value {
    let middle = |of: fn(&Row) -> f64| median(rows.iter().map(of).collect());
    let rates: Vec<f64> = rows.iter().map(|row| row.iops).collect();
    json!({
        "iops": middle(|row| row.iops),
        "iops_least": rates.iter().copied().fold(f64::INFINITY, f64::min),
        "iops_most": rates.iter().copied().fold(0.0, f64::max),
        "p50_us": middle(|row| row.p50_us), "p99_us": middle(|row| row.p99_us), "cpu_us": middle(|row| row.cpu_us),
    })
}

fn print(outcome: &Value) {
    let mut table = Table::new(&["", "writers", "IOPS", "least", "most", "p50 us", "p99 us", "CPU us", "share"]);
    let mut row = |name: &str, writers: &Value, of: &Value, share: Option<f64>| {
        let mut cells = vec![name.to_string(), writers.to_string()];
        let figures = ["iops", "iops_least", "iops_most", "p50_us", "p99_us", "cpu_us"];
        cells.extend(figures.map(|name| figure(of[name].as_f64().unwrap_or(f64::NAN))));
        cells.push(share.map_or(String::new(), figure));
        table.row(cells);
    };
    for of in outcome["rows"].as_array().into_iter().flatten() {
        row("disk, 4 KiB O_DSYNC", &of["writers"], &of["disk"], None);
        row("brick, 4 KiB synced", &of["writers"], &of["brick"], of["share"].as_f64());
    }
    row("disk, 64 KiB O_DSYNC", &json!(1), &outcome["disk_64k_sequential"], None);
    println!("medians of {} rounds of {} s; share: of the disk's rate", outcome["rounds"], outcome["seconds"]);
    table.print();
    println!("checkpoints: {}; machine: {}", outcome["checkpoints"], outcome["machine"]);
}
