//! The answer by convolution: the fewest machines whose sum reaches the target with the asked probability.
//!
//! A guess (by the normal distribution, then on a coarse grid) gives the start of the search. A fine grid decides, and
//! is made finer while its two bounds disagree on the count.

use super::COUNT_MAX;
use super::fleet::{Conditions, Kind, Question, together};
use super::grid::{cells_of, even_width, exact_width};
use super::sum::{Bounds, Part, Spectra, Sum, length_for, length_of};
use crate::error::{Error, Kind as Fault, Result};
use crate::measure::cost::thread_time;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Cells of the grid that locates the answer.
const COARSE_CELLS: usize = 256;
/// Cells of the first grid that may decide.
const FINE_CELLS: usize = 4_096;
/// Factor by which the next grid is finer, if one does not decide.
const FINER: f64 = 4.0;
/// The longest transform: 4 Mi numbers, some 130 MiB with its buffers.
const LENGTH_MAX: usize = 1 << 22;

/// The precision of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exactness {
    /// Width of a cell of the grid, in the unit of the rates.
    pub cell: f64,
    /// True if every sample lies on the grid, so that the grid adds no error.
    pub on_grid: bool,
    /// Numbers in the transform.
    pub transform_length: usize,
    /// Largest change of a probability by floating point and the window.
    pub rounding_error_max: f64,
    /// True if the probability of one machine fewer is surely below the confidence. If false, the count is on the safe
    /// side.
    pub decided: bool,
    /// Bytes in use at once for the transforms.
    pub memory_bytes: usize,
}

/// The result of `answer`.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub count: usize,
    /// The probability that this number of machines reaches the target.
    pub probability: Bounds,
    /// The probability of one machine fewer.
    pub one_fewer: Bounds,
    pub exactness: Exactness,
    /// Processor time.
    pub took: Duration,
}

/// The sums on one grid.
pub(super) struct OnGrid<'a> {
    question: &'a Question<'a>,
    width: f64,
    cells: Vec<(*const Kind, Arc<super::grid::Cells>)>,
    spectra: Spectra,
    rounding_error_max: f64,
}

impl<'a> OnGrid<'a> {
    pub(super) fn new(question: &'a Question<'a>, width: f64) -> Self {
        let kinds = std::iter::once(question.kind).chain(question.have.iter().map(|(kind, _)| *kind));
        let cells = kinds.map(|kind| (std::ptr::from_ref(kind), Arc::new(kind.distribution.cells(width)))).collect();
        Self { question, width, cells, spectra: Spectra::new(2), rounding_error_max: 0.0 }
    }

    fn parts(&self, count: usize) -> Vec<Part> {
        let fleet = self.question.up(count);
        let cells = self.cells.iter().map(|(_, cells)| cells.clone());
        cells.zip(fleet).map(|(cells, (_, count))| Part { cells, count }).collect()
    }

    /// The sum of `count` machines; the transforms are kept while they are long enough.
    fn sum(&mut self, count: usize) -> Sum {
        let parts = self.parts(count);
        let length = length_for(&parts);
        if self.spectra.length() < length || self.spectra.length() > 2 * length {
            // The search looks at a few more machines as well.
            self.spectra = Spectra::new(length_for(&self.parts(count + count / 32 + 1)));
        }
        let sum = self.spectra.sum(&parts);
        self.rounding_error_max = self.rounding_error_max.max(sum.error);
        sum
    }

    fn bounds(&mut self, count: usize) -> Bounds {
        let demand = self.question.demand();
        let own = self.sum(count).reaches(demand, self.width);
        self.mixed(own, count)
    }

    pub(super) fn estimate(&mut self, count: usize) -> f64 {
        let demand = self.question.demand();
        let own = self.sum(count).estimate(demand, self.width);
        self.mixed(Bounds::exactly(own), count).low
    }

    fn mixed(&self, own: Bounds, count: usize) -> Bounds {
        let Conditions { together: share, .. } = self.question.conditions;
        if share == 0.0 {
            return own;
        }
        own.mixed(together(&self.question.up(count), self.question.demand()), share)
    }
}

/// The fewest machines for which `enough` holds, searched from a guess: it holds for all counts from some count on.
pub(super) fn fewest(guess: usize, mut enough: impl FnMut(usize) -> bool) -> Option<usize> {
    let (mut low, mut high, mut step) = (0, guess.min(COUNT_MAX), 1);
    // `low` is one more than a count that is known not to be enough.
    while !enough(high) {
        if high == COUNT_MAX {
            return None;
        }
        low = high + 1;
        high = (high + step).min(COUNT_MAX);
        step *= 2;
    }
    step = 1;
    while low < high {
        let below = high.saturating_sub(step).max(low);
        if enough(below) {
            high = below;
            step *= 2;
        } else {
            low = below + 1;
            step = ((high - low) / 2).max(1);
        }
    }
    Some(high)
}

