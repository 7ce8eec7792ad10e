//! `hekate volume`.

use crate::cli::{Cli, Volume, VolumeCreate as CreateOptions, VolumeSetting};
use crate::commands::control::{ask, look};
use crate::commands::translator;
use crate::failure::Failure;
use crate::output::{self, bytes, or_dash, short, table};
use hekate_control::volume::{VolumeDetails, VolumeStatus};
use hekate_control::{
    Domain, PartitionList, VolumeCreate, VolumeDelete, VolumeList, VolumeShow, partition::PartitionStatus,
};
use hekate_proto::ServerId;
use hekate_proto::map::Mode;
use std::time::{Duration, Instant};

/// Time that `volume create` waits for the volume to be served: the servers look for new volumes once a second.
const SERVED_PATIENCE: Duration = Duration::from_secs(10);
const SERVED_PAUSE: Duration = Duration::from_millis(100);

pub fn volume(cli: &Cli, command: &Volume) -> Result<(), Failure> {
    match command {
        Volume::List => {
            let volumes = ask(cli, VolumeList {})?;
            if cli.json { output::json(&volumes) } else { print_volumes(&volumes) }
        }
        Volume::Show { name } => {
            let volume = ask(cli, VolumeShow { name: name.clone() })?;
            if cli.json { output::json(&volume) } else { show(&volume) }
        }
        Volume::Create(options) => create(cli, options)?,
        Volume::Set { name, setting: VolumeSetting::Translators(wanted) } => translator::set(cli, name, wanted)?,
        Volume::Delete { name, confirm } => delete(cli, name, confirm.as_deref())?,
    }
    Ok(())
}

fn create(cli: &Cli, options: &CreateOptions) -> Result<(), Failure> {
    let mode = options.replication().map_err(Failure::usage)?;
    hekate_client::check_mode(mode)?;
    let made = ask(
        cli,
        VolumeCreate {
            name: options.name.clone(),
            pool: options.pool.clone(),
            copies: options.copies,
            domain: options.domain.map(Domain::from),
            min_replicas: options.min_replicas,
            allowed_uids: options.allow_uids.clone(),
            owner_uid: options.owner,
            spread: options.spread,
            mode,
            led_by: options.leader.map(ServerId),
        },
    )?;
    let waits_for = wait_until_served(cli, &options.name)?;
    if cli.json {
        output::json(&VolumeStatus { made: made.made || waits_for.is_none(), ..made });
        return Ok(());
    }
    if let Some(waits_for) = waits_for {
        eprintln!("the volume is made, but not served yet: {waits_for}; `hekate status` shows when it is");
    }
    println!("volume {}: {} copies in pool {}", options.name, options.copies, options.pool);
    println!("next: hekate mount {} DIR", options.name);
    Ok(())
}

fn delete(cli: &Cli, name: &str, confirm: Option<&str>) -> Result<(), Failure> {
    if confirm != Some(name) {
        check_volume(cli, name)?;
        return Err(Failure::usage(format!(
            "deleting {name} deletes everything in it; confirm with: hekate volume delete {name} --confirm {name}"
        )));
    }
    let deleted = ask(cli, VolumeDelete { name: name.into() })?;
    if cli.json {
        output::json(&deleted);
    } else {
        println!("volume {name} is being deleted");
    }
    Ok(())
}

/// # Errors
///
/// There is no volume of that name.
fn check_volume(cli: &Cli, name: &str) -> Result<(), Failure> {
    let known: Vec<String> = look(cli, VolumeList {})?.into_iter().map(|volume| volume.name).collect();
    if known.iter().any(|known| known == name) {
        return Ok(());
    }
    let known = if known.is_empty() { "there is none".into() } else { format!("there are: {}", known.join(", ")) };
    Err(Failure::new(66, format!("there is no volume called {name}; {known}")))
}

