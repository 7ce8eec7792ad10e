//! Who holds the coordinator answers for it: the first server, or a process of its own.

use crate::hosting::node::Node;
use hekate_cluster::Coordinator;
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

/// What a server says.
pub fn answer(node: &Node, cluster: Option<&str>, request: CoordinatorRequest) -> Result<Value> {
    check_cluster(Some(&node.cluster), cluster)?;
    if let Some(address) = &node.coordinator_address {
        let own = node.registry.server();
        return Err(Error::invalid(format!("server {own} does not hold the coordinator; ask {address}")));
    }
    answer_from(node.registry.coordinator(), request)
}

/// Of the cluster that is held, and of the server which asks, which may not know it yet. Another cluster's may answer at an
/// address by now, with the same secret.
pub fn check_cluster(held: Option<&str>, asked: Option<&str>) -> Result<()> {
    match (held, asked) {
        (_, None) => Ok(()),
        (Some(held), Some(asked)) if held == asked => Ok(()),
        (Some(held), Some(asked)) => {
            Err(Error::Denied { what: format!("it is of cluster {held}, not of cluster {asked}") })
        }
        (None, Some(asked)) => Err(Error::Denied { what: format!("it is of no cluster yet, and not of {asked}") }),
    }
}

/// What the coordinator itself says.
pub fn answer_from(coordinator: &dyn Coordinator, request: CoordinatorRequest) -> Result<Value> {
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
