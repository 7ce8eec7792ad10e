//! `hekate brick list|show|add|remove|drain|replace`: the bricks of the cluster.

use super::table::{figure, print_failed};
use crate::cli::{BrickAdd as AddOptions, BrickReplace as ReplaceOptions, Cli, line_with};
use crate::commands::control::{ask, look};
use crate::failure::Failure;
use crate::output::{self, bytes, short, table};
use hekate_control::brick::BrickStatus;
use hekate_control::{BrickAdd, BrickDrain, BrickList, BrickRemove, BrickReplace};
use std::path::Path;

pub fn list(cli: &Cli) -> Result<(), Failure> {
    let bricks = look(cli, BrickList {})?;
    if cli.json {
        output::json(&bricks);
    } else {
        print(&bricks);
    }
    Ok(())
}

pub fn show(cli: &Cli, called: &str) -> Result<(), Failure> {
    let bricks = look(cli, BrickList {})?;
    let is_called = |brick: &&BrickStatus| {
        let has_id = called.len() >= 4 && brick.report.brick.text().starts_with(called);
        brick.directory == called.trim_end_matches('/') || has_id
    };
    let found: Vec<&BrickStatus> = bricks.iter().filter(is_called).collect();
    let [brick] = found[..] else {
        let known: Vec<&str> = bricks.iter().map(|brick| brick.directory.as_str()).collect();
        let what = if found.is_empty() { "there is no brick" } else { "there are several bricks" };
        return Err(Failure::new(66, format!("{what} called {called}; the bricks are {}", known.join(", "))));
    };
    if cli.json {
        output::json(brick);
    } else {
        print_one(brick);
    }
    Ok(())
}

fn print_one(brick: &BrickStatus) {
    print(std::slice::from_ref(brick));
    let report = &brick.report;
    println!("id {}", report.brick.text());
    if let Some(reason) = &report.reason {
        println!("{}: {reason}", report.state.text());
    }
    let open = report.figures.as_ref();
    if let Some((free, total)) = open.and_then(|open| open.inodes_free.zip(open.inodes_total)) {
        println!("inodes: {free} of {total} free");
    }
    println!("overlay: {}", open.map_or("-".into(), |open| bytes(open.overlay_bytes as u64)));
    println!("reserved for deletes: {}", figure(brick, |open| open.reserve_bytes));
    let (used, total) = (figure(brick, |open| open.journal_bytes_used), figure(brick, |open| open.journal_bytes_total));
    println!("journal: {used} of {total} in use");
    println!("scrub: {}", open.map_or("-", |open| open.scrub.state.text()));
}

fn print(bricks: &[BrickStatus]) {
    let row = |brick: &BrickStatus| {
        vec![
            brick.directory.clone(),
            short(brick.report.brick),
            brick.server.to_string(),
            brick.pool.clone(),
            brick.report.state.text().into(),
            brick.replicas.to_string(),
            brick.leads.to_string(),
            figure(brick, |open| open.bytes_free),
            figure(brick, |open| open.bytes_total),
        ]
    };
    let heads = ["BRICK", "ID", "SERVER", "POOL", "STATE", "REPLICAS", "LEADS", "FREE", "TOTAL"];
    table(&heads, &bricks.iter().map(row).collect::<Vec<_>>());
    print_failed(bricks);
}

pub fn add(cli: &Cli, options: &AddOptions) -> Result<(), Failure> {
    let directory = plain(&options.directory)?;
    let made = ask(cli, BrickAdd { directory, pool: options.pool.clone(), journal_mib: options.journal })?;
    if cli.json {
        output::json(&made);
        return Ok(());
    }
    println!("brick {} in pool {}", made.directory, made.pool);
    println!("the server opens it at its next start: {}", restart(cli));
    Ok(())
}

pub fn remove(cli: &Cli, brick: &str) -> Result<(), Failure> {
    let removed = ask(cli, BrickRemove { brick: brick.into() })?;
    if cli.json {
        output::json(&removed);
        return Ok(());
    }
    println!("brick {} is removed from the cluster", removed.directory);
    println!("its directory is not changed; the server has the brick open until its next stop");
    Ok(())
}

pub fn drain(cli: &Cli, brick: &str) -> Result<(), Failure> {
    ask(cli, BrickDrain { brick: brick.into() })
}

pub fn replace(cli: &Cli, options: &ReplaceOptions) -> Result<(), Failure> {
    let (brick, directory) = (options.brick.clone(), plain(&options.directory)?);
    let replaced = ask(cli, BrickReplace { brick, directory, journal_mib: options.journal })?;
    if cli.json {
        output::json(&replaced);
        return Ok(());
    }
    println!(
        "brick {} replaces {2} and will hold its {1} replicas",
        replaced.directory, replaced.replicas, replaced.old_directory
    );
    println!("its healing begins with the server's next start: {}", restart(cli));
    Ok(())
}

/// The line that restarts the server, without the options of `hekate serve`, which are not recorded.
fn restart(cli: &Cli) -> String {
    let state = cli.state.as_deref();
    format!("{} && {}", line_with(state, "stop"), line_with(state, "serve --detach"))
}

/// The absolute path of a directory, as the cluster records it.
fn plain(directory: &Path) -> Result<String, Failure> {
    let absolute = match directory.is_absolute() {
        true => directory.to_path_buf(),
        false => crate::paths::plain_path(directory)
            .map_err(|e| Failure::usage(format!("the brick {}: {e}", directory.display())))?,
    };
    let text =
        absolute.to_str().ok_or_else(|| Failure::usage("the path of a brick must be UTF-8; name another directory"))?;
    Ok(text.trim_end_matches('/').to_string())
}
