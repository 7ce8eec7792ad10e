//! `hekate variation`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand, Debug)]
pub enum Variation {
    /// Measure a directory, file, block device or S3 endpoint for a time: a sample of its rate and latencies each
    /// interval.
    #[command(after_help = MEASURE_EXAMPLES)]
    Measure(VariationMeasure),
    /// Show series beside each other, in numbers and pictures.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(VariationShow),
    /// Compute how many machines reach a rate together, with which probability, and what they cost.
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(VariationPlan),
    /// Compute the latency of a request that waits for several servers, from the latencies of one.
    #[command(after_help = LATENCY_EXAMPLES)]
    Latency(VariationLatency),
    /// Join recordings of one job into one.
    #[command(after_help = "Example: hekate variation merge week.hvs monday.hvs tuesday.hvs")]
    Merge {
        /// The recording to make, with a CSV file beside it.
        to: PathBuf,
        /// Recordings (NAME.hvs); a sample that is in several counts once.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

const MEASURE_EXAMPLES: &str = "\
Examples:
  hekate variation measure /srv/disk1 --for 1h --every 10s
  hekate variation measure /mnt/photos --for 1h -o replicated       a Hekate volume, to be shown beside its disks
  hekate variation measure /srv/disk1 --for 24h -o day --resume     continue after an interruption
  hekate variation measure /dev/vdb --access read --direct --for 10m
  AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… hekate variation measure s3://bucket/test --endpoint http://127.0.0.1:9000
  hekate variation measure s3://bucket/test --endpoint https://store:9000 --ca-file ca.pem    keys as above
  hekate variation measure nothing --for 10s                        what measuring itself costs here

Two files are written: NAME.hvs, the recording with all latencies, and NAME.csv for people. SIGINT ends the measurement early, once
the running operations have ended; the samples are kept. The test file is removed at the end. A second SIGINT ends the
process at once; the next measurement there removes the file.

Exit status: 0 measured, or ended early; 1 fio does not agree; 64 wrong use; 69 no fio, no such server, or a device in use;
73 it would fill the disk, or the recording exists; 74 no operation succeeds, or objects are left.";

const SHOW_EXAMPLES: &str = "\
Examples:
  hekate variation show raw.hvs replicated.hvs
  hekate variation show provider-a.csv provider-b.csv --report report.html
  hekate variation show raw.hvs --export pictures      SVG, PNG, CSV and JSON into a directory

A FILE is a recording, or CSV with a column iops or mb_per_s in its first line, and perhaps time_s.

Exit status: 0 shown; 65 a file is malformed; 66 no such file.";

const PLAN_EXAMPLES: &str = "\
Examples:
  hekate variation plan --target 100000 --confidence 99% raw.hvs
  hekate variation plan --target 100000 --price 120 --price 95 provider-a.csv provider-b.csv
  hekate variation plan --target 50000,100000,200000 --confidence 90%,99%,99.9% raw.hvs --report plan.html
  hekate variation plan --target 100000 --copies 2 --amplification 1.5 --down 10% raw.hvs
  hekate variation plan --target 100000 --have old.csv=10 new.csv          how many new ones beside ten old ones
  hekate variation plan --target 100000 --mix --price 120 --price 95 a.csv b.csv   the cheapest fleet of both

Machines are independent of each other unless --together says otherwise.

Exit status: 0 planned; 64 no number of machines reaches the target, or wrong use; 65 a file is malformed.";

const LATENCY_EXAMPLES: &str = "\
Examples:
  hekate variation latency --servers 100 raw.hvs                   a read that needs all of 100 servers
  hekate variation latency --servers 3 --wait quorum raw.hvs       a write that waits for two of three replicas
  hekate variation latency --servers 1 --servers 2 --wait all near.hvs far.hvs

Servers count as independent; a FILE is a recording, or CSV with a column latency_us.

Exit status: 0 computed; 64 wrong use; 65 a file is malformed.";

#[derive(Args, Debug)]
pub struct VariationMeasure {
    /// A directory (a file is made in it), an existing file or block device, s3://BUCKET/PREFIX, or the word nothing.
    pub target: String,
    /// Duration, such as 90s, 10m, 1h 30m.
    #[arg(long = "for", default_value = "1h", value_name = "TIME", value_parser = time)]
    pub duration: Duration,
    /// Time between two samples.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = time)]
    pub every: Duration,
    /// Name of the files to write [default: variation-HOST].
    #[arg(short, long, value_name = "NAME")]
    pub output: Option<PathBuf>,
    /// Continue the recording of that name, if it exists.
    #[arg(long)]
    pub resume: bool,
    /// Bytes of the test area, such as 512MiB; of a file or device at most its size [default: 1GiB; S3: 1000 objects].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Bytes of an operation.
    #[arg(long, default_value = "4KiB", value_name = "SIZE", value_parser = size)]
    pub block: u64,
    /// Threads, each with one operation at a time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Kind of operation.
    #[arg(long, value_enum, default_value_t = Access::Write)]
    pub access: Access,
    /// Order of the offsets.
    #[arg(long, value_enum, default_value_t = Pattern::Random)]
    pub pattern: Pattern,
    /// When a write is on stable storage.
    #[arg(long, value_enum, default_value_t = Sync::Full)]
    pub sync: Sync,
    /// Bypass the page cache (O_DIRECT).
    #[arg(long)]
    pub direct: bool,
    /// Write to an existing file or device: destroys its contents.
    #[arg(long)]
    pub overwrite: bool,
    /// Run another program with the same job afterwards, and compare.
    #[arg(long, value_enum)]
    pub with: Option<With>,
    /// Address of the S3 server: http://HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "ADDRESS")]
    pub endpoint: Option<String>,
    /// Certificates (PEM) to trust instead of the system's: of your own CA, or a self-signed one of the server.
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// The region that requests are signed for.
    #[arg(long, env = "AWS_REGION", default_value = "us-east-1")]
    pub region: String,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    Random,
    /// Each thread goes through its own part.
    Sequential,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// When the system writes back.
    None,
    /// Before it returns, with what is needed to read it (O_DSYNC).
    Dsync,
    /// Before it returns, with all metadata (O_SYNC).
    #[value(name = "sync")]
    Full,
    /// By fdatasync(2) after each write.
    Fdatasync,
    /// By fsync(2) after each write.
    Fsync,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum With {
    Fio,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Iops,
    MbPerS,
}

#[derive(Args, Debug)]
pub struct VariationShow {
    /// Series, shown in one picture.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The unit to show [default: IOPS, or that of the file].
    #[arg(long, value_enum)]
    pub unit: Option<Unit>,
    /// Write an HTML file with everything in it.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write pictures and tables into a directory: SVG, PNG, CSV, JSON.
    #[arg(long, value_name = "DIR")]
    pub export: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct VariationPlan {
    /// Series of one machine each; each gets its own plan.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Rate of all machines together, in the unit of the series; several with commas.
    #[arg(long, required = true, value_name = "RATE", value_delimiter = ',')]
    pub target: Vec<f64>,
    /// Part of the time in which that rate is reached, such as 99% or 0.99; several with commas.
    #[arg(long, default_value = "99%", value_name = "SHARE", value_delimiter = ',', value_parser = share)]
    pub confidence: Vec<f64>,
    /// Price of a machine: one for all files, or one for each in their order.
    #[arg(long, value_name = "PRICE", value_delimiter = ',')]
    pub price: Vec<f64>,
    /// Number of machines to evaluate, such as those that you have; may be given again.
    #[arg(long, value_name = "FILE=COUNT", value_parser = have)]
    pub have: Vec<(PathBuf, usize)>,
    /// Find the cheapest fleet of two kinds as well; needs two files and their prices.
    #[arg(long)]
    pub mix: bool,
    /// The share of the time in which all machines move as one (their correlation): 0 never, 1 always.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = share)]
    pub together: f64,
    /// The share of the machines that is down all the time, rounded up.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = share)]
    pub down: f64,
    /// The share of the time that each machine is down, by itself.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = share)]
    pub outage: f64,
    /// Number of copies of each write.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub copies: u32,
    /// Operations on a disk for each operation that reaches a machine.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub amplification: f64,
    /// The unit to plan with [default: IOPS, or that of the file].
    #[arg(long, value_enum)]
    pub unit: Option<Unit>,
    /// Resampled series for the interval; 0: none.
    #[arg(long, default_value_t = 200, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub bootstrap: u32,
    /// Seed of the random numbers: the same seed gives the same answer.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write an HTML file with everything in it.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the picture of machines against confidence into a directory: SVG and PNG, with the answers as JSON.
    #[arg(long, value_name = "DIR")]
    pub export: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct VariationLatency {
    /// Latencies of one server of each kind.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Number of servers of each kind that a request goes to, in the order of the files.
    #[arg(long, required = true, value_name = "COUNT", value_delimiter = ',')]
    pub servers: Vec<usize>,
    /// Number of answers that it waits for: all, quorum (more than half), first, or a number.
    #[arg(long, default_value = "all", value_name = "COUNT")]
    pub wait: String,
}

fn time(text: &str) -> Result<Duration, String> {
    let time =
        humantime::parse_duration(text).map_err(|error| format!("{error}; write a time such as 90s, 10m or 1h"))?;
    if time.is_zero() { Err("a time is longer than 0".into()) } else { Ok(time) }
}

/// 4096, 4K, 4KiB, 1GiB: binary units.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err("write a size such as 4096, 4KiB or 1GiB".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "write a size such as 4096, 4KiB or 1GiB")?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(|| "the size is 0 or too great".into())
}

/// 99%, 99 %, 0.99.
fn share(text: &str) -> Result<f64, String> {
    let (digits, scale) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits.trim_end(), 100.0));
    let number: f64 = digits.parse().map_err(|_| "write a share such as 99% or 0.99")?;
    match (0.0..=1.0).contains(&(number / scale)) {
        true => Ok(number / scale),
        false => Err("a share lies between 0 and 1, or 0% and 100%".into()),
    }
}

fn have(text: &str) -> Result<(PathBuf, usize), String> {
    let (file, count) = text.rsplit_once('=').ok_or("write FILE=COUNT")?;
    Ok((file.into(), count.parse().map_err(|_| "write FILE=COUNT, with a whole number")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_people_write_them() {
        assert_eq!((size("4096"), size("4k"), size("1GiB")), (Ok(4096), Ok(4096), Ok(1 << 30)));
        assert!(size("0").is_err() && size("4KB").is_err() && size("99999999999T").is_err());
        assert_eq!((share("99%"), share("99.9 %"), share("0.5")), (Ok(0.99), Ok(0.9990000000000001), Ok(0.5)));
        assert!(share("99").is_err() && share("NaN").is_err() && share("-1%").is_err());
        assert_eq!(have("a=b.csv=3"), Ok(("a=b.csv".into(), 3)));
        assert!(time("0s").is_err() && time("1h 30m") == Ok(Duration::from_secs(5400)));
    }
}
