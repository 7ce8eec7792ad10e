//! The server side of a partition: one replica as a pure state machine (`partition.rs`), and what its leader does with an
//! op (`step.rs`).
//!
//! The crate opens no socket, starts no thread, and reads no clock and no random source; it is given them.
//! `docs/replication.md` is the document.

mod acl;
mod allocate;
mod compare;
mod conflicts;
mod copy;
mod data;
mod drive;
mod fast;
mod feed;
mod follower;
mod footprint;
mod heal;
mod inodes;
mod leader;
mod learner;
mod legs;
mod level;
mod locking;
mod locks;
mod message;
mod names;
mod number_allocator;
mod partition;
mod progress;
mod proof;
mod raw;
mod read;
mod recent_truncates;
mod rename;
mod retention;
mod retries;
mod room;
mod seek;
mod serve;
mod shards;
mod step;
mod stubs;
mod sync_rounds;
#[cfg(test)]
mod tests;
mod tree;
mod truncate;

pub use fast::FAST_BYTES_MAX;
pub use heal::Healing;
pub use inodes::is_access_due;
pub use locks::{FileLocks, LockSettings, LockTable, LockedFile, Outcome as LockOutcome, Ticket, Told, Wait};
pub use message::{
    Address, BlockAt, BlockHash, Envelope, FastList, Fresh, Hashed, HealStep, HeldShard, Message, Outcome, Portion,
};
pub use partition::{Around, Event, Out, Partition, SyncJob, Token};
pub use progress::Progress;
pub use proof::Proof;
pub use read::answer;
pub use recent_truncates::Cut;
pub use retention::Retention;
pub use step::{Ask, Commit, Stop};
pub use tree::root_directory;
