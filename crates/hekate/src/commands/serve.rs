//! `hekate serve`: the server process.

use crate::cli::{Cli, Serve};
use crate::commands::Failure;
use crate::daemon;
use crate::output;
use crate::paths::Paths;
use hekate_proto::Error;
use hekate_server::{Node, NodeSettings};
use hekate_transport::{Endpoint, Secret, Server};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long files that are in use are waited for.
const IN_USE_PATIENCE: Duration = Duration::from_secs(2);
const STOP_PAUSE: Duration = Duration::from_millis(50);

pub fn serve(cli: &Cli, options: &Serve) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    if options.detach { detach(cli, options, &paths) } else { run(options, &paths) }
}

fn detach(cli: &Cli, options: &Serve, paths: &Paths) -> Result<(), Failure> {
    let mut arguments = vec!["--state".into(), paths.state.clone().into_os_string(), "serve".into()];
    if cli.state.is_none() {
        arguments.drain(..2);
    }
    if let Some(address) = options.listen {
        arguments.extend(["--listen".into(), address.to_string().into()]);
    }
    let log = paths.log("serve");
    if !paths.coordinator().exists() {
        return Err(no_cluster(paths));
    }
    let mut child = daemon::spawn(&arguments, &log)?;
    let endpoint = Endpoint::Unix(paths.socket.clone());
    let pid = child.id();
    // An earlier server may still answer there; ours has another process id.
    let ready = || {
        let answer = hekate_transport::control(&endpoint, "{\"request\":\"status\"}");
        answer.is_ok_and(|answer| answer.contains(&format!("\"pid\":{pid},")))
    };
    daemon::wait_ready(&mut child, &log, "the server", ready)?;
    if cli.json {
        output::json(&serde_json::json!({ "pid": pid, "socket": paths.socket, "log": log }));
    } else {
        println!("server {pid} answers at {} (log: {})", paths.socket.display(), log.display());
    }
    Ok(())
}

fn no_cluster(paths: &Paths) -> Failure {
    Failure::new(66, format!("there is no cluster in {}; `hekate init` makes one", paths.state.display()))
}

/// A server that was killed a moment ago may still hold its files.
fn start(paths: &Paths) -> Result<Arc<Node>, Error> {
    let begun = std::time::Instant::now();
    loop {
        match Node::start(&NodeSettings { state: paths.state.clone() }, &|what| eprintln!("{what}")) {
            Err(Error::Unavailable { .. }) if begun.elapsed() < IN_USE_PATIENCE => std::thread::sleep(STOP_PAUSE),
            settled => return settled,
        }
    }
}

fn run(options: &Serve, paths: &Paths) -> Result<(), Failure> {
    daemon::name_process(c"hekate-serve");
    daemon::raise_file_limit();
    if !paths.coordinator().exists() {
        return Err(no_cluster(paths));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).map_err(|e| Error::io("register a signal", e))?;
    }
    let node = start(paths)?;
    let server = Server::new(node.clone());
    if let Some(parent) = paths.socket.parent() {
        std::fs::create_dir_all(parent).map_err(|e| Error::io(format!("make {}", parent.display()), e))?;
    }
    server.listen(&Endpoint::Unix(paths.socket.clone()))?;
    if let Some(address) = options.listen {
        server.listen(&Endpoint::tcp(address, Secret::read(&paths.secret())?)?)?;
    }
    eprintln!("serving at {}", paths.socket.display());
    while !stop.load(Ordering::Relaxed) && !node.stop_asked() {
        std::thread::sleep(STOP_PAUSE);
    }
    eprintln!("stopping");
    let _ = std::fs::remove_file(&paths.socket);
    server.stop();
    Ok(node.shut_down()?)
}
