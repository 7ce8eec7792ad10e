//! Summaries of series in numbers and in pictures.

pub mod chart;
pub mod export;
pub mod report;
pub mod terminal;

use crate::series::{Series, Unit};
use crate::statistics;
use chart::{Axis, Chart, Line};
use serde::Serialize;

/// Shares of the samples whose rates a summary has.
const SHARES: [f64; 9] = [0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999];
/// Shares of the operations whose latencies it has.
const LATENCY_SHARES: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.9999, 1.0];
/// Most lags in the picture of the autocorrelation.
const LAGS_MAX: usize = 60;
/// A smaller rate is shown as 0: its ticks would have no digits.
const NOTHING: f64 = 1e-3;
/// Most points of a line: more cannot be distinguished on paper.
const POINTS_MAX: usize = 2_000;

/// A series in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub name: String,
    pub unit: Unit,
    pub samples: usize,
    /// From the start of the first sample to that of the last, in s.
    pub seconds: f64,
    pub least: f64,
    pub most: f64,
    pub mean: f64,
    pub standard_deviation: f64,
    /// Mean over most.
    pub flatness: f64,
    /// Share of the samples and rate where the curve "this or better" bends most.
    pub knee: Option<(f64, f64)>,
    /// Correlation of neighbours, from -1 to 1.
    pub autocorrelation_1: f64,
    /// Number of samples that are worth one independent sample.
    pub samples_per_independent_one: f64,
    /// Share, and the rate that this share of the samples does not exceed.
    pub quantiles: Vec<(f64, f64)>,
    /// Share, and the latency in microseconds that this share of the operations does not exceed.
    pub latencies_us: Vec<(f64, f64)>,
    pub notes: Vec<String>,
}

/// The summary of a series.
pub fn summary(series: &Series) -> Summary {
    let sorted = series.sorted();
    let autocorrelation = statistics::autocorrelation(&series.rates);
    let ends = (series.times_s.first(), series.times_s.last());
    let latencies = series.latencies.iter().flat_map(|latencies| {
        LATENCY_SHARES.iter().filter_map(|share| Some((*share, latencies.quantile(*share)? as f64 / 1e3)))
    });
    Summary {
        name: series.name.clone(),
        unit: series.unit,
        samples: sorted.len(),
        seconds: ends.1.unwrap_or(&0.0) - ends.0.unwrap_or(&0.0),
        least: sorted[0],
        most: sorted[sorted.len() - 1],
        mean: statistics::mean(&sorted),
        standard_deviation: statistics::standard_deviation(&sorted),
        flatness: statistics::flatness(&sorted),
        knee: statistics::knee(&sorted),
        autocorrelation_1: autocorrelation.get(1).copied().unwrap_or(0.0),
        samples_per_independent_one: statistics::samples_per_independent_one(&autocorrelation),
        quantiles: SHARES.iter().map(|share| (*share, statistics::quantile(&sorted, *share))).collect(),
        latencies_us: latencies.collect(),
        notes: series.notes.clone(),
    }
}

/// All pictures of the series, which have one unit: name of a file, and the chart.
pub fn charts(all: &[Series]) -> Vec<(&'static str, Chart)> {
    vec![("or-better", or_better(all)), ("time-line", time_line(all)), ("autocorrelation", autocorrelation(all))]
}

/// Share of the samples at or above each rate.
pub fn or_better(all: &[Series]) -> Chart {
    let line = |series: &Series| {
        let points = thin(statistics::or_better(&series.sorted()));
        // The best sample is reached from the left edge on.
        let first = points.first().map(|(_, rate)| (0.0, *rate));
        let points = first.into_iter().chain(points).map(|(share, rate)| (share * 100.0, rate)).collect();
        Line { label: series.name.clone(), points }
    };
    Chart {
        title: "This rate or better".into(),
        x: Axis { label: "share of the samples at or above the rate (%)".into(), from: 0.0, to: 100.0 },
        y: rate_axis(all),
        lines: all.iter().map(line).collect(),
    }
}

/// Rates in the order of time.
pub fn time_line(all: &[Series]) -> Chart {
    let end = all.iter().filter_map(|series| series.times_s.last()).copied().fold(0.0, f64::max);
    let (unit, seconds) = match end {
        ..600.0 => ("s", 1.0),
        ..36_000.0 => ("min", 60.0),
        ..864_000.0 => ("h", 3_600.0),
        _ => ("days", 86_400.0),
    };
    let line = |series: &Series| {
        let points = series.times_s.iter().zip(&series.rates).map(|(time, rate)| (time / seconds, *rate));
        Line { label: series.name.clone(), points: envelope(points.collect()) }
    };
    Chart {
        title: "Rate over time".into(),
        x: Axis { label: format!("time since the first sample ({unit})"), from: 0.0, to: (end / seconds).max(1.0) },
        y: rate_axis(all),
        lines: all.iter().map(line).collect(),
    }
}

/// Correlation of samples some intervals apart.
pub fn autocorrelation(all: &[Series]) -> Chart {
    let line = |series: &Series| {
        let found = statistics::autocorrelation(&series.rates);
        let points = found.iter().take(LAGS_MAX + 1).enumerate().map(|(lag, alike)| (lag as f64, *alike)).collect();
        Line { label: series.name.clone(), points }
    };
    let lines: Vec<Line> = all.iter().map(line).collect();
    let lags = lines.iter().map(|line| line.points.len().saturating_sub(1)).max().unwrap_or(1).max(1);
    Chart {
        title: "Autocorrelation".into(),
        x: Axis { label: "distance (samples)".into(), from: 0.0, to: lags as f64 },
        y: Axis { label: "correlation (1 alike, 0 unrelated)".into(), from: -1.0, to: 1.0 },
        lines,
    }
}

/// From zero on, so that a fall is shown in proportion.
fn rate_axis(all: &[Series]) -> Axis {
    let most = all.iter().flat_map(|series| &series.rates).copied().fold(0.0, f64::max);
    let unit = all.first().map_or(Unit::Iops, |series| series.unit);
    Axis { label: format!("rate ({unit})"), from: 0.0, to: if most > NOTHING { most * 1.05 } else { 1.0 } }
}

/// Every nth point, with both ends.
fn thin(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points;
    }
    let last = points.len() - 1;
    (0..POINTS_MAX).map(|at| points[at * last / (POINTS_MAX - 1)]).collect()
}

/// The least and the most of each piece of a long line, so that no dip is lost.
fn envelope(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points;
    }
    let piece = points.len().div_ceil(POINTS_MAX / 2);
    let ends = |piece: &[(f64, f64)]| {
        let least = piece.iter().copied().min_by(|one, other| one.1.total_cmp(&other.1));
        let most = piece.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1));
        let mut both: Vec<(f64, f64)> = least.into_iter().chain(most).collect();
        both.sort_by(|one, other| one.0.total_cmp(&other.0));
        both
    };
    points.chunks(piece).flat_map(ends).collect()
}

#[cfg(test)]
mod tests;
