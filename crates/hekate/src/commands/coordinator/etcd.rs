//! `hekate coordinator etcd`: a member of the cluster's etcd beside this server.

use crate::cli::{Cli, CoordinatorEtcd};
use crate::commands::control::ask_at;
use crate::daemon;
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use hekate_control::coordinator::{EtcdFiles, EtcdMemberStatus};
use hekate_control::{ControlCall, EtcdFinish, EtcdPrepare, Identify};
use hekate_proto::Error;
use hekate_server::{etcd, write_private};
use hekate_transport::Endpoint;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const UNIT: &str = "hekate-etcd.service";
const SYSTEMD: &str = "/run/systemd/system";
const UNITS: &str = "/etc/systemd/system";
/// Time for a member to start and to catch up.
const READY_LIMIT: Duration = Duration::from_secs(60);
const PROGRESS_AFTER: Duration = Duration::from_secs(2);
/// Exit status for what is not available, in sysexits(3).
const AWAY: u8 = 69;
const PAUSE: Duration = Duration::from_millis(200);
/// Time for a member to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The files of a member in the state directory.
struct Files {
    directory: PathBuf,
}

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn settings(&self) -> PathBuf {
        self.path("etcd.yml")
    }

    /// The process that --detach has started, if it runs.
    fn running(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.path("etcd.pid")).ok()?;
        let pid = Pid::from_raw(text.trim().parse().ok()?)?;
        // A process that has ended and was not waited for yet has no command line.
        let words = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
        let settings = self.settings();
        let is_ours = words.split(|byte| *byte == 0).any(|word| word == settings.as_os_str().as_bytes());
        (is_ours && test_kill_process(pid).is_ok()).then_some(pid)
    }
}

pub fn etcd(cli: &Cli, options: &CoordinatorEtcd) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    let files = Files { directory: etcd::directory(&paths.state) };
    if options.stop {
        return stop(cli, &files);
    }
    let has_systemd = Path::new(SYSTEMD).exists() && rustix::process::geteuid().is_root();
    if !has_systemd && !options.detach {
        return Err(Failure::usage(
            "there is no systemd here that could run etcd; add --detach to run it in the background",
        ));
    }
    let program = find(&options.program)?;
    let server = Endpoint::Unix(paths.socket.clone());
    // After a restart of the machine etcd starts before the server, whose records it may hold.
    if files.settings().exists() {
        start(&files, &program, options.detach)?;
        if ask_at(&server, Identify {}, None).is_err() {
            return report(cli, &files, None);
        }
        return report(cli, &files, Some(wait_ready(&server)?));
    }
    let host = match &options.address {
        Some(host) => host.clone(),
        None => own_host(&ask(&server, Identify {})?.endpoints)?,
    };
    let call = EtcdPrepare { host, client_port: options.client_port, peer_port: options.peer_port };
    // etcd takes no member while another one has been there for less than five seconds.
    let prepared = ask_patiently(&server, &call)?;
    write(&files, &prepared, &program)?;
    start(&files, &program, options.detach)?;
    report(cli, &files, Some(wait_ready(&server)?))
}

fn ask<C: ControlCall>(server: &Endpoint, call: C) -> Result<C::Reply, Failure> {
    ask_at(server, call, None).map_err(|error| {
        Failure::new(69, format!("the server of this machine does not answer; start it with `hekate serve`: {error}"))
    })?
}

fn report(cli: &Cli, files: &Files, ready: Option<EtcdMemberStatus>) -> Result<(), Failure> {
    if cli.json {
        output::json(&serde_json::json!({ "directory": files.directory, "member": ready }));
        return Ok(());
    }
    match ready {
        Some(member) => {
            println!("{} at {} is a member of the cluster's etcd", member.name, member.address);
            println!("next, with three members: hekate coordinator move --to etcd");
        }
        None => println!("etcd runs; the server of this machine does not, start it with `hekate serve`"),
    }
    Ok(())
}

/// The path of a program.
fn find(program: &Path) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = std::env::split_paths(&path).map(|directory| directory.join(program));
    let found = std::iter::once(program.to_path_buf()).filter(|named| named.is_absolute()).chain(candidates);
    let missing = || {
        let program = program.display();
        Failure::new(
            69,
            format!("{program} is not installed: `apt-get install etcd-server`, or name it with --program"),
        )
    };
    found.into_iter().find(|path| path.is_file()).ok_or_else(missing)
}

/// The host of the first address over TCP.
fn own_host(endpoints: &[String]) -> Result<String, Failure> {
    let address = endpoints.iter().find_map(|text| text.strip_prefix("tcp:"));
    let host = address.and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
    let host = host.map(|host| host.trim_start_matches('[').trim_end_matches(']').to_string());
    host.ok_or_else(|| {
        Failure::usage("this server has no address over TCP; name one at which others reach it: --address HOST")
    })
}

fn write(files: &Files, prepared: &EtcdFiles, program: &Path) -> Result<(), Failure> {
    let directory = &files.directory;
    std::fs::create_dir_all(directory).map_err(|e| Error::io(format!("make {}", directory.display()), e))?;
    write_private(&files.path("ca.pem"), prepared.ca.as_bytes())?;
    write_private(&files.path("member.key"), prepared.key.as_bytes())?;
    write_private(&files.path("member.pem"), prepared.certificate.as_bytes())?;
    write_private(&files.path(UNIT), unit(files, program).as_bytes())?;
    // The last one: with it the member is there.
    Ok(write_private(&files.settings(), settings(files, prepared).as_bytes())?)
}

