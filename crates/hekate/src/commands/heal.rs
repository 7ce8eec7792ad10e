//! `hekate heal`: replicas that lack data, and the proof that none does.

use crate::cli::{Cli, Heal};
use crate::commands::control::{ask, look};
use crate::commands::proof::prove;
use crate::failure::Failure;
use crate::output::{self, bytes, seconds, short, table};
use hekate_control::healing::{FileName, HealingStatus, LackingReplica, MissingFile, MissingFiles};
use hekate_control::{HealStatus, Missing};
use serde_json::json;

pub fn heal(cli: &Cli, command: &Heal) -> Result<(), Failure> {
    let proves = matches!(command, Heal::Status { prove: true });
    if matches!(command, Heal::List) {
        return list(cli);
    }
    let said = if proves { prove(cli)? } else { look(cli, HealStatus {})? };
    match cli.json {
        true => output::json(&said),
        false => print_status(&said, proves),
    }
    let differing = proves && said.proofs.iter().any(|row| !row.proof.differing.is_empty());
    let whole = said.missing.is_empty() && said.waiting.is_empty();
    match (differing, whole, said.all_servers_answer) {
        (false, true, true) => Ok(()),
        _ if cli.json => Err(Failure::printed(1)),
        (true, ..) => Err(Failure::new(1, "replicas differ")),
        (_, false, _) => Err(Failure::new(1, "some replicas lack data")),
        _ => Err(Failure::new(1, "not all servers answer, so it is not known whether all replicas are complete")),
    }
}

/// Replicas that lack data, and the files.
fn list(cli: &Cli) -> Result<(), Failure> {
    let said = look(cli, HealStatus {})?;
    let missing = ask(cli, Missing {})?;
    if cli.json {
        output::json(&json!({ "replicas": said.missing, "missing": missing }));
        return Ok(());
    }
    print_replicas(&said.missing);
    print_files(&missing);
    Ok(())
}

fn print_files(missing: &MissingFiles) {
    let row = |row: &MissingFile| {
        let file = match &row.file {
            FileName::Inode { path: Some(path), .. } => output::name(path),
            FileName::Inode { inode, path: None } => format!("inode {inode}"),
            FileName::Data { data } => format!("data {data}"),
        };
        vec![short(row.brick), row.volume.clone(), row.blocks.to_string(), bytes(row.bytes), file]
    };
    if !missing.files.is_empty() {
        println!();
        let heads = ["BRICK", "VOLUME", "BLOCKS", "BYTES", "FILE"];
        table(&heads, &missing.files.iter().map(row).collect::<Vec<_>>());
    }
    if missing.files_in_all > missing.files.len() {
        println!("and others: {} in all, {}", missing.files_in_all, bytes(missing.bytes));
    }
    for brick in &missing.incomplete {
        let id: String = brick.chars().take(8).collect();
        println!("brick {id} may lack more than the journals show, and is compared from its beginning");
    }
}

fn print_status(said: &HealingStatus, prove: bool) {
    match (said.missing.len(), said.waiting.len()) {
        (0, 0) if !said.all_servers_answer => {}
        (0, 0) => println!("all replicas of {} partitions are available and complete", said.partitions),
        (missing, waiting) => {
            println!("{missing} replicas of {} partitions lack data; {waiting} partitions wait", said.partitions);
            print_replicas(&said.missing);
        }
    }
    if said.seconds_left.is_some() {
        println!("about {} left", seconds(said.seconds_left));
    }
    if !said.all_servers_answer {
        println!("not all servers answer: the state of the partitions that these lead is not known");
    }
    if prove {
        print_proofs(said);
    }
}

fn print_proofs(said: &HealingStatus) {
    let proofs: Vec<_> = said.proofs.iter().map(|row| &row.proof).collect();
    let equal: u64 = proofs.iter().map(|proof| proof.equal).sum();
    let left_out: u64 = proofs.iter().map(|proof| proof.left_out).sum();
    println!("proved: {equal} entries and shards of {} partitions are the same on all members", proofs.len());
    if left_out > 0 {
        println!("{left_out} shards that are being written were left out");
    }
    for proof in proofs {
        for differing in &proof.differing {
            let (brick, from) = (short(differing.brick), &differing.from);
            println!("partition {}/{}: brick {brick} differs, from {from} on", proof.ring, proof.partition);
        }
    }
}

fn print_replicas(missing: &[LackingReplica]) {
    let row = |row: &LackingReplica| {
        vec![
            format!("{}/{}", row.ring, row.partition),
            short(row.brick),
            row.state.text().into(),
            row.healed.map_or("-".into(), |healed| format!("{:.1} %", healed * 100.0)),
            row.bytes_sent.map_or("-".into(), |bytes| format!("{} MiB", bytes >> 20)),
            seconds(row.seconds_left),
        ]
    };
    let heads = ["PARTITION", "BRICK", "STATE", "HEALED", "SENT", "LEFT"];
    table(&heads, &missing.iter().map(row).collect::<Vec<_>>());
}
