//! `hekate variation measure`.

use super::show::width;
use crate::cli::{self, Cli, VariationMeasure};
use crate::failure::Failure;
use crate::output;
use hekate_variation::measure::picture::State;
use hekate_variation::measure::s3::{Credentials, Endpoint, S3Target};
use hekate_variation::measure::store::{Store, recording_path};
use hekate_variation::measure::target::{FileTarget, Nothing, Target, Which, size_of};
use hekate_variation::measure::{cost, fio, run};
use hekate_variation::series::record::{Access, Job, Pattern, Sample, Sync};
use hekate_variation::series::{Series, Unit};
use hekate_variation::show::{report, summary};
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bounds of fio's time, which is a tenth of the measurement's.
const FIO_SECONDS: std::ops::RangeInclusive<u64> = 5..=60;

/// Default test area: more bytes than the caches of disks hold, and a number of objects that is uploaded in seconds.
const SIZE_BYTES: u64 = 1 << 30;
const S3_OBJECTS: u64 = 1000;

/// The target, with the file that fio may use.
struct Opened {
    target: Box<dyn Target>,
    file: Option<PathBuf>,
}

pub fn measure(cli: &Cli, options: &VariationMeasure) -> Result<(), Failure> {
    let which = Which::of(&options.target)?;
    let job = job(options, which)?;
    let wanted = samples_wanted(options)?;
    if which != Which::S3 && (options.endpoint.is_some() || options.ca_file.is_some()) {
        return Err(Failure::usage("--endpoint and --ca-file are for s3://BUCKET/PREFIX"));
    }
    if options.with.is_some() && !matches!(which, Which::Directory | Which::File | Which::Device) {
        return Err(Failure::usage("--with fio works on directories, files and devices"));
    }
    let name = options.output.clone().unwrap_or_else(|| PathBuf::from(format!("variation-{}", job.host)));
    let (mut store, mut samples) = Store::open(&name, &job, wanted, options.resume)?;
    let stop = stop_on_signals()?;
    let mut screen = Screen::new(cli, wanted, options.every);
    let before = samples.len();
    let mut opened = match open(options, which, &job, &stop, &mut |done| screen.prepared(done, job.size_bytes)) {
        Ok(Some(opened)) => opened,
        other => {
            store.close()?;
            return Err(other
                .err()
                .unwrap_or_else(|| Failure::new(130, "stopped while it prepared; nothing was measured")));
        }
    };
    let processor_before = cost::processor_time();
    let mut taken = |sample: Sample| {
        store.append(&sample)?;
        samples.push(sample);
        screen.sampled(&samples);
        Ok(())
    };
    let left = wanted.saturating_sub(before as u64);
    let ran = run(&job, opened.target.as_ref(), left, &stop, &mut taken);
    let processor = cost::processor_time().saturating_sub(processor_before);
    store.close()?;
    ran?;
    let agreement = compare(options, &job, &opened, &samples, &stop)?;
    // Before the summary is printed, which says that nothing is left.
    let cleaned = opened.target.clean();
    let agrees = agreement.as_ref().is_none_or(|agreement| agreement["agrees"] == true);
    let found =
        Found { name: recording_path(&name), wanted, processor, new: samples[before..].to_vec(), samples, agreement };
    found.tell(cli)?;
    cleaned?;
    if agrees { Ok(()) } else { Err(Failure::printed(1)) }
}

