//! One server: its bricks, the partitions that they hold, and the connections that use them.
//!
//! A connection's thread does the work of its requests itself: it locks the partitions that an op needs (in order),
//! lets `replica` make the records, appends each to all members' journals, and, for what must be durable, syncs the
//! bricks side by side. Ground state is the bricks and the coordinator; everything here is derived from them.
//! Invariants: a reader holds its partition's lock shared and a writer alone, until the record is on every member; a
//! journal is given back only up to what all bricks have on stable storage.

mod batch;
mod control;
mod housekeeping;
mod level;
mod locked;
pub mod membership;
mod node;
mod partition;
mod remote_coordinator;
mod repair;
mod scrub;
mod sessions;
mod stats;
mod syncer;
#[cfg(test)]
mod tests;
mod volumes;

pub use control::{ControlReply, ControlRequest, CoordinatorRequest, VolumeRequest};
pub use membership::Membership;
pub use node::{Node, NodeSettings};
pub use remote_coordinator::RemoteCoordinator;
