//! `hekate init`: a new cluster of one server.

use crate::cli::{Cli, Init};
use crate::commands::join;
use crate::commands::state::{brick_directories, make_bricks, make_state, random};
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use hekate_cluster::registry::check_name;
use hekate_cluster::{BrickInfo, EmbeddedCoordinator, FIRST_SERVER, Registry};
use hekate_control::VolumeCreate;
use hekate_proto::map::Mode;
use hekate_server::state_directory::{is_coordinator, is_member};
use hekate_server::{Membership, NewBrick, Node, NodeSettings, RemoteCoordinator};
use hekate_transport::Endpoint;
use std::sync::Arc;

pub fn init(cli: &Cli, options: &Init) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    if is_member(&paths.state) {
        let state = paths.state.display();
        return Err(Failure::new(73, format!("{state} holds a cluster already; `hekate status` shows it")));
    }
    if is_coordinator(&paths.state) {
        let state = paths.state.display();
        return Err(Failure::new(
            73,
            format!("{state} belongs to a coordinator; name another --state DIR for a server"),
        ));
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
    let apart =
        options.coordinator.as_ref().map(|address| Apart::find(options, &join::address(address)?)).transpose()?;
    let directories = brick_directories(&options.bricks)?;
    make_state(
        &paths,
        &apart.as_ref().map_or_else(|| random::<32>().map(Vec::from), |apart| Ok(apart.secret.clone()))?,
    )?;
    let cluster = format!("{:032x}", u128::from_le_bytes(random()?));
    let wanted =
        NewBrick { cluster: &cluster, server: FIRST_SERVER, pool: &options.pool, journal_mib: options.journal };
    let bricks = make_bricks(cli, &directories, &wanted)?;
    // The cluster's records are written last: a command that is interrupted before leaves no cluster.
    let registry = match apart {
        None => Registry::new(Arc::new(EmbeddedCoordinator::create(&paths.coordinator())?)),
        Some(apart) => apart.registry(&paths, &cluster)?,
    };
    registry.create_cluster(&cluster)?;
    registry.create_pool(&options.pool, &bricks)?;
    drop(registry);
    if let Some(name) = &options.volume {
        make_volume(&paths, options, name)?;
    }
    report(cli, &cluster, &bricks, options);
    Ok(())
}

/// A coordinator that is a process of its own and has no cluster yet.
struct Apart {
    endpoint: Endpoint,
    secret: Vec<u8>,
}

impl Apart {
    fn find(options: &Init, address: &str) -> Result<Self, Failure> {
        let file = options
            .secret_file
            .as_deref()
            .ok_or_else(|| Failure::usage("--coordinator needs --secret-file FILE, the coordinator's secret"))?;
        let (secret, bytes) = join::read_secret(file)?;
        let said = join::identify(address, &secret, file)?;
        if said.server.is_some() {
            let join = format!("`hekate join {address}` adds a server to it");
            return Err(Failure::usage(format!(
                "{address} is a server of a cluster, not a coordinator of its own process; {join}"
            )));
        }
        if let Some(cluster) = said.cluster {
            let join = format!("`hekate join {address}` adds a server to it");
            return Err(Failure::new(
                73,
                format!("the coordinator at {address} has cluster {cluster} already; {join}"),
            ));
        }
        Ok(Self { endpoint: Endpoint::parse(address, Some(&secret))?, secret: bytes })
    }

    /// The registry at this coordinator. Records its address in the state directory.
    fn registry(self, paths: &Paths, cluster: &str) -> Result<Registry, Failure> {
        let (server, coordinator) = (FIRST_SERVER, self.endpoint.to_string());
        Membership { server, cluster: cluster.into(), coordinator }.write(&paths.state)?;
        Ok(Registry::of(Arc::new(RemoteCoordinator::new(self.endpoint, None)), FIRST_SERVER))
    }
}

fn make_volume(paths: &Paths, options: &Init, name: &str) -> Result<(), Failure> {
    let node = Node::start(&NodeSettings { state: paths.state.clone(), without: Vec::new() }, &|_| ())?;
    let made = node.make_volume(VolumeCreate {
        name: name.into(),
        pool: options.pool.clone(),
        copies: options.copies,
        domain: None,
        min_replicas: None,
        allowed_uids: Vec::new(),
        owner_uid: Some(rustix::process::geteuid().as_raw()),
        spread: 1,
        mode: Mode::Hsr,
        led_by: None,
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
