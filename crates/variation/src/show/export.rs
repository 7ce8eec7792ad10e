//! Pictures and tables as files: SVG, PNG, CSV and JSON.

use super::chart::{self, Chart};
use super::{Summary, charts, summary};
use crate::error::{Error, Kind, Result};
use crate::series::Series;
use crate::statistics;
use std::path::{Path, PathBuf};

/// Writes all files into a directory, which is made if it does not exist; returns their paths.
///
/// # Errors
///
/// A file cannot be written, or a picture cannot be drawn.
pub fn all(series: &[Series], directory: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory).map_err(|error| Error::file("make", directory, error))?;
    let mut written = Vec::new();
    for (name, picture) in charts(series) {
        written.extend(pictures(&picture, directory, name)?);
    }
    let summaries: Vec<Summary> = series.iter().map(summary).collect();
    let json = serde_json::to_vec_pretty(&summaries);
    let json = json.map_err(|error| Error::new(Kind::Ours, format!("cannot encode the summary: {error}")))?;
    for (name, bytes) in
        [("summary.json", json), ("summary.csv", summary_csv(&summaries)?), ("or-better.csv", curve_csv(series)?)]
    {
        written.push(write(&directory.join(name), &bytes)?);
    }
    Ok(written)
}

/// A picture as SVG and as PNG.
///
/// # Errors
///
/// The chart cannot be drawn, or a file cannot be written.
pub fn pictures(picture: &Chart, directory: &Path, name: &str) -> Result<[PathBuf; 2]> {
    Ok([
        write(&directory.join(format!("{name}.svg")), chart::svg(picture)?.as_bytes())?,
        write(&directory.join(format!("{name}.png")), &chart::png(picture)?)?,
    ])
}

/// Writes a file, and returns its path.
///
/// # Errors
///
/// The file cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    std::fs::write(path, bytes).map_err(|error| Error::file("write", path, error))?;
    Ok(path.into())
}

/// Share of the samples, and the rate that they reach, a line each.
fn curve_csv(all: &[Series]) -> Result<Vec<u8>> {
    let mut rows = vec![["series".to_owned(), "share_at_or_above".into(), "rate".into(), "unit".into()].to_vec()];
    for series in all {
        let point = |(share, rate): (f64, f64)| {
            vec![series.name.clone(), format!("{share:.6}"), rate.to_string(), series.unit.column().into()]
        };
        rows.extend(statistics::or_better(&series.sorted()).into_iter().map(point));
    }
    table(&rows)
}

fn summary_csv(summaries: &[Summary]) -> Result<Vec<u8>> {
    let heads = "series,unit,samples,seconds,least,most,mean,standard_deviation,flatness,knee_share,knee_rate,\
                 autocorrelation_1,samples_per_independent_one,p1,p50,p99";
    let mut rows = vec![heads.split(',').map(str::to_owned).collect::<Vec<_>>()];
    for summary in summaries {
        let knee = |of: fn((f64, f64)) -> f64| summary.knee.map_or(String::new(), |knee| of(knee).to_string());
        let at = |share: f64| {
            summary.quantiles.iter().find(|(at, _)| *at == share).map_or(String::new(), |(_, rate)| rate.to_string())
        };
        let mut row = vec![summary.name.clone(), summary.unit.column().into(), summary.samples.to_string()];
        let numbers =
            [summary.seconds, summary.least, summary.most, summary.mean, summary.standard_deviation, summary.flatness];
        row.extend(numbers.map(|number| number.to_string()));
        row.extend([knee(|knee| knee.0), knee(|knee| knee.1)]);
        row.extend([summary.autocorrelation_1, summary.samples_per_independent_one].map(|number| number.to_string()));
        row.extend([at(0.01), at(0.5), at(0.99)]);
        rows.push(row);
    }
    table(&rows)
}

fn table(rows: &[Vec<String>]) -> Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let ours = |error: String| Error::new(Kind::Ours, format!("cannot encode a table: {error}"));
    rows.iter().try_for_each(|row| writer.write_record(row)).map_err(|error| ours(error.to_string()))?;
    writer.into_inner().map_err(|error| ours(error.to_string()))
}
