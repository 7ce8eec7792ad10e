//! `hekate debug bundle`: states and logs for support, in one file, without secrets and names.

mod redact;

use crate::cli::{Cli, DebugBundle};
use crate::commands::control::look;
use crate::commands::doctor;
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use flate2::Compression;
use flate2::write::GzEncoder;
use hekate_control::{BrickList, ClientList, ControlCall, Metrics, PoolList, SlowOps, Status, VolumeShow};
use redact::Redactor;
use serde::Serialize;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Bytes of each log, from its end.
const LOG_BYTES: u64 = 1 << 20;
/// Number of logs of the state directory, the newest.
const LOGS: usize = 32;
/// Lines of systemd's journal, from its end.
const JOURNAL_LINES: &str = "5000";
/// Limits of another program: its time and its output.
const PROGRAM_LIMIT: Duration = Duration::from_secs(10);
const PROGRAM_PAUSE: Duration = Duration::from_millis(10);
const PROGRAM_BYTES: u64 = 8 << 20;

/// The files of the bundle, by name.
struct Gathered {
    files: Vec<(String, String)>,
    /// What could not be gathered, and why.
    missing: Vec<String>,
}

pub fn bundle(cli: &Cli, options: &DebugBundle) -> Result<(), Failure> {
    let now = SystemTime::now();
    let time = humantime::format_rfc3339_seconds(now).to_string().replace(':', "");
    let path = options.file.clone().unwrap_or_else(|| PathBuf::from(format!("hekate-debug-{time}.tar.gz")));
    let mut gathered = Gathered { files: Vec::new(), missing: Vec::new() };
    let mut redactor = Redactor::new(!options.with_names);
    gather(cli, &mut gathered, &mut redactor)?;
    let missing = gathered.missing.join("\n") + "\n";
    gathered.files.push(("missing.txt".into(), missing));
    let files: Vec<(String, String)> =
        gathered.files.into_iter().map(|(name, text)| (redactor.file_name(&name), redactor.text(&text))).collect();
    write(&path, &files, now).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::new(73, format!("{} exists; name a file that does not", path.display()))
        }
        _ => Failure::new(73, format!("make {}: {e}", path.display())),
    })?;
    let tokens = redactor.tokens();
    if cli.json {
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        let tokens: Vec<Value> =
            tokens.iter().map(|(token, what)| json!({ "token": token, "stands_for": what })).collect();
        output::json(&json!({ "file": path, "holds": names, "tokens": tokens, "missing": gathered.missing }));
        return Ok(());
    }
    println!("{}: {} files", path.display(), files.len());
    gathered.missing.iter().for_each(|what| println!("not in it: {what}"));
    if !tokens.is_empty() {
        println!("\nWhat its tokens stand for, which it does not say:");
        let row = |(token, what): &(String, String)| vec![token.clone(), what.clone()];
        output::table(&["TOKEN", "STANDS FOR"], &tokens.iter().map(row).collect::<Vec<_>>());
    }
    Ok(())
}

fn gather(cli: &Cli, gathered: &mut Gathered, redactor: &mut Redactor) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    redactor.know("state", &paths.state.to_string_lossy());
    let uname = rustix::system::uname();
    redactor.know("host", &uname.nodename().to_string_lossy());
    let bricks = of_server(cli, gathered, redactor);
    gathered.add_json("doctor.json", &doctor::answer(cli));
    let uname = [uname.sysname(), uname.release(), uname.version(), uname.machine()].map(|text| text.to_string_lossy());
    gathered.files.push(("machine/uname.txt".into(), uname.join(" ") + "\n"));
    for file in ["/etc/os-release", "/proc/meminfo", "/proc/cpuinfo", "/proc/loadavg", "/proc/pressure/io"] {
        let name = format!("machine/{}.txt", file.rsplit('/').next().unwrap_or_default());
        gathered.add_file(&name, Path::new(file));
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let own = |line: &&str| line.contains("hekate");
    for mount in mounts.lines().filter(own) {
        mount.split(' ').nth(1).into_iter().for_each(|point| redactor.know("mount", point));
    }
    gathered
        .files
        .push(("machine/mounts.txt".into(), mounts.lines().filter(own).map(|line| format!("{line}\n")).collect()));
    // Without a path df asks every file system, and hangs on one whose server does not answer.
    let places: Vec<&str> = bricks.iter().map(String::as_str).filter(|place| Path::new(place).exists()).collect();
    let state = paths.state.to_string_lossy();
    gathered.add_output("machine/df.txt", &[&["df", "-T", "--", &state][..], &places[..]].concat());
    gathered.add_output("machine/lsblk.txt", &["lsblk", "-o", "NAME,TYPE,SIZE,ROTA,SCHED,PHY-SEC,FSTYPE"]);
    gathered.add_output("logs/journal.txt", &["journalctl", "--no-pager", "-n", JOURNAL_LINES, "-u", "hekate*"]);
    logs(&paths.state, gathered);
    Ok(())
}

