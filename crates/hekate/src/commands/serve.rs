//! `hekate serve`: the server process.

mod mounts;

use crate::cli::{Cli, Join, Listen, Serve, address};
use crate::commands::control::ask_at;
use crate::commands::doors::Doors;
use crate::commands::join;
use crate::commands::nbd::doors::NbdDoors;
use crate::commands::s3::doors::S3Doors;
use crate::daemon::{self, IN_USE_PATIENCE};
use crate::failure::Failure;
use crate::log_lines;
use crate::notify;
use crate::output;
use crate::paths::Paths;
use hekate_control::Identify;
use hekate_proto::Error;
use hekate_server::state_directory::{cluster_at, is_coordinator, is_member};
use hekate_server::{Keys, Membership, Node, NodeSettings, PROGRESS, is_coordinator_away, take_place_from};
use hekate_tls::{Context, Token};
use hekate_transport::{Endpoint, Server};
use mounts::Mounts;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time that a starting server waits for a coordinator in another process.
const COORDINATOR_PATIENCE: Duration = Duration::from_secs(30);
/// Time that a stopping server takes to answer the requests that it has begun.
const SOON: Duration = Duration::from_millis(100);
const STOP_PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks for connections of revoked clients.
const REVOKED_PAUSE: Duration = Duration::from_millis(500);

pub fn serve(cli: &Cli, options: &Serve) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    if let Some(invitation) = &options.join {
        join_once(cli, options, &paths, invitation)?;
    }
    if !is_member(&paths.state) {
        return Err(no_server(&paths));
    }
    if options.detach {
        return detach(cli, options, &paths);
    }
    notify::outcome(run(options, &paths))
}

fn detach(cli: &Cli, options: &Serve, paths: &Paths) -> Result<(), Failure> {
    let mut arguments = vec!["--state".into(), paths.state.clone().into_os_string(), "serve".into()];
    if cli.state.is_none() {
        arguments.drain(..2);
    }
    for listen in &options.listen {
        arguments.extend(["--listen".into(), listen.to_string().into()]);
    }
    for advertise in &options.advertise {
        arguments.extend(["--advertise".into(), advertise.to_string().into()]);
    }
    if let Some(address) = options.metrics {
        arguments.extend(["--metrics".into(), address.to_string().into()]);
    }
    for directory in &options.without {
        arguments.extend(["--without".into(), directory.clone().into()]);
    }
    for mount in &options.mounts {
        arguments.extend(["--mount".into(), mount.text.clone().into()]);
    }
    arguments.extend(["--slow-op".into(), options.slow_op.to_string().into()]);
    let log = paths.log("serve");
    let mut child = daemon::spawn(&arguments, &log)?;
    let endpoint = Endpoint::Unix(paths.socket.clone());
    let pid = child.id();
    // An earlier server may still answer there, with another process id. Others find the new one once it has recorded
    // its addresses.
    let ready = || {
        let said = ask_at(&endpoint, Identify {}, None).ok().and_then(|said| said.ok()).unwrap_or_default();
        said.pid == pid && said.endpoints.contains(&endpoint.to_string()) && mounts::are_there(options)
    };
    daemon::wait_ready(&mut child, &log, "the server", ready)?;
    if cli.json {
        output::json(&json!({ "pid": pid, "socket": paths.socket, "log": log }));
    } else {
        println!("server {pid} answers at {} (log: {})", paths.socket.display(), log.display());
    }
    Ok(())
}

fn no_server(paths: &Paths) -> Failure {
    let state = paths.state.display();
    if is_coordinator(&paths.state) {
        return Failure::new(66, format!("{state} belongs to a coordinator; `hekate coordinator` runs it"));
    }
    Failure::new(66, format!("there is no cluster in {state}; `hekate init` makes one, `hekate join` joins one"))
}

/// Joins the cluster that an invitation is of. A server that is a member of it already stays as it is, or takes the
/// address as that of its coordinator.
fn join_once(cli: &Cli, options: &Serve, paths: &Paths, invitation: &str) -> Result<(), Failure> {
    let Some(membership) = Membership::read(&paths.state)? else { return join_now(cli, options, paths, invitation) };
    let other = |cluster: &str| {
        let (state, own) = (paths.state.display(), &membership.cluster);
        Failure::new(77, format!("{state} belongs to cluster {own}; the invitation is of cluster {cluster}"))
    };
    if let Ok(token) = Token::parse(invitation) {
        return if token.cluster == membership.cluster { Ok(()) } else { Err(other(&token.cluster)) };
    }
    let address = join::address(invitation)?;
    if membership.coordinator == address {
        return Ok(());
    }
    let moved = Membership { coordinator: address.clone(), ..membership.clone() };
    let found = match cluster_at(&address, &Keys::read(&paths.state)?, membership.server) {
        // A server that does not hold the coordinator knows where it is.
        Err(error @ Error::Invalid { .. }) => {
            return take_place_from(&address, &paths.state).map_err(|_| Failure::from(error));
        }
        found => found?,
    };
    if found != moved.cluster {
        return Err(other(&found));
    }
    Ok(moved.write(&paths.state)?)
}

fn join_now(cli: &Cli, options: &Serve, paths: &Paths, invitation: &str) -> Result<(), Failure> {
    if options.bricks.is_empty() {
        let state = paths.state.display();
        return Err(Failure::usage(format!("{state} has not joined yet; name a --brick DIR too")));
    }
    let wanted = Join {
        invitation: invitation.into(),
        bricks: options.bricks.clone(),
        witness: false,
        pool: options.pool.clone(),
        journal: options.journal,
    };
    join::enter(cli, paths, &wanted).map(|_| ())
}

