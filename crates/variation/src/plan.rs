//! How many machines a guaranteed rate needs: the question, the answer, and three ways to it.
//!
//! `exact` computes the distribution of the sum by FFT (`sum`, on a `grid`) and is the one that decides; `chance` plays the
//! machines by dice, `buckets` enumerates collapsed samples: both stand beside it so that a reader sees that they agree.
//! `bootstrap` says how far the answer would move had other samples been drawn.

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

/// Machines beyond which nobody plans with this.
pub const COUNT_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests;