/// By the normal distribution: near enough as a start.
fn guess(question: &Question) -> usize {
    let kinds = question.have.iter().map(|(kind, count)| (&kind.distribution, question.conditions.up(*count) as f64));
    let (mut mean, mut variance) = (0.0, 0.0);
    for (distribution, count) in kinds {
        mean += count * distribution.mean();
        variance += count * distribution.variance();
    }
    let one = &question.kind.distribution;
    let deviations = crate::statistics::normal_quantile(question.confidence);
    let enough = |up: usize| {
        let count = up as f64;
        mean + count * one.mean() - deviations * (variance + count * one.variance()).sqrt() >= question.demand()
    };
    let start = ((question.demand() - mean) / one.mean()).max(0.0).min(COUNT_MAX as f64) as usize;
    question.conditions.count_for(fewest(start, enough).unwrap_or(COUNT_MAX)).min(COUNT_MAX)
}

/// A count from a coarse grid: the start for the fine grid, and the answer that the bootstrap computes a thousand
/// times.
pub(super) fn coarse(question: &Question, cells: usize) -> Option<usize> {
    let from = guess(question);
    let mut grid = OnGrid::new(question, even_width(&question.distributions(), cells));
    fewest(from, |count| grid.estimate(count) >= question.confidence)
}

/// Cells of a coarse grid: the sum of many machines needs fewer.
pub(super) fn coarse_cells(count: usize) -> usize {
    if count <= 200 { COARSE_CELLS } else { COARSE_CELLS / 4 }
}

/// Answers the question.
///
/// # Errors
///
/// The question is invalid, or more machines than allowed do not reach the target.
pub fn answer(question: &Question) -> Result<Answer> {
    let began = thread_time();
    question.check()?;
    let cells = coarse_cells(guess(question));
    let from = coarse(question, cells).ok_or_else(|| out_of_reach(question))?;
    let distributions = question.distributions();
    let mut width = exact_width(&distributions).unwrap_or_else(|| even_width(&distributions, FINE_CELLS));
    let fits = |width: f64| {
        let size = |(kind, count): (&Kind, usize)| (count, cells_of(&kind.distribution, width));
        length_of(&question.up(from + 1).into_iter().map(size).collect::<Vec<_>>()) <= LENGTH_MAX
    };
    while !fits(width) {
        width = width.max(even_width(&distributions, FINE_CELLS)) * 2.0;
    }
    let mut found = on_grid(question, width, from)?;
    while !found.exactness.decided && !found.exactness.on_grid && fits(width / FINER) {
        width /= FINER;
        found = on_grid(question, width, found.count)?;
    }
    found.took = thread_time().saturating_sub(began);
    Ok(found)
}

fn on_grid(question: &Question, width: f64, from: usize) -> Result<Answer> {
    let mut grid = OnGrid::new(question, width);
    let mut known = std::collections::BTreeMap::new();
    let mut bounds = |count: usize| *known.entry(count).or_insert_with(|| grid.bounds(count));
    let count = fewest(from, |count| bounds(count).low >= question.confidence);
    let count = count.ok_or_else(|| out_of_reach(question))?;
    let probability = bounds(count);
    let one_fewer = if count == 0 { Bounds::exactly(0.0) } else { bounds(count - 1) };
    let length = grid.spectra.length();
    let exactness = Exactness {
        cell: width,
        on_grid: grid.cells.iter().all(|(_, cells)| cells.slack < 1e-6),
        transform_length: length,
        rounding_error_max: grid.rounding_error_max,
        decided: one_fewer.high < question.confidence,
        // The transform of each kind, the product, and the sum: 8 bytes a number each.
        memory_bytes: (grid.cells.len() + 3) * length * 8,
    };
    Ok(Answer { count, probability, one_fewer, exactness, took: Duration::ZERO })
}

fn out_of_reach(question: &Question) -> Error {
    let (name, percent) = (&question.kind.name, question.confidence * 100.0);
    let text = format!(
        "{name}: {COUNT_MAX} machines do not reach {} with {percent} %; ask for less, or for machines that give more",
        question.target
    );
    Error::new(Fault::WrongUse, text)
}

/// Counts with their probabilities, from the best case up to nearly certain; estimated on a coarse grid, for pictures.
pub fn curve(question: &Question, around: usize) -> Vec<(usize, f64)> {
    const POINTS_MAX: usize = 60;
    let first = question.best_case().unwrap_or(1);
    let cells = coarse_cells(around);
    let mut grid = OnGrid::new(question, even_width(&question.distributions(), cells));
    let step = ((around.saturating_sub(first)) / (POINTS_MAX / 2)).max(1);
    let mut points = Vec::new();
    for count in (first..).step_by(step).take(POINTS_MAX) {
        let probability = grid.estimate(count);
        points.push((count, probability));
        if probability > 0.999_99 {
            break;
        }
    }
    points
}
