//! `hekate coordinator`: the coordinator as a process of its own.

use crate::cli::{Cli, CoordinatorOptions};
use crate::commands::control::ask_at;
use crate::commands::state::{make_state, random};
use crate::daemon;
use crate::failure::Failure;
use crate::log_lines;
use crate::notify;
use crate::output;
use crate::paths::Paths;
use hekate_control::Identify;
use hekate_server::CoordinatorHost;
use hekate_server::state_directory::is_member;
use hekate_transport::{Endpoint, Secret, Server};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const STOP_PAUSE: Duration = Duration::from_millis(50);

pub fn coordinator(cli: &Cli, options: &CoordinatorOptions) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    daemon::check_listen(options.listen)?;
    if is_member(&paths.state) {
        let state = paths.state.display();
        return Err(Failure::new(
            73,
            format!("{state} belongs to a server; name another --state DIR for a coordinator"),
        ));
    }
    if options.detach {
        return detach(cli, options, &paths);
    }
    notify::outcome(run(options, &paths))
}

fn detach(cli: &Cli, options: &CoordinatorOptions, paths: &Paths) -> Result<(), Failure> {
    paths.make_state_directory()?;
    let mut arguments = Vec::new();
    if cli.state.is_some() {
        arguments.extend(["--state".into(), paths.state.clone().into_os_string()]);
    }
    arguments.push("coordinator".into());
    if let Some(address) = options.listen {
        arguments.extend(["--listen".into(), address.to_string().into()]);
    }
    let log = paths.log("coordinator");
    let mut child = daemon::spawn(&arguments, &log)?;
    let (endpoint, pid) = (Endpoint::Unix(paths.socket.clone()), child.id());
    let ready = || ask_at(&endpoint, Identify {}, None).is_ok_and(|said| said.is_ok_and(|said| said.pid == pid));
    daemon::wait_ready(&mut child, &log, "the coordinator", ready)?;
    if cli.json {
        output::json(&json!({ "pid": pid, "socket": paths.socket, "secret": paths.secret(), "log": log }));
    } else {
        println!("coordinator {pid} answers at {} (log: {})", paths.socket.display(), log.display());
    }
    Ok(())
}

fn run(options: &CoordinatorOptions, paths: &Paths) -> Result<(), Failure> {
    daemon::name_process(c"hekate-coord");
    daemon::raise_file_limits();
    log_lines::begin("hekate-coordinator");
    let stop = daemon::stop_signals()?;
    if !paths.secret().exists() {
        make_state(paths, &random::<32>()?)?;
    }
    let mut endpoints = vec![Endpoint::Unix(paths.socket.clone())];
    if let Some(address) = options.listen {
        endpoints.push(Endpoint::tcp(address, Secret::read(&paths.secret())?)?);
    }
    let listens: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
    let host = Arc::new(daemon::open_patiently(|| CoordinatorHost::open(&paths.state, listens.clone()))?);
    let server = Server::new(host.clone());
    paths.make_socket_directory()?;
    endpoints.iter().try_for_each(|endpoint| server.listen(endpoint))?;
    match host.cluster()? {
        Some(cluster) => log::info!("the coordinator of cluster {cluster} answers at {}", listens.join(" and ")),
        None => log::info!("a coordinator without a cluster answers at {}", listens.join(" and ")),
    }
    notify::ready(&format!("answers at {}", listens.join(" and ")));
    while !stop.load(Ordering::Relaxed) && !host.stop_asked() {
        std::thread::sleep(STOP_PAUSE);
    }
    log::info!("stopping");
    notify::stopping("ending its connections");
    let _ = std::fs::remove_file(&paths.socket);
    host.end_watches();
    server.stop();
    Ok(())
}
