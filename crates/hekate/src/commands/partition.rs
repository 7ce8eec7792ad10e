//! `hekate partition`: views, replicas, and forcing.

use crate::cli::{Cli, Partition};
use crate::commands::control::{ask, look, rows, short};
use crate::failure::Failure;
use crate::output::{self, table, text};
use hekate_server::ControlRequest;
use serde_json::Value;

pub fn partition(cli: &Cli, command: &Partition) -> Result<(), Failure> {
    let (answer, print): (Value, fn(&Value)) = match command {
        Partition::List { waiting } => {
            let all = look(cli, &ControlRequest::PartitionList)?;
            let wanted = rows(&all).iter().filter(|row| !waiting || !row["waits_for"].is_null());
            (wanted.cloned().collect(), print_all)
        }
        Partition::Show { partition } => {
            let (ring, partition) = (partition.ring, partition.number);
            (look(cli, &ControlRequest::PartitionShow { ring, partition })?, print_one)
        }
        Partition::Force { partition, brick, confirm } => {
            if *confirm != Some(*partition) {
                return Err(Failure::usage(format!(
                    "what that replica of {partition} lacks is lost for good; say the partition once more: hekate partition \
                     force {partition} --brick {brick} --confirm {partition}"
                )));
            }
            let (ring, partition) = (partition.ring, partition.number);
            (ask(cli, &ControlRequest::PartitionForce { ring, partition, brick: brick.clone() })?, print_forced)
        }
    };
    if cli.json {
        output::json(&answer);
    } else {
        print(&answer);
    }
    Ok(())
}

fn name(row: &Value) -> String {
    format!("{}/{}", row["ring"], row["partition"])
}

fn bricks(members: &Value) -> String {
    rows(members).iter().map(|member| short(&member["brick"])).collect::<Vec<_>>().join(" ")
}

/// Records that the member lacks that is furthest behind.
fn lag(row: &Value) -> String {
    let lags = rows(&row["lags"]);
    let unknown = lags.iter().find(|lag| lag["records"].is_null());
    let most = lags.iter().filter_map(|lag| lag["records"].as_u64()).max();
    match (row["records"].is_null(), unknown, most) {
        (true, ..) => "-".into(),
        // The leader has not heard of that member: its brick's state says why, if it is not in order.
        (_, Some(lag), _) => lag["state"].as_str().filter(|state| *state != "online").unwrap_or("away").into(),
        (.., most) => most.unwrap_or(0).to_string(),
    }
}

fn print_all(all: &Value) {
    let row = |row: &Value| {
        let waits_for = row["waits_for"].as_str().map_or("-".into(), String::from);
        let (members, learners) = (bricks(&row["members"]), bricks(&row["learners"]));
        let of_leader = |name: &str| if row[name].is_null() { "-".into() } else { text(&row[name]) };
        vec![
            name(row),
            text(&row["epoch"]),
            short(&row["leader"]),
            members,
            learners,
            lag(row),
            of_leader("unsettled"),
            of_leader("unstable"),
            of_leader("open_shards"),
            text(&row["losses"]),
            waits_for,
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
    table(&heads, &rows(all).iter().map(row).collect::<Vec<_>>());
}

fn print_one(row: &Value) {
    print_all(&Value::Array(vec![row.clone()]));
    let volumes: Vec<_> = rows(&row["volumes"]).iter().map(text).collect();
    println!("volumes: {}   served with {} replicas at least", volumes.join(", "), text(&row["min_replicas"]));
    println!();
    let replica = |replica: &Value| {
        let state = if replica["whole"] == true { "whole" } else { "being healed" };
        vec![
            text(&replica["brick"]),
            text(&replica["server"]),
            text(&replica["epoch"]),
            text(&replica["sequence"]),
            text(&replica["incarnation"]),
            state.into(),
        ]
    };
    let heads = ["REPLICA", "SERVER", "EPOCH", "SEQUENCE", "INCARNATION", "STATE"];
    table(&heads, &rows(&row["replicas"]).iter().map(replica).collect::<Vec<_>>());
}

fn print_forced(forced: &Value) {
    println!(
        "partition {}: brick {} leads it alone from view {} on; what it lacked is lost",
        name(forced),
        short(&forced["brick"]),
        forced["epoch"]
    );
}
