//! The state that a cluster agrees on: servers, bricks, pools, rings with their views, volumes and sessions; and the
//! placement of partitions.
//!
//! All of it is in a coordinator, a small consistent key-value store behind [`Coordinator`]. Values are JSON.
//! Invariant: a write that depends on a value read before is one compare-and-swap transaction with that value.
//!
//! Read in this order: `coordinator` (the store), `records` and `registry` (what is in it), `placement` (which bricks
//! hold a partition), `views` (which of them are in step, and which one leads).

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod coordinator;
pub mod placement;
mod records;
pub mod registry;
pub mod restore;
pub mod views;

pub use coordinator::{CLOSED, Coordinator, EmbeddedCoordinator, LEASE, Listing, Outcome, Revision, Watched};
pub use records::{
    AliveInfo, BrickInfo, Domain, FIRST_SERVER, PoolInfo, RingInfo, RingRecord, RingWish, ServerInfo, SessionInfo,
    SessionOwner, ViewRecord, VolumeInfo, check_openings, check_records, older_records,
};
pub use registry::{
    AuthorityInfo, BACK, ClientCertificate, ClientInfo, DoorInfo, EtcdInfo, EtcdMember, NbdDoorInfo, NbdTls,
    PlacementRecords, Registry, S3DoorInfo, S3Grant, S3KeyInfo, S3Tls, TokenInfo,
};
