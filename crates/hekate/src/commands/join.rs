//! `hekate join`: a further server of a cluster.

use crate::cli::{Cli, Join, address as addresses};
use crate::commands::control::ask_at;
use crate::commands::state::{brick_directories, make_bricks, make_state};
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use hekate_cluster::{BrickInfo, Registry, ServerInfo};
use hekate_control::Identify;
use hekate_control::status::Identity;
use hekate_proto::{Error, ServerId};
use hekate_server::state_directory::{is_coordinator, is_member};
use hekate_server::{Membership, NewBrick};
use hekate_transport::{Endpoint, Secret};
use std::path::Path;

pub fn join(cli: &Cli, options: &Join) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    let (membership, bricks) = enter(cli, &paths, options)?;
    if cli.json {
        output::json(&serde_json::json!({
            "server": membership.server, "cluster": membership.cluster, "pool": options.pool, "bricks": bricks,
        }));
    } else {
        let Membership { server, cluster, .. } = &membership;
        println!("server {server} of cluster {cluster}: {} brick(s) in pool {}", bricks.len(), options.pool);
        println!("next: {}", cli.line_to_serve());
    }
    Ok(())
}

/// Makes the server's state and bricks, and records them at the coordinator.
///
/// # Errors
///
/// The coordinator does not answer or refuses, or the state directory or a brick cannot be made.
pub fn enter(cli: &Cli, paths: &Paths, options: &Join) -> Result<(Membership, Vec<BrickInfo>), Failure> {
    refuse_member(paths)?;
    let (secret, secret_bytes) = read_secret(&options.secret_file)?;
    let (cluster, coordinator) = find_coordinator(options, &secret)?;
    let mut membership = Membership { server: ServerId(0), cluster, coordinator };
    // The coordinator assigns the server's number below.
    let registry = membership.registry(Some(&secret))?;
    registry.check_version()?;
    check_pool(&registry, &options.pool)?;
    let directories = brick_directories(&options.bricks)?;
    membership.server = registry.number_server()?;
    make_state(paths, &secret_bytes)?;
    let wanted = NewBrick {
        cluster: &membership.cluster,
        server: membership.server,
        pool: &options.pool,
        journal_mib: options.journal,
    };
    let bricks = make_bricks(cli, &directories, &wanted)?;
    // Before the cluster records the server: after a crash in between, a server that the cluster records must know its
    // number.
    membership.write(&paths.state)?;
    registry.join(&ServerInfo::new(membership.server), &bricks)?;
    Ok((membership, bricks))
}

/// A cluster's secret, and its bytes for a state directory.
///
/// # Errors
///
/// The file cannot be read or is no secret.
pub fn read_secret(file: &Path) -> Result<(Secret, Vec<u8>), Failure> {
    let bytes = std::fs::read(file).map_err(|e| {
        Failure::usage(format!(
            "read the secret {}: {e}; it is the file `secret` in the state directory of a server",
            file.display()
        ))
    })?;
    Ok((Secret::read(file)?, bytes))
}

fn refuse_member(paths: &Paths) -> Result<(), Failure> {
    let state = paths.state.display();
    let holds = match Membership::read(&paths.state)? {
        Some(membership) => format!("belongs to server {} of cluster {}", membership.server, membership.cluster),
        None if is_member(&paths.state) => "holds a cluster of its own".into(),
        None if is_coordinator(&paths.state) => "belongs to a coordinator".into(),
        None => return Ok(()),
    };
    Err(Failure::new(73, format!("{state} {holds} already; name another --state DIR, or serve it with `hekate serve`")))
}

fn check_pool(registry: &Registry, pool: &str) -> Result<(), Failure> {
    let known: Vec<String> = registry.pools()?.into_iter().map(|pool| pool.name).collect();
    if known.iter().any(|known| known == pool) {
        return Ok(());
    }
    Err(Failure::usage(format!("there is no pool called {pool}; there are: {}", known.join(", "))))
}

/// Asks a server of the cluster, or its coordinator. Returns the cluster's id and the coordinator's address.
fn find_coordinator(options: &Join, secret: &Secret) -> Result<(String, String), Failure> {
    let asked = address(&options.address)?;
    let said = identify(&asked, secret, &options.secret_file)?;
    let Some(cluster) = said.cluster else {
        let init = "`hekate init --coordinator` makes one";
        return Err(Failure::new(66, format!("the coordinator at {asked} has no cluster yet; {init}")));
    };
    if said.holds_coordinator {
        return Ok((cluster, asked));
    }
    let holds =
        |address: &String| identify(address, secret, &options.secret_file).is_ok_and(|said| said.holds_coordinator);
    let away = || {
        Failure::new(
            69,
            format!(
                "server {} answers at {asked}, but the coordinator, which it names, does not",
                said.server.unwrap_or_default()
            ),
        )
    };
    let holder = said.coordinator.into_iter().find(holds).ok_or_else(away)?;
    Ok((cluster, holder))
}

/// An address in the form of the cluster's records.
///
/// # Errors
///
/// The address is malformed, or its name cannot be resolved.
pub fn address(text: &str) -> Result<String, Failure> {
    addresses::server(text).map_err(Failure::usage)
}

/// Asks the process that answers at an address for its identity.
///
/// # Errors
///
/// The process does not answer, or does not know the secret (exit status 77).
pub fn identify(address: &str, secret: &Secret, secret_file: &Path) -> Result<Identity, Failure> {
    let endpoint = Endpoint::parse(address, Some(secret))?;
    match ask_at(&endpoint, Identify {}, None) {
        Err(Error::Denied { .. }) => {
            Err(Failure::new(77, format!("{} is not the secret of the cluster at {address}", secret_file.display())))
        }
        other => Ok(other??),
    }
}
