//! What a cluster agrees on: servers, bricks, pools, rings with their views, volumes, sessions; where partitions go.
//!
//! All of it rests in a coordinator, a small consistent key-value store behind [`Coordinator`]; values are JSON.
//! Invariant: whatever depends on what was read is written in one compare-and-swap transaction with it.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod coordinator;
pub mod placement;
mod records;
pub mod registry;
pub mod views;

pub use coordinator::{Coordinator, EmbeddedCoordinator, LEASE};
pub use records::{
    AliveInfo, BrickInfo, Domain, FIRST_SERVER, PoolInfo, RingInfo, RingWish, ServerInfo, SessionInfo, VolumeInfo,
    check_openings,
};
pub use registry::Registry;
