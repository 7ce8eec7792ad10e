//! One server: its bricks, the partitions that they hold, and the connections that use them.
//!
//! Ground state is the bricks and the coordinator; everything in this crate's memory is derived from them.
//!
//! | module | what is in it |
//! |---|---|
//! | `request` | a client's batch, from its frame to its answer |
//! | `hosting` | bricks, rings and volumes; the lease and the views; the links to other servers |
//! | `coordination` | where the cluster's records are kept, and the ways there |
//! | `control` | the control interface: answers to the command line and to other servers |
//! | `maintenance` | checkpoints, scrubs, repair, healing |
//! | `reports` | statistics, and answers to an operator's questions |
//!
//! Begin with `hosting/node.rs` (what a server is), then follow a request: `request/batch.rs`, `request/turn.rs`,
//! `hosting/hosted_ring.rs`.
//!
//! Invariants:
//! - A replica is given one event at a time, and the thread that gave it the event carries out the replica's output
//!   before the replica is given the next one.
//! - Space of a journal is freed only up to what all members of the view have on stable storage.
//! - A leader's answer to a client is sent only under the lease that it was found under. What it tells another
//!   partition's op of its state is sent only under a lease.
//!
//! Threads of a server:
//!
//! | thread | how many | what it does |
//! |---|---|---|
//! | `hekate-conn` (`transport`) | one for each connection | a client's batches, control requests |
//! | of links (`transport`) | two for each other server | the reader handles messages (`hosting/peer_inbox.rs`) |
//! | `hekate-sync` | one for each brick | syncs for other threads (`request/syncer.rs`) |
//! | `hekate-keep` | nine | housekeeping (`maintenance/housekeeping.rs`) |
//!
//! ARCHITECTURE.md has the terms (*Glossary*): ring, partition, replica, view, leader, turn, session, orphan.

mod control;
mod coordination;
mod hosting;
mod maintenance;
mod reports;
mod request;
#[cfg(test)]
mod tests;

pub use control::access::{COORDINATOR, Desk};
pub use coordination::current::{CurrentCoordinator, is_coordinator_away, take_place_from};
pub use coordination::etcd;
pub use coordination::host::{CoordinatorHost, cluster_id, keep_root};
pub use coordination::place::Place;
pub use coordination::remote::RemoteCoordinator;
pub use coordination::state_directory::{self, Membership};
pub use hosting::access::EXPIRES_SOON;
pub use hosting::authority;
pub use hosting::bricks::{NewBrick, make_brick};
pub use hosting::cluster_access::ClusterAccess;
pub use hosting::keys::{Keys, write_private};
pub use hosting::node::{Node, NodeSettings};
pub use hosting::start::PROGRESS;
pub use hosting::surroundings::{IsIt, Links, Surroundings};
