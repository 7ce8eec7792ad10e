//! `hekate brick scrub`: the server reads and checks bricks while they serve, and mends what it can.

use crate::cli::{BrickScrub, Cli};
use crate::commands::Failure;
use crate::commands::control::ask;
use crate::output::{self, bytes, text};
use hekate_server::ControlRequest;
use serde_json::Value;
use std::time::{Duration, Instant};

/// How often the server is asked, and how often a waiting person is told.
const ASK_PAUSE: Duration = Duration::from_millis(200);
const TELL_PAUSE: Duration = Duration::from_secs(2);

pub fn scrub(cli: &Cli, options: &BrickScrub) -> Result<(), Failure> {
    let begun = ask(cli, &ControlRequest::BrickScrub { brick: options.brick.clone() })?;
    let bricks: Vec<&Value> = begun.as_array().into_iter().flatten().collect();
    if !options.wait {
        if cli.json {
            output::json(&begun);
        } else {
            bricks.iter().for_each(|brick| println!("scrubbing {}", text(&brick["directory"])));
            println!("`hekate status --json` tells how it goes; `hekate brick scrub --wait` waits for its end");
        }
        return Ok(());
    }
    let done = wait(cli, &bricks)?;
    let damaged: u64 = done.iter().filter_map(|brick| brick["scrub"]["last"]["damaged"].as_u64()).sum();
    if cli.json {
        output::json(&Value::from(done.clone()));
    } else {
        done.iter().for_each(print);
    }
    match (damaged, cli.json) {
        (0, _) => Ok(()),
        (_, true) => Err(Failure::said(74)),
        (count, false) => {
            let words = format!("{count} damaged, and no other replica has it; restore these files from a backup:");
            Err(Failure::new(74, names(&done).fold(words, |all, name| all + "\n  " + &name)))
        }
    }
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

/// Until no pass over these bricks runs. -> their rows of the status.
fn wait(cli: &Cli, bricks: &[&Value]) -> Result<Vec<Value>, Failure> {
    let mut told = Instant::now();
    loop {
        let status = ask(cli, &ControlRequest::Status)?;
        let all = status["bricks"].as_array().into_iter().flatten();
        let rows: Vec<Value> =
            all.filter(|row| bricks.iter().any(|brick| brick["brick"] == row["brick"])).cloned().collect();
        let stopped = rows.iter().find(|row| row["state"] != "online");
        if let Some(row) = stopped {
            return Err(Failure::new(
                74,
                format!("brick {} has stopped: {}", text(&row["directory"]), text(&row["reason"])),
            ));
        }
        let running: Vec<&Value> = rows.iter().filter(|row| row["scrub"]["state"] == "runs").collect();
        if let Some(row) = rows.iter().find(|row| !row["scrub"]["error"].is_null()) {
            let (directory, error) = (text(&row["directory"]), text(&row["scrub"]["error"]));
            return Err(Failure::new(74, format!("the pass over brick {directory} was cut short: {error}")));
        }
        if running.is_empty() {
            return Ok(rows);
        }
        if told.elapsed() > TELL_PAUSE {
            told = Instant::now();
            for row in running {
                eprintln!("{}: {} checked", text(&row["directory"]), bytes(&row["scrub"]["now"]["bytes_checked"]));
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
}
