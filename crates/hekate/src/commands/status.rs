//! `hekate status` and `hekate metrics`: how the servers are, once or again and again.

use crate::cli::{Cli, Status};
use crate::commands::control::{look, print_bricks, print_volumes, rows};
use crate::failure::Failure;
use crate::output::{self, table, text};
use hekate_server::ControlRequest;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime};

/// Damaged items that `hekate status` prints, each in a line.
const DAMAGE_LINES: usize = 10;

/// From the terminal's home on, all that was there goes (ECMA-48, CUP and ED).
const CLEAR: &str = "\x1b[H\x1b[J";

pub fn metrics(cli: &Cli) -> Result<(), Failure> {
    let answer = look(cli, &ControlRequest::Metrics)?;
    match cli.json {
        true => output::json(&answer),
        false => print!("{}", answer["text"].as_str().unwrap_or_default()),
    }
    Ok(())
}

pub fn status(cli: &Cli, options: &Status) -> Result<(), Failure> {
    if let Some(seconds) = options.watch {
        return watch(cli, Duration::from_secs(seconds));
    }
    let status = look(cli, &ControlRequest::Status)?;
    if cli.json {
        output::json(&status);
        return Ok(());
    }
    print(&status);
    Ok(())
}

/// Until somebody ends it. A server that is away is shown as such; it may come back.
fn watch(cli: &Cli, pause: Duration) -> Result<(), Failure> {
    let mut before: Option<(Instant, Value)> = None;
    loop {
        let found = look(cli, &ControlRequest::Status);
        let mut out = std::io::stdout().lock();
        let written = if cli.json {
            writeln!(out, "{}", found.as_ref().map_or_else(|e| serde_json::json!({ "error": e.text }), Value::clone))
        } else {
            let home = if out.is_terminal() { CLEAR } else { "" };
            writeln!(out, "{home}{}", humantime::format_rfc3339_seconds(SystemTime::now()))
        };
        drop(out);
        // Whoever read has gone.
        if written.is_err() {
            return Ok(());
        }
        if !cli.json {
            match &found {
                Ok(status) => {
                    print(status);
                    let since = before.as_ref().filter(|(_, old)| old["pid"] == status["pid"]);
                    print_ops(status, since.map(|(at, old)| (at.elapsed(), old)));
                }
                Err(error) => println!("{}", error.text),
            }
            println!();
        }
        before = found.ok().map(|status| (Instant::now(), status));
        std::thread::sleep(pause);
    }
}

fn print(status: &Value) {
    println!(
        "health {}   server {} (version {}) up {} s   cluster {}",
        text(&status["health"]),
        text(&status["pid"]),
        text(&status["version"]),
        text(&status["uptime_seconds"]),
        text(&status["cluster"])
    );
    let coordinator: Vec<_> = rows(&status["coordinator"]).iter().map(text).collect();
    println!("coordinator at {}", coordinator.join(" and "));
    for lacking in rows(&status["lacking_copies"]) {
        let state = match lacking["learning"].as_u64() {
            Some(1..) => format!("it is being healed, {:.0} %", lacking["healed"].as_f64().unwrap_or(0.0) * 100.0),
            _ => match lacking["state"].as_str() {
                Some("stopped") => "it has stopped".to_string(),
                Some("online") => "it waits to be healed".to_string(),
                state => format!("it is {}", state.unwrap_or("away")),
            },
        };
        println!(
            "brick {} of server {}: {} partitions have one copy less without it; {state}",
            text(&lacking["directory"]),
            text(&lacking["server"]),
            text(&lacking["partitions"])
        );
    }
    for waiting in rows(&status["waiting_partitions"]) {
        println!(
            "partition {} of ring {} waits: {}",
            waiting["partition"],
            waiting["ring"],
            text(&waiting["waits_for"])
        );
    }
    print_damage(status);
    print_mapped(status);
    println!();
    print_servers(&status["servers"]);
    println!();
    print_partitions(&status["partitions"]);
    print_lanes(&status["lanes"]);
    println!();
    print_bricks(&status["bricks"]);
    println!();
    print_volumes(&status["volumes"]);
}

/// What no replica has whole: each item that was met, up to a screenful.
fn print_damage(status: &Value) {
    let damage = rows(&status["damage"]);
    for item in damage.iter().take(DAMAGE_LINES) {
        println!(
            "damaged: {} of volume {} on brick {} of server {}; no other replica has it, so reads of it fail. Restore the file \
             from a backup, or remove it",
            text(&item["what"]),
            text(&item["volume"]),
            text(&item["directory"]),
            text(&item["server"])
        );
    }
    let count = status["damaged"].as_u64().unwrap_or(0);
    let more = count.saturating_sub(damage.len().min(DAMAGE_LINES) as u64);
    if more > 0 {
        println!(
            "damaged: {more} more; `hekate --json status` has up to 100 of each server in `damage`, the servers' logs have all"
        );
    }
}

/// Files that two mounts map: what one stores may be lost.
fn print_mapped(status: &Value) {
    for file in rows(&status["mapped_files"]) {
        let sessions: Vec<_> = rows(&file["sessions"]).iter().map(text).collect();
        println!(
            "warning: two mounts (sessions {}) store into mapped pages of inode {} of volume {} (find MOUNT -inum {}); stores of \
             one may overwrite those of the other: use that file from one mount",
            sessions.join(" and "),
            file["inode"],
            text(&file["volume"]),
            file["inode"]
        );
    }
}

