//! How far the answer would move had other samples been drawn: the moving block bootstrap.
//!
//! The samples are few, and neighbours are alike. So a series is put together anew from blocks of neighbours, drawn at
//! random with repetition (Künsch, The jackknife and the bootstrap for general stationary observations, 1989), the question
//! is asked again, and again; the middle 95 % of the answers are the interval (Efron's percentile interval). Blocks are as
//! long as two times what says as much as one independent sample.

use super::exact::{coarse, coarse_cells};
use super::fleet::{Kind, Question};
use crate::random::Random;
use crate::statistics::{autocorrelation, samples_per_independent_one};
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    pub low: usize,
    pub high: usize,
    pub replicates: usize,
    /// Samples in a block.
    pub block: usize,
    /// How many independent samples the series is worth.
    pub independent_samples: f64,
}

/// Samples kept of a longer series: evenly spread quantiles of it. The answers differ by less than a coarse grid does.
const POINTS_MAX: usize = 4_096;

/// The interval around `count`; none if so few samples give none.
pub fn interval(question: &Question, count: usize, replicates: usize, seed: u64) -> Option<Interval> {
    let kinds: Vec<(&Kind, f64)> = std::iter::once(question.kind)
        .chain(question.have.iter().map(|(kind, _)| *kind))
        .map(|kind| (kind, samples_per_independent_one(&autocorrelation(&kind.rates))))
        .collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(replicates.max(1));
    let ask = |thread: usize| {
        let mine = (thread..replicates).step_by(threads);
        let answers = mine.filter_map(|replicate| replay(question, &kinds, count, seed.wrapping_add(replicate as u64)));
        answers.collect::<Vec<usize>>()
    };
    let mut counts: Vec<usize> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || ask(thread))).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    counts.sort_unstable();
    let at = |share: f64| counts.get(((counts.len() as f64 * share) as usize).min(counts.len().saturating_sub(1)));
    let (kind, per_one) = kinds[0];
    Some(Interval {
        low: *at(0.025)?,
        high: *at(0.975)?,
        replicates: counts.len(),
        block: block(per_one, kind.rates.len()),
        independent_samples: kind.rates.len() as f64 / per_one,
    })
}

fn block(per_independent_one: f64, count: usize) -> usize {
    ((2.0 * per_independent_one).round() as usize).clamp(1, (count / 4).max(1))
}

/// The answer for series put together anew; none if it is beyond reach.
fn replay(question: &Question, kinds: &[(&Kind, f64)], count: usize, seed: u64) -> Option<usize> {
    let mut random = Random::seeded(seed);
    let again: Vec<Kind> = kinds
        .iter()
        .map(|(kind, per_one)| {
            let rates = resample(&kind.rates, block(*per_one, kind.rates.len()), &mut random);
            let distribution = super::distribution::Distribution::new(rates, question.conditions.outage);
            Kind { name: String::new(), rates: Vec::new(), distribution }
        })
        .collect();
    let have = again[1..].iter().zip(&question.have).map(|(kind, (_, count))| (kind, *count)).collect();
    let asked = Question { kind: &again[0], have, ..question.clone() };
    asked.check().ok()?;
    coarse(&asked, coarse_cells(count), Some(count))
}

/// Blocks of neighbours, as many samples as there are; of a long series fewer, which vary as those do.
fn resample(rates: &[f64], block: usize, random: &mut Random) -> Vec<f64> {
    let mut drawn = Vec::with_capacity(rates.len() + block);
    while drawn.len() < rates.len() {
        let start = random.below(rates.len() - block + 1);
        drawn.extend_from_slice(&rates[start..start + block]);
    }
    drawn.truncate(rates.len());
    if drawn.len() > POINTS_MAX {
        drawn.sort_unstable_by(f64::total_cmp);
        let last = drawn.len() - 1;
        drawn = (0..POINTS_MAX).map(|at| drawn[at * last / (POINTS_MAX - 1)]).collect();
    }
    drawn
}
