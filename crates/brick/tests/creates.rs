//! Creates do not slow down as a brick fills, and take bounded memory: the last tenth beside the first.
//!
//! `make test` makes 50,000, `make soak` 1,000,000 (`HEKATE_CREATES`). The smaller size is a scale model: journal,
//! index cache and directories shrink with the count, so checkpoints are as many and as wide. Compared are bytes
//! written, the same in every run, and calls to the file system. CPU time is printed and not judged: it belongs to the
//! machine, and to `cargo bench -p hekate-brick -- creates --inline`. Each run is a process of its own, so that the
//! most memory it ever had is its own. `docs/adr/0007-key-order.md` has the figures, and says what creates spread over
//! many directories cost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test; its helpers too")]

#[allow(dead_code, reason = "the bench uses more of it")]
#[path = "../benches/brick/counted.rs"]
mod counted;
#[allow(dead_code, reason = "the bench uses more of it")]
#[path = "../benches/brick/cycles.rs"]
mod cycles;
#[allow(dead_code, reason = "the bench uses more of it")]
#[path = "../benches/brick/measure.rs"]
mod measure;
#[allow(dead_code, reason = "the bench uses more of it")]
#[path = "../benches/brick/options.rs"]
mod options;
#[allow(dead_code, reason = "the bench uses more of it")]
#[path = "../benches/brick/records.rs"]
mod records;

use counted::Snapshot;
use hekate_brick::BrickSettings;
use options::Scratch;
use records::{Creates, Shape};
use std::path::PathBuf;
use std::process::Command;

const COUNT: u64 = 50_000;
/// What the default settings are made for here.
const FULL_COUNT: u64 = 1_000_000;
/// Beside cache and changes: the program, its stack, what the allocator keeps.
const MEMORY_OF_THE_REST: u64 = 16 << 20;

/// Of creates in directories in turn, at both sizes.
const RANDOM_BYTES_RATIO_MAX: f64 = 3.0;
const RANDOM_CALLS_RATIO_MAX: f64 = 3.0;

const CHILD: &str = "HEKATE_CREATES_CHILD";

/// Of the last tenth to the first: bytes written and calls; microseconds of CPU of one create in each; memory.
#[derive(Debug)]
struct Outcome {
    bytes_ratio: f64,
    calls_ratio: f64,
    cpu_first_us: f64,
    cpu_last_us: f64,
    peak_memory: u64,
    memory_max: u64,
}

fn count() -> u64 {
    std::env::var("HEKATE_CREATES").map_or(COUNT, |text| text.parse().expect("HEKATE_CREATES is a number"))
}

/// Smaller in proportion.
fn settings(count: u64) -> BrickSettings {
    let usual = BrickSettings::default();
    let scaled =
        |bytes: u64, least: u64| (bytes * count.min(FULL_COUNT) / FULL_COUNT).next_multiple_of(4096).max(least);
    BrickSettings {
        segment_bytes: scaled(usual.segment_bytes, 64 << 10),
        index_cache_bytes: scaled(usual.index_cache_bytes as u64, 1 << 20) as usize,
        ..usual
    }
}

/// A file system in memory, where the kernel's part of the CPU time does not depend on what a disk's file system does
/// in the meantime; the disk for what is too large for it, or without one.
fn directory(count: u64) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if count <= 2 * COUNT && memory.is_dir() { memory } else { PathBuf::from(env!("CARGO_TARGET_TMPDIR")) }
}

/// The body of the child's process.
fn measure(shape: &str, count: u64) -> Outcome {
    let scratch = Scratch::new(directory(count).join(format!("hekate-creates-{}", std::process::id()))).unwrap();
    let (kind, random_names) = match shape.strip_suffix("-by-random-names") {
        Some(kind) => (kind, true),
        None => (shape, shape == "random"),
    };
    let settings = settings(count);
    let (brick, counts) = scratch.brick(settings).unwrap();
    let (mut creates, first) = Creates::new(kind.parse::<Shape>().unwrap(), count / 100, random_names);
    for records in first.chunks(100) {
        cycles::append(&brick, records.to_vec()).unwrap();
        if brick.wants_checkpoint() {
            brick.checkpoint().unwrap();
        }
    }
    brick.checkpoint().unwrap();
    let cycles = cycles::run(&brick, &counts, &mut creates, count).unwrap();
    let tenths = cycles::tenths(&cycles);
    let (first, last) = (&tenths[0], &tenths[9]);
    let changes = cycles.iter().map(|cycle| cycle.overlay_bytes).max().unwrap() as u64;
    Outcome {
        bytes_ratio: last.each(Snapshot::written) / first.each(Snapshot::written),
        calls_ratio: last.each(Snapshot::calls) / first.each(Snapshot::calls),
        cpu_first_us: first.cpu_us(),
        cpu_last_us: last.cpu_us(),
        peak_memory: measure::peak_memory(),
        // The changes that a checkpoint writes, and those that come meanwhile.
        memory_max: settings.index_cache_bytes as u64 + 2 * changes + MEMORY_OF_THE_REST,
    }
}

/// Runs [`measure`] in a process of its own.
fn run(shape: &str) -> Outcome {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "child", "--nocapture"]).env(CHILD, shape).env_remove("RUST_TEST_THREADS");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the child of shape {shape} failed:\n{text}{errors}");
    let line = text.lines().find_map(|line| line.split_once("outcome: ")).expect("the child prints its outcome").1;
    let mut words = line.split_whitespace().map(|word| word.parse::<f64>().unwrap());
    let mut next = || words.next().unwrap();
    let (bytes_ratio, calls_ratio, cpu_first_us, cpu_last_us) = (next(), next(), next(), next());
    Outcome {
        bytes_ratio,
        calls_ratio,
        cpu_first_us,
        cpu_last_us,
        peak_memory: next() as u64,
        memory_max: next() as u64,
    }
}

#[test]
fn child() {
    let Ok(shape) = std::env::var(CHILD) else { return };
    let Outcome { bytes_ratio, calls_ratio, cpu_first_us, cpu_last_us, peak_memory, memory_max } =
        measure(&shape, count());
    println!("outcome: {bytes_ratio} {calls_ratio} {cpu_first_us} {cpu_last_us} {peak_memory} {memory_max}");
}

fn holds(shape: &str, bytes_ratio_max: f64, calls_ratio_max: f64) {
    let outcome = run(shape);
    println!("{shape}, {} creates: {outcome:?}", count());
    let Outcome { bytes_ratio, calls_ratio, peak_memory, memory_max, .. } = outcome;
    assert!(bytes_ratio <= bytes_ratio_max, "{shape}: the last tenth writes {bytes_ratio:.2} times the first");
    assert!(
        calls_ratio <= calls_ratio_max,
        "{shape}: the last tenth calls {calls_ratio:.2} times as often as the first"
    );
    assert!(peak_memory <= memory_max, "{shape}: {peak_memory} bytes of memory; at most {memory_max}");
}

#[test]
fn the_last_tenth_of_creates_in_one_directory_costs_what_the_first_does() {
    holds("big", 1.3, 1.3);
}

#[test]
fn the_last_tenth_of_creates_in_a_tree_costs_what_the_first_does() {
    holds("tree", 1.3, 1.3);
}

/// Creates spread over many directories miss the goal; these limits keep what is reached.
#[test]
fn the_last_tenth_of_creates_in_directories_in_turn_costs_no_more_than_stated() {
    holds("random", RANDOM_BYTES_RATIO_MAX, RANDOM_CALLS_RATIO_MAX);
}
