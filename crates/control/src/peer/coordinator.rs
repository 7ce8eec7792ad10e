//! Reads and writes of the coordinator, by servers that do not hold it.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest lifetime of a value that expires. A monotonic clock overflows with much longer ones.
pub const KEPT_MAX: Duration = Duration::from_secs(3600);

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
    /// Reads all keys with a prefix. Reply: a list of pairs of key and value, in order.
    List {
        /// The prefix.
        prefix: String,
    },
    /// Writes all pairs if all expected pairs hold. Reply: true if it has written them.
    Transact {
        /// Pairs that must hold.
        expect: Vec<Pair>,
        /// Pairs to write.
        writes: Vec<Pair>,
    },
    /// Writes a value that expires. Reply: null.
    Keep {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Lifetime, in ms, at most [`KEPT_MAX`]. 0: the key is removed at once.
        milliseconds: u64,
    },
}
