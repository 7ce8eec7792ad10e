//! Whole clusters in one thread, from one seed: the product's servers (`hekate_server::Node`) and clients
//! (`hekate_client::Volume`) on simulated threads, disks, networks and clocks, and a coordinator that delays and loses
//! answers. `run.rs` is a run from its beginning to its end.
//!
//! Servers and clients keep the product's times, so faults come at intervals of seconds and last for seconds.

mod clients;
mod faults;
mod judge;
mod memory;
mod report;
mod run;
#[cfg(test)]
mod scenarios;
mod servers;
mod settings;
#[cfg(test)]
pub(crate) mod tests;
mod threads;
mod world;

pub use report::Report;
pub use run::{Outcome, run};
pub use settings::{Kind, Settings};