fn print_servers(servers: &Value) {
    let row = |server: &Value| {
        let listens: Vec<_> = rows(&server["endpoints"]).iter().map(text).collect();
        let why = server["reason"].as_str().map(|reason| format!("({reason})")).unwrap_or_default();
        let oldest = server["oldest_op_milliseconds"].as_f64().map_or("-".into(), |ms| format!("{:.1} s", ms / 1e3));
        vec![
            text(&server["name"]),
            text(&server["state"]),
            text(&server["pid"]),
            text(&server["ops_at_work"]),
            oldest,
            text(&server["slow_ops"]),
            format!("{} {why}", listens.join(" ")),
        ]
    };
    let heads = ["SERVER", "STATE", "PROCESS", "OPS AT WORK", "OLDEST", "SLOW SO FAR", "LISTENS AT"];
    table(&heads, &rows(servers).iter().map(row).collect::<Vec<_>>());
}

/// All views in short; `hekate partition list` has a row for each.
fn print_partitions(partitions: &Value) {
    let all = rows(partitions);
    let sum = |name: &str| all.iter().filter_map(|row| row[name].as_u64()).sum::<u64>();
    let lag = |row: &Value| rows(&row["lags"]).iter().filter_map(|lag| lag["records"].as_u64()).max().unwrap_or(0);
    let led = all.iter().filter(|row| !row["records"].is_null()).count();
    let whole = all.iter().filter(|row| row["whole"] == true).count();
    let epochs = all.iter().filter_map(|row| row["epoch"].as_u64());
    println!(
        "{} partitions: {led} led, {whole} with all replicas; greatest epoch {}; records: {} unsettled (one replica lacks {} at most), \
         {} unstable; fast lane: {} shards open, {} writes unsettled",
        all.len(),
        epochs.max().unwrap_or(0),
        sum("unsettled"),
        all.iter().map(lag).max().unwrap_or(0),
        sum("unstable"),
        sum("open_shards"),
        sum("unsettled_fast_writes"),
    );
}

fn print_lanes(lanes: &Value) {
    let row = |lane: &Value| {
        let us = |name: &str| format!("{} us", lane[name].as_f64().unwrap_or(0.0));
        vec![
            text(&lane["server"]),
            text(&lane["lane"]),
            text(&lane["writes"]),
            text(&lane["refused"]),
            us("p50_us"),
            us("p99_us"),
        ]
    };
    let lanes: Vec<_> = rows(lanes).iter().map(row).collect();
    if !lanes.is_empty() {
        println!();
        table(&["SERVER", "LANE", "WRITES", "REFUSED", "P50", "P99"], &lanes);
    }
}

/// What the server that answers has done since an earlier look, or since it started.
fn print_ops(status: &Value, since: Option<(Duration, &Value)>) {
    let Some(ops) = status["ops"].as_object() else { return };
    let seconds =
        since.map_or(status["uptime_seconds"].as_f64().unwrap_or(1.0), |(age, _)| age.as_secs_f64()).max(0.001);
    let mut shown = Vec::new();
    for (name, now) in ops {
        let old = since.map(|(_, old)| &old["ops"][name]);
        let grown = |field: &str| {
            let count = |row: &Value| row[field].as_u64().unwrap_or(0);
            count(now) - old.map_or(0, count).min(count(now))
        };
        let (done, failed) = (grown("done"), grown("failed"));
        if done > 0 {
            let latencies = difference(now, old);
            let at = |share: f64| format!("{} us", quantile(&latencies, share));
            let rate = done as f64 / seconds;
            shown
                .push((done, vec![name.clone(), format!("{rate:.1}"), failed.to_string(), at(0.5), at(0.99), at(1.0)]));
        }
    }
    shown.sort_by_key(|(done, _)| std::cmp::Reverse(*done));
    println!();
    table(
        &["OP", "A SECOND", "FAILED", "P50", "P99", "MOST"],
        &shown.into_iter().map(|(_, row)| row).collect::<Vec<_>>(),
    );
}

/// Counts of a histogram's parts, by their ends in µs, that were not there before.
fn difference(now: &Value, old: Option<&Value>) -> BTreeMap<u64, u64> {
    let parts = |row: &Value| -> BTreeMap<u64, u64> {
        let pair = |part: &Value| Some((part[0].as_f64()? as u64, part[1].as_u64()?));
        rows(&row["latencies"]).iter().filter_map(pair).collect()
    };
    let mut found = parts(now);
    for (end, count) in old.map(parts).unwrap_or_default() {
        if let Some(now) = found.get_mut(&end) {
            *now = now.saturating_sub(count);
        }
    }
    found
}

fn quantile(parts: &BTreeMap<u64, u64>, share: f64) -> u64 {
    let rank = ((parts.values().sum::<u64>() as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    let reaches = |(_, count): &(&u64, &u64)| {
        seen += **count;
        seen >= rank
    };
    parts.iter().find(reaches).map_or(0, |(end, _)| *end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantiles_are_of_what_came_since() {
        let old = json!({ "latencies": [[10.0, 100], [20.0, 1]] });
        let now = json!({ "latencies": [[10.0, 101], [20.0, 2], [40.0, 2]] });
        let found = difference(&now, Some(&old));
        assert_eq!(found, BTreeMap::from([(10, 1), (20, 1), (40, 2)]));
        assert_eq!([0.25, 0.5, 0.51, 1.0].map(|share| quantile(&found, share)), [10, 20, 40, 40]);
        assert_eq!(quantile(&difference(&now, None), 0.5), 10);
    }
}
