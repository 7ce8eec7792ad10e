//! Commands that ask the server's control interface: pools, volumes, stop.

use crate::cli::{Cli, Pool, Volume};
use crate::failure::Failure;
use crate::output::{self, bytes, table, text};
use crate::paths::{Paths, endpoint_of, unreachable};
use hekate_cluster::Domain;
use hekate_proto::map::Mode;
use hekate_proto::{Error, ServerId};
use hekate_server::{ControlReply, ControlRequest, VolumeRequest};
use hekate_transport::{Control, Endpoint};
use serde_json::Value;
use std::time::{Duration, Instant};

/// A server that takes longer to say how it is hangs.
const LOOK_LIMIT: Duration = Duration::from_secs(15);

/// How long a new volume is waited for: servers look for new ones once a second.
const SERVED_PATIENCE: Duration = Duration::from_secs(10);
const SERVED_PAUSE: Duration = Duration::from_millis(100);

/// Asks the server, and waits for it as long as it takes.
pub fn ask(cli: &Cli, request: &ControlRequest) -> Result<Value, Failure> {
    ask_named(cli, cli.server.as_deref(), request)
}

/// Asks this server, or the one of this machine.
pub fn ask_named(cli: &Cli, server: Option<&str>, request: &ControlRequest) -> Result<Value, Failure> {
    ask_within(cli, server, request, None)
}

/// Asks the server for what it knows at once.
pub fn look(cli: &Cli, request: &ControlRequest) -> Result<Value, Failure> {
    ask_within(cli, cli.server.as_deref(), request, Some(LOOK_LIMIT))
}

fn ask_within(
    cli: &Cli,
    server: Option<&str>,
    request: &ControlRequest,
    limit: Option<Duration>,
) -> Result<Value, Failure> {
    let paths = Paths::of(cli)?;
    match ask_at(&endpoint_of(&paths, server)?, request, limit) {
        Err(Error::Unavailable { what }) => Err(unreachable(&paths, cli.state.as_deref(), server, &what)),
        other => other?,
    }
}

/// Asks one server: the outer error is of the way there, the inner one its answer.
pub fn ask_at(
    endpoint: &Endpoint,
    request: &ControlRequest,
    limit: Option<Duration>,
) -> Result<Result<Value, Failure>, Error> {
    let request = serde_json::to_string(request).map_err(|e| Error::bug(e.to_string()))?;
    let answer = Control::new(endpoint.clone(), limit).ask(&request)?;
    Ok(match serde_json::from_str(&answer) {
        Ok(ControlReply::Ok(value)) => Ok(value),
        Ok(ControlReply::Error { text, exit }) => Err(Failure::new(exit, text)),
        Err(error) => Err(Failure::new(76, format!("the server's answer cannot be read: {error}"))),
    })
}

pub fn rows(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn stop(cli: &Cli) -> Result<(), Failure> {
    let stopped = ask(cli, &ControlRequest::Stop)?;
    let pid = stopped["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        wait_for_end(cli, pid);
    }
    if cli.json {
        output::json(&stopped);
    } else {
        println!("process {} has stopped", text(&stopped["pid"]));
    }
    Ok(())
}

/// By a descriptor of the process, which is ready once it has ended, reaped or not.
fn wait_for_end(cli: &Cli, pid: rustix::process::Pid) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Ok(process) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return };
    let patience = Timespec { tv_sec: 2, tv_nsec: 0 };
    let ended = |timeout: Option<&Timespec>| poll(&mut [PollFd::new(&process, PollFlags::IN)], timeout) == Ok(1);
    if !ended(Some(&patience)) {
        if !cli.json {
            eprintln!("waiting for the server to write everything home");
        }
        while !ended(None) {}
    }
}

pub fn print_bricks(bricks: &Value) {
    let row = |brick: &Value| {
        vec![
            text(&brick["directory"]),
            text(&brick["server"]),
            text(&brick["pool"]),
            text(&brick["state"]),
            bytes(&brick["bytes_free"]),
            bytes(&brick["bytes_total"]),
            format!("{} of {}", bytes(&brick["journal_bytes_used"]), bytes(&brick["journal_bytes_total"])),
        ]
    };
    let heads = ["BRICK", "SERVER", "POOL", "STATE", "FREE", "TOTAL", "JOURNAL IN USE"];
    table(&heads, &rows(bricks).iter().map(row).collect::<Vec<_>>());
    print_failed(rows(bricks));
}

