//! Deterministic simulation (DESIGN section 10), and the checkers that judge what came of it.
//!
//! The checkers share no code with what they check but the words of `hekate-proto`: what names, bytes and counters must
//! do is written down a second time, as plainly as possible.

pub mod checkers;
pub mod cluster;
pub mod history;
pub mod recorded;

pub use checkers::Complaint;
pub use history::{Answer, Call, CallNumber, History, Moment};