/// The replies of the server, if it answers. -> the directories of the bricks
fn of_server(cli: &Cli, gathered: &mut Gathered, redactor: &mut Redactor) -> Vec<String> {
    let status = gathered.ask(cli, "status.json", Status {});
    let pools = gathered.ask(cli, "pools.json", PoolList {});
    let bricks = gathered.ask(cli, "bricks.json", BrickList {});
    gathered.ask(cli, "slow-ops.json", SlowOps {});
    match look(cli, Metrics {}) {
        Ok(page) => gathered.files.push(("metrics.txt".into(), page.text)),
        Err(failure) => gathered.missing.push(format!("metrics.txt: {}", failure.text)),
    }
    let mut volumes = Vec::new();
    for volume in status.iter().flat_map(|status| &status.volumes) {
        redactor.know("volume", &volume.name);
        match look(cli, VolumeShow { name: volume.name.clone() }) {
            Ok(details) => volumes.push(details),
            Err(failure) => gathered.missing.push(format!("volumes.json: {}", failure.text)),
        }
    }
    if !volumes.is_empty() {
        gathered.add_json("volumes.json", &volumes);
    }
    pools.iter().flatten().for_each(|pool| redactor.know("pool", &pool.name));
    bricks.iter().flatten().for_each(|brick| redactor.know("brick", &brick.directory));
    for server in status.iter().flat_map(|status| &status.servers) {
        for at in &server.endpoints {
            redactor.know("endpoint", at.split_once(':').map_or(at, |(_, place)| place));
        }
    }
    for client in look(cli, ClientList {}).iter().flatten() {
        redactor.know("client", &client.name);
    }
    bricks.into_iter().flatten().map(|brick| brick.directory).collect()
}

/// The ends of the logs in the state directory. Nothing else there is read, since the keys are there.
fn logs(state: &Path, gathered: &mut Gathered) {
    let found = match std::fs::read_dir(state) {
        Ok(found) => found,
        Err(error) => return gathered.missing.push(format!("logs of {}: {error}", state.display())),
    };
    let mut logs: Vec<(SystemTime, PathBuf)> = found
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .collect();
    logs.sort();
    for (_, path) in logs.iter().rev().take(LOGS) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        gathered.add_file(&format!("logs/{name}"), path);
    }
}

impl Gathered {
    /// Asks the server, and adds its reply as a file.
    fn ask<C: ControlCall>(&mut self, cli: &Cli, name: &str, call: C) -> Option<C::Reply> {
        match look(cli, call) {
            Ok(reply) => {
                self.add_json(name, &reply);
                Some(reply)
            }
            Err(failure) => {
                self.missing.push(format!("{name}: {}", failure.text));
                None
            }
        }
    }

    fn add_json(&mut self, name: &str, reply: &impl Serialize) {
        let value = serde_json::to_value(reply).unwrap_or_default();
        self.files.push((name.into(), format!("{value:#}\n")));
    }

    /// Adds the last `LOG_BYTES` of a file.
    fn add_file(&mut self, name: &str, path: &Path) {
        let end = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(path)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(LOG_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match end() {
            Ok(bytes) => self.files.push((name.into(), String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) => self.missing.push(format!("{name}: {error}")),
        }
    }

    /// Adds the output of a program. One that hangs, for example on a mount whose server does not answer, is killed.
    fn add_output(&mut self, name: &str, words: &[&str]) {
        let mut command = Command::new(words[0]);
        let run = command.args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = match run {
            Ok(child) => child,
            Err(error) => return self.missing.push(format!("{name}: {}: {error}", words[0])),
        };
        let out = child.stdout.take();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = out.map(|out| out.take(PROGRAM_BYTES).read_to_end(&mut bytes));
            read.is_some_and(|read| read.is_ok()).then_some(bytes)
        });
        let end = Instant::now() + PROGRAM_LIMIT;
        let status = loop {
            match child.try_wait() {
                Ok(None) if Instant::now() < end => std::thread::sleep(PROGRAM_PAUSE),
                Ok(None) => {
                    // A process that sleeps uninterruptibly ends later; it is not waited for.
                    let _ = child.kill();
                    return self.missing.push(format!("{name}: {} took over {} s", words[0], PROGRAM_LIMIT.as_secs()));
                }
                Ok(Some(status)) => break status,
                Err(error) => return self.missing.push(format!("{name}: {}: {error}", words[0])),
            }
        };
        match reader.join() {
            Ok(Some(bytes)) if status.success() => {
                self.files.push((name.into(), String::from_utf8_lossy(&bytes).into_owned()));
            }
            _ => self.missing.push(format!("{name}: {}: {status}", words[0])),
        }
    }
}

/// Writes a new file that only its owner can read.
fn write(path: &Path, files: &[(String, String)], now: SystemTime) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(seconds);
        archive.append_data(&mut header, format!("hekate-debug/{name}"), text.as_bytes())?;
    }
    let mut file = archive.into_inner()?.finish()?;
    file.flush()?;
    file.sync_all()
}
