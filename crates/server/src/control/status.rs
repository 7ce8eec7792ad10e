//! The state of the cluster, and the process that answers.

use super::servers::Reports;
use super::{bricks, networks, partitions, volumes};
use crate::coordination::place::Place;
use crate::hosting::node::Node;
use hekate_control::brick::BrickStatus;
use hekate_control::status::{ClusterStatus, Health, Identity, LackingCopies, Stopping};
use hekate_proto::{BrickId, PartitionNumber, Result};
use std::collections::BTreeMap;

/// The state of the cluster, from the coordinator's records and the reports of the servers that answer.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn of_cluster(node: &Node) -> Result<ClusterStatus> {
    let reports = Reports::gather(node)?;
    let waiting_partitions = reports.waiting(node);
    let bricks = bricks::rows(node, &reports)?;
    let lacking_copies = lacking_copies(node, &reports, &bricks)?;
    let damaged = reports.said().map(|report| report.damaged).sum();
    let is_good = waiting_partitions.is_empty()
        && lacking_copies.is_empty()
        && reports.all_online()
        && damaged == 0
        && !bricks.iter().any(|row| row.report.state.has_failed());
    Ok(ClusterStatus {
        cluster: node.cluster.id().into(),
        server: node.cluster.server(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_seconds: node.statistics.ops().uptime().as_secs(),
        health: if is_good { Health::Good } else { Health::Degraded },
        coordinator: node.coordinator_addresses()?,
        waiting_partitions,
        lacking_copies,
        servers: reports.rows(),
        partitions: partitions::rows(node, &reports)?,
        lanes: reports.lanes(),
        bricks,
        damaged,
        damage: reports.said().flat_map(|report| report.damage.clone()).collect(),
        mapped_by_two: reports.said().map(|report| report.mapped_by_two).sum(),
        mapped_files: reports.said().flat_map(|report| report.mapped_files.clone()).collect(),
        slow_clients: reports.said().flat_map(|report| report.slow_clients.clone()).collect(),
        networks: networks::traffic(&reports),
        expiring: networks::expiring(node, &reports),
        volumes: volumes::rows(node, &reports)?,
        orphans: reports.said().map(|report| report.orphans).sum(),
        garbage: reports.said().map(|report| report.garbage).sum(),
        ops: node.statistics.ops().rows(),
    })
}

/// Bricks that hold a replica which is no member of its partition's view.
fn lacking_copies(node: &Node, reports: &Reports, bricks: &[BrickStatus]) -> Result<Vec<LackingCopies>> {
    let mut lacking: BTreeMap<BrickId, LackingCopies> = BTreeMap::new();
    for ring in node.cluster.registry().rings()? {
        for (number, view) in (0..).map(PartitionNumber).zip(&ring.views) {
            for brick in ring.placed(number).into_iter().filter(|brick| !view.has_member(*brick)) {
                let row = lacking.entry(brick).or_default();
                row.partitions += 1;
                row.learning += u64::from(view.has_learner(brick));
                row.healed += reports.healed(ring.ring, number, brick);
            }
        }
    }
    let row = |(brick, sums): (BrickId, LackingCopies)| {
        let known = bricks.iter().find(|row| row.report.brick == brick);
        LackingCopies {
            brick,
            directory: known.map(|row| row.directory.clone()),
            server: known.map(|row| row.server),
            state: known.map(|row| row.report.state),
            healed: sums.healed / sums.partitions as f64,
            ..sums
        }
    };
    Ok(lacking.into_iter().map(row).collect())
}

/// The process that answers.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn identify(node: &Node) -> Result<Identity> {
    Ok(Identity {
        cluster: Some(node.cluster.id().into()),
        server: Some(node.cluster.server()),
        pid: std::process::id(),
        endpoints: node.endpoints()?,
        coordinator: node.coordinator_addresses()?,
        holds_coordinator: node.cluster.coordinator_place() == Place::Own,
    })
}

pub fn stopping() -> Stopping {
    Stopping { pid: std::process::id() }
}

impl Node {
    /// Addresses where this server listens.
    pub(crate) fn endpoints(&self) -> Result<Vec<String>> {
        let own = self.cluster.server();
        let info = self.cluster.registry().servers()?.into_iter().find(|info| info.server == own);
        Ok(info.map(|info| info.endpoints).unwrap_or_default())
    }

    /// Addresses of the coordinator: those of this server, if it holds the coordinator.
    pub(super) fn coordinator_addresses(&self) -> Result<Vec<String>> {
        match self.cluster.coordinator_place() {
            Place::Own => self.endpoints(),
            place => Ok(vec![place.to_string()]),
        }
    }
}
