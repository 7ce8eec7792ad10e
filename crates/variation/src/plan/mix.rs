//! The cheapest fleet of two kinds: for each number of the first kind the fewest of the second, and the cheapest of
//! these.

use super::exact::{OnGrid, coarse_cells, fewest};
use super::fleet::{Kind, Question};
use super::grid::even_width;
use crate::error::Result;

/// Numbers of the two kinds, and the price.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mix {
    pub first: usize,
    pub second: usize,
    pub cost: f64,
}

/// All mixes from none of the first kind to none of the second, thinned to some sixty at most; the counts are those of
/// a coarse grid. `question.kind` is the first kind.
///
/// # Errors
///
/// The question is invalid.
pub fn mixes(question: &Question, second: &Kind, prices: (f64, f64), first_alone: usize) -> Result<Vec<Mix>> {
    const POINTS_MAX: usize = 60;
    question.check()?;
    let step = first_alone.div_ceil(POINTS_MAX).max(1);
    let mut found = Vec::new();
    let mut from = None;
    for first in (0..=first_alone).step_by(step) {
        let have = std::iter::once((question.kind, first)).chain(question.have.iter().copied()).collect();
        let asked = Question { kind: second, have, ..question.clone() };
        let mut grid = OnGrid::new(&asked, even_width(&asked.distributions(), coarse_cells(first_alone)));
        let guess = from.unwrap_or_else(|| asked.best_case().unwrap_or(1));
        let count = fewest(guess, |count| grid.estimate(count) >= asked.confidence);
        let Some(count) = count else { continue };
        from = Some(count);
        found.push(Mix { first, second: count, cost: first as f64 * prices.0 + count as f64 * prices.1 });
    }
    Ok(found)
}

/// The cheapest of them, with the fewest machines among equally cheap ones.
pub fn cheapest(mixes: &[Mix]) -> Option<Mix> {
    let order = |one: &&Mix, other: &&Mix| {
        one.cost.total_cmp(&other.cost).then((one.first + one.second).cmp(&(other.first + other.second)))
    };
    mixes.iter().min_by(order).copied()
}
