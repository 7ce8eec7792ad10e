//! The server side of a partition: one replica as a pure state machine (`partition.rs`).
//!
//! The crate opens no socket, starts no thread, and reads no clock and no random source; its host passes them in.
//! `docs/replication.md` and `docs/fast-lane.md` specify the protocol.

mod context;
mod fast;
mod heal;
mod invariants;
mod leader;
mod locks;
mod log;
mod membership;
mod message;
mod ops;
mod partition;
mod pledges;
mod requests;
#[cfg(test)]
mod tests;
mod transactions;
mod view_start;

pub use context::{Around, Out, SyncJob, Token};
pub use fast::FAST_BYTES_MAX;
pub use heal::Healing;
pub use heal::proof::Proof;
pub use locks::{EndedWait, FileLocks, LockSettings, LockTable, LockedFile, Outcome as LockOutcome, Ticket, Wait};
pub use log::progress::LogProgress;
pub use log::retention::Retention;
pub use message::{
    Address, BlockAt, BlockHash, Envelope, FastList, Fresh, Hashed, HealStep, HeldShard, Message, Outcome, Portion,
};
pub use ops::read::answer;
pub use ops::recent_truncates::Cut;
pub use ops::step::{Ask, Commit, Stop};
pub use ops::tree::root_directory;
pub use partition::{Event, Partition};
