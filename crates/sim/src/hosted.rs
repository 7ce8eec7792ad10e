//! Clusters of real servers in one thread: `hekate_server::Node` with its threads, the client with its own, and a
//! coordinator that delays and loses answers.
//!
//! In the runs of [`crate::cluster`] a host of the simulator drives the replicas. Here the product's does: batches,
//! turns, leases and views, checkpoints, housekeeping, sessions and orphans run as they are, on simulated threads.
//! Servers and clients keep the product's times, so faults come at intervals of seconds and last for seconds.

mod clients;
mod coordinator;
mod disks;
mod faults;
mod judge;
mod locks;
mod memory;
mod run;
#[cfg(test)]
mod scenarios;
mod servers;
mod settings;
mod surroundings;
#[cfg(test)]
pub(crate) mod tests;
mod world;

pub use run::run;
pub use settings::{Kind, Settings};
