//! `hekate where`: where a file or directory rests, as a running server tells.

use crate::cli::{Cli, Source, Where};
use crate::commands::control::ask_named;
use crate::failure::Failure;
use crate::output::{self, table, text};
use hekate_gateway_fuse::{MountedVolume, mounted_volumes};
use hekate_server::{ControlRequest, WhereRequest};
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

/// Exit statuses of what is wrong with the path, not with the server: EX_DATAERR and EX_NOINPUT of sysexits(3).
const OF_THE_PATH: [u8; 2] = [65, 66];

pub fn where_is(cli: &Cli, options: &Where) -> Result<(), Failure> {
    let asked = match options.place.as_bytes().first() {
        Some(b'/') => of_mount(options)?,
        _ => Asked { request: parse(options)?, server: None },
    };
    let place = output::name(&options.place.to_string_lossy());
    let server = cli.server.clone().or(asked.server);
    let found = ask_named(cli, server.as_deref(), &ControlRequest::Where(asked.request)).map_err(|mut failure| {
        if OF_THE_PATH.contains(&failure.exit) {
            failure.text = format!("{place}: {}", failure.text);
        }
        failure
    })?;
    if cli.json {
        output::json(&found);
    } else {
        show(&place, &found);
    }
    Ok(())
}

/// What is looked for, and the server that the mount names, if it does.
struct Asked {
    request: WhereRequest,
    server: Option<String>,
}

/// A path of this machine, below a mount.
fn of_mount(options: &Where) -> Result<Asked, Failure> {
    let place = Path::new(&options.place);
    let shown = place.display();
    // The last name is that of what is meant, also if it is a symbolic link.
    let full = match (place.parent(), place.file_name()) {
        (Some(parent), Some(name)) => std::fs::canonicalize(parent).map(|parent| parent.join(name)),
        _ => std::fs::canonicalize(place),
    };
    let full = full.map_err(|error| Failure::new(66, format!("{shown}: {error}")))?;
    let mounts = mounted_volumes()?;
    let below = mounts.iter().filter(|mount| full.starts_with(&mount.directory));
    let mount = below.max_by_key(|mount| mount.directory.components().count()).ok_or_else(|| {
        Failure::usage(format!(
            "{shown} is not below a mount of Hekate{}; name a file as VOLUME:/PATH, for example photos:/2026/cat.jpg",
            listed(&mounts)
        ))
    })?;
    let source = Source::from_str(&mount.source).map_err(Failure::usage)?;
    let below = full.strip_prefix(&mount.directory).unwrap_or(Path::new(""));
    let path = [b"/", below.as_os_str().as_bytes()].concat();
    let request = WhereRequest { volume: source.volume, path, offset: options.offset };
    Ok(Asked { request, server: source.server })
}

/// The mounts of this machine, for a message.
pub fn listed(mounts: &[MountedVolume]) -> String {
    let all: Vec<String> =
        mounts.iter().map(|mount| format!("{} at {}", mount.source, mount.directory.display())).collect();
    if all.is_empty() { " (there is none)".into() } else { format!(" (there are: {})", all.join(", ")) }
}

fn parse(options: &Where) -> Result<WhereRequest, Failure> {
    let place = options.place.as_bytes();
    let wrong = || {
        let place = options.place.to_string_lossy();
        Failure::usage(format!(
            "{place:?} is neither VOLUME:/PATH, for example photos:/2026/cat.jpg, nor a whole path below a mount"
        ))
    };
    let colon = place.iter().position(|byte| *byte == b':').ok_or_else(wrong)?;
    let (volume, path) = (std::str::from_utf8(&place[..colon]).map_err(|_| wrong())?, &place[colon + 1..]);
    if volume.is_empty() || path.first() != Some(&b'/') {
        return Err(wrong());
    }
    Ok(WhereRequest { volume: volume.into(), path: path.into(), offset: options.offset })
}

fn show(place: &str, found: &Value) {
    println!("{place}: {}, inode {}, number {}", text(&found["kind"]), text(&found["inode"]), found["number"]);
    if found["kind"] == "file" {
        println!(
            "{} bytes{}",
            found["size"],
            if found["beside_the_inode"] == true { ", beside the inode" } else { "" }
        );
    }
    for piece in rows(&found["pieces"]) {
        let (from, length) = (&piece["file_offset"], &piece["length"]);
        println!("piece: {length} bytes from byte {from} on are data {}", text(&piece["data"]));
    }
    let mut lines = Vec::new();
    add(&mut lines, "inode".into(), &found["place"]);
    for names in rows(&found["names"]) {
        add(&mut lines, "names in it".into(), names);
    }
    for shard in rows(&found["shards"]) {
        add(&mut lines, format!("shard {} at byte {}", shard["index"], shard["file_offset"]), shard);
    }
    table(&["WHAT", "PARTITION", "EPOCH", "BRICK", "DIRECTORY", "ROLE", "HAS", ""], &lines);
    if let Some(next) = found["next_offset"].as_u64() {
        println!("that is not all: --offset {next} goes on");
    }
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A line for each replica.
fn add(lines: &mut Vec<Vec<String>>, what: String, place: &Value) {
    for replica in rows(&place["replicas"]) {
        lines.push(vec![
            what.clone(),
            text(&place["partition"]),
            text(&place["epoch"]),
            text(&replica["brick"]).chars().take(8).collect(),
            text(&replica["directory"]),
            if replica["leader"] == true { "leader" } else { "" }.into(),
            has(replica),
            if place["equal"] == false { "NOT EQUAL" } else { "" }.into(),
        ]);
    }
}

/// What a replica has, in words.
fn has(replica: &Value) -> String {
    if let Some(error) = replica["error"].as_str() {
        return error.into();
    }
    let Some(fields) = replica["has"].as_object() else { return "nothing".into() };
    let words = fields.iter().map(|(name, value)| format!("{name} {}", text(value)));
    words.collect::<Vec<_>>().join(", ")
}
