//! The coordinator: get, list, a transaction that compares before it writes, kept keys, and a watch.
//!
//! A kept key expires unless it is kept again; such keys say which servers live (leases, Gray and Cheriton 1989). The
//! embedded coordinator is one file in the first server or in a process of its own, which other servers query over
//! its control interface. `hekate_etcd` implements the trait
//! over etcd.

mod changes;
mod embedded;
mod mirror;
pub mod moving;

pub use changes::Changes;
pub use embedded::EmbeddedCoordinator;
pub use mirror::Mirror;

use hekate_proto::Result;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A key's expected value in a transaction. `None`: the key must not exist.
pub type Expect<'a> = (&'a str, Option<&'a str>);
/// A key's new value in a transaction. `None`: the key is removed.
pub type Write<'a> = (&'a str, Option<&'a str>);

/// The key that closes a store: while it exists, writes and kept keys are not taken (`Outcome::Closed`), except by a
/// transaction that names it. Its value says where the records are moving to ([`moving`]). Reads are still answered.
pub const CLOSED: &str = "/closed";
/// Most keys that one transaction expects, and most that it writes.
pub const KEYS_MAX: usize = 128;

/// True if a transaction names the key that closes a store.
pub fn names_closed(expect: &[Expect<'_>], writes: &[Write<'_>]) -> bool {
    expect.iter().map(|(key, _)| key).chain(writes.iter().map(|(key, _)| key)).any(|key| *key == CLOSED)
}

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

    /// What has changed below each prefix since its caller has read it, as of a revision that is not older than any
    /// write which was acknowledged before the call. A store that cannot tell returns all keys below the prefix.
    fn changes(&self, known: &[Known<'_>]) -> Result<Vec<Changed>> {
        known.iter().map(|known| Ok(self.list(known.prefix)?.into())).collect()
    }

    /// Executes all writes durably, if all expected values match. At most [`KEYS_MAX`] of each.
    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome>;

    /// Sets a key that expires after `lifetime`, which counts from a moment after the call. Such keys must not be used
    /// in transactions. A change of its value has a revision, a renewal with the same value has none. The key may expire
    /// later than that, never earlier.
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
    /// The store is closed, so nothing was written and never will be. The value of [`CLOSED`].
    Closed {
        by: String,
    },
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

/// What a caller of [`Coordinator::changes`] knows of the keys below a prefix.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    pub prefix: &'a str,
    /// The revision as of which it knows them; `None`: it knows nothing.
    pub after: Option<Revision>,
    /// How many keys there were at that revision.
    pub count: usize,
}

/// The result of [`Coordinator::changes`] for one prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Keys, in order, with their values. `None`: the key was removed.
    pub pairs: Vec<(String, Option<String>)>,
    /// The revision at which they have these values.
    pub revision: Revision,
    /// True if all other keys are as the caller knows them; false if there are no other keys.
    #[serde(default)]
    pub is_partial: bool,
}

impl From<Listing> for Changed {
    fn from(all: Listing) -> Self {
        let pairs = all.pairs.into_iter().map(|(key, value)| (key, Some(value))).collect();
        Self { pairs, revision: all.revision, is_partial: false }
    }
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