/// The settings of a member (<https://etcd.io/docs/v3.4/op-guide/configuration/>).
fn settings(files: &Files, prepared: &EtcdFiles) -> String {
    let EtcdFiles { name, cluster, initial_cluster, client_url, peer_url, .. } = prepared;
    let state = if prepared.is_new { "new" } else { "existing" };
    let path = |name: &str| serde_json::json!(files.path(name)).to_string();
    let tls = format!(
        "  cert-file: {}\n  key-file: {}\n  client-cert-auth: true\n  trusted-ca-file: {}\n",
        path("member.pem"),
        path("member.key"),
        path("ca.pem"),
    );
    format!(
        "# A member of the etcd of Hekate cluster {cluster}; written by `hekate coordinator etcd`.\n\
         name: {name}\n\
         data-dir: {}\n\
         listen-client-urls: {}\n\
         advertise-client-urls: {client_url}\n\
         listen-peer-urls: {}\n\
         initial-advertise-peer-urls: {peer_url}\n\
         initial-cluster: {initial_cluster}\n\
         initial-cluster-state: {state}\n\
         initial-cluster-token: {cluster}\n\
         # Off by default if there is a file of settings (etcd 3.4).\n\
         enable-grpc-gateway: true\n\
         logger: zap\n\
         client-transport-security:\n{tls}\
         peer-transport-security:\n{tls}",
        path("data"),
        listen(client_url),
        listen(peer_url),
    )
}

/// Where a member listens for its address. etcd listens at IP addresses only.
fn listen(url: &str) -> String {
    let Some((host, port)) = url.trim_start_matches("https://").rsplit_once(':') else { return url.into() };
    let is_address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    if is_address { url.into() } else { format!("https://0.0.0.0:{port}") }
}

fn unit(files: &Files, program: &Path) -> String {
    let (program, settings) = (program.display(), files.settings());
    let user = rustix::process::geteuid().as_raw();
    format!(
        "[Unit]\nDescription=etcd, a member beside the Hekate server\nAfter=network-online.target\n\
         Wants=network-online.target\nBefore=hekate.service\n\n\
         [Service]\nType=notify\nUser={user}\nExecStart={program} --config-file {}\nRestart=always\nRestartSec=1\n\
         LimitNOFILE=65536\n\n[Install]\nWantedBy=multi-user.target\n",
        settings.display()
    )
}

fn start(files: &Files, program: &Path, detach: bool) -> Result<(), Failure> {
    if files.running().is_some() {
        return Ok(());
    }
    if detach {
        let mut command = Command::new(program);
        command.arg("--config-file").arg(files.settings());
        let child = daemon::spawn_apart(command, &files.path("etcd.log"))?;
        return Ok(write_private(&files.path("etcd.pid"), child.id().to_string().as_bytes())?);
    }
    let unit = Path::new(UNITS).join(UNIT);
    std::fs::copy(files.path(UNIT), &unit).map_err(|e| Error::io(format!("write {}", unit.display()), e))?;
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", "--now", "--no-block", UNIT])
}

fn systemctl(words: &[&str]) -> Result<(), Failure> {
    let ran = Command::new("systemctl").args(words).output().map_err(|e| Error::io("run systemctl", e))?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr).trim().to_string();
    Err(Failure::new(71, format!("systemctl {}: {said}", words.join(" "))))
}

/// Waits until the member is a full one.
fn wait_ready(server: &Endpoint) -> Result<EtcdMemberStatus, Failure> {
    ask_patiently(server, &EtcdFinish {}).map_err(|failure| {
        let what = format!("{}; etcd's log may say why (etcd.log, or journalctl -u hekate-etcd)", failure.text);
        Failure::new(failure.exit, what)
    })
}

/// Asks again and again while the answer is that something is not available.
fn ask_patiently<C: ControlCall + Clone>(server: &Endpoint, call: &C) -> Result<C::Reply, Failure> {
    let (begun, mut said) = (Instant::now(), Instant::now());
    loop {
        let failure = match ask(server, call.clone()) {
            Err(failure) if failure.exit == AWAY => failure,
            settled => return settled,
        };
        if begun.elapsed() > READY_LIMIT {
            let what = format!("etcd is not ready after {} s: {}", READY_LIMIT.as_secs(), failure.text);
            return Err(Failure::new(AWAY, what));
        }
        if said.elapsed() > PROGRESS_AFTER {
            said = Instant::now();
            eprintln!("waiting for etcd: {}", failure.text);
        }
        std::thread::sleep(PAUSE);
    }
}

fn stop(cli: &Cli, files: &Files) -> Result<(), Failure> {
    let none = || {
        let fix = "with systemd: systemctl stop hekate-etcd";
        Failure::new(69, format!("no member of etcd runs here that --detach has started; {fix}"))
    };
    let pid = files.running().ok_or_else(none)?;
    kill_process(pid, Signal::TERM).map_err(|e| Error::io("end etcd", e.into()))?;
    let begun = Instant::now();
    while files.running().is_some() {
        if begun.elapsed() > STOP_LIMIT {
            return Err(Failure::new(75, format!("etcd ({}) does not end", pid.as_raw_nonzero())));
        }
        std::thread::sleep(PAUSE);
    }
    let _ = std::fs::remove_file(files.path("etcd.pid"));
    match cli.json {
        true => output::json(&serde_json::json!({ "stopped": pid.as_raw_nonzero().get() })),
        false => println!("etcd {} has ended", pid.as_raw_nonzero()),
    }
    Ok(())
}
