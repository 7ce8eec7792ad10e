//! Whole clusters in one thread: the real bricks, replicas and links, on simulated disks, networks and clocks, from one
//! seed. `run.rs` is a run from its beginning to its end.

mod client_servers;
mod clock;
mod coordinator;
mod disk;
mod disks;
mod faults;
mod host;
mod judge;
mod keeper;
mod messages;
mod network;
mod people;
mod report;
mod run;
#[cfg(test)]
mod scenarios;
mod servers;
mod settings;
#[cfg(test)]
mod tests;
mod threads;
mod workload;
mod world;

pub use report::Report;
pub use run::{Outcome, run};
pub use settings::Settings;
