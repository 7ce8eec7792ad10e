//! The number of machines that a guaranteed rate needs: the question, the answer, and three ways to find it.
//!
//! `exact` computes the distribution of the sum by FFT (`sum`, on a `grid`) and decides. `chance` simulates the
//! machines, `buckets` enumerates collapsed samples: both are shown beside the answer, so that a reader sees that they
//! agree.
//! `bootstrap` estimates how far the answer would move if other samples had been drawn.

pub mod bootstrap;
pub mod buckets;
pub mod chance;
pub mod distribution;
mod exact;
pub mod fleet;
mod grid;
pub mod mix;
pub mod outcome;
pub mod sum;

pub use exact::{Answer, Exactness, answer, curve};
pub use fleet::{Conditions, Fleet, Kind, Question};
pub use sum::Bounds;

/// Most machines in a plan.
pub const COUNT_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests;
