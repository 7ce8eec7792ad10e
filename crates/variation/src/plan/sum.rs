//! The distribution of the sum of many machines' rates: by FFT, with a bound on every error.
//!
//! The transform of a sum's distribution is the product of its parts' transforms, so n machines are a power. Two errors
//! are bounded here. *Rounding*: floating point transforms of length N err by at most eta log2 N in the Euclidean norm
//! (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 24.2), a product of n factors by n times
//! that, and the sum over a tail of at most N numbers by sqrt N more (Cauchy and Schwarz). *Wrapping*: a transform that
//! is shorter than the sum's range adds up values that lie N apart; the window is placed around the mean, and the
//! probability outside is at most
//! `WINDOW_MISS` (Hoeffding, Probability inequalities for sums of bounded random variables, 1963).

use super::grid::Cells;
use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner};
use std::cell::RefCell;
use std::sync::Arc;

/// The probability that a sum may lie outside of the window.
const WINDOW_MISS: f64 = 1e-13;
/// Error of a transform: 8 units in the last place a step is more than Higham's mu + gamma_4 (sqrt 2 + mu).
const ETA: f64 = 8.0 * f64::EPSILON;

/// A smaller bin of a product is taken for 0.
const NOTHING: f64 = 1e-25;
/// Transforms up to this length keep their plans, because the bootstrap repeats them. It is the length that a coarse
/// grid of the most machines needs; some 8 MiB each.
const KEPT_LENGTH_MAX: usize = 1 << 19;

thread_local! {
    static PLANNER: RefCell<RealFftPlanner<f64>> = RefCell::new(RealFftPlanner::new());
}

fn with_planner<T>(length: usize, work: impl FnOnce(&mut RealFftPlanner<f64>) -> T) -> T {
    match length > KEPT_LENGTH_MAX {
        true => work(&mut RealFftPlanner::new()),
        false => PLANNER.with(|planner| work(&mut planner.borrow_mut())),
    }
}

/// A forward transform.
pub fn transform(values: &mut [f64]) -> Vec<Complex<f64>> {
    let plan = with_planner(values.len(), |planner| planner.plan_fft_forward(values.len()));
    let mut spectrum = plan.make_output_vec();
    let done = plan.process(values, &mut spectrum);
    assert!(done.is_ok(), "the lengths are the plan's own");
    spectrum
}

/// The inverse transform, scaled so that it undoes `transform`.
pub fn transform_back(spectrum: &mut [Complex<f64>], length: usize) -> Vec<f64> {
    back(spectrum, with_planner(length, |planner| planner.plan_fft_inverse(length)).as_ref())
}

fn back(spectrum: &mut [Complex<f64>], plan: &dyn ComplexToReal<f64>) -> Vec<f64> {
    let mut values = plan.make_output_vec();
    // A real signal's first bin is real, and so is its last one if the length is even; rounding may have changed that.
    spectrum[0].im = 0.0;
    if values.len().is_multiple_of(2)
        && let Some(last) = spectrum.last_mut()
    {
        last.im = 0.0;
    }
    let done = plan.process(spectrum, &mut values);
    assert!(done.is_ok(), "the lengths are the plan's own");
    let scale = 1.0 / values.len() as f64;
    values.iter_mut().for_each(|value| *value *= scale);
    values
}

/// A number of machines of a kind.
#[derive(Debug, Clone)]
pub struct Part {
    pub cells: Arc<Cells>,
    pub count: usize,
}

/// The sum of the parts' cells.
#[derive(Debug)]
pub struct Sum {
    /// The number of cells at `tail[0]`.
    base: i64,
    /// The probability of this many cells or more.
    tail: Vec<f64>,
    /// Largest error of any probability here.
    pub error: f64,
    /// The most that rounding took from the sum, in cells.
    slack: f64,
    /// Mean of what rounding took, in cells.
    mean_rest: f64,
}

/// The range of sums that a transform covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    start: i64,
    length: usize,
}

/// The length that a transform of these parts must have.
pub fn length_for(parts: &[Part]) -> usize {
    length_of(&sizes(parts))
}

fn sizes(parts: &[Part]) -> Vec<(usize, usize)> {
    parts.iter().map(|part| (part.count, part.cells.weights.len())).collect()
}

/// The length for these numbers of machines and cells.
pub fn length_of(sizes: &[(usize, usize)]) -> usize {
    let (range, half) = extent(sizes);
    friendly((range + 1).min(2 * half + 3) as usize)
}

/// The range of the sum above its least value, and the half width by Hoeffding's inequality, in cells.
fn extent(sizes: &[(usize, usize)]) -> (u64, u64) {
    let widths = sizes.iter().map(|(count, cells)| (*count as f64, (cells - 1) as f64));
    let range: f64 = widths.clone().map(|(count, width)| count * width).sum();
    let squares: f64 = widths.map(|(count, width)| count * width * width).sum();
    (range as u64, ((2.0 / WINDOW_MISS).ln() / 2.0 * squares).sqrt().ceil() as u64)
}

fn window(parts: &[Part], length: usize) -> Window {
    let (range, half) = extent(&sizes(parts));
    if length as u64 > range {
        return Window { start: 0, length };
    }
    let mean_of = |cells: &Cells| cells.weights.iter().enumerate().map(|(at, weight)| at as f64 * weight).sum::<f64>();
    let mean: f64 = parts.iter().map(|part| part.count as f64 * mean_of(&part.cells)).sum();
    Window { start: (mean as i64 - half as i64).max(0), length }
}

