//! `hekate scrub`: servers read and check bricks while they serve, repair what they can, and compare what members hold.

use crate::cli::{BrickScrub, Cli, Scrub, ScrubStart as StartOptions};
use crate::commands::control::{ask, look};
use crate::commands::proof::prove;
use crate::failure::Failure;
use crate::output::{self, bytes, or_dash, seconds, table};
use hekate_control::brick::{BrickState, BrickStatus, ScrubBegun, ScrubPass, ScrubState, ScrubStatus};
use hekate_control::healing::ProofStatus;
use hekate_control::{BrickList, HealStatus, ScrubStart};
use serde_json::json;
use std::time::{Duration, Instant};

const ASK_PAUSE: Duration = Duration::from_millis(200);
/// Pause between two lines of progress.
const TELL_PAUSE: Duration = Duration::from_secs(2);

pub fn scrub(cli: &Cli, command: &Scrub) -> Result<(), Failure> {
    match command {
        Scrub::Start(options) => start(cli, options),
        Scrub::Status => {
            let bricks = look(cli, BrickList {})?;
            let proofs = look(cli, HealStatus {})?.proofs;
            if cli.json {
                output::json(&json!({ "bricks": bricks, "proofs": proofs }));
            } else {
                print_status(&bricks, &proofs);
            }
            outcome(cli, &bricks, &proofs)
        }
    }
}

/// `hekate brick scrub`.
pub fn of_brick(cli: &Cli, options: &BrickScrub) -> Result<(), Failure> {
    start(cli, &StartOptions { brick: options.brick.clone(), volume: None, wait: options.wait })
}

fn start(cli: &Cli, options: &StartOptions) -> Result<(), Failure> {
    let (brick, volume) = (options.brick.clone(), options.volume.clone());
    let begun = ask(cli, ScrubStart { brick, volume })?;
    if let Some((row, why)) = begun.iter().find_map(|row| Some((row, row.why_not.as_ref()?))) {
        let directory = &row.directory;
        return Err(Failure::new(69, format!("brick {directory} is not scrubbed, all others are: {why}")));
    }
    if !options.wait {
        if cli.json {
            output::json(&begun);
        } else {
            begun.iter().for_each(|brick| println!("scrubbing {}", brick.directory));
            println!("`hekate scrub status` shows its progress; `hekate scrub start --wait` waits for its end");
        }
        return Ok(());
    }
    let done = wait(cli, &begun)?;
    if cli.json {
        output::json(&done);
    } else {
        done.iter().for_each(print);
    }
    let proofs = if damaged(&done) == 0 { prove(cli)?.proofs } else { Vec::new() };
    outcome(cli, &done, &proofs)
}

/// # Errors
///
/// 74: something is damaged. 1: replicas differ.
fn outcome(cli: &Cli, bricks: &[BrickStatus], proofs: &[ProofStatus]) -> Result<(), Failure> {
    let differ = proofs.iter().any(|row| !row.proof.differing.is_empty());
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

/// The scrubs of a brick, if the brick is open.
fn scrubs(brick: &BrickStatus) -> Option<&ScrubStatus> {
    brick.report.figures.as_ref().map(|open| &open.scrub)
}

/// The last pass over a brick that has ended.
fn last(brick: &BrickStatus) -> Option<&ScrubPass> {
    scrubs(brick)?.last.as_ref().map(|last| &last.pass)
}

/// Number of items that no other replica could repair.
fn damaged(bricks: &[BrickStatus]) -> u64 {
    bricks.iter().filter_map(last).map(|pass| pass.damaged).sum()
}

/// The damaged items, by brick.
fn names(bricks: &[BrickStatus]) -> impl Iterator<Item = String> + '_ {
    let of_brick = |row| last(row).into_iter().flat_map(|pass| &pass.damage).map(move |item| (row, item));
    bricks.iter().flat_map(of_brick).map(|(row, item): (&BrickStatus, _)| format!("{}: {item}", row.directory))
}

