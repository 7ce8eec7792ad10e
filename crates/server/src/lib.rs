//! One server: its bricks, the partitions that they hold, and the connections that use them.
//!
//! A connection's thread does the work of its requests itself: it tells the leader of a partition, and goes on with all
//! that follows in this process (`turn.rs`), as `replica` says; for what must be durable it syncs the bricks side by
//! side. Ground state is the bricks and the coordinator; everything here is derived from them. Invariants: a replica is
//! told one event at a time, and what it says is passed on by the thread that told it; a journal is given back only up to
//! what all bricks have on stable storage.

mod batch;
mod bricks;
mod checkpoint;
mod control;
mod coordinator_host;
mod damage;
mod heal_files;
mod healing;
mod hosted_ring;
mod housekeeping;
mod locking;
mod mapping;
mod member_writes;
mod metrics;
mod node;
mod op_statistics;
mod peer_inbox;
mod raw;
mod remote_coordinator;
mod repair;
mod scrub;
mod sessions;
mod start;
pub mod state_directory;
mod syncer;
#[cfg(test)]
mod tests;
mod tickets;
mod turn;
mod views;
mod volumes;
mod where_is;

pub use bricks::{NewBrick, make_brick};
pub use control::{ControlReply, ControlRequest, CoordinatorRequest, VolumeRequest};
pub use coordinator_host::CoordinatorHost;
pub use heal_files::NameRequest;
pub use node::{Node, NodeSettings};
pub use remote_coordinator::RemoteCoordinator;
pub use repair::RepairRequest;
pub use start::PROGRESS;
pub use state_directory::Membership;
pub use where_is::WhereRequest;
