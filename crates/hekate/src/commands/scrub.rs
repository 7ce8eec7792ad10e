//! `hekate scrub`: servers read and check bricks while they serve, mend what they can, and compare what members hold.

use crate::cli::{BrickScrub, Cli, Scrub, ScrubStart};
use crate::commands::control::{ask, look, rows};
use crate::commands::proof::prove;
use crate::failure::Failure;
use crate::output::{self, bytes, seconds, table, text};
use hekate_server::ControlRequest;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often the server is asked, and how often a waiting person is told.
const ASK_PAUSE: Duration = Duration::from_millis(200);
const TELL_PAUSE: Duration = Duration::from_secs(2);

pub fn scrub(cli: &Cli, command: &Scrub) -> Result<(), Failure> {
    match command {
        Scrub::Start(options) => start(cli, options),
        Scrub::Status => {
            let bricks = look(cli, &ControlRequest::BrickList)?;
            let proofs = look(cli, &ControlRequest::HealStatus)?["proofs"].take();
            if cli.json {
                output::json(&json!({ "bricks": bricks, "proofs": proofs }));
            } else {
                print_status(rows(&bricks), &proofs);
            }
            outcome(cli, rows(&bricks), &proofs)
        }
    }
}

/// `hekate brick scrub`.
pub fn of_brick(cli: &Cli, options: &BrickScrub) -> Result<(), Failure> {
    start(cli, &ScrubStart { brick: options.brick.clone(), volume: None, wait: options.wait })
}

fn start(cli: &Cli, options: &ScrubStart) -> Result<(), Failure> {
    let (brick, volume) = (options.brick.clone(), options.volume.clone());
    let begun = ask(cli, &ControlRequest::ScrubStart { brick, volume })?;
    let bricks = rows(&begun);
    if let Some(row) = bricks.iter().find(|row| !row["why_not"].is_null()) {
        let (directory, why) = (text(&row["directory"]), text(&row["why_not"]));
        return Err(Failure::new(69, format!("brick {directory} is not scrubbed, all others are: {why}")));
    }
    if !options.wait {
        if cli.json {
            output::json(&begun);
        } else {
            bricks.iter().for_each(|brick| println!("scrubbing {}", text(&brick["directory"])));
            println!("`hekate scrub status` tells how it goes; `hekate scrub start --wait` waits for its end");
        }
        return Ok(());
    }
    let done = wait(cli, bricks)?;
    if cli.json {
        output::json(&Value::from(done.clone()));
    } else {
        done.iter().for_each(print);
    }
    let proofs = if damaged(&done) == 0 { prove(cli)?["proofs"].take() } else { Value::Null };
    outcome(cli, &done, &proofs)
}

/// What is damaged, or differs.
fn outcome(cli: &Cli, bricks: &[Value], proofs: &Value) -> Result<(), Failure> {
    let differ = rows(proofs).iter().any(|proof| !rows(&proof["differing"]).is_empty());
    match (damaged(bricks), differ, cli.json) {
        (0, false, _) => Ok(()),
        (0, true, true) => Err(Failure::printed(1)),
        (0, true, false) => Err(Failure::new(1, "replicas differ; `hekate heal status --prove` names where")),
        (_, _, true) => Err(Failure::printed(74)),
        (count, _, false) => {
            let words = format!("{count} damaged, and no other replica has it; restore these files from a backup:");
            Err(Failure::new(74, names(bricks).fold(words, |all, name| all + "\n  " + &name)))
        }
    }
}

/// Blocks, keys and pages that no other replica could mend.
fn damaged(bricks: &[Value]) -> u64 {
    bricks.iter().filter_map(|brick| brick["scrub"]["last"]["damaged"].as_u64()).sum()
}

