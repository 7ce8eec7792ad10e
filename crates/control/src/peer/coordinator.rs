//! Reads and writes of the coordinator, by servers that do not hold it.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest lifetime of a value that expires. A monotonic clock overflows with much longer ones.
pub const KEPT_MAX: Duration = Duration::from_secs(3600);

/// The longest wait of one watch. A thread of the coordinator's process serves the watch until then even if the server
/// that sent it has ended, and a stopping process waits for its connections.
pub const WATCH_MAX: Duration = Duration::from_secs(2);

/// A key and its value. None: the key is absent, or is removed.
pub type Pair = (String, Option<String>);

/// A read or write of the coordinator (`hekate_cluster::Coordinator`). The field `ask` of its JSON names the variant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum CoordinatorRequest {
    /// Reads a value. Reply: the value, or null.
    Get {
        /// The key.
        key: String,
    },
    /// Reads the keys with a prefix. Reply: `Listing` of `hekate_cluster`; with `after` its `Changed`.
    List {
        /// The prefix.
        prefix: String,
        /// Keys that have not changed after this revision may be left out of the reply, which says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
        /// Number of keys with the prefix at that revision.
        #[serde(default)]
        count: u64,
    },
    /// Writes all pairs if all expected pairs hold. Reply: `Outcome` of `hekate_cluster`.
    Transact {
        /// Pairs that must hold.
        expect: Vec<Pair>,
        /// Pairs to write.
        writes: Vec<Pair>,
    },
    /// Writes a value that expires. Reply: `Outcome` of `hekate_cluster`.
    Keep {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Lifetime, in ms, at most [`KEPT_MAX`].
        milliseconds: u64,
    },
    /// Removes the key of a value that expires. Reply: `Outcome` of `hekate_cluster`.
    Release {
        /// The key.
        key: String,
    },
    /// Waits for a change. Reply: `Watched` of `hekate_cluster`.
    Watch {
        /// Changes of keys with other prefixes are ignored.
        prefixes: Vec<String>,
        /// Changes up to this revision are ignored.
        after: u64,
        /// The longest wait, in ms, at most [`WATCH_MAX`].
        milliseconds: u64,
    },
}
