//! Healing, and the proof that it is complete: all replicas of all partitions hold the same.

use super::{Reports, partitions};
use crate::control::ControlRequest;
use crate::hosting::node::Node;
use hekate_proto::*;
use hekate_replica::{Event, Proof};
use serde_json::{Value, json};

/// What is being healed, what waits, and how far proofs are.
pub fn status(node: &Node) -> Result<Value> {
    let reports = Reports::gather(node)?;
    let all = partitions::list(node)?;
    let rows = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let ids = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|one| one["brick"].as_str().map(String::from)).collect()
    };
    let bricks = super::bricks(node, &reports)?;
    let mut missing = Vec::new();
    for row in rows {
        let (members, learners) = (ids(&row["members"]), ids(&row["learners"]));
        for brick in row["placed"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if members.iter().any(|member| member == brick) {
                continue;
            }
            let is_it = |told: &&Value| {
                told["ring"] == row["ring"] && told["partition"] == row["partition"] && told["brick"] == brick
            };
            let told = reports.lists("healing").find(is_it);
            missing.push(json!({
                "ring": row["ring"], "partition": row["partition"], "volumes": row["volumes"], "brick": brick,
                "state": match learners.iter().any(|learner| learner == brick) {
                    true => "being healed".into(),
                    false => state_of(&bricks, brick),
                },
                "healed": told.map(|told| told["healed"].clone()), "bytes_sent": told.map(|told| told["bytes_sent"].clone()),
                "seconds_left": told.map(|told| told["seconds_left"].clone()),
            }));
        }
    }
    let waiting: Vec<&Value> = rows.iter().filter(|row| !row["waits_for"].is_null()).collect();
    let proofs: Vec<Value> = reports.lists("proofs").cloned().collect();
    // They are healed side by side.
    let left = missing.iter().filter_map(|row| row["seconds_left"].as_f64()).reduce(f64::max);
    Ok(json!({
        "partitions": rows.len(), "missing": missing, "seconds_left": left,
        "waiting": waiting.iter().map(|row| json!({ "ring": row["ring"], "partition": row["partition"], "waits_for": row["waits_for"] })).collect::<Vec<_>>(),
        "proofs": proofs, "all_servers_answer": reports.all_online(),
    }))
}

/// Why a brick is not a member: its state, or that its healing has yet to begin.
fn state_of(bricks: &[Value], brick: &str) -> Value {
    match bricks.iter().find(|row| row["brick"] == brick).map(|row| &row["state"]) {
        Some(state) if state == "online" => "waits to be healed".into(),
        Some(state) => state.clone(),
        None => "away".into(),
    }
}

/// All servers begin to prove that the partitions that they lead are the same on all members.
///
/// A proof ends with a view and with a member's connection, and none begins while a partition does not serve: who wants all of them
/// asks again in the same run, for the rest.
pub fn prove(node: &Node, run: u64) -> Result<Value> {
    for info in node.registry.servers()?.into_iter().filter(|info| info.server != node.registry.server()) {
        // Of one that does not answer the status says so.
        drop(super::ask_server(node, &info, &ControlRequest::ProveHere { run }));
    }
    prove_here(node, run)
}

/// This one does.
pub fn prove_here(node: &Node, run: u64) -> Result<Value> {
    let rings: Vec<_> = node.rings.read().values().cloned().collect();
    for ring in &rings {
        let run_of = |address| Some(ring.replica(address)?.partition.read().proof()?.run);
        let wanted = ring.leaders().into_iter().filter(|address| run_of(*address) != Some(run)).collect();
        node.tell(ring, wanted, || Event::Prove { run });
    }
    Ok(json!({ "cluster": node.cluster, "server": node.registry.server() }))
}

/// How far the proofs of this server are, each with the one of another run that had ended `before` it.
pub fn proofs_here(node: &Node) -> Vec<Value> {
    let mut rows = Vec::new();
    for ring in node.rings.read().values() {
        for address in ring.leaders() {
            let proofs = ring.replica(address).map(|hosted| hosted.partition.read().proofs()).unwrap_or_default();
            let mut told = proofs.iter().map(|proof| row(ring.ring, address.partition, proof));
            if let Some(mut last) = told.next() {
                last["before"] = told.next().unwrap_or_default();
                rows.push(last);
            }
        }
    }
    rows
}

fn row(ring: RingId, partition: PartitionNumber, proof: &Proof) -> Value {
    let differing = |(brick, key): &(BrickId, Key)| json!({ "brick": brick, "from": format!("{key:?}") });
    json!({
        "ring": ring, "partition": partition, "run": proof.run, "equal": proof.equal, "left_out": proof.left_out,
        "ended": proof.ended, "differing": proof.differing.iter().map(differing).collect::<Vec<_>>(),
    })
}
