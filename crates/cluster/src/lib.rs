//! What a cluster agrees on: bricks, pools, rings with their views, volumes, sessions; and where partitions go.
//!
//! All of it rests in a coordinator, a small consistent key-value store behind [`Coordinator`]; values are JSON.
//! Invariant: whatever depends on what was read is written in one compare-and-swap transaction with it.

pub mod coordinator;
pub mod placement;
pub mod registry;

pub use coordinator::{Coordinator, EmbeddedCoordinator};
pub use registry::{BrickInfo, PoolInfo, Registry, RingInfo, SessionInfo, VolumeInfo};
