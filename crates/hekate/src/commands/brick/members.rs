//! `hekate brick list|show|add|remove|drain|replace`: which bricks the cluster has.

use crate::cli::{BrickAdd, BrickReplace, Cli, line_with};
use crate::commands::control::{ask, look, print_failed, rows, short};
use crate::failure::Failure;
use crate::output::{self, bytes, table, text};
use hekate_server::ControlRequest;
use serde_json::Value;
use std::path::Path;

pub fn list(cli: &Cli) -> Result<(), Failure> {
    let bricks = look(cli, &ControlRequest::BrickList)?;
    match cli.json {
        true => output::json(&bricks),
        false => print(rows(&bricks)),
    }
    Ok(())
}

pub fn show(cli: &Cli, called: &str) -> Result<(), Failure> {
    let bricks = look(cli, &ControlRequest::BrickList)?;
    let is_called = |brick: &&Value| {
        let id = brick["brick"].as_str().unwrap_or_default();
        brick["directory"] == called.trim_end_matches('/') || (called.len() >= 4 && id.starts_with(called))
    };
    let found: Vec<&Value> = rows(&bricks).iter().filter(is_called).collect();
    let [brick] = found[..] else {
        let known: Vec<String> = rows(&bricks).iter().map(|brick| text(&brick["directory"])).collect();
        let what = if found.is_empty() { "there is no brick" } else { "there are several bricks" };
        return Err(Failure::new(66, format!("{what} called {called}; the bricks are {}", known.join(", "))));
    };
    if cli.json {
        output::json(brick);
        return Ok(());
    }
    print(std::slice::from_ref(brick));
    println!("id {}", text(&brick["brick"]));
    if let Some(reason) = brick["reason"].as_str() {
        println!("{}: {reason}", text(&brick["state"]));
    }
    if let (Some(free), Some(total)) = (brick["inodes_free"].as_u64(), brick["inodes_total"].as_u64()) {
        println!("inodes: {free} of {total} free");
    }
    for (what, field) in [("overlay", "overlay_bytes"), ("kept for deleting", "reserve_bytes")] {
        println!("{what}: {}", bytes(&brick[field]));
    }
    let (used, total) = (bytes(&brick["journal_bytes_used"]), bytes(&brick["journal_bytes_total"]));
    println!("journal: {used} of {total} in use");
    println!("scrub: {}", text(&brick["scrub"]["state"]));
    Ok(())
}

fn print(bricks: &[Value]) {
    let row = |brick: &Value| {
        vec![
            text(&brick["directory"]),
            short(&brick["brick"]),
            text(&brick["server"]),
            text(&brick["pool"]),
            text(&brick["state"]),
            text(&brick["replicas"]),
            text(&brick["leads"]),
            bytes(&brick["bytes_free"]),
            bytes(&brick["bytes_total"]),
        ]
    };
    let heads = ["BRICK", "ID", "SERVER", "POOL", "STATE", "REPLICAS", "LEADS", "FREE", "TOTAL"];
    table(&heads, &bricks.iter().map(row).collect::<Vec<_>>());
    print_failed(bricks);
}

pub fn add(cli: &Cli, options: &BrickAdd) -> Result<(), Failure> {
    let directory = plain(&options.directory)?;
    let wanted = ControlRequest::BrickAdd { directory, pool: options.pool.clone(), journal_mib: options.journal };
    let made = ask(cli, &wanted)?;
    if cli.json {
        output::json(&made);
        return Ok(());
    }
    println!("brick {} in pool {}", text(&made["directory"]), text(&made["pool"]));
    println!("it is used from the server's next start on: {}", restart(cli));
    Ok(())
}

pub fn remove(cli: &Cli, brick: &str) -> Result<(), Failure> {
    let removed = ask(cli, &ControlRequest::BrickRemove { brick: brick.into() })?;
    if cli.json {
        output::json(&removed);
        return Ok(());
    }
    println!("brick {} is out of the cluster", text(&removed["directory"]));
    println!("its directory is left as it is; the server lets go of it when it stops");
    Ok(())
}

pub fn drain(cli: &Cli, brick: &str) -> Result<(), Failure> {
    ask(cli, &ControlRequest::BrickDrain { brick: brick.into() }).map(|_| ())
}

pub fn replace(cli: &Cli, options: &BrickReplace) -> Result<(), Failure> {
    let (brick, directory) = (options.brick.clone(), plain(&options.directory)?);
    let replaced = ask(cli, &ControlRequest::BrickReplace { brick, directory, journal_mib: options.journal })?;
    if cli.json {
        output::json(&replaced);
        return Ok(());
    }
    println!(
        "brick {} is to hold the {} replicas of {}",
        text(&replaced["directory"]),
        text(&replaced["replicas"]),
        text(&replaced["old_directory"])
    );
    println!("it is healed from the server's next start on: {}", restart(cli));
    Ok(())
}

/// The line that restarts the server. Options of `hekate serve` are for who started it to repeat.
fn restart(cli: &Cli) -> String {
    let state = cli.state.as_deref();
    format!("{} && {}", line_with(state, "stop"), line_with(state, "serve --detach"))
}

/// As the server is told it.
fn plain(directory: &Path) -> Result<String, Failure> {
    let absolute = match directory.is_absolute() {
        true => directory.to_path_buf(),
        false => crate::paths::plain_path(directory)
            .map_err(|e| Failure::usage(format!("the brick {}: {e}", directory.display())))?,
    };
    let text = absolute.to_str().ok_or_else(|| Failure::usage("the path of a brick is UTF-8"))?;
    Ok(text.trim_end_matches('/').to_string())
}