/// Waits until no pass over these bricks runs. Returns their rows.
fn wait(cli: &Cli, bricks: &[ScrubBegun]) -> Result<Vec<BrickStatus>, Failure> {
    let mut reported = Instant::now();
    loop {
        let mut found = ask(cli, BrickList {})?;
        found.retain(|row| bricks.iter().any(|brick| brick.brick == row.report.brick));
        let is_open = |row: &BrickStatus| matches!(row.report.state, BrickState::Online | BrickState::Full);
        if let Some(row) = found.iter().find(|row| !is_open(row)) {
            let (directory, state, reason) =
                (&row.directory, row.report.state.text(), or_dash(row.report.reason.as_ref()));
            return Err(Failure::new(74, format!("brick {directory} is {state}: {reason}")));
        }
        let cut_short = |row| Some((row, scrubs(row)?.error.as_ref()?));
        if let Some((row, error)) = found.iter().find_map(cut_short) {
            return Err(Failure::new(74, format!("the pass over brick {} ended early: {error}", row.directory)));
        }
        let is_running = |row: &&BrickStatus| scrubs(row).is_some_and(|scrubs| scrubs.state == ScrubState::Runs);
        let running: Vec<&BrickStatus> = found.iter().filter(is_running).collect();
        if running.is_empty() {
            return Ok(found);
        }
        if reported.elapsed() > TELL_PAUSE {
            reported = Instant::now();
            running.into_iter().for_each(tell);
        }
        std::thread::sleep(ASK_PAUSE);
    }
}

/// A line of progress.
fn tell(row: &BrickStatus) {
    let now = scrubs(row).and_then(|scrubs| scrubs.now.as_ref());
    let checked = now.map_or("-".into(), |now| bytes(now.pass.bytes_checked));
    eprintln!("{}: {checked} checked, {} left", row.directory, seconds(now.and_then(|now| now.seconds_left)));
}

fn print(row: &BrickStatus) {
    let (directory, last) = (&row.directory, last(row));
    let count = |value: fn(&ScrubPass) -> u64| or_dash(last.map(value));
    println!(
        "{directory}: {} checked, {} mended, {} damaged, {} stray files removed",
        last.map_or("-".into(), |pass| bytes(pass.bytes_checked)),
        count(|pass| pass.mended),
        count(|pass| pass.damaged),
        count(|pass| pass.stray_files_removed)
    );
    if let Some(left_out) = last.and_then(|pass| pass.left_out.as_ref()) {
        println!("{directory}: not checked: {left_out}");
    }
}

fn print_status(bricks: &[BrickStatus], proofs: &[ProofStatus]) {
    let heads =
        ["BRICK", "SERVER", "PASS", "DONE", "LEFT", "CHECKED", "MENDED", "DAMAGED", "MENDED SINCE START", "LAST"];
    table(&heads, &bricks.iter().map(status_row).collect::<Vec<_>>());
    let ended = proofs.iter().filter(|row| row.proof.ended).count();
    let equal: u64 = proofs.iter().map(|row| row.proof.equal).sum();
    println!("compared with the other members: {equal} entries and shards are the same, {ended} partitions done");
}

fn status_row(row: &BrickStatus) -> Vec<String> {
    let scrubs = scrubs(row);
    let now = scrubs.and_then(|scrubs| scrubs.now.as_ref());
    let pass = now.map(|now| &now.pass).or_else(|| last(row));
    let ended = scrubs.and_then(|scrubs| scrubs.last.as_ref());
    let state = match (row.report.state, scrubs) {
        (BrickState::Online, Some(scrubs)) => scrubs.state.text(),
        (state, _) => state.text(),
    };
    vec![
        row.directory.clone(),
        row.server.to_string(),
        state.into(),
        now.map_or("-".into(), |now| format!("{:.0} %", now.done * 100.0)),
        seconds(now.and_then(|now| now.seconds_left)),
        pass.map_or("-".into(), |pass| bytes(pass.bytes_checked)),
        or_dash(pass.map(|pass| pass.mended)),
        or_dash(pass.map(|pass| pass.damaged)),
        or_dash(scrubs.map(|scrubs| scrubs.mended_since_start)),
        ended.map_or("-".into(), |last| format!("{} ago", seconds(Some(last.ended_seconds_ago as f64)))),
    ]
}