/// The cause and the fix for each brick that has failed, or that cannot write home.
pub fn print_failed(bricks: &[Value]) {
    for brick in bricks.iter().filter(|brick| brick["state"] == "full") {
        let (directory, server) = (text(&brick["directory"]), text(&brick["server"]));
        println!("brick {directory} of server {server} is full and cannot write home: {}", text(&brick["reason"]));
        println!(
            "  remove what else uses its file system, or delete files of its volumes: it goes on when there is room"
        );
    }
    for brick in bricks.iter().filter(|brick| brick["state"] == "stopped" || brick["state"] == "failing") {
        let (directory, server) = (text(&brick["directory"]), text(&brick["server"]));
        println!(
            "brick {directory} of server {server} {}: {}",
            if brick["state"] == "stopped" { "has stopped" } else { "is failing" },
            text(&brick["reason"])
        );
        println!(
            "  if its disk has failed: hekate brick replace {directory} NEW-DIR, on server {server}; else restart server {server}, \
             and it is healed"
        );
    }
}

pub fn print_volumes(volumes: &Value) {
    let row = |volume: &Value| {
        vec![
            text(&volume["name"]),
            text(&volume["pool"]),
            text(&volume["copies"]),
            mode_of(&volume["mode"]).text().to_string(),
            text(&volume["state"]),
            text(&volume["sessions"]),
            bytes(&volume["bytes_free"]),
        ]
    };
    let heads = ["VOLUME", "POOL", "COPIES", "MODE", "STATE", "SESSIONS", "FREE"];
    table(&heads, &rows(volumes).iter().map(row).collect::<Vec<_>>());
}

pub fn pool(cli: &Cli, command: &Pool) -> Result<(), Failure> {
    let pools = look(cli, &ControlRequest::PoolList)?;
    let chosen: Vec<Value> = match command {
        Pool::List => rows(&pools).to_vec(),
        Pool::Show { name } => {
            let found = rows(&pools).iter().find(|pool| pool["name"] == name.as_str());
            let known: Vec<_> = rows(&pools).iter().map(|pool| text(&pool["name"])).collect();
            let missing =
                || Failure::new(66, format!("there is no pool called {name}; there are: {}", known.join(", ")));
            vec![found.cloned().ok_or_else(missing)?]
        }
    };
    if cli.json {
        let value = if let Pool::Show { .. } = command { chosen[0].clone() } else { Value::Array(chosen) };
        output::json(&value);
        return Ok(());
    }
    for pool in &chosen {
        println!("pool {}", text(&pool["name"]));
        for ring in rows(&pool["rings"]) {
            println!(
                "  ring {}: {} copies, no two on one {}; {} partitions",
                ring["ring"],
                ring["copies"],
                text(&ring["domain"]),
                ring["partitions"]
            );
        }
        print_bricks(&pool["bricks"]);
    }
    Ok(())
}

pub fn volume(cli: &Cli, command: &Volume) -> Result<(), Failure> {
    let request = match command {
        Volume::List => ControlRequest::VolumeList,
        Volume::Show { name } => ControlRequest::VolumeShow { name: name.clone() },
        Volume::Create(options) => ControlRequest::VolumeCreate(VolumeRequest {
            name: options.name.clone(),
            pool: options.pool.clone(),
            copies: options.copies,
            domain: options.domain.map(Domain::from),
            min_replicas: options.min_replicas,
            allowed_uids: options.allow_uids.clone(),
            owner_uid: options.owner,
            spread: options.spread,
            mode: options.replication().map_err(Failure::usage)?,
            led_by: options.leader.map(ServerId),
        }),
        Volume::Delete { name, confirm } => {
            if confirm.as_ref() != Some(name) {
                check_volume(cli, name)?;
                return Err(Failure::usage(format!(
                    "deleting {name} takes everything in it; say it once more: hekate volume delete {name} --confirm {name}"
                )));
            }
            ControlRequest::VolumeDelete { name: name.clone() }
        }
    };
    let answer = ask(cli, &request)?;
    let waits_for = match command {
        Volume::Create(options) => wait_until_served(cli, &options.name)?,
        _ => None,
    };
    if cli.json {
        output::json(&answer);
        return Ok(());
    }
    if let Some(waits_for) = waits_for {
        eprintln!("the volume is made, and is not served yet: {waits_for}; `hekate status` says when it is");
    }
    match command {
        Volume::List => print_volumes(&answer),
        Volume::Show { .. } => show_volume(&answer),
        Volume::Create(options) => {
            println!("volume {}: {} copies in pool {}", options.name, options.copies, options.pool);
            println!("next: hekate mount {} DIR", options.name);
        }
        Volume::Delete { name, .. } => println!("volume {name} is being deleted"),
    }
    Ok(())
}