fn job(options: &VariationMeasure, which: Which) -> Result<Job, Failure> {
    let default = if which == Which::S3 { S3_OBJECTS.saturating_mul(options.block) } else { SIZE_BYTES };
    let mut size_bytes = options.size.unwrap_or(default);
    if matches!(which, Which::File | Which::Device) {
        size_bytes = size_bytes.min(size_of(Path::new(&options.target))?);
    }
    if size_bytes < options.block {
        return Err(Failure::usage(format!(
            "{size_bytes} bytes are less than one block of {}; choose a smaller --block",
            options.block
        )));
    }
    let job = Job {
        target: options.target.clone(),
        kind: which.name().into(),
        access: match options.access {
            cli::Access::Read => Access::Read,
            cli::Access::Write => Access::Write,
        },
        pattern: match options.pattern {
            cli::Pattern::Random => Pattern::Random,
            cli::Pattern::Sequential => Pattern::Sequential,
        },
        block_bytes: options.block,
        threads: options.threads,
        sync: match options.sync {
            cli::Sync::None => Sync::None,
            cli::Sync::Dsync => Sync::Dsync,
            cli::Sync::Full => Sync::Sync,
            cli::Sync::Fdatasync => Sync::Fdatasync,
            cli::Sync::Fsync => Sync::Fsync,
        },
        direct: options.direct,
        size_bytes: size_bytes / options.block * options.block,
        interval_ms: options.every.as_millis() as u64,
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    if job.direct && !options.block.is_multiple_of(512) {
        return Err(Failure::usage("direct I/O works on multiples of 512 bytes; choose another --block"));
    }
    Ok(job)
}

fn samples_wanted(options: &VariationMeasure) -> Result<u64, Failure> {
    if options.every < Duration::from_millis(10) || options.every > Duration::from_secs(86_400) {
        return Err(Failure::usage("--every is from 10ms to 1day"));
    }
    let count = options.duration.as_nanos() / options.every.as_nanos();
    let most = hekate_variation::series::SAMPLES_MAX as u128;
    match count {
        0 => Err(Failure::usage("--for is shorter than --every: there would be no sample")),
        count if count > most => {
            Err(Failure::usage(format!("that would be {count} samples, more than {most}; choose a longer --every")))
        }
        count => Ok(count as u64),
    }
}

/// A flag that SIGINT, SIGTERM and SIGHUP set. A second signal ends the process.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        let set = signal_hook::flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        set.map_err(|error| Failure::new(71, format!("cannot listen for signals: {error}")))?;
    }
    Ok(stop)
}

/// Opens and fills the target. None if a signal stopped it meanwhile.
fn open(
    options: &VariationMeasure,
    which: Which,
    job: &Job,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<Option<Opened>, Failure> {
    let path = Path::new(&options.target);
    let of_file = |target: FileTarget| Opened { file: Some(target.path().into()), target: Box::new(target) };
    Ok(match which {
        Which::Nothing => Some(Opened { target: Box::new(Nothing), file: None }),
        Which::Directory => FileTarget::in_directory(path, job, stop, progress)?.map(of_file),
        Which::File | Which::Device => Some(of_file(FileTarget::existing(path, which, job, options.overwrite)?)),
        Which::S3 => {
            let endpoint = endpoint(options)?;
            let target = S3Target::new(&options.target, &endpoint, job, stop, progress)?;
            target.map(|target| Opened { target: Box::new(target), file: None })
        }
    })
}

fn endpoint(options: &VariationMeasure) -> Result<Endpoint, Failure> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let key = |name: &str| set(name).ok_or_else(|| Failure::usage(format!("set {name}: requests to S3 are signed")));
    let address = options.endpoint.as_deref();
    let address =
        address.ok_or_else(|| Failure::usage("say where the S3 server answers: --endpoint http://HOST:PORT"))?;
    let credentials = Credentials {
        access_key: key("AWS_ACCESS_KEY_ID")?,
        secret_key: key("AWS_SECRET_ACCESS_KEY")?,
        session_token: set("AWS_SESSION_TOKEN"),
    };
    Ok(Endpoint::new(address, &options.region, credentials, options.ca_file.as_deref())?)
}

/// The result of fio on the same file, if `--with fio` is set.
fn compare(
    options: &VariationMeasure,
    job: &Job,
    opened: &Opened,
    samples: &[Sample],
    stop: &AtomicBool,
) -> Result<Option<Value>, Failure> {
    let (Some(_), Some(path)) = (options.with, &opened.file) else { return Ok(None) };
    if stop.load(Ordering::Relaxed) || samples.is_empty() {
        return Ok(None);
    }
    let seconds = (options.duration.as_secs() / 10).clamp(*FIO_SECONDS.start(), *FIO_SECONDS.end());
    let found = fio::run(job, path, seconds)?;
    let rates: Vec<f64> = samples.iter().map(|sample| sample.rate(Unit::Iops)).collect();
    let agreement = fio::compare(&rates, found.iops);
    let mut row = serde_json::to_value(&agreement).unwrap_or_default();
    row["fio"] = serde_json::to_value(&found).unwrap_or_default();
    Ok(Some(row))
}

