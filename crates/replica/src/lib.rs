//! What a partition's leader does with an op: checks it against the partition's state, makes the records that change
//! it, and names the legs that other partitions take.
//!
//! The crate opens no socket, starts no thread, and reads no clock and no random source; it is given them. Invariants:
//! every read of an op comes before its first record, so an op that meets a missing lock can begin again; every change
//! is part of a record that all members get; an op over several partitions has one record as its commit point, and an
//! intent beside it from which recovery undoes or finishes what a crash left.

mod data;
mod driver;
mod execute;
mod inodes;
mod leader;
mod legs;
mod locks;
mod names;
mod read;
mod rename;
#[cfg(test)]
mod tests;
mod tree;
mod truncate;

pub use driver::recover_intent;
pub use execute::{Ask, Commit, Fresh, Partitions, Stop, execute};
pub use leader::Leader;
pub use legs::shards_of;
pub use locks::{FileLocks, LockSettings, LockTable, LockedFile, Outcome, Ticket, Told, Wait};
pub use read::answer;
pub use tree::{Tree, purge_orphan, root_directory};
