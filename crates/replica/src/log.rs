//! The replicated log: how a follower appends records, what a leader knows to be stable, and what it retains.

pub(crate) mod follower;
pub(crate) mod number_allocator;
pub(crate) mod progress;
pub(crate) mod retention;
mod retries;
pub(crate) mod room;
pub(crate) mod sync_rounds;