/// The summary at the end.
struct Found {
    name: PathBuf,
    wanted: u64,
    processor: Duration,
    /// Without the samples of an earlier run.
    new: Vec<Sample>,
    samples: Vec<Sample>,
    agreement: Option<Value>,
}

impl Found {
    fn tell(&self, cli: &Cli) -> Result<(), Failure> {
        let operations: u64 = self.new.iter().map(|sample| sample.operations).sum();
        let each_us = self.processor.as_secs_f64() * 1e6 / operations.max(1) as f64;
        let numbers = self.summary()?;
        if cli.json {
            output::json(&json!({
                "recording": self.name,
                "csv": self.name.with_extension("csv"),
                "samples": self.samples.len(),
                "samples_wanted": self.wanted,
                "processor_us_per_operation": each_us,
                "fio": self.agreement,
                "summary": numbers,
            }));
            return Ok(());
        }
        let left = self.wanted.saturating_sub(self.samples.len() as u64);
        let more = if left > 0 { format!(", {left} more with --resume") } else { String::new() };
        println!("{}: {} samples{more}", self.name.display(), self.samples.len());
        if let Some(numbers) = numbers {
            let at = |share: f64| numbers.quantiles.iter().find(|(at, _)| *at == share).map_or(0.0, |(_, rate)| *rate);
            let [least, low, middle, most] = [numbers.least, at(0.01), at(0.5), numbers.most].map(report::rate_text);
            println!("IOPS: worst {least}, 1 % {low}, median {middle}, best {most}; flatness {:.2}", numbers.flatness);
            numbers.notes.iter().for_each(|note| println!("{note}"));
        }
        println!("processor time, kernel included: {each_us:.1} us an operation");
        if let Some(agreement) = &self.agreement {
            let word = if agreement["agrees"] == true { "agrees" } else { "DOES NOT AGREE" };
            let rates =
                ["ours_iops", "fio_iops"].map(|name| report::rate_text(agreement[name].as_f64().unwrap_or(0.0)));
            println!("fio {word}: {} IOPS, ours {}; {}", rates[1], rates[0], agreement["why"].as_str().unwrap_or("-"));
        }
        Ok(())
    }

    fn summary(&self) -> Result<Option<hekate_variation::show::Summary>, Failure> {
        if self.samples.is_empty() {
            return Ok(None);
        }
        Ok(Some(summary(&Series::read(&self.name, Some(Unit::Iops))?)))
    }
}

/// Progress: a picture that is redrawn in a terminal, else a line for each sample.
struct Screen {
    is_silent: bool,
    is_terminal: bool,
    drawn: usize,
    wanted: u64,
    interval: Duration,
    prepared: Option<(u64, u64)>,
    prepared_shown: u64,
}

impl Screen {
    fn new(cli: &Cli, wanted: u64, interval: Duration) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { is_silent: cli.json, is_terminal, drawn: 0, wanted, interval, prepared: None, prepared_shown: 0 }
    }

    fn prepared(&mut self, done: u64, total: u64) {
        self.prepared = Some((done, total));
        // Steps of a hundredth are visible.
        if done == total || done - self.prepared_shown >= total / 100 {
            self.prepared_shown = done;
            if self.is_terminal {
                self.draw(&[]);
            }
        }
    }

    fn sampled(&mut self, samples: &[Sample]) {
        if self.is_terminal {
            self.draw(samples);
        } else if let Some(sample) = samples.last().filter(|_| !self.is_silent) {
            let (rate, mb) = (sample.rate(Unit::Iops), sample.rate(Unit::MbPerS));
            eprintln!(
                "sample {} of {}: {rate:.0} IOPS, {mb:.1} MB/s, {} failed",
                samples.len(),
                self.wanted,
                sample.errors
            );
        }
    }

    fn draw(&mut self, samples: &[Sample]) {
        if self.is_silent {
            return;
        }
        let state = State { samples, wanted: self.wanted, interval: self.interval, prepared: self.prepared };
        let lines = state.lines(width());
        let mut out = std::io::stderr().lock();
        // Cursor up to the beginning of the last picture, and erase from there on (ECMA-48, CUU and ED).
        let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
        // A terminal that has gone does not end the measurement.
        let _ = write!(out, "{up}\r\x1b[J{}\n", lines.join("\n"));
        self.drawn = lines.len();
    }
}
