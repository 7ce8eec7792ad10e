//! `hekate init`: a new cluster of one server.

use crate::cli::{Cli, Init};
use crate::commands::Failure;
use crate::output;
use crate::paths::{Paths, plain_path};
use hekate_brick::{Brick, BrickSettings, Identity};
use hekate_cluster::registry::check_name;
use hekate_cluster::{BrickInfo, EmbeddedCoordinator, Registry};
use hekate_proto::{BrickId, Error};
use hekate_server::{Node, NodeSettings, VolumeRequest};
use std::collections::BTreeSet;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn init(cli: &Cli, options: &Init) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    if paths.coordinator().exists() {
        let state = paths.state.display();
        return Err(Failure::new(73, format!("{state} holds a cluster already; `hekate status` shows it")));
    }
    check_name("pool", &options.pool)?;
    if let Some(volume) = &options.volume {
        check_name("volume", volume)?;
    }
    if let Some(volume) = &options.volume
        && (options.copies == 0 || options.copies as usize > options.bricks.len())
    {
        return Err(Failure::usage(format!(
            "{} copies of {volume} need as many bricks; {} are named",
            options.copies,
            options.bricks.len()
        )));
    }
    let directories = brick_directories(options)?;
    make_state(&paths)?;
    let cluster = format!("{:032x}", random()?);
    let mut bricks = Vec::new();
    for directory in &directories {
        if !cli.json {
            eprintln!("making brick {} (journal of {} MiB)", directory.display(), options.journal);
        }
        bricks.push(make_brick(directory, &cluster, options)?);
    }
    warn_of_shared_disks(cli, &directories);
    // Last of all: without it there is no cluster.
    let registry = Registry::new(Arc::new(EmbeddedCoordinator::create(&paths.coordinator())?));
    registry.create_cluster(&cluster)?;
    registry.create_pool(&options.pool, &bricks)?;
    drop(registry);
    if let Some(name) = &options.volume {
        make_volume(&paths, options, name)?;
    }
    report(cli, &cluster, &bricks, options);
    Ok(())
}

fn brick_directories(options: &Init) -> Result<Vec<PathBuf>, Failure> {
    let mut directories = Vec::new();
    for brick in &options.bricks {
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
        Identity::check_empty(&absolute)?;
        directories.push(absolute);
    }
    Ok(directories)
}

fn make_state(paths: &Paths) -> Result<(), Failure> {
    let failed = |what: &Path, e: std::io::Error| Failure::from(Error::io(format!("make {}", what.display()), e));
    DirBuilder::new().recursive(true).mode(0o700).create(&paths.state).map_err(|e| failed(&paths.state, e))?;
    let mut secret = [0u8; 32];
    getrandom::fill(&mut secret).map_err(|e| Failure::new(71, format!("getrandom: {e}")))?;
    let path = paths.secret();
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| failed(&path, e))?;
    file.write_all(&secret).and_then(|()| file.sync_all()).map_err(|e| failed(&path, e))
}

fn make_brick(directory: &Path, cluster: &str, options: &Init) -> Result<BrickInfo, Failure> {
    let id = BrickId(random()?);
    let defaults = BrickSettings::default();
    let segments = (options.journal << 20) / defaults.segment_bytes;
    // A small journal gets smaller segments, of at least 8 MiB, so that the greatest op fits into one.
    let settings = if segments >= 4 {
        BrickSettings { journal_segments: segments, ..defaults }
    } else {
        BrickSettings { journal_segments: 4, segment_bytes: (options.journal << 20) / 4, ..defaults }
    };
    Brick::create(directory, id, cluster, settings)?;
    let space =
        rustix::fs::statvfs(directory).map_err(|e| Error::io(format!("statvfs {}", directory.display()), e.into()))?;
    Ok(BrickInfo {
        brick: id,
        directory: directory.to_string_lossy().into_owned(),
        pool: options.pool.clone(),
        weight: space.f_blocks * space.f_frsize,
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

fn make_volume(paths: &Paths, options: &Init, name: &str) -> Result<(), Failure> {
    let node = Node::start(&NodeSettings { state: paths.state.clone() }, &|_| ())?;
    let made = node.make_volume(VolumeRequest {
        name: name.into(),
        pool: options.pool.clone(),
        copies: options.copies,
        allowed_uids: Vec::new(),
        owner_uid: Some(rustix::process::geteuid().as_raw()),
    });
    node.shut_down()?;
    Ok(made.map(|_| ())?)
}

fn report(cli: &Cli, cluster: &str, bricks: &[BrickInfo], options: &Init) {
    if cli.json {
        let value = serde_json::json!({
            "cluster": cluster, "pool": options.pool, "bricks": bricks, "volume": options.volume,
        });
        return output::json(&value);
    }
    println!("cluster {cluster}: pool {} of {} brick(s)", options.pool, bricks.len());
    if let Some(volume) = &options.volume {
        println!("volume {volume}: {} copies", options.copies);
    }
    println!("next: hekate serve --detach");
}

fn random() -> Result<u128, Failure> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|e| Failure::new(71, format!("getrandom: {e}")))?;
    Ok(u128::from_le_bytes(bytes))
}
