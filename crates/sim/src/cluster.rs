//! Whole clusters in one thread: the real bricks, replicas and links, on simulated disks, networks and clocks, from one
//! seed. `run.rs` is a run from its beginning to its end.

pub(crate) mod client_servers;
pub(crate) mod clock;
mod coordinator;
pub(crate) mod disk;
mod disks;
mod faults;
mod host;
pub(crate) mod judge;
mod keeper;
pub(crate) mod messages;
pub(crate) mod network;
mod people;
pub(crate) mod report;
mod run;
mod servers;
pub(crate) mod settings;
pub(crate) mod spread;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod threads;
pub(crate) mod workload;
pub(crate) mod world;

pub use report::Report;
pub use run::{Outcome, run};
pub use settings::Settings;
