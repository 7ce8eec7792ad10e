//! Deterministic simulation of whole clusters, and the checkers that judge the results.
//!
//! The checkers share no code with the product but the types of `hekate-proto`: the rules of names, bytes and counters
//! are written down a second time, as plainly as possible.

pub mod checkers;
pub mod history;
#[cfg(all(test, feature = "planted"))]
mod planted;
pub mod recorded;
pub mod simulator;

pub use checkers::Complaint;
pub use history::{Answer, Call, CallNumber, History, Moment};