/// The next even number without prime factors other than 2, 3 and 5: transforms of such a length are fast.
pub fn friendly(length: usize) -> usize {
    let is_friendly = |number: usize| {
        let mut rest = number;
        for prime in [2, 3, 5] {
            while rest.is_multiple_of(prime) {
                rest /= prime;
            }
        }
        rest == 1
    };
    let mut number = length.max(2).next_multiple_of(2);
    while !is_friendly(number) {
        number += 2;
    }
    number
}

/// The transforms of parts, kept while only their counts change.
pub struct Spectra {
    length: usize,
    /// The plan of the inverse. Preparing a long one takes as long as running it.
    plan: Option<Arc<dyn ComplexToReal<f64>>>,
    kinds: Vec<(Arc<Cells>, Vec<Complex<f64>>)>,
}

impl Spectra {
    /// For transforms of this length.
    pub fn new(length: usize) -> Self {
        Self { length, plan: None, kinds: Vec::new() }
    }

    pub fn length(&self) -> usize {
        self.length
    }

    fn of(&mut self, cells: &Arc<Cells>) -> &[Complex<f64>] {
        let at = match self.kinds.iter().position(|(kept, _)| Arc::ptr_eq(kept, cells)) {
            Some(at) => at,
            None => {
                let mut wrapped = vec![0.0; self.length];
                cells.weights.iter().enumerate().for_each(|(at, weight)| wrapped[at % self.length] += weight);
                self.kinds.push((cells.clone(), transform(&mut wrapped)));
                self.kinds.len() - 1
            }
        };
        &self.kinds[at].1
    }

    /// The sum of these parts; the length must be at least their `length_for`.
    pub fn sum(&mut self, parts: &[Part]) -> Sum {
        assert!(self.length >= length_for(parts), "the window holds the sum");
        let window = window(parts, self.length);
        let mut product = vec![Complex::new(1.0, 0.0); self.length / 2 + 1];
        for part in parts.iter().filter(|part| part.count > 0) {
            let spectrum = self.of(&part.cells);
            let power = part.count as u32;
            // Most bins of many machines are near 0; `rounding` bounds the error of leaving them out.
            let least = (2.0 * NOTHING.ln() / part.count as f64).exp();
            let factor = |bin: &Complex<f64>| if bin.norm_sqr() < least { Complex::ZERO } else { bin.powu(power) };
            product.iter_mut().zip(spectrum).for_each(|(product, bin)| *product *= factor(bin));
        }
        let length = self.length;
        let plan = self.plan.get_or_insert_with(|| with_planner(length, |planner| planner.plan_fft_inverse(length)));
        let wrapped = back(&mut product, plan.as_ref());
        let base: i64 = parts.iter().map(|part| part.count as i64 * part.cells.first as i64).sum();
        let total = |of: fn(&Cells) -> f64| parts.iter().map(|part| part.count as f64 * of(&part.cells)).sum::<f64>();
        Sum {
            base: base + window.start,
            error: rounding(parts, &wrapped) + WINDOW_MISS,
            tail: tail(wrapped, window),
            slack: total(|cells| cells.slack),
            mean_rest: total(|cells| cells.mean_rest),
        }
    }
}

/// Unwraps the window and adds up from its end.
fn tail(mut wrapped: Vec<f64>, window: Window) -> Vec<f64> {
    let turn = (window.start % window.length as i64) as usize;
    wrapped.rotate_left(turn);
    let mut sum = 0.0;
    for value in wrapped.iter_mut().rev() {
        sum += *value;
        *value = sum;
    }
    wrapped
}

/// Bound of the rounding error; the module comment derives it.
fn rounding(parts: &[Part], sum: &[f64]) -> f64 {
    let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let length = sum.len() as f64;
    let factors: f64 = parts.iter().map(|part| part.count as f64 * norm(&part.cells.weights)).sum();
    let count: f64 = parts.iter().map(|part| part.count as f64).sum();
    let transforms = ETA * length.log2() * (factors + norm(sum));
    let products = 4.0 * f64::EPSILON * count * norm(sum);
    length.sqrt() * (transforms + products) + length * (f64::EPSILON * norm(sum) + NOTHING)
}

/// Bounds of a probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    pub low: f64,
    pub high: f64,
}

impl Bounds {
    pub fn exactly(probability: f64) -> Self {
        Self { low: probability, high: probability }
    }

    /// Mixes these bounds with a share of another probability.
    pub fn mixed(self, other: f64, share: f64) -> Self {
        let mix = |own: f64| (1.0 - share) * own + share * other;
        Self { low: mix(self.low), high: mix(self.high) }
    }
}

impl Sum {
    fn at_least(&self, cells: i64) -> f64 {
        match usize::try_from(cells - self.base) {
            Err(_) => 1.0,
            Ok(at) => self.tail.get(at).copied().unwrap_or(0.0),
        }
    }

    /// The probability that the sum of the rates, not rounded, is `target` or more.
    pub fn reaches(&self, target: f64, width: f64) -> Bounds {
        let low = self.at_least(super::grid::cells_to_reach(target, width)) - self.error;
        let high = self.at_least(super::grid::cells_to_reach(target - self.slack * width, width)) + self.error;
        Bounds { low: low.clamp(0.0, 1.0), high: high.clamp(0.0, 1.0) }
    }

    /// One estimate of that probability: as if rounding had taken its mean from each sum.
    pub fn estimate(&self, target: f64, width: f64) -> f64 {
        if self.slack == 0.0 {
            return self.at_least(super::grid::cells_to_reach(target, width)).clamp(0.0, 1.0);
        }
        // The rounding error is spread around its mean, so a sum in the very cell of the target reaches it half the
        // time.
        let place = target / width - self.mean_rest + 0.5;
        let above = place.ceil();
        let (near, far) = (self.at_least(above as i64), self.at_least(above as i64 - 1));
        let probability = near + (above - place) * (far - near);
        probability.clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests;
