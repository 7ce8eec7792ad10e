//! Partitions: their views, how far their replicas are, and the operator's way around replicas that are gone for good.

use super::{Reports, one_brick};
use crate::control::ControlRequest;
use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use hekate_cluster::views::forced;
use hekate_proto::*;
use hekate_replica::Address;
use serde_json::{Value, json};
use std::sync::Arc;

/// A row for each partition.
pub fn list(node: &Node) -> Result<Value> {
    rows(node, &Reports::gather(node)?)
}

/// The same, of what all servers have said.
pub fn rows(node: &Node, reports: &Reports) -> Result<Value> {
    let waiting = reports.waiting(node);
    let bricks = super::bricks(node, reports)?;
    let volumes = node.registry.volumes()?;
    let mut rows = Vec::new();
    for ring in node.registry.rings()? {
        let own = volumes.iter().filter(|volume| volume.ring == ring.ring);
        let names: Vec<&str> = own.map(|volume| volume.name.as_str()).collect();
        for (number, view) in (0..).map(PartitionNumber).zip(&ring.views) {
            let is_it = |row: &&Value| row["ring"] == ring.ring.0 && row["partition"] == number.0;
            let waits_for = waiting.iter().find(is_it).map(|row| row["waits_for"].clone());
            let mut row = super::json(view)?;
            (row["ring"], row["partition"], row["volumes"]) =
                (super::json(&ring.ring)?, number.0.into(), super::json(&names)?);
            row["losses"] = view.losses.into();
            row["placed"] = super::json(&ring.placed(number))?;
            row["waits_for"] = waits_for.unwrap_or_default();
            row["min_replicas"] = ring.members_min().into();
            let led = reports.led(ring.ring, number);
            for name in ["records", "lags", "unsettled", "unstable", "open_shards", "unsettled_fast_writes", "loose"] {
                row[name] = led.map(|led| led[name].clone()).unwrap_or_default();
            }
            for lag in row["lags"].as_array_mut().into_iter().flatten() {
                let brick = bricks.iter().find(|brick| brick["brick"] == lag["brick"]);
                lag["state"] = brick.map(|brick| brick["state"].clone()).unwrap_or_default();
            }
            rows.push(row);
        }
    }
    Ok(rows.into())
}

/// One, with what each server that answers says of the replicas that it has.
pub fn show(node: &Node, ring: RingId, partition: PartitionNumber) -> Result<Value> {
    let all = list(node)?;
    let is_it = |row: &&Value| row["ring"] == ring.0 && row["partition"] == partition.0;
    let found = all.as_array().into_iter().flatten().find(is_it);
    let mut row = found.cloned().ok_or_else(|| {
        Error::invalid(format!("there is no partition {ring}/{partition}; `hekate partition list` shows all"))
    })?;
    let request = ControlRequest::ReplicasHere { ring, partition };
    let mut replicas = Vec::new();
    for info in node.registry.servers()? {
        let said = match info.server == node.registry.server() {
            true => here(node, ring, partition).map_err(|error| error.to_string()),
            false => super::ask_server(node, &info, &request),
        };
        if let Ok(said) = said {
            replicas.extend(said["replicas"].as_array().cloned().unwrap_or_default());
        }
    }
    row["replicas"] = replicas.into();
    Ok(row)
}

/// What this server has.
pub fn here(node: &Node, ring: RingId, partition: PartitionNumber) -> Result<Value> {
    let hosted_ring = node.ring(ring)?;
    let own = hosted_ring.replicas().filter(|(address, _)| address.partition == partition);
    let rows: Vec<Value> = own
        .map(|(address, hosted)| {
            let position = hosted.brick.position(ring, partition);
            let is_whole = !hosted.partition.read().is_being_healed();
            json!({
                "brick": address.brick, "server": node.registry.server(), "epoch": position.epoch,
                "sequence": position.sequence, "incarnation": hosted.brick.incarnation(), "whole": is_whole,
            })
        })
        .collect();
    Ok(json!({ "cluster": node.cluster, "server": node.registry.server(), "replicas": rows }))
}

/// Lets a replica of this server lead, though it may lack what was acknowledged: those who have that are gone for good.
pub fn force(node: &Node, ring: RingId, partition: PartitionNumber, brick: &str) -> Result<Value> {
    let brick = one_brick(node, brick)?;
    let hosted: Arc<HostedRing> = node.ring(ring)?;
    let at = Address { partition, brick: brick.brick };
    let none = || {
        let what = format!("partition {ring}/{partition} has no replica on {}", brick.directory);
        Error::invalid(format!("{what}; `hekate partition show {ring}/{partition}` says where they are"))
    };
    if hosted.replica(at).ok_or_else(none)?.partition.read().is_being_healed() {
        let what = format!("{} is not whole: it was still being healed when the others went", brick.directory);
        return Err(Error::invalid(format!("{what}; it cannot lead partition {ring}/{partition}")));
    }
    let view = node.force_view(&hosted, partition, |info, seen| forced(info, partition, at.brick, seen))?;
    log::warn!(
        "partition {ring}/{partition} was forced: {} leads it in view {}; what it lacks is lost",
        brick.directory,
        view.epoch
    );
    Ok(
        json!({ "ring": ring, "partition": partition, "epoch": view.epoch, "brick": brick.brick, "losses": view.losses }),
    )
}
