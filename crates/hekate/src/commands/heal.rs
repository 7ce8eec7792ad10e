//! `hekate heal`: what is being healed, and the proof that nothing is left.

use crate::cli::{Cli, Heal};
use crate::commands::control::{ask, look, rows, short};
use crate::commands::proof::prove;
use crate::failure::Failure;
use crate::output::{self, bytes, seconds, table, text};
use hekate_server::ControlRequest;
use serde_json::{Value, json};

pub fn heal(cli: &Cli, command: &Heal) -> Result<(), Failure> {
    let proves = matches!(command, Heal::Status { prove: true });
    if matches!(command, Heal::List) {
        return list(cli);
    }
    let said = if proves { prove(cli)? } else { look(cli, &ControlRequest::HealStatus)? };
    match cli.json {
        true => output::json(&said),
        false => print_status(&said, proves),
    }
    let differing = rows(&said["proofs"]).iter().any(|proof| proves && !rows(&proof["differing"]).is_empty());
    let whole = rows(&said["missing"]).is_empty() && rows(&said["waiting"]).is_empty();
    let is_known = said["all_servers_answer"] != false;
    match (differing, whole, is_known) {
        (false, true, true) => Ok(()),
        _ if cli.json => Err(Failure::printed(1)),
        (true, ..) => Err(Failure::new(1, "replicas differ")),
        (_, false, _) => Err(Failure::new(1, "not all replicas have everything")),
        _ => Err(Failure::new(1, "not all servers answer, so it is not known whether all replicas have everything")),
    }
}

/// Replicas, and the files that they lack.
fn list(cli: &Cli) -> Result<(), Failure> {
    let mut said = look(cli, &ControlRequest::HealStatus)?;
    let missing = ask(cli, &ControlRequest::Missing)?;
    if cli.json {
        output::json(&json!({ "replicas": said["missing"].take(), "missing": missing }));
        return Ok(());
    }
    print_missing(&said);
    let row = |row: &Value| {
        let id = if row["inode"].is_null() { &row["data"] } else { &row["inode"] };
        let what = if row["inode"].is_null() { "data" } else { "inode" };
        let path = row["path"].as_str().map_or_else(|| format!("{what} {}", text(id)), output::name);
        vec![short(&row["brick"]), text(&row["volume"]), text(&row["blocks"]), bytes(&row["bytes"]), path]
    };
    let files = rows(&missing["files"]);
    if !files.is_empty() {
        println!();
        table(&["BRICK", "VOLUME", "BLOCKS", "BYTES", "FILE"], &files.iter().map(row).collect::<Vec<_>>());
    }
    if missing["files_in_all"].as_u64() > Some(files.len() as u64) {
        println!("and others: {} in all, {}", text(&missing["files_in_all"]), bytes(&missing["bytes"]));
    }
    for brick in rows(&missing["incomplete"]) {
        println!("brick {} may lack more than the journals tell, and is compared from its beginning", short(brick));
    }
    Ok(())
}

fn print_status(said: &Value, prove: bool) {
    let (missing, waiting) = (rows(&said["missing"]).len(), rows(&said["waiting"]).len());
    match (missing, waiting) {
        (0, 0) if said["all_servers_answer"] == false => {}
        (0, 0) => println!("all replicas of {} partitions are there and have everything", text(&said["partitions"])),
        _ => {
            println!(
                "{missing} replicas of {} partitions lack something; {waiting} partitions wait",
                text(&said["partitions"])
            );
            print_missing(said);
        }
    }
    if !said["seconds_left"].is_null() {
        println!("about {} left", seconds(&said["seconds_left"]));
    }
    if said["all_servers_answer"] == false {
        println!("not all servers answer: what those lead is not known");
    }
    if !prove {
        return;
    }
    let proofs = rows(&said["proofs"]);
    let sum = |name: &str| -> u64 { proofs.iter().filter_map(|proof| proof[name].as_u64()).sum() };
    println!("proved: {} entries and shards of {} partitions are the same on all members", sum("equal"), proofs.len());
    if sum("left_out") > 0 {
        println!("{} shards that are being written were left out", sum("left_out"));
    }
    for proof in proofs {
        for differing in rows(&proof["differing"]) {
            let (brick, from) = (short(&differing["brick"]), text(&differing["from"]));
            println!("partition {}/{}: brick {brick} differs, from {from} on", proof["ring"], proof["partition"]);
        }
    }
}

fn print_missing(said: &Value) {
    let row = |row: &Value| {
        let healed = row["healed"].as_f64().map_or("-".into(), |healed| format!("{:.1} %", healed * 100.0));
        let sent = row["bytes_sent"].as_u64().map_or("-".into(), |bytes| format!("{} MiB", bytes >> 20));
        let name = format!("{}/{}", row["ring"], row["partition"]);
        let left = seconds(&row["seconds_left"]);
        vec![name, short(&row["brick"]), text(&row["state"]), healed, sent, left]
    };
    table(
        &["PARTITION", "BRICK", "STATE", "HEALED", "SENT", "LEFT"],
        &rows(&said["missing"]).iter().map(row).collect::<Vec<_>>(),
    );
}
