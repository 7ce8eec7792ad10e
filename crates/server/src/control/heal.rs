//! Healing, and proofs that all replicas of a partition hold the same.

use super::servers::{Reports, ask};
use super::{bricks, partitions};
use crate::hosting::node::Node;
use hekate_control::brick::{BrickState, BrickStatus};
use hekate_control::healing::{
    Difference, HealingStatus, LackingReplica, LackingState, Proof, ProofStatus, ProofsBegun,
};
use hekate_control::partition::{PartitionStatus, WaitingPartition};
use hekate_control::peer::{Begun, ProveHere};
use hekate_proto::*;
use hekate_replica::Partition;

/// Replicas that lack data, partitions that wait, and the progress of proofs.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn status(node: &Node) -> Result<HealingStatus> {
    let reports = Reports::gather(node)?;
    let partitions = partitions::list(node)?;
    let bricks = bricks::rows(node, &reports)?;
    let missing: Vec<_> = partitions.iter().flat_map(|row| lacking(row, &reports, &bricks)).collect();
    // Replicas are healed side by side, so the slowest one counts.
    let seconds_left = missing.iter().filter_map(|row| row.seconds_left).reduce(f64::max);
    let waiting = partitions.iter().filter_map(|row| {
        let waits_for = row.waits_for.clone()?;
        Some(WaitingPartition { ring: row.ring, partition: row.partition, waits_for })
    });
    Ok(HealingStatus {
        partitions: partitions.len(),
        waiting: waiting.collect(),
        missing,
        seconds_left,
        proofs: reports.said().flat_map(|report| report.proofs.clone()).collect(),
        all_servers_answer: reports.all_online(),
    })
}

/// The replicas of a partition that are placed on a brick and are not members of its view.
fn lacking(row: &PartitionStatus, reports: &Reports, bricks: &[BrickStatus]) -> Vec<LackingReplica> {
    let is_member = |brick: &&BrickId| row.members.iter().any(|member| member.brick == **brick);
    let lacking = |brick: &BrickId| {
        let is_learner = row.learners.iter().any(|learner| learner.brick == *brick);
        let healing = reports.healing(row.ring, row.partition, *brick);
        LackingReplica {
            ring: row.ring,
            partition: row.partition,
            volumes: row.volumes.clone(),
            brick: *brick,
            state: if is_learner { LackingState::BeingHealed } else { state_of(bricks, *brick) },
            healed: healing.map(|healing| healing.healed),
            bytes_sent: healing.map(|healing| healing.bytes_sent),
            seconds_left: healing.and_then(|healing| healing.seconds_left),
        }
    };
    row.placed.iter().filter(|brick| !is_member(brick)).map(lacking).collect()
}

/// Why a replica is neither a member nor being healed.
fn state_of(bricks: &[BrickStatus], brick: BrickId) -> LackingState {
    match bricks.iter().find(|row| row.report.brick == brick).map(|row| row.report.state) {
        Some(BrickState::Online) => LackingState::WaitsToBeHealed,
        Some(state) => LackingState::Brick(state),
        None => LackingState::Brick(BrickState::Away),
    }
}

/// Has all servers begin proofs of the partitions that they lead.
///
/// A proof ends with a view and with a member's connection, and none begins while a partition is not served. A client
/// that wants all proofs sends the request again with the same run, which begins those that are missing.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn prove(node: &Node, run: u64) -> Result<ProofsBegun> {
    for info in node.cluster.registry().servers()?.into_iter().filter(|info| info.server != node.cluster.server()) {
        // The status reports a server that does not answer.
        drop(ask(node, &info, ProveHere { run }));
    }
    node.begin_proofs(run);
    Ok(ProofsBegun { cluster: node.cluster.id().into(), server: node.cluster.server() })
}

/// Begins proofs of the partitions that this server leads.
pub fn prove_here(node: &Node, run: u64) -> Begun {
    node.begin_proofs(run);
    Begun {}
}

/// The last proof of each partition that this server leads, with the one of another run that had ended before it.
pub fn proofs_here(node: &Node) -> Vec<ProofStatus> {
    let of_leader = |ring, leader: &Partition| {
        let known = leader.proofs();
        let mut proofs = known.iter().map(|proof| row(ring, leader.address().partition, proof));
        proofs.next().map(|proof| ProofStatus { proof, before: proofs.next() })
    };
    node.rings.of_leaders(of_leader).into_iter().flatten().collect()
}

fn row(ring: RingId, partition: PartitionNumber, proof: &hekate_replica::Proof) -> Proof {
    let differing = |(brick, key): &(BrickId, Key)| Difference { brick: *brick, from: format!("{key:?}") };
    Proof {
        ring,
        partition,
        run: proof.run,
        equal: proof.equal,
        left_out: proof.left_out,
        ended: proof.ended,
        differing: proof.differing.iter().map(differing).collect(),
    }
}
