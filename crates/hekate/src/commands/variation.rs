//! `hekate variation`: measure how the rate of a store varies, show it, plan for it.

mod latency;
mod measure;
mod plan;
mod show;

use crate::cli::{Cli, Unit, Variation};
use crate::failure::Failure;
use crate::output;
use hekate_variation::series::record::merge;
use hekate_variation::series::{Recording, Series};
use hekate_variation::{error, measure::store, series};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

impl From<error::Error> for Failure {
    fn from(error: error::Error) -> Self {
        Self::new(error.exit(), error.text)
    }
}

impl From<Unit> for series::Unit {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Iops => series::Unit::Iops,
            Unit::MbPerS => series::Unit::MbPerS,
        }
    }
}

pub fn variation(cli: &Cli, command: &Variation) -> Result<(), Failure> {
    match command {
        Variation::Measure(options) => measure::measure(cli, options),
        Variation::Show(options) => show::show(cli, options),
        Variation::Plan(options) => plan::plan(cli, options),
        Variation::Latency(options) => latency::latency(cli, options),
        Variation::Merge { to, files } => join(cli, to, files),
    }
}

/// `hekate variation merge`.
fn join(cli: &Cli, to: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let read = |file: &PathBuf| {
        let shown = file.display().to_string();
        let bytes = series::read_bounded(file)?;
        Ok((shown.clone(), Recording::decode(&shown, &bytes)?))
    };
    let recordings = files.iter().map(read).collect::<Result<Vec<_>, error::Error>>()?;
    let merged = merge(&recordings)?;
    store::write(to, &merged)?;
    let path = store::recording_path(to);
    match cli.json {
        true => output::json(&json!({ "file": path, "samples": merged.samples.len() })),
        false => println!("{}: {} samples", path.display(), merged.samples.len()),
    }
    Ok(())
}

/// Reads series. Those of equal names are named by their paths.
fn read_all(files: &[PathBuf], unit: Option<Unit>) -> Result<Vec<Series>, Failure> {
    let read = |file: &PathBuf| Series::read(file, unit.map(series::Unit::from));
    let mut all = files.iter().map(read).collect::<Result<Vec<Series>, error::Error>>()?;
    let names: Vec<String> = all.iter().map(|series| series.name.clone()).collect();
    for (series, file) in all.iter_mut().zip(files) {
        if names.iter().filter(|name| **name == series.name).count() > 1 {
            series.name = file.display().to_string();
        }
    }
    series::same_unit(&all)?;
    Ok(all)
}

/// The text below the title of a report.
fn made() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("Made by hekate variation {version} at {}.", humantime::format_rfc3339_seconds(SystemTime::now()))
}
