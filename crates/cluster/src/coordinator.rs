//! The coordinator: get, list, a transaction that compares before it writes, kept keys, and a watch.
//!
//! A kept key expires unless it is kept again; such keys say which servers live (leases, Gray and Cheriton 1989). The
//! embedded coordinator is one file in the first server or in a process of its own, which other servers query over
//! its control interface. The trait promises no more than etcd's API version 3 does; etcd is to implement it.

mod changes;
mod embedded;

pub use embedded::EmbeddedCoordinator;

use hekate_proto::Result;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A key's expected value in a transaction. `None`: the key must not exist.
pub type Expect<'a> = (&'a str, Option<&'a str>);
/// A key's new value in a transaction. `None`: the key is removed.
pub type Write<'a> = (&'a str, Option<&'a str>);

/// A consistent key-value store.
///
/// # Errors
/// `Unavailable` if the store cannot be reached. A write that fails with any error has not been executed and never will
/// be; if that is not known, the write returns [`Outcome::Unknown`].
pub trait Coordinator: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &str) -> Result<Option<String>>;

    /// The keys with a prefix, in order, with their values, all at one revision.
    fn list(&self, prefix: &str) -> Result<Listing>;

    /// Executes all writes durably, if all expected values match.
    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome>;

    /// Sets a key that expires after `lifetime`, which counts from a moment after the call. Such keys must not be used
    /// in transactions. A change of its value has a revision, a renewal with the same value has none.
    fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<Outcome>;

    /// Removes a kept key at once, if it exists.
    fn release(&self, key: &str) -> Result<Outcome>;

    /// Waits until a key with one of the prefixes has been changed, removed or has expired after a revision, for at
    /// most `limit`.
    ///
    /// # Errors
    /// `Unavailable`, also after [`Coordinator::end_watches`].
    fn watch(&self, prefixes: &[&str], after: Revision, limit: Duration) -> Result<Watched>;

    /// Ends the watches that wait through this object, and fails later ones: the process is about to stop.
    fn end_watches(&self);
}

/// Counter of the store's changes. It never decreases, also over restarts of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Revision(pub u64);

/// The outcome of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Written,
    /// A value did not match, so nothing was written and never will be.
    Refused,
    /// It is not known whether the write has been executed. It may still be executed later.
    Unknown {
        /// Why there is no answer.
        why: String,
    },
}

/// The result of [`Coordinator::list`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Keys, in order, with their values.
    pub pairs: Vec<(String, String)>,
    /// The revision at which they have these values. A watch after it misses no change.
    pub revision: Revision,
}

/// The result of [`Coordinator::watch`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Watched {
    /// These keys have changed after the given revision, up to this one.
    Changed { keys: Vec<String>, revision: Revision },
    /// Nothing has changed up to this revision, and the limit has passed.
    Unchanged { revision: Revision },
    /// The store does not retain the changes after the given revision: the caller reads again.
    ReadAgain,
}

/// Length of a server's lease from its last renewal, by the coordinator's clock: 3 s. A killed server's partitions are
/// unavailable for this time. A server itself stops serving earlier, see [`crate::views::serves_for`].
pub const LEASE: Duration = Duration::from_secs(3);
