//! The coordinator over etcd (API version 3), by etcd's JSON gateway: one HTTP request for each call, a stream for
//! changes. [ADR 33](../../../docs/adr/0033-etcd.md) has the reasons.
//!
//! Read in this order: `gateway` (requests, endpoints, which outcomes are known), `patience` (how long an answer may
//! take), `credential`, `store` (the trait), `difference` (what has changed since a reading), `kept` (keys that expire),
//! `changes` (the watch), `members` (etcd's own membership and state).

mod changes;
mod credential;
mod difference;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod gateway;
mod kept;
mod members;
mod messages;
mod patience;
mod store;

pub use credential::Credential;
pub use gateway::Endpoints;
pub use members::{Alarm, Member, MemberState, Members};
pub use store::EtcdCoordinator;
