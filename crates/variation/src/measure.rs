//! Measuring: threads that run one operation after the other, and a sample of their operations for each interval.
//!
//! Each thread waits for its operation before it begins the next (a closed loop): a stall of the store lowers the rate
//! of the intervals that it lasts, down to 0, and its latency counts in the interval in which it ends.

pub mod cost;
pub mod fio;
pub mod picture;
pub mod s3;
pub mod store;
pub mod target;

use crate::error::{Error, Kind, Result};
use crate::random::Random;
use crate::series::Latencies;
use crate::series::latencies::{DIGITS, LONGEST_NS};
use crate::series::record::{Job, Pattern, Sample};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use target::{Block, Target};

/// Interval at which the sampler checks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Pause of a thread after a failed operation.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// The operations of one thread in the current interval.
struct Recorder {
    histogram: Histogram<u64>,
    bytes: u64,
    errors: u64,
    last_error: Option<String>,
}

impl Recorder {
    fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS);
        let histogram = histogram.map_err(|error| Error::new(Kind::Ours, format!("no histogram: {error}")))?;
        Ok(Self { histogram, bytes: 0, errors: 0, last_error: None })
    }
}

/// Measures until `samples` are taken or `stop` is set, and passes on each sample as it is taken.
///
/// # Errors
///
/// No operation of the first interval succeeds, or `taken` fails.
pub fn run(
    job: &Job,
    target: &dyn Target,
    samples: u64,
    stop: &AtomicBool,
    taken: &mut dyn FnMut(Sample) -> Result<()>,
) -> Result<()> {
    let recorders = (0..job.threads).map(|_| Recorder::new().map(Mutex::new)).collect::<Result<Vec<_>>>()?;
    let workers = (0..job.threads).map(|index| target.worker(index)).collect::<Result<Vec<_>>>()?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for ((index, worker), recorder) in (0u32..).zip(workers).zip(&recorders) {
            let done = &done;
            scope.spawn(move || work(job, index, worker, recorder, done));
        }
        let outcome = sample_all(job, &recorders, samples, stop, taken);
        done.store(true, Ordering::Relaxed);
        outcome
    })
}

/// The loop of one thread.
fn work(job: &Job, index: u32, mut worker: Box<dyn target::Worker>, recorder: &Mutex<Recorder>, done: &AtomicBool) {
    let mut random = Random::seeded(now_ms().wrapping_mul(1_000).wrapping_add(u64::from(index)));
    let mut block = Block::random(job.block_bytes as usize, &mut random);
    let blocks = (job.size_bytes / job.block_bytes).max(1);
    // Each sequential thread has a part of its own.
    let part = (blocks / u64::from(job.threads)).max(1);
    let first = (u64::from(index) * part).min(blocks - 1);
    let mut turn = 0u64;
    while !done.load(Ordering::Relaxed) {
        let number = match job.pattern {
            Pattern::Random => random.below(blocks as usize) as u64,
            Pattern::Sequential => first + turn % part.min(blocks - first),
        };
        turn += 1;
        block.stamp(u64::from(index), turn);
        let began = Instant::now();
        let outcome = worker.operate(number, block.bytes());
        let took = began.elapsed();
        let mut recorder = recorder.lock();
        match outcome {
            Ok(()) => {
                recorder.histogram.saturating_record(took.as_nanos() as u64);
                recorder.bytes += job.block_bytes;
            }
            Err(error) => {
                recorder.errors += 1;
                recorder.last_error = Some(error.to_string());
                drop(recorder);
                std::thread::sleep(AFTER_ERROR);
            }
        }
    }
}

fn sample_all(
    job: &Job,
    recorders: &[Mutex<Recorder>],
    samples: u64,
    stop: &AtomicBool,
    taken: &mut dyn FnMut(Sample) -> Result<()>,
) -> Result<()> {
    let interval = Duration::from_millis(job.interval_ms);
    let began = Instant::now();
    let (mut from, mut start_ms, mut is_sound) = (began, now_ms(), false);
    for number in 1..=samples {
        let until = began + interval * u32::try_from(number).unwrap_or(u32::MAX);
        while Instant::now() < until {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
        }
        let (mut sample, error) = collect(recorders);
        let now = Instant::now();
        (sample.start_ms, sample.length_ns) = (start_ms, (now - from).as_nanos() as u64);
        (from, start_ms) = (now, now_ms());
        is_sound |= sample.operations > 0;
        if let Some(error) = error.filter(|_| !is_sound) {
            return Err(Error::new(Kind::InputOutput, format!("{}: no operation succeeds: {error}", job.target)));
        }
        taken(sample)?;
    }
    Ok(())
}

/// Takes the records of all threads, and empties them.
fn collect(recorders: &[Mutex<Recorder>]) -> (Sample, Option<String>) {
    let (mut sample, mut latencies, mut error) = (Sample::default(), Vec::new(), None);
    for recorder in recorders {
        let mut recorder = recorder.lock();
        sample.operations += recorder.histogram.len();
        sample.bytes += std::mem::take(&mut recorder.bytes);
        sample.errors += std::mem::take(&mut recorder.errors);
        error = recorder.last_error.take().or(error);
        latencies.push(Latencies::of_histogram(&recorder.histogram));
        recorder.histogram.reset();
    }
    sample.latencies = Latencies::merge(&latencies.iter().collect::<Vec<_>>());
    (sample, error)
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests;
