//! `hekate partition`: views, replicas, and forcing a replica to lead.

use crate::cli::{Cli, Partition};
use crate::commands::control::{ask, look};
use crate::failure::Failure;
use crate::output::{self, or_dash, short, table};
use hekate_control::brick::BrickState;
use hekate_control::partition::{PartitionDetails, PartitionForced, PartitionStatus, ReplicaStatus};
use hekate_control::{PartitionForce, PartitionList, PartitionShow};
use hekate_proto::map::Member;
use serde::Serialize;

pub fn partition(cli: &Cli, command: &Partition) -> Result<(), Failure> {
    match command {
        Partition::List { waiting } => {
            let mut all = look(cli, PartitionList {})?;
            all.retain(|row| !waiting || row.waits_for.is_some());
            show(cli, &all, |all| print_all(all));
        }
        Partition::Show { partition } => {
            let (ring, partition) = (partition.ring, partition.number);
            show(cli, &look(cli, PartitionShow { ring, partition })?, print_one);
        }
        Partition::Force { partition, brick, confirm } => {
            if *confirm != Some(*partition) {
                return Err(Failure::usage(format!(
                    "changes that this replica of {partition} lacks will be lost for good; confirm with: hekate partition \
                     force {partition} --brick {brick} --confirm {partition}"
                )));
            }
            let (ring, partition) = (partition.ring, partition.number);
            show(cli, &ask(cli, PartitionForce { ring, partition, brick: brick.clone() })?, print_forced);
        }
    }
    Ok(())
}

fn show<T: Serialize>(cli: &Cli, reply: &T, print: impl Fn(&T)) {
    if cli.json {
        output::json(reply);
    } else {
        print(reply);
    }
}

fn bricks(members: &[Member]) -> String {
    members.iter().map(|member| short(member.brick)).collect::<Vec<_>>().join(" ")
}

/// Records that the member lacks that is furthest behind.
fn lag(row: &PartitionStatus) -> String {
    if row.records.is_none() {
        return "-".into();
    }
    let lags = row.lags.as_deref().unwrap_or_default();
    match lags.iter().find(|lag| lag.records.is_none()) {
        // The leader has no connection to that member: the state of its brick says why, unless that is online.
        Some(unknown) => match unknown.state {
            Some(state) if state != BrickState::Online => state.text().into(),
            _ => "away".into(),
        },
        None => lags.iter().filter_map(|lag| lag.records).max().unwrap_or(0).to_string(),
    }
}

fn print_all(all: &[PartitionStatus]) {
    let row = |row: &PartitionStatus| {
        vec![
            format!("{}/{}", row.ring, row.partition),
            row.epoch.to_string(),
            short(row.leader),
            bricks(&row.members),
            bricks(&row.learners),
            lag(row),
            or_dash(row.unsettled),
            or_dash(row.unstable),
            or_dash(row.open_shards),
            row.losses.to_string(),
            or_dash(row.waits_for.as_ref()),
        ]
    };
    let heads = [
        "PARTITION",
        "EPOCH",
        "LEADER",
        "MEMBERS",
        "BEING HEALED",
        "LAG",
        "UNSETTLED",
        "UNSTABLE",
        "OPEN SHARDS",
        "LOSSES",
        "WAITS FOR",
    ];
    table(&heads, &all.iter().map(row).collect::<Vec<_>>());
}

fn print_one(PartitionDetails { partition, replicas }: &PartitionDetails) {
    print_all(std::slice::from_ref(partition));
    let volumes = partition.volumes.join(", ");
    println!("volumes: {volumes}   served with {} replicas at least", partition.min_replicas);
    println!();
    let row = |replica: &ReplicaStatus| {
        vec![
            replica.brick.text(),
            replica.server.to_string(),
            replica.epoch.to_string(),
            replica.sequence.to_string(),
            replica.incarnation.to_string(),
            if replica.whole { "whole" } else { "being healed" }.into(),
        ]
    };
    let heads = ["REPLICA", "SERVER", "EPOCH", "SEQUENCE", "INCARNATION", "STATE"];
    table(&heads, &replicas.iter().map(row).collect::<Vec<_>>());
}

fn print_forced(forced: &PartitionForced) {
    println!(
        "partition {}/{}: brick {} leads it alone from view {} on; changes that it lacked are lost",
        forced.ring,
        forced.partition,
        short(forced.brick),
        forced.epoch
    );
}
