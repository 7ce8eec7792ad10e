//! `creates`: the cost of the last tenth of many creates beside that of the first.

use crate::counted::{Counts, PARTS, Snapshot, Sort};
use crate::cycles::{self, Cost};
use crate::measure::{median, peak_memory, process_cpu, thread_cpu};
use crate::options::{Failed, Options};
use crate::records::{Creates, Shape};
use crate::report::{self, Table, figure};
use crate::server::Checkpoints;
use hekate_brick::{Brick, LogEntry};
use hekate_proto::Result;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Slices of a tenth. A checkpoint falls into some of them only, so the median slice counts.
const SLICES: u64 = 10;

pub fn run(options: Options) -> std::result::Result<(), Failed> {
    let count: u64 = options.get("count", 100_000)?;
    let shape: Shape = options.get("shape", Shape::Random)?;
    let random_names = match options.text("names") {
        None => shape == Shape::Random,
        Some("random") => true,
        Some("ascending") => false,
        Some(other) => return Err(format!("--names {other}: random or ascending").into()),
    };
    if count < 10 * SLICES {
        return Err(format!("--count {count}: at least {}", 10 * SLICES).into());
    }
    let directories = options.get("directories", (count / 100).max(1))?;
    let settings = options.settings()?;
    let scratch = options.directory()?;
    let (brick, counts) = scratch.brick(settings)?;
    let (mut creates, first) = Creates::new(shape, directories, random_names);
    first.chunks(1000).try_for_each(|records| -> Result<()> {
        cycles::append(&brick, records.to_vec())?;
        if brick.wants_checkpoint() { brick.checkpoint() } else { Ok(()) }
    })?;
    brick.checkpoint()?;
    let begun = counts.snapshot();
    let mut outcome = match options.has("inline") {
        true => inline(&brick, &counts, &mut creates, count)?,
        false => beside(&brick, &counts, &mut creates, count)?,
    };
    let calls = counts.snapshot().since(&begun);
    outcome["written"] = parts(&calls);
    outcome["written_bytes"] = calls.written().into();
    outcome["peak_memory_bytes"] = peak_memory().into();
    let file = scratch.0.join("index/index.redb");
    outcome["index_file_bytes"] = std::fs::metadata(file)?.len().into();
    outcome["count"] = count.into();
    outcome["shape"] = format!("{shape:?}").to_lowercase().into();
    outcome["random_names"] = random_names.into();
    outcome["settings"] = json!({
        "journal_bytes": settings.journal_segments * settings.segment_bytes,
        "index_cache_bytes": settings.index_cache_bytes,
    });
    outcome["machine"] = report::machine();
    if options.has("json") {
        report::json(&outcome)
    } else {
        print(&outcome)
    }
    Ok(())
}

/// Checkpoints in the appending thread.
fn inline(brick: &Brick, counts: &Counts, creates: &mut Creates, count: u64) -> Result<Value> {
    let cycles = cycles::run(brick, counts, creates, count)?;
    let tenths = cycles::tenths(&cycles);
    let rows: Vec<Value> = tenths.iter().map(row_of).collect();
    Ok(json!({ "checkpoints": cycles.len(), "tenths": rows }))
}

fn row_of(cost: &Cost) -> Value {
    json!({
        "creates": cost.creates,
        "us": cost.elapsed.as_secs_f64() * 1e6 / cost.creates as f64,
        "cpu_us": cost.cpu_us(),
        "checkpoint_cpu_us": cost.checkpoint_cpu.as_secs_f64() * 1e6 / cost.creates as f64,
        "index_bytes": cost.each(|calls| calls.of(1, Sort::Write).bytes),
        "index_writes": cost.each(|calls| calls.of(1, Sort::Write).calls),
        "index_reads": cost.each(|calls| calls.of(1, Sort::Read).calls),
        "journal_bytes": cost.each(|calls| calls.of(0, Sort::Write).bytes),
        "calls": cost.each(Snapshot::calls),
    })
}

/// The readings at the end of a slice.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    cpu: Duration,
    calls: Snapshot,
}

