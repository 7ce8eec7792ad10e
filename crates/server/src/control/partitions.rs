//! Partitions: their views, the positions of their replicas, and the operator's way around replicas that are lost for
//! good.

use super::bricks;
use super::servers::{Reports, ask};
use crate::hosting::hosted_ring::{Hosted, HostedRing};
use crate::hosting::node::Node;
use hekate_cluster::RingInfo;
use hekate_cluster::views::forced;
use hekate_control::brick::BrickStatus;
use hekate_control::partition::{Lag, PartitionDetails, PartitionForced, PartitionStatus, ReplicaStatus};
use hekate_control::peer::{LedPartition, MemberLag, Replicas, ReplicasHere};
use hekate_proto::map::View;
use hekate_proto::*;
use hekate_replica::Address;
use std::sync::Arc;

/// A row for each partition.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn list(node: &Node) -> Result<Vec<PartitionStatus>> {
    rows(node, &Reports::gather(node)?)
}

/// A row for each partition, from these reports.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn rows(node: &Node, reports: &Reports) -> Result<Vec<PartitionStatus>> {
    let waiting = reports.waiting(node);
    let bricks = bricks::rows(node, reports)?;
    let volumes = node.cluster.registry().volumes()?;
    let mut rows = Vec::new();
    for ring in node.cluster.registry().rings()? {
        let own = volumes.iter().filter(|volume| volume.ring == ring.ring);
        let names: Vec<String> = own.map(|volume| volume.name.clone()).collect();
        for (number, view) in (0..).map(PartitionNumber).zip(&ring.views) {
            let waits_for = waiting.iter().find(|row| row.ring == ring.ring && row.partition == number);
            let led = reports.led(ring.ring, number);
            rows.push(PartitionStatus {
                volumes: names.clone(),
                waits_for: waits_for.map(|row| row.waits_for.clone()),
                lags: led.map(|led| led.lags.iter().map(|lag| lag_row(lag, &bricks)).collect()),
                ..row(&ring, number, view, led)
            });
        }
    }
    Ok(rows)
}

fn row(ring: &RingInfo, number: PartitionNumber, view: &View, led: Option<&LedPartition>) -> PartitionStatus {
    PartitionStatus {
        ring: ring.ring,
        partition: number,
        epoch: view.epoch,
        leader: view.leader,
        members: view.members.clone(),
        learners: view.learners.clone(),
        opened: view.opened,
        forgetful: view.forgetful,
        too_few: view.too_few,
        whole: view.whole,
        losses: view.losses,
        placed: ring.placed(number),
        min_replicas: ring.members_min(),
        records: led.map(|led| led.records),
        unsettled: led.map(|led| led.unsettled),
        unstable: led.map(|led| led.unstable),
        open_shards: led.map(|led| led.open_shards),
        unsettled_fast_writes: led.map(|led| led.unsettled_fast_writes),
        loose: led.map(|led| led.loose),
        ..PartitionStatus::default()
    }
}

fn lag_row(lag: &MemberLag, bricks: &[BrickStatus]) -> Lag {
    let brick = bricks.iter().find(|row| row.report.brick == lag.brick);
    Lag { brick: lag.brick, records: lag.records, state: brick.map(|row| row.report.state) }
}

/// One partition, with the replicas on each server that answers.
///
/// # Errors
///
/// `Invalid`: there is no such partition; errors of the coordinator.
pub fn show(node: &Node, ring: RingId, partition: PartitionNumber) -> Result<PartitionDetails> {
    let found = list(node)?.into_iter().find(|row| row.ring == ring && row.partition == partition);
    let row = found.ok_or_else(|| {
        Error::invalid(format!("there is no partition {ring}/{partition}; `hekate partition list` shows all"))
    })?;
    let mut replicas = Vec::new();
    for info in node.cluster.registry().servers()? {
        let said = match info.server == node.cluster.server() {
            true => here(node, ring, partition).map_err(|error| error.to_string()),
            false => ask(node, &info, ReplicasHere { ring, partition }),
        };
        replicas.extend(said.map(|said| said.replicas).unwrap_or_default());
    }
    Ok(PartitionDetails { partition: row, replicas })
}

/// The partition's replicas on this server.
///
/// # Errors
///
/// `Protocol`: this server has no replica of the ring.
pub fn here(node: &Node, ring: RingId, partition: PartitionNumber) -> Result<Replicas> {
    let hosted_ring = node.ring(ring)?;
    let own = hosted_ring.replicas().filter(|(address, _)| address.partition == partition);
    let row = |(address, hosted): (&Address, &Hosted)| {
        let position = hosted.brick.position(ring, partition);
        ReplicaStatus {
            brick: address.brick,
            server: node.cluster.server(),
            epoch: position.epoch,
            sequence: position.sequence,
            incarnation: hosted.brick.incarnation(),
            whole: !hosted.partition.read().is_being_healed(),
        }
    };
    Ok(Replicas { replicas: own.map(row).collect() })
}

/// Makes a replica of this server the leader, and only member, though it may lack acknowledged changes.
///
/// # Errors
///
/// `Invalid`: this server has no such brick or replica, the replica was still being healed, or the partition waits for
/// no other brick; `Protocol`: this server has no replica of the ring; errors of the coordinator.
pub fn force(node: &Node, ring: RingId, partition: PartitionNumber, brick: &str) -> Result<PartitionForced> {
    let brick = bricks::own(node, brick)?;
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
    Ok(PartitionForced { ring, partition, epoch: view.epoch, brick: brick.brick, losses: view.losses })
}
