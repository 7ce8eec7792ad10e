//! The first server answers for the coordinator that it holds.

use crate::node::Node;
use hekate_cluster::FIRST_SERVER;
use hekate_proto::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

/// Nothing is kept longer.
const KEPT_MAX: Duration = Duration::from_secs(3600);

/// A key and its value; none: it is absent, or goes.
type Pair = (String, Option<String>);

/// What other servers ask of the coordinator, see [`hekate_cluster::Coordinator`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum CoordinatorRequest {
    /// A key's value.
    Get {
        /// Which.
        key: String,
    },
    /// Keys that begin so.
    List {
        /// How.
        prefix: String,
    },
    /// Writes everything if everything is as expected.
    Transact {
        /// What is expected.
        expect: Vec<Pair>,
        /// What is written.
        writes: Vec<Pair>,
    },
    /// A key has a value for so long from now on.
    Keep {
        /// Which.
        key: String,
        /// Which value.
        value: String,
        /// How long.
        milliseconds: u64,
    },
}

/// `cluster`: that of the server which asks. Another cluster's may answer at an address by now, with the same secret.
pub fn answer(node: &Node, cluster: Option<&str>, request: CoordinatorRequest) -> Result<Value> {
    if let Some(asked) = cluster.filter(|asked| *asked != node.cluster) {
        return Err(Error::Denied { what: format!("it is of cluster {}, not of cluster {asked}", node.cluster) });
    }
    let own = node.registry.server();
    if own != FIRST_SERVER {
        return Err(Error::invalid(format!("server {own} does not hold the coordinator; ask server {FIRST_SERVER}")));
    }
    let coordinator = node.registry.coordinator();
    match request {
        CoordinatorRequest::Get { key } => Ok(json!(coordinator.get(&key)?)),
        CoordinatorRequest::List { prefix } => Ok(json!(coordinator.list(&prefix)?)),
        CoordinatorRequest::Transact { expect, writes } => {
            Ok(json!(coordinator.transact(&borrowed(&expect), &borrowed(&writes))?))
        }
        CoordinatorRequest::Keep { key, value, milliseconds } => {
            // A clock that is asked for more than it has would not come back.
            let lifetime = Duration::from_millis(milliseconds).min(KEPT_MAX);
            Ok(json!(coordinator.keep(&key, &value, lifetime)?))
        }
    }
}

fn borrowed(pairs: &[Pair]) -> Vec<(&str, Option<&str>)> {
    pairs.iter().map(|(key, value)| (&key[..], value.as_deref())).collect()
}
