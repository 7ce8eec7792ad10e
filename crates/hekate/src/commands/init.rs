//! `hekate init`: a new cluster of one server.

use crate::cli::{Cli, Init};
use crate::commands::Failure;
use crate::commands::state::{brick_directories, make_bricks, make_state, random};
use crate::output;
use crate::paths::Paths;
use hekate_cluster::registry::check_name;
use hekate_cluster::{BrickInfo, EmbeddedCoordinator, FIRST_SERVER, Registry};
use hekate_server::membership::is_member;
use hekate_server::{NewBrick, Node, NodeSettings, VolumeRequest};
use std::sync::Arc;

pub fn init(cli: &Cli, options: &Init) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    if is_member(&paths.state) {
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
    let directories = brick_directories(&options.bricks)?;
    make_state(&paths, &random::<32>()?)?;
    let cluster = format!("{:032x}", u128::from_le_bytes(random()?));
    let wanted =
        NewBrick { cluster: &cluster, server: FIRST_SERVER, pool: &options.pool, journal_mib: options.journal };
    let bricks = make_bricks(cli, &directories, &wanted)?;
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

fn make_volume(paths: &Paths, options: &Init, name: &str) -> Result<(), Failure> {
    let node = Node::start(&NodeSettings { state: paths.state.clone() }, &|_| ())?;
    let made = node.make_volume(VolumeRequest {
        name: name.into(),
        pool: options.pool.clone(),
        copies: options.copies,
        domain: None,
        allowed_uids: Vec::new(),
        owner_uid: Some(rustix::process::geteuid().as_raw()),
        spread: 1,
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
    println!("next: {}", cli.line_to_serve());
}