/// Waits until the leaders of all partitions of a new volume serve it, and its root directory is made. Returns what it
/// still waits for after `SERVED_PATIENCE`, or None if it is served.
fn wait_until_served(cli: &Cli, name: &str) -> Result<Option<String>, Failure> {
    let begun = Instant::now();
    loop {
        let Some(waits_for) = what_it_waits_for(cli, name)? else { return Ok(None) };
        if begun.elapsed() > SERVED_PATIENCE {
            return Ok(Some(waits_for));
        }
        std::thread::sleep(SERVED_PAUSE);
    }
}

fn what_it_waits_for(cli: &Cli, name: &str) -> Result<Option<String>, Failure> {
    let partitions = look(cli, PartitionList {})?;
    let is_own = |row: &&PartitionStatus| row.volumes.iter().any(|volume| volume == name);
    let serves = |row: &PartitionStatus| row.waits_for.is_none() && row.records.is_some();
    if let Some(waiting) = partitions.iter().filter(is_own).find(|row| !serves(row)) {
        let why = waiting.waits_for.as_deref().unwrap_or("its leader to serve");
        return Ok(Some(format!("partition {}/{} waits for {why}", waiting.ring, waiting.partition)));
    }
    let is_made = look(cli, VolumeList {})?.iter().any(|volume| volume.name == name && volume.made);
    Ok((!is_made).then(|| "its root directory is not made".into()))
}

/// What a mode costs, and what it promises less.
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

pub fn print_volumes(volumes: &[VolumeStatus]) {
    let row = |volume: &VolumeStatus| {
        vec![
            volume.name.clone(),
            volume.pool.clone(),
            volume.copies.to_string(),
            volume.mode.text().to_string(),
            volume.state.text().into(),
            volume.sessions.to_string(),
            bytes(volume.bytes_free),
        ]
    };
    let heads = ["VOLUME", "POOL", "COPIES", "MODE", "STATE", "SESSIONS", "FREE"];
    table(&heads, &volumes.iter().map(row).collect::<Vec<_>>());
}

fn show(details: &VolumeDetails) {
    let volume = &details.volume;
    print_volumes(std::slice::from_ref(volume));
    println!("no two copies on one {}", volume.domain.map_or("-", Domain::text));
    println!("served while at least {} of {} copies are available", or_dash(volume.min_replicas), volume.copies);
    let allowed: Vec<String> = volume.allowed_uids.iter().map(u32::to_string).collect();
    let allowed = if allowed.is_empty() { "root alone".into() } else { format!("root and {}", allowed.join(", ")) };
    println!("owner {}   may also use it: {allowed}", volume.owner_uid);
    if volume.spread != 1 {
        println!("directories in its root: names in {} partitions each", volume.spread);
    }
    println!("mode {}: {}", volume.mode.text(), mode_words(volume.mode));
    let (graph, applied) = (&volume.graph, volume.sessions_on_graph);
    let layers: Vec<String> = graph.layers.iter().map(hekate_graph::spec::text).collect();
    if graph.change > 0 {
        let layers = if layers.is_empty() { "none".into() } else { layers.join(" ") };
        println!("translators: {layers}   change {}, used by {applied} of {} programs", graph.change, volume.sessions);
    }
    if let Some(server) = volume.led_by {
        println!("led by server {server} while it is available");
    }
    match volume.weaker.is_empty() {
        true => println!("promises: all of the contract (docs/semantics.md); nothing weaker is in force"),
        false => volume.weaker.iter().for_each(|what| println!("weaker than the contract: {what}")),
    }
    let views = details.views.iter().enumerate().map(|(number, view)| {
        let members: Vec<_> = view.members.iter().map(|member| short(member.brick)).collect();
        vec![number.to_string(), view.epoch.to_string(), short(view.leader), members.join(" ")]
    });
    table(&["PARTITION", "EPOCH", "LEADER", "MEMBERS"], &views.collect::<Vec<_>>());
}
