//! `hekate coordinator`: where the records are kept; the coordinator as a process of its own.

mod etcd;
mod records;
mod restore;

use crate::cli::{Cli, CoordinatorCommand, CoordinatorOptions};
use crate::commands::control::ask_at;
use crate::commands::state::make_state;
use crate::daemon;
use crate::failure::Failure;
use crate::log_lines;
use crate::notify;
use crate::output;
use crate::paths::Paths;
use hekate_control::Identify;
use hekate_server::state_directory::is_member;
use hekate_server::{CoordinatorHost, Keys};
use hekate_transport::{Endpoint, Server};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const STOP_PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks whether the coordinator's certificate is to be renewed.
const RENEW_PAUSE: Duration = Duration::from_secs(2);

pub fn coordinator(cli: &Cli, options: &CoordinatorOptions) -> Result<(), Failure> {
    match &options.command {
        None => serve(cli, options),
        Some(CoordinatorCommand::Show) => records::show(cli),
        Some(CoordinatorCommand::Etcd(options)) => etcd::etcd(cli, options),
        Some(CoordinatorCommand::Member(command)) => records::member(cli, command),
        Some(CoordinatorCommand::Move { to }) => records::move_to(cli, to),
        Some(CoordinatorCommand::Backup { file }) => records::backup(cli, file),
        Some(CoordinatorCommand::Restore(options)) => restore::restore(cli, options),
    }
}

fn serve(cli: &Cli, options: &CoordinatorOptions) -> Result<(), Failure> {
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
        output::json(&json!({ "pid": pid, "socket": paths.socket, "log": log }));
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
    if !Keys::exist(&paths.state) {
        make_state(paths)?;
    }
    let mut listens = vec![Endpoint::Unix(paths.socket.clone()).to_string()];
    listens.extend(options.listen.map(|address| format!("tcp:{address}")));
    let host = Arc::new(daemon::open_patiently(|| CoordinatorHost::open(&paths.state, listens.clone()))?);
    let server = Server::new(host.clone());
    paths.make_socket_directory()?;
    for listen in &listens {
        server.listen(&Endpoint::parse(listen, Some(host.keys().context()))?, "coordinator")?;
    }
    match host.cluster()? {
        Some(cluster) => log::info!("the coordinator of cluster {cluster} answers at {}", listens.join(" and ")),
        None => log::info!("a coordinator without a cluster answers at {}", listens.join(" and ")),
    }
    notify::ready(&format!("answers at {}", listens.join(" and ")));
    let mut looked = Instant::now();
    while !stop.load(Ordering::Relaxed) && !host.stop_asked() {
        std::thread::sleep(STOP_PAUSE);
        if looked.elapsed() >= RENEW_PAUSE {
            looked = Instant::now();
            host.renew_credential();
        }
    }
    log::info!("stopping");
    notify::stopping("ending its connections");
    let _ = std::fs::remove_file(&paths.socket);
    host.end_watches();
    server.stop();
    Ok(())
}
