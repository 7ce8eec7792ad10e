//! Reads and writes of the coordinator, for servers that do not hold it: answered by the first server, or by a process
//! of its own (`coordination/host.rs`).

use crate::hosting::node::Node;
use hekate_cluster::coordinator::Known;
use hekate_cluster::{Coordinator, Revision};
use hekate_control::peer::{CoordinatorRequest, KEPT_MAX, Pair, WATCH_MAX};
use hekate_proto::{Error, Result};
use serde_json::{Value, json};
use std::time::Duration;

/// Answers for a server that may hold the coordinator.
///
/// # Errors
///
/// `Denied`: the asking server is of another cluster. `Invalid`: this server does not hold the coordinator. Errors of
/// the coordinator.
pub fn answer(node: &Node, cluster: Option<&str>, request: CoordinatorRequest) -> Result<Value> {
    check_cluster(Some(node.cluster.id()), cluster)?;
    // Also a closed store answers: who asks learns from it where the records are.
    match node.cluster.current()?.held() {
        Some(held) => answer_from(&*held, request),
        None => {
            let (own, place) = (node.cluster.server(), node.cluster.coordinator_place());
            Err(Error::invalid(format!("server {own} does not hold the coordinator; ask {place}")))
        }
    }
}

/// Compares the cluster that the coordinator holds with that of the asking server, which does not know its cluster
/// before it has joined. An address may belong to another cluster by now, even one with the same secret.
///
/// # Errors
///
/// `Denied`: they differ.
pub fn check_cluster(held: Option<&str>, asked: Option<&str>) -> Result<()> {
    match (held, asked) {
        (_, None) => Ok(()),
        (Some(held), Some(asked)) if held == asked => Ok(()),
        (Some(held), Some(asked)) => Err(Error::Denied {
            what: format!("the coordinator is of cluster {held}, not of cluster {asked}; correct its address"),
        }),
        (None, Some(asked)) => {
            let what =
                format!("the coordinator has no cluster yet, and is not of cluster {asked}; correct its address");
            Err(Error::Denied { what })
        }
    }
}

/// Passes a read or write to the coordinator.
///
/// # Errors
///
/// Those of the coordinator.
pub fn answer_from(coordinator: &dyn Coordinator, request: CoordinatorRequest) -> Result<Value> {
    match request {
        CoordinatorRequest::Get { key } => Ok(json!(coordinator.get(&key)?)),
        CoordinatorRequest::List { prefix, after: None, .. } => Ok(json!(coordinator.list(&prefix)?)),
        CoordinatorRequest::List { prefix, after: Some(after), count } => {
            let known = Known { prefix: &prefix, after: Some(Revision(after)), count: count as usize };
            Ok(json!(coordinator.changes(&[known])?.pop()))
        }
        CoordinatorRequest::Transact { expect, writes } => {
            Ok(json!(coordinator.transact(&borrowed(&expect), &borrowed(&writes))?))
        }
        CoordinatorRequest::Keep { key, value, milliseconds } => {
            // The end of a longer lifetime is beyond what a clock can show.
            let lifetime = Duration::from_millis(milliseconds).min(KEPT_MAX);
            Ok(json!(coordinator.keep(&key, &value, lifetime)?))
        }
        CoordinatorRequest::Release { key } => Ok(json!(coordinator.release(&key)?)),
        CoordinatorRequest::Watch { prefixes, after, milliseconds } => {
            let prefixes: Vec<&str> = prefixes.iter().map(String::as_str).collect();
            let limit = Duration::from_millis(milliseconds).min(WATCH_MAX);
            Ok(json!(coordinator.watch(&prefixes, Revision(after), limit)?))
        }
    }
}

fn borrowed(pairs: &[Pair]) -> Vec<(&str, Option<&str>)> {
    pairs.iter().map(|(key, value)| (&key[..], value.as_deref())).collect()
}
