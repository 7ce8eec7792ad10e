//! `hekate where`: where a file or directory is stored, as a running server reports it.

use crate::cli::{Cli, Source, Where as WhereOptions};
use crate::commands::control::ask_named;
use crate::failure::Failure;
use crate::output::{self, or_dash, short, table};
use hekate_control::Where;
use hekate_control::location::{Contents, InodeCopy, Place, PlacedReplica, ShardCopy, StubCopy, WhereReply};
use hekate_gateway_fuse::{MountedVolume, mounted_volumes};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

/// Exit statuses of errors in the path, not of the server: EX_DATAERR and EX_NOINPUT of sysexits(3).
const OF_THE_PATH: [u8; 2] = [65, 66];

pub fn where_is(cli: &Cli, options: &WhereOptions) -> Result<(), Failure> {
    let asked = match options.place.as_bytes().first() {
        Some(b'/') => of_mount(options)?,
        _ => Asked { request: parse(options)?, server: None },
    };
    let place = output::name(&options.place.to_string_lossy());
    let server = cli.server.clone().or(asked.server);
    let found = ask_named(cli, server.as_deref(), asked.request).map_err(|mut failure| {
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

/// The request, and the server of the mount, if the mount names one.
struct Asked {
    request: Where,
    server: Option<String>,
}

/// The request for a path of this machine, below a mount.
fn of_mount(options: &WhereOptions) -> Result<Asked, Failure> {
    let place = Path::new(&options.place);
    let shown = place.display();
    // The last name is not resolved: it may be a symbolic link, which is meant itself.
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
    let request = Where { volume: source.volume, path, offset: options.offset };
    Ok(Asked { request, server: source.server })
}

/// The mounts of this machine, in words.
pub fn listed(mounts: &[MountedVolume]) -> String {
    let all: Vec<String> =
        mounts.iter().map(|mount| format!("{} at {}", mount.source, mount.directory.display())).collect();
    if all.is_empty() { " (there is none)".into() } else { format!(" (there are: {})", all.join(", ")) }
}

fn parse(options: &WhereOptions) -> Result<Where, Failure> {
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
    Ok(Where { volume: volume.into(), path: path.into(), offset: options.offset })
}

fn show(place: &str, found: &WhereReply) {
    println!("{place}: {}, inode {}, number {}", found.kind, found.inode, found.number);
    let mut lines = Vec::new();
    add(&mut lines, "inode".into(), &found.place);
    match &found.contents {
        Contents::Directory { names } => names.iter().for_each(|place| add(&mut lines, "names in it".into(), place)),
        Contents::File { beside_the_inode, pieces, shards, .. } => {
            println!("{} bytes{}", found.size, if *beside_the_inode { ", beside the inode" } else { "" });
            for piece in pieces {
                println!("piece: {} bytes from byte {} on are data {}", piece.length, piece.file_offset, piece.data);
            }
            for shard in shards {
                add(&mut lines, format!("shard {} at byte {}", shard.index, shard.file_offset), &shard.place);
            }
        }
        Contents::Other {} => {}
    }
    table(&["WHAT", "PARTITION", "EPOCH", "BRICK", "DIRECTORY", "ROLE", "HAS", ""], &lines);
    if let Contents::File { next_offset: Some(next), .. } = found.contents {
        println!("more shards follow: continue with --offset {next}");
    }
}

/// Adds a line for each replica.
fn add<T: Words>(lines: &mut Vec<Vec<String>>, what: String, place: &Place<T>) {
    for replica in &place.replicas {
        lines.push(vec![
            what.clone(),
            place.partition.to_string(),
            place.epoch.to_string(),
            short(replica.brick),
            or_dash(replica.directory.as_ref()),
            if replica.leader { "leader" } else { "" }.into(),
            has(replica),
            if place.equal { "" } else { "NOT EQUAL" }.into(),
        ]);
    }
}

fn has<T: Words>(replica: &PlacedReplica<T>) -> String {
    match (&replica.error, &replica.has) {
        (Some(error), _) => error.clone(),
        (None, Some(has)) => has.words(),
        (None, None) => "nothing".into(),
    }
}

/// A replica's copy of something, in words.
trait Words {
    fn words(&self) -> String;
}

impl Words for InodeCopy {
    fn words(&self) -> String {
        format!("change {}, mtime {}, size {}", self.change, self.mtime, self.size)
    }
}

impl Words for StubCopy {
    fn words(&self) -> String {
        format!("change {}, directories {}, entries {}", self.change, self.directories, self.entries)
    }
}

impl Words for ShardCopy {
    fn words(&self) -> String {
        format!("length {}, stamp {}", self.length, self.stamp)
    }
}