/// Logs what a starting server does.
fn progress(what: &str) {
    log::info!(target: PROGRESS, "{what}");
}

/// Starts the node, and tries again for a while: a killed server holds its files until the kernel has ended it, and the
/// coordinator may be starting too.
fn start(options: &Serve, paths: &Paths) -> Result<Arc<Node>, Error> {
    let without = options.without.iter().map(|path| path.to_string_lossy().trim_end_matches('/').to_string());
    let settings = NodeSettings { state: paths.state.clone(), without: without.collect() };
    let begun = Instant::now();
    let mut said = String::new();
    loop {
        let what = match Node::start(&settings, &progress) {
            Err(Error::Unavailable { what }) => what,
            settled => return settled,
        };
        let patience = if is_coordinator_away(&paths.state) { COORDINATOR_PATIENCE } else { IN_USE_PATIENCE };
        if begun.elapsed() > patience {
            return Err(Error::Unavailable { what });
        }
        if said != what && begun.elapsed() > IN_USE_PATIENCE {
            progress(&format!("waiting: {what}"));
            said = what;
        }
        std::thread::sleep(STOP_PAUSE);
    }
}

fn run(options: &Serve, paths: &Paths) -> Result<(), Failure> {
    daemon::name_process(c"hekate-serve");
    daemon::raise_file_limits();
    log_lines::begin("hekate-serve");
    let stop = daemon::stop_signals()?;
    // Before any brick is opened: a port that is in use is a mistake in the command line.
    let metrics = options.metrics.map(|address| {
        TcpListener::bind(address).map_err(|e| Error::io(format!("listen at {address} for metrics"), e))
    });
    let metrics = metrics.transpose()?;
    mounts::check(options)?;
    let node = start(options, paths)?;
    let server = Server::new(node.clone());
    paths.make_socket_directory()?;
    node.lock_sessions_beside(&paths.socket);
    server.listen(&Endpoint::Unix(paths.socket.clone()), "")?;
    for listen in &options.listen {
        server.listen(&Endpoint::Tcp(listen.address.clone(), context_of(&node)?), &listen.network)?;
    }
    let mounts = match Mounts::start(options, paths, &server.local(), node.keys().map(Keys::context)) {
        Ok(mounts) => mounts,
        Err(failure) => {
            end(&server, &node)?;
            return Err(failure);
        }
    };
    let s3 = Doors::start(S3Doors, node.clone(), paths, server.local())?;
    let nbd = Doors::start(NbdDoors, node.clone(), paths, server.local())?;
    let (endpoints, networks) = announced(options, paths)?;
    node.announce(&endpoints, &networks)?;
    node.set_traffic(server.traffic());
    node.set_slow_limit(Duration::from_millis(options.slow_op));
    if let (Some(address), Some(listener)) = (options.metrics, metrics) {
        node.serve_metrics(listener)?;
        log::info!("metrics at http://{address}/metrics");
        if !address.ip().is_loopback() {
            log::warn!(
                "there is no authentication at {address}: any client can read names of volumes and paths of bricks"
            );
        }
    }
    let serving = format!("serving at {}", paths.socket.display());
    log::info!("{serving}");
    notify::ready(&serving);
    let mut looked = Instant::now();
    while !stop.load(Ordering::Relaxed) && !node.stop_asked() {
        std::thread::sleep(STOP_PAUSE);
        if looked.elapsed() >= REVOKED_PAUSE {
            looked = Instant::now();
            let ended = server.end_connections(&|peer| node.is_revoked(peer));
            if ended > 0 {
                log::info!("{ended} connections of revoked clients were ended");
            }
        }
    }
    log::info!("stopping");
    notify::stopping("finishing what runs and writing everything home");
    nbd.stop();
    s3.stop();
    mounts.stop();
    let _ = std::fs::remove_file(&paths.socket);
    end(&server, &node)
}

fn context_of(node: &Node) -> Result<Arc<Context>, Error> {
    let none = || Error::invalid("the state directory has no credential of a server, which --listen needs");
    Ok(node.keys().ok_or_else(none)?.context().clone())
}

/// The endpoints that others find in the records, and the network of each one over TCP.
fn announced(options: &Serve, paths: &Paths) -> Result<(Vec<String>, BTreeMap<String, String>), Failure> {
    let (mut endpoints, mut networks) = (vec![Endpoint::Unix(paths.socket.clone()).to_string()], BTreeMap::new());
    let mut reached = options.advertise.clone();
    for listen in &options.listen {
        if reached.iter().all(|other| other.network != listen.network) {
            let found = address::reachable(listen).map_err(|e| Error::io("list the addresses of this machine", e))?;
            reached.extend(found);
        }
    }
    for Listen { network, address } in reached {
        let endpoint = format!("tcp:{address}");
        endpoints.push(endpoint.clone());
        networks.insert(endpoint, network);
    }
    Ok((endpoints, networks))
}

/// Answers the requests that have begun, for `SOON` at most, since the partitions wait until this server has left their
/// views. Then writes everything home.
fn end(server: &Server, node: &Node) -> Result<(), Failure> {
    server.close();
    server.finish(SOON);
    node.leave();
    server.stop();
    Ok(node.shut_down()?)
}
