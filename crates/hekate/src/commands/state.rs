//! What a server begins with: its state directory and its bricks.

use crate::cli::Cli;
use crate::commands::Failure;
use crate::paths::{Paths, plain_path};
use hekate_brick::{Brick, BrickSettings, Identity};
use hekate_cluster::BrickInfo;
use hekate_proto::{BrickId, Error, Incarnation, ServerId};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Their plain paths, if each can become a brick.
pub fn brick_directories(bricks: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut directories = Vec::new();
    for brick in bricks {
        let absolute = plain_path(brick).map_err(|e| Failure::usage(format!("the brick {}: {e}", brick.display())))?;
        if directories.contains(&absolute) {
            return Err(Failure::usage(format!("{} is named twice; each brick needs its own", absolute.display())));
        }
        if let Some(other) =
            directories.iter().find(|other| absolute.starts_with(other) || other.starts_with(&absolute))
        {
            let (one, two) = (absolute.display(), other.display());
            return Err(Failure::usage(format!("one of {one} and {two} lies in the other; bricks lie side by side")));
        }
        if let Ok(other) = Identity::read(&absolute) {
            let shown = absolute.display();
            return Err(Failure::usage(format!(
                "{shown} is not empty: it is a brick of cluster {} already; a new one needs a directory of its own",
                other.cluster
            )));
        }
        Identity::check_empty(&absolute)?;
        directories.push(absolute);
    }
    Ok(directories)
}

/// The state directory, with the cluster's secret.
pub fn make_state(paths: &Paths, secret: &[u8]) -> Result<(), Failure> {
    let failed = |what: &Path, e: std::io::Error| Failure::from(Error::io(format!("make {}", what.display()), e));
    paths.make_state_directory()?;
    let path = paths.secret();
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| failed(&path, e))?;
    file.write_all(secret).and_then(|()| file.sync_all()).map_err(|e| failed(&path, e))
}

/// What bricks are made for.
pub struct Wanted<'a> {
    pub cluster: &'a str,
    pub server: ServerId,
    pub pool: &'a str,
    pub journal_mib: u64,
}

/// Makes them, one after the other.
pub fn make_bricks(cli: &Cli, directories: &[PathBuf], wanted: &Wanted) -> Result<Vec<BrickInfo>, Failure> {
    let mut bricks = Vec::new();
    for directory in directories {
        if !cli.json {
            eprintln!("making brick {} (journal of {} MiB)", directory.display(), wanted.journal_mib);
        }
        bricks.push(make_brick(directory, wanted)?);
    }
    warn_of_shared_disks(cli, directories);
    Ok(bricks)
}

fn make_brick(directory: &Path, wanted: &Wanted) -> Result<BrickInfo, Failure> {
    let id = BrickId(u128::from_le_bytes(random()?));
    let defaults = BrickSettings::default();
    let segments = (wanted.journal_mib << 20) / defaults.segment_bytes;
    // A small journal gets smaller segments, of at least 8 MiB, so that the greatest op fits into one.
    let settings = if segments >= 4 {
        BrickSettings { journal_segments: segments, ..defaults }
    } else {
        BrickSettings { journal_segments: 4, segment_bytes: (wanted.journal_mib << 20) / 4, ..defaults }
    };
    Brick::create(directory, id, wanted.cluster, settings)?;
    let space =
        rustix::fs::statvfs(directory).map_err(|e| Error::io(format!("statvfs {}", directory.display()), e.into()))?;
    Ok(BrickInfo {
        brick: id,
        directory: directory.to_string_lossy().into_owned(),
        pool: wanted.pool.into(),
        weight: space.f_blocks * space.f_frsize,
        server: wanted.server,
        incarnation: Incarnation(0),
    })
}

fn warn_of_shared_disks(cli: &Cli, directories: &[PathBuf]) {
    let devices: BTreeSet<u64> =
        directories.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|found| found.dev()).collect();
    if devices.len() < directories.len() && !cli.json {
        eprintln!(
            "warning: {} bricks are on {} file system(s); copies on one disk are lost together",
            directories.len(),
            devices.len()
        );
    }
}

/// Bytes from the kernel's random source.
pub fn random<const COUNT: usize>() -> Result<[u8; COUNT], Failure> {
    let mut bytes = [0u8; COUNT];
    getrandom::fill(&mut bytes).map_err(|e| Failure::new(71, format!("getrandom: {e}")))?;
    Ok(bytes)
}