/// What is damaged, by brick.
fn names(bricks: &[Value]) -> impl Iterator<Item = String> + '_ {
    let of_brick = |row: &Value| {
        let directory = text(&row["directory"]);
        let damage = row["scrub"]["last"]["damage"].as_array().cloned().unwrap_or_default();
        damage.into_iter().map(move |damage| format!("{directory}: {}", text(&damage)))
    };
    bricks.iter().flat_map(of_brick)
}

/// Until no pass over these bricks runs. -> their rows.
fn wait(cli: &Cli, bricks: &[Value]) -> Result<Vec<Value>, Failure> {
    let mut told = Instant::now();
    loop {
        let listed = ask(cli, &ControlRequest::BrickList)?;
        let is_one = |row: &&Value| bricks.iter().any(|brick| brick["brick"] == row["brick"]);
        let found: Vec<Value> = rows(&listed).iter().filter(is_one).cloned().collect();
        if let Some(row) = found.iter().find(|row| row["state"] != "online" && row["state"] != "full") {
            let (directory, state) = (text(&row["directory"]), text(&row["state"]));
            return Err(Failure::new(74, format!("brick {directory} is {state}: {}", text(&row["reason"]))));
        }
        let running: Vec<&Value> = found.iter().filter(|row| row["scrub"]["state"] == "runs").collect();
        if let Some(row) = found.iter().find(|row| !row["scrub"]["error"].is_null()) {
            let (directory, error) = (text(&row["directory"]), text(&row["scrub"]["error"]));
            return Err(Failure::new(74, format!("the pass over brick {directory} was cut short: {error}")));
        }
        if running.is_empty() {
            return Ok(found);
        }
        if told.elapsed() > TELL_PAUSE {
            told = Instant::now();
            for row in running {
                let now = &row["scrub"]["now"];
                let (checked, left) = (bytes(&now["bytes_checked"]), seconds(&now["seconds_left"]));
                eprintln!("{}: {checked} checked, {left} left", text(&row["directory"]));
            }
        }
        std::thread::sleep(ASK_PAUSE);
    }
}

fn print(row: &Value) {
    let last = &row["scrub"]["last"];
    println!(
        "{}: {} checked, {} mended, {} damaged, {} stray files removed",
        text(&row["directory"]),
        bytes(&last["bytes_checked"]),
        text(&last["mended"]),
        text(&last["damaged"]),
        text(&last["stray_files_removed"])
    );
    if let Some(left_out) = last["left_out"].as_str() {
        println!("{}: not checked: {left_out}", text(&row["directory"]));
    }
}

fn print_status(bricks: &[Value], proofs: &Value) {
    let row = |row: &Value| {
        let scrub = &row["scrub"];
        let pass = if scrub["now"].is_null() { &scrub["last"] } else { &scrub["now"] };
        let done = scrub["now"]["done"].as_f64().map(|done| format!("{:.0} %", done * 100.0));
        let ago = |last: &Value| match &last["ended_seconds_ago"] {
            Value::Null => "-".to_string(),
            ago => format!("{} ago", seconds(ago)),
        };
        vec![
            text(&row["directory"]),
            text(&row["server"]),
            text(if row["state"] == "online" { &scrub["state"] } else { &row["state"] }),
            done.unwrap_or_else(|| "-".into()),
            seconds(&scrub["now"]["seconds_left"]),
            bytes(&pass["bytes_checked"]),
            text(&pass["mended"]),
            text(&pass["damaged"]),
            text(&scrub["mended_since_start"]),
            ago(&scrub["last"]),
        ]
    };
    let heads =
        ["BRICK", "SERVER", "PASS", "DONE", "LEFT", "CHECKED", "MENDED", "DAMAGED", "MENDED SINCE START", "LAST"];
    table(&heads, &bricks.iter().map(row).collect::<Vec<_>>());
    let ended = rows(proofs).iter().filter(|proof| proof["ended"] == true).count();
    let equal: u64 = rows(proofs).iter().filter_map(|proof| proof["equal"].as_u64()).sum();
    println!("compared with the other members: {equal} entries and shards are the same, {ended} partitions done");
}
