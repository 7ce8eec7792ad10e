//! The same job run by fio, as an independent check: it must measure the same rate.

use crate::error::{Error, Kind, Result};
use crate::series::record::{Access, Job, Pattern, Sync};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// Relative difference up to which two means agree; the rates of a shared disk vary by as much from minute to minute.
const TOLERANCE: f64 = 0.15;

/// The rates that fio measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    pub version: String,
    pub seconds: u64,
    pub iops: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// The rates of both programs side by side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    pub ours_iops: f64,
    pub fio_iops: f64,
    /// fio's rate over this program's.
    pub ratio: f64,
    pub agrees: bool,
    pub why: String,
}

/// fio's arguments for a job on an existing file.
pub fn arguments(job: &Job, path: &Path, seconds: u64) -> Vec<String> {
    let mode = match (job.access, job.pattern) {
        (Access::Read, Pattern::Random) => "randread",
        (Access::Read, Pattern::Sequential) => "read",
        (Access::Write, Pattern::Random) => "randwrite",
        (Access::Write, Pattern::Sequential) => "write",
    };
    let mut arguments = vec![
        "--name=hekate".into(),
        format!("--filename={}", path.display()),
        format!("--rw={mode}"),
        format!("--bs={}", job.block_bytes),
        format!("--numjobs={}", job.threads),
        format!("--size={}", job.size_bytes),
        format!("--direct={}", u8::from(job.direct)),
        format!("--runtime={seconds}"),
    ];
    let fixed = ["--ioengine=psync", "--time_based", "--group_reporting", "--norandommap", "--randrepeat=0"];
    let more = ["--overwrite=1", "--output-format=json", "--percentile_list=50:99"];
    arguments.extend(fixed.iter().chain(&more).map(ToString::to_string));
    match job.sync {
        _ if job.access == Access::Read => (),
        Sync::None => (),
        Sync::Sync => arguments.push("--sync=sync".into()),
        Sync::Dsync => arguments.push("--sync=dsync".into()),
        Sync::Fsync => arguments.push("--fsync=1".into()),
        Sync::Fdatasync => arguments.push("--fdatasync=1".into()),
    }
    arguments
}

/// Runs fio. `path` is a file of the job's size.
///
/// # Errors
///
/// fio is missing, fails, or its answer is not understood.
pub fn run(job: &Job, path: &Path, seconds: u64) -> Result<Found> {
    let output = Command::new("fio").args(arguments(job, path, seconds)).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        Error::new(
            Kind::Unavailable,
            format!("cannot run fio: {error}; install it (Debian: apt-get install fio), or leave --with out"),
        )
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().next().unwrap_or("it prints nothing").to_owned();
        return Err(Error::new(Kind::InputOutput, format!("fio failed: {line}")));
    }
    read(&output.stdout, job.access, seconds)
}

fn read(answer: &[u8], access: Access, seconds: u64) -> Result<Found> {
    let bad = |what: &str| Error::new(Kind::BadData, format!("fio's answer {what}; is its version 3?"));
    // fio may print warnings before the JSON.
    let start = answer.iter().position(|byte| *byte == b'{').ok_or_else(|| bad("holds no JSON"))?;
    let value: Value = serde_json::from_slice(&answer[start..]).map_err(|_| bad("is no JSON"))?;
    let name = if access == Access::Read { "read" } else { "write" };
    let job = &value["jobs"][0][name];
    let iops = job["iops"].as_f64().ok_or_else(|| bad("holds no rate"))?;
    let at = |share: &str| job["clat_ns"]["percentile"][share].as_f64().unwrap_or(0.0) / 1e3;
    let version = value["fio version"].as_str().unwrap_or("unknown").to_owned();
    Ok(Found { version, seconds, iops, p50_us: at("50.000000"), p99_us: at("99.000000") })
}

/// Compares fio's rate with the samples: it agrees if it is near their mean, or within their own range.
pub fn compare(rates: &[f64], fio_iops: f64) -> Agreement {
    let mut sorted = rates.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let ours_iops = crate::statistics::mean(&sorted);
    let ratio = fio_iops / ours_iops.max(1e-9);
    let (low, high) = (crate::statistics::quantile(&sorted, 0.05), crate::statistics::quantile(&sorted, 0.95));
    let (agrees, why) = if (ratio - 1.0).abs() <= TOLERANCE {
        (true, format!("the means are within {:.0} %", TOLERANCE * 100.0))
    } else if (low..=high).contains(&fio_iops) {
        (true, "fio's mean lies among our samples (5 % to 95 %)".into())
    } else {
        (
            false,
            format!(
                "fio's mean lies outside of our samples ({low:.0} to {high:.0}, 5 % to 95 %); something else ran, or one of us is wrong"
            ),
        )
    };
    Agreement { ours_iops, fio_iops, ratio, agrees, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_and_a_bad_one_refused() {
        let answer = br#"note: x
            {"fio version":"fio-3.33","jobs":[{"write":{"iops":1234.5,"clat_ns":{"percentile":{"50.000000":1000,"99.000000":5000}}}}]}"#;
        let found = read(answer, Access::Write, 5).unwrap();
        assert_eq!((found.iops, found.p50_us, found.p99_us), (1234.5, 1.0, 5.0));
        assert!(read(b"no", Access::Write, 5).is_err());
        assert!(read(b"{}", Access::Write, 5).unwrap_err().text.contains("no rate"));
    }

    #[test]
    fn agreement_is_near_the_mean_or_among_the_samples() {
        let rates: Vec<f64> = (50..150).map(f64::from).collect();
        assert!(compare(&rates, 110.0).agrees && compare(&rates, 140.0).agrees);
        assert!(!compare(&rates, 300.0).agrees && !compare(&rates, 1.0).agrees);
    }
}
