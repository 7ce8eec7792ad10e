//! `hekate status`: the state of the cluster, once or again and again.

mod ops;

use crate::cli::{Cli, Status};
use crate::commands::brick::table::print_bricks;
use crate::commands::client::date;
use crate::commands::control::look;
use crate::commands::network::carried;
use crate::commands::volume::print_volumes;
use crate::failure::Failure;
use crate::output::{self, or_dash, table};
use hekate_control::brick::BrickState;
use hekate_control::partition::PartitionStatus;
use hekate_control::status::{ClusterStatus, LackingCopies, ServerLane, ServerState, ServerStatus};
use hekate_control::{Metrics, Status as StatusCall};
use ops::print_ops;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime};

/// Damaged items that `hekate status` prints, each in a line.
const DAMAGE_LINES: usize = 10;

/// Cursor to the terminal's home, and erase from there on (ECMA-48, CUP and ED).
const CLEAR: &str = "\x1b[H\x1b[J";

pub fn metrics(cli: &Cli) -> Result<(), Failure> {
    let page = look(cli, Metrics {})?;
    if cli.json {
        output::json(&page);
    } else {
        print!("{}", page.text);
    }
    Ok(())
}

pub fn status(cli: &Cli, options: &Status) -> Result<(), Failure> {
    if let Some(seconds) = options.watch {
        return watch(cli, Duration::from_secs(seconds));
    }
    let status = look(cli, StatusCall {})?;
    if cli.json {
        output::json(&status);
    } else {
        print(&status);
    }
    Ok(())
}

