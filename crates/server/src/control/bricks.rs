//! Bricks: answers to requests about them, their rows, and finding one by its directory or id.

use super::encode;
use super::servers::Reports;
use crate::hosting::bricks as hosted;
use crate::hosting::node::Node;
use hekate_cluster::{BrickInfo, RingInfo};
use hekate_control::brick::{BrickRecord, BrickReport, BrickState, BrickStatus};
use hekate_control::{BrickAdd, BrickDrain, BrickList, BrickRemove, BrickReplace, ControlRequest};
use hekate_proto::{Error, Result};
use serde_json::Value;

/// Answers a request about bricks.
///
/// # Errors
///
/// Those of each request.
pub fn act(node: &Node, request: ControlRequest) -> Result<Value> {
    match request {
        ControlRequest::BrickList(_) => encode::<BrickList>(list(node)),
        ControlRequest::BrickAdd(call) => {
            encode::<BrickAdd>(hosted::add(node, &call.directory, &call.pool, call.journal_mib))
        }
        ControlRequest::BrickRemove(call) => encode::<BrickRemove>(hosted::remove(node, &own(node, &call.brick)?)),
        ControlRequest::BrickDrain(call) => {
            encode::<BrickDrain>(hosted::refuse_to_move(node, &own(node, &call.brick)?, "drained"))
        }
        ControlRequest::BrickReplace(call) => {
            encode::<BrickReplace>(hosted::replace(node, &call.brick, &call.directory, call.journal_mib))
        }
        _ => Err(Error::bug("a request about bricks was expected")),
    }
}

/// All bricks, with a report of each server that answers.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn list(node: &Node) -> Result<Vec<BrickStatus>> {
    rows(node, &Reports::gather(node)?)
}

/// All bricks: the cluster's record of each, and its server's report.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn rows(node: &Node, reports: &Reports) -> Result<Vec<BrickStatus>> {
    let rings = node.cluster.registry().rings()?;
    Ok(node.cluster.registry().bricks()?.into_iter().map(|info| row(info, &rings, reports)).collect())
}

fn row(info: BrickInfo, rings: &[RingInfo], reports: &Reports) -> BrickStatus {
    let (state, reason) = match info.unopened {
        true => (BrickState::NotOpenedYet, "its server opens it at its next start"),
        false => (BrickState::Away, "its server does not answer"),
    };
    let unknown = || BrickReport { brick: info.brick, state, reason: Some(reason.into()), figures: None };
    let mut said = reports.said().flat_map(|report| &report.bricks).filter(|row| row.brick == info.brick);
    let said = said.next().filter(|row| !(info.unopened && row.state == BrickState::NotOpened));
    BrickStatus {
        report: said.cloned().unwrap_or_else(unknown),
        leads: rings.iter().flat_map(|ring| &ring.views).filter(|view| view.leader == info.brick).count(),
        replicas: rings.iter().map(|ring| ring.replicas_on(info.brick)).sum(),
        directory: info.directory,
        pool: info.pool,
        server: info.server,
    }
}

/// The brick of this server with that directory, or whose id begins with these digits.
///
/// # Errors
///
/// `Invalid`: no brick matches, or several do; errors of the coordinator.
pub fn own(node: &Node, name: &str) -> Result<BrickInfo> {
    called(&node.cluster.registry().own_bricks()?, name, "this server")
}

/// The brick with that directory, or whose id begins with these digits. `whose`: for the error.
///
/// # Errors
///
/// `Invalid`: no brick matches, or several do.
pub fn called(all: &[BrickInfo], called: &str, whose: &str) -> Result<BrickInfo> {
    let directory = called.trim_end_matches('/');
    let is_called =
        |info: &BrickInfo| info.directory == directory || (called.len() >= 4 && info.brick.text().starts_with(called));
    let found: Vec<&BrickInfo> = all.iter().filter(|info| is_called(info)).collect();
    if let [info] = found[..] {
        return Ok(info.clone());
    }
    let known: Vec<&str> = all.iter().map(|info| info.directory.as_str()).collect();
    let what = if found.is_empty() { format!("{whose} has no brick") } else { "there are several bricks".to_string() };
    Err(Error::invalid(format!("{what} called {called}; its bricks are {}", known.join(", "))))
}

/// The record of a brick, as the control interface shows it.
pub fn record(info: BrickInfo) -> BrickRecord {
    BrickRecord {
        brick: info.brick,
        directory: info.directory,
        pool: info.pool,
        weight: info.weight,
        server: info.server,
        incarnation: info.incarnation,
        openings: info.openings,
        unopened: info.unopened,
    }
}