/// Checkpoints in a thread of their own, as in a server.
fn beside(brick: &Arc<Brick>, counts: &Counts, creates: &mut Creates, count: u64) -> Result<Value> {
    let checkpoints = Checkpoints::start(brick);
    let mut making = Duration::ZERO;
    let read = |making: Duration| Reading { at: Instant::now(), cpu: process_cpu() - making, calls: counts.snapshot() };
    let mut readings = vec![read(making)];
    let mut stall = Duration::ZERO;
    let slice = count / (10 * SLICES);
    for _ in 0..10 * SLICES {
        let mut made = 0;
        while made < slice {
            let batch = (slice - made).min(64);
            let cpu = thread_cpu();
            let mut records = Vec::new();
            (0..batch).for_each(|_| creates.next(&mut records));
            making += thread_cpu() - cpu;
            for record in records {
                let entry = LogEntry::new(record);
                let begun = Instant::now();
                brick.append(&entry)?;
                stall = stall.max(begun.elapsed());
            }
            made += batch;
        }
        readings.push(read(making));
    }
    let done = checkpoints.stop()?;
    let last = Instant::now();
    brick.checkpoint()?;
    let rows: Vec<Value> =
        readings.windows(SLICES as usize + 1).step_by(SLICES as usize).map(|r| tenth(r, slice)).collect();
    Ok(json!({
        "checkpoints": done,
        "longest_stall_ms": stall.as_secs_f64() * 1e3,
        "last_checkpoint_seconds": last.elapsed().as_secs_f64(),
        "tenths": rows,
    }))
}

fn tenth(readings: &[Reading], slice: u64) -> Value {
    let (first, last) = (&readings[0], &readings[readings.len() - 1]);
    let creates = slice * SLICES;
    let calls = last.calls.since(&first.calls);
    let each = |number: u64| number as f64 / creates as f64;
    let seconds = |pair: &[Reading]| (pair[1].at - pair[0].at).as_secs_f64();
    json!({
        "creates": creates,
        "seconds": (last.at - first.at).as_secs_f64(),
        "seconds_by_median_slice": median(readings.windows(2).map(seconds).collect()) * SLICES as f64,
        "cpu_us": (last.cpu - first.cpu).as_secs_f64() * 1e6 / creates as f64,
        "index_bytes": each(calls.of(1, Sort::Write).bytes),
        "index_writes": each(calls.of(1, Sort::Write).calls),
        "index_reads": each(calls.of(1, Sort::Read).calls),
        "journal_bytes": each(calls.of(0, Sort::Write).bytes),
    })
}

fn parts(calls: &Snapshot) -> Value {
    let of = |part: usize| {
        let tally = |sort| calls.of(part, sort);
        let (read, write, sync) = (tally(Sort::Read), tally(Sort::Write), tally(Sort::Sync));
        let value = json!({
            "written_bytes": write.bytes, "writes": write.calls, "write_seconds": write.nanos as f64 / 1e9,
            "read_bytes": read.bytes, "reads": read.calls,
            "syncs": sync.calls, "sync_seconds": sync.nanos as f64 / 1e9,
        });
        (PARTS[part].to_string(), value)
    };
    (0..PARTS.len()).map(of).collect::<serde_json::Map<_, _>>().into()
}

const COLUMNS: [&str; 10] = [
    "us",
    "seconds",
    "seconds_by_median_slice",
    "cpu_us",
    "checkpoint_cpu_us",
    "index_bytes",
    "index_writes",
    "index_reads",
    "journal_bytes",
    "calls",
];

fn print(outcome: &Value) {
    let tenths: Vec<&Value> = outcome["tenths"].as_array().into_iter().flatten().collect();
    let columns: Vec<&str> = COLUMNS.into_iter().filter(|name| tenths.iter().any(|row| row[*name].is_f64())).collect();
    let mut heads = vec!["tenth"];
    heads.extend(&columns);
    let mut table = Table::new(&heads);
    let cell = |row: &Value, name: &str| figure(row[name].as_f64().unwrap_or(f64::NAN));
    for (number, row) in tenths.iter().enumerate() {
        let mut cells = vec![(number + 1).to_string()];
        cells.extend(columns.iter().map(|name| cell(row, name)));
        table.row(cells);
    }
    if let (Some(first), Some(last)) = (tenths.first(), tenths.last()) {
        let ratio = |name: &&str| last[*name].as_f64().unwrap_or(f64::NAN) / first[*name].as_f64().unwrap_or(f64::NAN);
        let mut cells = vec!["last / first".to_string()];
        cells.extend(columns.iter().map(|name| figure(ratio(name))));
        table.row(cells);
    }
    println!("{} creates, shape {}; of each create unless in seconds:", outcome["count"], outcome["shape"]);
    table.print();
    for name in ["settings", "checkpoints", "longest_stall_ms", "last_checkpoint_seconds", "written"] {
        println!("{name}: {}", outcome[name]);
    }
    let mib = |name: &str| outcome[name].as_u64().unwrap_or(0) >> 20;
    let [written, file, peak] = ["written_bytes", "index_file_bytes", "peak_memory_bytes"].map(mib);
    println!("written: {written} MiB; index file: {file} MiB; peak memory: {peak} MiB");
}