/// Prints the state again and again, until the process is ended or its reader has gone. It goes on when the server is
/// away.
fn watch(cli: &Cli, pause: Duration) -> Result<(), Failure> {
    let mut before: Option<(Instant, ClusterStatus)> = None;
    loop {
        let found = look(cli, StatusCall {});
        let mut out = std::io::stdout().lock();
        let written = if cli.json {
            let value = match &found {
                Ok(status) => serde_json::to_value(status).unwrap_or_default(),
                Err(failure) => serde_json::json!({ "error": failure.text }),
            };
            writeln!(out, "{value}")
        } else {
            let home = if out.is_terminal() { CLEAR } else { "" };
            writeln!(out, "{home}{}", humantime::format_rfc3339_seconds(SystemTime::now()))
        };
        drop(out);
        if written.is_err() {
            return Ok(());
        }
        if !cli.json {
            match &found {
                Ok(status) => {
                    print(status);
                    let since = before.as_ref().filter(|(_, old)| old.pid == status.pid);
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

fn print(status: &ClusterStatus) {
    println!(
        "health {}   server {} (version {}) up {} s   cluster {}",
        status.health.text(),
        status.pid,
        status.version,
        status.uptime_seconds,
        status.cluster
    );
    println!("coordinator at {}", status.coordinator.join(" and "));
    status.lacking_copies.iter().for_each(print_lacking);
    for waiting in &status.waiting_partitions {
        println!("partition {} of ring {} waits: {}", waiting.partition, waiting.ring, waiting.waits_for);
    }
    print_damage(status);
    print_mapped(status);
    println!();
    print_servers(&status.servers);
    print_networks(status);
    println!();
    print_partitions(&status.partitions);
    print_lanes(&status.lanes);
    println!();
    print_bricks(&status.bricks);
    println!();
    print_volumes(&status.volumes);
}

fn print_lacking(lacking: &LackingCopies) {
    let state = match (lacking.learning, lacking.state) {
        (1.., _) => format!("it is being healed, {:.0} %", lacking.healed * 100.0),
        (0, Some(BrickState::Stopped)) => "it has stopped".into(),
        (0, Some(BrickState::Online)) => "it waits to be healed".into(),
        (0, state) => format!("it is {}", state.unwrap_or(BrickState::Away).text()),
    };
    println!(
        "brick {} of server {}: {} partitions lack its copy; {state}",
        or_dash(lacking.directory.as_ref()),
        or_dash(lacking.server),
        lacking.partitions
    );
}

/// Items that no replica has undamaged, at most `DAMAGE_LINES`.
fn print_damage(status: &ClusterStatus) {
    for item in status.damage.iter().take(DAMAGE_LINES) {
        println!(
            "damaged: {} of volume {} on brick {} of server {}; no other replica has it, so reads of it fail. Restore the file \
             from a backup, or remove it",
            item.what,
            item.volume,
            or_dash(item.directory.as_ref()),
            item.server
        );
    }
    let more = status.damaged.saturating_sub(status.damage.len().min(DAMAGE_LINES) as u64);
    if more > 0 {
        println!(
            "damaged: {more} more; `hekate --json status` has up to 100 of each server in `damage`, the servers' logs have all"
        );
    }
}

/// Files that two mounts have mapped: stores of one may be lost.
fn print_mapped(status: &ClusterStatus) {
    for file in &status.mapped_files {
        let (last, other) = file.sessions;
        println!(
            "warning: two mounts (sessions {last} and {}) store into mapped pages of inode {} of volume {} (find MOUNT -inum {}); stores of \
             one may overwrite those of the other: use that file from one mount",
            or_dash(other),
            file.inode,
            or_dash(file.volume.as_ref()),
            file.inode
        );
    }
}

fn print_servers(servers: &[ServerStatus]) {
    let row = |server: &ServerStatus| {
        let listens = server.endpoints.join(" ");
        let name = server.name.clone();
        match &server.state {
            ServerState::Online(vitals) => {
                let oldest = vitals.oldest_op_milliseconds;
                vec![
                    name,
                    "online".into(),
                    vitals.pid.to_string(),
                    vitals.ops_at_work.to_string(),
                    oldest.map_or("-".into(), |ms| format!("{:.1} s", ms as f64 / 1e3)),
                    vitals.slow_ops.to_string(),
                    listens,
                ]
            }
            ServerState::Away { reason } => {
                let none = || "-".to_string();
                vec![name, "away".into(), none(), none(), none(), none(), format!("{listens} ({reason})")]
            }
        }
    };
    let heads = ["SERVER", "STATE", "PROCESS", "OPS AT WORK", "OLDEST", "SLOW SO FAR", "LISTENS AT"];
    table(&heads, &servers.iter().map(row).collect::<Vec<_>>());
}

/// What each network carries, clients that others wait for, and certificates that expire soon. With one network its name says nothing.
fn print_networks(status: &ClusterStatus) {
    for network in &status.networks {
        println!("network {}: {}", network.network, carried(network));
    }
    for slow in &status.slow_clients {
        println!(
            "warning: changes wait for {} (session {}, volume {}), for {:.1} s so far: it has not returned what it may \
             answer by itself; they go on without it after 6 s",
            slow.client,
            slow.session,
            slow.volume.as_deref().unwrap_or("?"),
            slow.seconds
        );
    }
    for ending in &status.expiring {
        println!("warning: the certificate of {} expires at {}; {}", ending.holder, date(ending.expires), ending.fix);
    }
}

/// Sums over all partitions; `hekate partition list` has a row for each.
fn print_partitions(all: &[PartitionStatus]) {
    let sum = |value: fn(&PartitionStatus) -> Option<u64>| all.iter().filter_map(value).sum::<u64>();
    let lag = |row: &PartitionStatus| row.lags.iter().flatten().filter_map(|lag| lag.records).max().unwrap_or(0);
    println!(
        "{} partitions: {} led, {} with all replicas; greatest epoch {}; records: {} unsettled (one replica lacks {} at most), \
         {} unstable; fast lane: {} shards open, {} writes unsettled",
        all.len(),
        all.iter().filter(|row| row.records.is_some()).count(),
        all.iter().filter(|row| row.whole).count(),
        all.iter().map(|row| row.epoch.0).max().unwrap_or(0),
        sum(|row| row.unsettled),
        all.iter().map(lag).max().unwrap_or(0),
        sum(|row| row.unstable),
        sum(|row| row.open_shards.map(|count| count as u64)),
        sum(|row| row.unsettled_fast_writes.map(|count| count as u64)),
    );
}

fn print_lanes(lanes: &[ServerLane]) {
    let row = |ServerLane { server, lane }: &ServerLane| {
        vec![
            server.clone(),
            lane.lane.clone(),
            lane.writes.to_string(),
            lane.refused.to_string(),
            format!("{} us", lane.p50_us),
            format!("{} us", lane.p99_us),
        ]
    };
    if !lanes.is_empty() {
        println!();
        let heads = ["SERVER", "LANE", "WRITES", "REFUSED", "P50", "P99"];
        table(&heads, &lanes.iter().map(row).collect::<Vec<_>>());
    }
}
