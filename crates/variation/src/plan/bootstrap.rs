//! The uncertainty of the answer from the choice of samples: the moving block bootstrap.
//!
//! The samples are few, and neighbours are alike. So a series is assembled anew from blocks of neighbours, drawn at
//! random with repetition (Künsch, The jackknife and the bootstrap for general stationary observations, 1989), and the
//! question is answered for it, many times; the middle 95 % of the answers are the interval (Efron's percentile
//! interval). A block is twice as long as the number of samples that are worth an independent one, or a 4,096th of the
//! series if that is more.

use super::exact::{coarse, coarse_cells};
use super::fleet::{Kind, Question};
use crate::measure::cost::thread_time;
use crate::random::Random;
use crate::statistics::{autocorrelation, samples_per_independent_one};
use serde::Serialize;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    pub low: usize,
    pub high: usize,
    pub replicates: usize,
    /// Samples in a block.
    pub block: usize,
    /// Number of independent samples that the series is worth.
    pub independent_samples: f64,
}

/// Most blocks of a resampled series: blocks of a long series are longer, so that few draws suffice.
const BLOCKS_MAX: usize = 4_096;
/// Samples kept of a longer series: evenly spaced quantiles of it. The answers differ by less than a coarse grid's
/// error.
const POINTS_MAX: usize = 4_096;
/// Levels that a long series is rounded to, evenly spaced between its ends, so that counting replaces sorting: at least
/// 16 to a cell of the coarse grid, and few enough that the counts stay in the processor's nearest cache.
const LEVELS: usize = 1 << 12;

/// A kind with the data for drawing.
struct Drawn<'a> {
    kind: &'a Kind,
    per_independent_one: f64,
    block: usize,
    /// The level of each sample of a long series.
    levels: Vec<u16>,
}

impl<'a> Drawn<'a> {
    fn new(kind: &'a Kind) -> Self {
        let per_independent_one = samples_per_independent_one(&autocorrelation(&kind.rates));
        let count = kind.rates.len();
        let shortest = ((2.0 * per_independent_one).round() as usize).max(count / BLOCKS_MAX);
        let block = shortest.clamp(1, (count / 4).max(1));
        let (least, step) = Self::level_step(kind);
        let level = |rate: &f64| ((rate - least) / step) as u16;
        let levels = if count > POINTS_MAX { kind.rates.iter().map(level).collect() } else { Vec::new() };
        Self { kind, per_independent_one, block, levels }
    }

    fn level_step(kind: &Kind) -> (f64, f64) {
        let sorted = kind.distribution.sorted();
        let range = sorted[sorted.len() - 1] - sorted[0];
        (sorted[0], if range > 0.0 { range / (LEVELS - 1) as f64 } else { 1.0 })
    }

    /// As many samples as there are, in blocks of neighbours; of a long series quantiles, which vary as those do.
    fn resample(&self, random: &mut Random) -> Vec<f64> {
        let count = self.kind.rates.len();
        let mut starts = std::iter::repeat_with(|| random.below(count - self.block + 1));
        let blocks = count.div_ceil(self.block);
        // The last block is cut so that the number is right.
        let lengths = (0..blocks).map(|at| self.block.min(count - at * self.block));
        if self.levels.is_empty() {
            let part = |(start, length): (usize, usize)| &self.kind.rates[start..start + length];
            return starts.zip(lengths).flat_map(part).copied().collect();
        }
        let mut counts = vec![0u32; LEVELS];
        for length in lengths {
            let start = starts.next().unwrap_or(0);
            self.levels[start..start + length].iter().for_each(|level| counts[usize::from(*level)] += 1);
        }
        let (least, step) = Self::level_step(self.kind);
        let (mut points, mut seen) = (Vec::with_capacity(POINTS_MAX), 0usize);
        for (level, here) in counts.iter().enumerate() {
            seen += *here as usize;
            while points.len() < POINTS_MAX && (2 * points.len() + 1) * count < 2 * seen * POINTS_MAX {
                points.push(least + (level as f64 + 0.5) * step);
            }
        }
        points
    }
}

/// The interval around `count`, with the processor time that it took; none if there are too few samples.
pub fn interval(question: &Question, count: usize, replicates: usize, seed: u64) -> (Option<Interval>, Duration) {
    let began = thread_time();
    let kinds = std::iter::once(question.kind).chain(question.have.iter().map(|(kind, _)| *kind));
    let kinds: Vec<Drawn> = kinds.map(Drawn::new).collect();
    let kinds = kinds.as_slice();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(replicates.max(1));
    let ask = |thread: usize| {
        let began = thread_time();
        let mine = (thread..replicates).step_by(threads);
        let answers = mine.filter_map(|replicate| replay(question, kinds, count, seed.wrapping_add(replicate as u64)));
        (answers.collect::<Vec<usize>>(), thread_time().saturating_sub(began))
    };
    let found: Vec<(Vec<usize>, Duration)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || ask(thread))).collect();
        running.into_iter().map(joined).collect()
    });
    let took = thread_time().saturating_sub(began) + found.iter().map(|(_, time)| *time).sum::<Duration>();
    let mut counts: Vec<usize> = found.into_iter().flat_map(|(counts, _)| counts).collect();
    counts.sort_unstable();
    let at = |share: f64| counts.get(((counts.len() as f64 * share) as usize).min(counts.len().saturating_sub(1)));
    let first = &kinds[0];
    let interval = at(0.025).zip(at(0.975)).map(|(low, high)| Interval {
        low: *low,
        high: *high,
        replicates: counts.len(),
        block: first.block,
        independent_samples: first.kind.rates.len() as f64 / first.per_independent_one,
    });
    (interval, took)
}

/// The result of a thread; its panic continues here.
pub(super) fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The answer for a resampled series; none if it is out of reach.
fn replay(question: &Question, kinds: &[Drawn], count: usize, seed: u64) -> Option<usize> {
    let mut random = Random::seeded(seed);
    let again: Vec<Kind> = kinds
        .iter()
        .map(|drawn| {
            let rates = drawn.resample(&mut random);
            let distribution = super::distribution::Distribution::new(rates, question.conditions.outage);
            Kind { name: String::new(), rates: Vec::new(), distribution }
        })
        .collect();
    let have = again[1..].iter().zip(&question.have).map(|(kind, (_, count))| (kind, *count)).collect();
    let asked = Question { kind: &again[0], have, ..question.clone() };
    asked.check().ok()?;
    // Its own guess is nearer than the other answer, the more so the more machines there are.
    coarse(&asked, coarse_cells(count))
}
