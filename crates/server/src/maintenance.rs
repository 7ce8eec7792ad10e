//! What a server does beside clients' requests to keep its bricks sound and their space free.
//!
//! | file | what it does | a bug here shows as |
//! |---|---|---|
//! | `housekeeping` | the threads; expires sessions, collects orphans, frees space | space that is never freed |
//! | `checkpoint` | writes journals home, gives back their space | a full journal; a member that lacks a record |
//! | `healing` | divides the bandwidth for healing among the partitions | healing that starves clients, or never ends |
//! | `scrub` | reads every block once a week | damage that is found too late |
//! | `repair` | replaces a damaged block or entry by a copy of another replica | wrong bytes written over right ones |
//! | `damage` | what no replica could repair; stopped bricks | `hekate status` that reports damage which is gone |
//!
//! Invariant: a partition's data changes only by a record in its log, as for a client's op.

pub(crate) mod checkpoint;
pub(crate) mod damage;
pub(crate) mod healing;
pub(crate) mod housekeeping;
pub(crate) mod repair;
pub(crate) mod scrub;