/// Refuses a volume that there is not.
fn check_volume(cli: &Cli, name: &str) -> Result<(), Failure> {
    let volumes = look(cli, &ControlRequest::VolumeList)?;
    let known: Vec<String> = rows(&volumes).iter().map(|volume| text(&volume["name"])).collect();
    if known.iter().any(|known| known == name) {
        return Ok(());
    }
    let known = if known.is_empty() { "there is none".into() } else { format!("there are: {}", known.join(", ")) };
    Err(Failure::new(66, format!("there is no volume called {name}; {known}")))
}

/// Waits until the leaders of all partitions of a new volume serve: other servers learn of it within a second.
/// -> what it waits for after that; none: it is served.
fn wait_until_served(cli: &Cli, name: &str) -> Result<Option<String>, Failure> {
    let begun = Instant::now();
    loop {
        let all = look(cli, &ControlRequest::PartitionList)?;
        let is_own = |row: &&Value| rows(&row["volumes"]).iter().any(|volume| volume == name);
        let serves = |row: &Value| row["waits_for"].is_null() && !row["records"].is_null();
        let Some(waiting) = rows(&all).iter().filter(is_own).find(|row| !serves(row)) else { return Ok(None) };
        if begun.elapsed() > SERVED_PATIENCE {
            let why = waiting["waits_for"].as_str().unwrap_or("its leader to serve");
            return Ok(Some(format!("partition {}/{} waits for {why}", waiting["ring"], waiting["partition"])));
        }
        std::thread::sleep(SERVED_PAUSE);
    }
}

fn mode_of(mode: &Value) -> Mode {
    serde_json::from_value(mode.clone()).unwrap_or_default()
}

/// What a mode costs and gives.
fn mode_words(mode: Mode) -> &'static str {
    match mode {
        Mode::Leader => {
            "each write goes to its partition's leader, and from there to the other replicas: two round trips"
        }
        Mode::Hsr => {
            "overwrites of up to 64 KiB go to all replicas at once: one round trip; all else as in mode leader"
        }
        Mode::Async | Mode::Bypass => "UNSAFE: each write is answered by its partition's leader alone: one round trip",
        Mode::Afr { .. } => {
            "for measuring: durable overwrites of up to 64 KiB as GlusterFS's AFR does them: five round trips (lock, changelog, write, \
             changelog, unlock), fewer with eager-lock and piggyback; all else as in mode leader"
        }
        Mode::FastPath => {
            "for measuring, UNSAFE: durable overwrites of up to 64 KiB go to all replicas at once, without stamps and lists; all else as \
             in mode leader"
        }
    }
}

fn show_volume(volume: &Value) {
    print_volumes(&Value::Array(vec![volume.clone()]));
    println!("no two copies on one {}", text(&volume["domain"]));
    println!("served while at least {} of {} copies are there", text(&volume["min_replicas"]), text(&volume["copies"]));
    let allowed: Vec<String> = rows(&volume["allowed_uids"]).iter().map(text).collect();
    let allowed = if allowed.is_empty() { "root alone".into() } else { format!("root and {}", allowed.join(", ")) };
    println!("owner {}   may also use it: {allowed}", text(&volume["owner_uid"]));
    if volume["spread"] != 1 {
        println!("directories in its root: names in {} partitions each", text(&volume["spread"]));
    }
    let mode = mode_of(&volume["mode"]);
    println!("mode {}: {}", mode.text(), mode_words(mode));
    if !volume["led_by"].is_null() {
        println!("led by server {}, as long as it is there", text(&volume["led_by"]));
    }
    let weaker = rows(&volume["weaker"]);
    match weaker.is_empty() {
        true => println!("promises: all of the contract (docs/semantics.md); nothing weaker is in force"),
        false => weaker.iter().for_each(|what| println!("weaker than the contract: {}", text(what))),
    }
    let row = |(number, view): (usize, &Value)| {
        let members: Vec<_> = rows(&view["members"]).iter().map(|m| short(&m["brick"])).collect();
        vec![number.to_string(), text(&view["epoch"]), short(&view["leader"]), members.join(" ")]
    };
    let all: Vec<_> = rows(&volume["views"]).iter().enumerate().map(row).collect();
    table(&["PARTITION", "EPOCH", "LEADER", "MEMBERS"], &all);
}

pub fn short(brick: &Value) -> String {
    text(brick).chars().take(8).collect()
}
