//! `hekate init`: a new cluster of one server.

use crate::cli::{Cli, Init};
use crate::commands::join;
use crate::commands::state::{brick_directories, make_bricks, make_state};
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use hekate_cluster::registry::check_name;
use hekate_cluster::{BrickInfo, Coordinator, EmbeddedCoordinator, FIRST_SERVER, Registry};
use hekate_control::VolumeCreate;
use hekate_etcd::{Credential, Endpoints, EtcdCoordinator};
use hekate_proto::Error;
use hekate_proto::map::Mode;
use hekate_server::state_directory::{is_coordinator, is_member};
use hekate_server::{Keys, Membership, NewBrick, Node, NodeSettings, authority, cluster_id, etcd, keep_root};
use hekate_tls::{Context, Holder, SealKey};
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
    let directories = brick_directories(&options.bricks)?;
    make_state(&paths)?;
    let place = match (&options.coordinator, &options.etcd) {
        (Some(invitation), _) => Place::at(&join::Invitation::parse(invitation)?)?,
        (None, Some(endpoints)) => Place::in_etcd(endpoints, options)?,
        (None, None) => Place::of_its_own()?,
    };
    let cluster = place.cluster().to_string();
    let wanted =
        NewBrick { cluster: &cluster, server: FIRST_SERVER, pool: &options.pool, journal_mib: options.journal };
    let bricks = make_bricks(cli, &directories, &wanted)?;
    // The cluster's records are written last: a command that is interrupted before leaves no cluster.
    let registry = place.registry(&paths)?;
    registry.create_cluster(&cluster)?;
    registry.create_pool(&options.pool, &bricks)?;
    drop(registry);
    if let Some(name) = &options.volume {
        make_volume(&paths, options, name)?;
    }
    report(cli, &cluster, &bricks, options);
    Ok(())
}

/// Where the records of a new cluster are kept.
enum Place {
    /// With the first server.
    Own { cluster: String, seal: SealKey },
    /// At a coordinator that is a process of its own, which has no cluster yet.
    Apart(join::Enrolled),
    /// In an etcd that is there.
    Etcd { cluster: String, seal: SealKey, endpoints: Endpoints, credential: Credential },
}

impl Place {
    fn of_its_own() -> Result<Self, Failure> {
        Ok(Self::Own { cluster: cluster_id()?, seal: SealKey::create()? })
    }

    fn at(invitation: &join::Invitation) -> Result<Self, Failure> {
        invitation.enroll(None, false).map(Self::Apart)
    }

    /// An etcd that answers, and has no records.
    fn in_etcd(endpoints: &str, options: &Init) -> Result<Self, Failure> {
        let read = |path: &Option<std::path::PathBuf>| match path {
            None => Ok(String::new()),
            Some(path) => std::fs::read_to_string(path).map_err(|e| Error::io(format!("read {}", path.display()), e)),
        };
        let credential = Credential {
            ca: read(&options.etcd_ca)?,
            certificate: read(&options.etcd_cert)?,
            key: read(&options.etcd_key)?,
        };
        let endpoints = Endpoints::parse(endpoints)?;
        let store = EtcdCoordinator::new(endpoints.clone(), &credential)?;
        if !store.list("/")?.pairs.is_empty() {
            return Err(Failure::new(
                73,
                format!("etcd at {endpoints} holds keys already; a cluster needs one of its own"),
            ));
        }
        Ok(Self::Etcd { cluster: cluster_id()?, seal: SealKey::create()?, endpoints, credential })
    }

    fn cluster(&self) -> &str {
        match self {
            Self::Own { cluster, .. } | Self::Etcd { cluster, .. } => cluster,
            Self::Apart(enrolled) => &enrolled.credential.cluster,
        }
    }

    /// The registry of the new cluster. Writes the keys of its first server, and the address of the coordinator.
    fn registry(&self, paths: &Paths) -> Result<Registry, Failure> {
        match self {
            Self::Own { cluster, seal } => {
                let registry = Registry::new(Arc::new(EmbeddedCoordinator::create(&paths.coordinator())?));
                make_keys(paths, &registry, cluster, seal)?;
                Ok(registry)
            }
            Self::Etcd { cluster, seal, endpoints, credential } => {
                let registry = Registry::new(Arc::new(EtcdCoordinator::new(endpoints.clone(), credential)?));
                make_keys(paths, &registry, cluster, seal)?;
                registry.create_etcd(&etcd::record_of(endpoints, credential, seal)?)?;
                etcd::write_credential(&paths.state, credential)?;
                let coordinator = hekate_server::Place::Etcd(endpoints.clone()).to_string();
                Membership { server: FIRST_SERVER, cluster: cluster.clone(), coordinator, servers: Vec::new() }
                    .write(&paths.state)?;
                Ok(registry)
            }
            Self::Apart(enrolled) => {
                let context = Arc::new(Context::of(enrolled.credential.clone())?);
                let (coordinator, store) = enrolled.coordinator(&context)?;
                Keys::write(&paths.state, &enrolled.credential, &enrolled.seal)?;
                let cluster = enrolled.credential.cluster.clone();
                Membership { server: FIRST_SERVER, cluster, coordinator, servers: Vec::new() }.write(&paths.state)?;
                Ok(Registry::of(store, FIRST_SERVER))
            }
        }
    }
}

/// Makes the authority of a new cluster, and the keys of its first server.
fn make_keys(paths: &Paths, registry: &Registry, cluster: &str, seal: &SealKey) -> Result<(), Failure> {
    keep_root(&paths.state, &authority::create(registry, seal, cluster)?)?;
    let holder = Holder::Server(FIRST_SERVER);
    let credential = authority::read(registry, seal)?.server_credential(&holder)?;
    Ok(Keys::write(&paths.state, &credential, seal)?)
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
    if options.coordinator.is_none() {
        println!(
            "the root's key, ca/root.key in the state directory, is not needed to run the cluster: keep it offline"
        );
    }
}
