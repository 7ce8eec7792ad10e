//! What processes that serve have in common: going to the background (the same command again without a terminal, watched until
//! it is ready or has failed), the signals that end them, files that are still in use.

use crate::commands::Failure;
use hekate_proto::Error;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::fs::OFlags;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long files that are in use are waited for.
pub const IN_USE_PATIENCE: Duration = Duration::from_secs(2);
const READY_PAUSE: Duration = Duration::from_millis(20);
const PROGRESS_AFTER: Duration = Duration::from_secs(2);

/// Starts this program with other arguments in a session of its own; it writes to `log`.
pub fn spawn(arguments: &[std::ffi::OsString], log: &Path) -> Result<Child, Failure> {
    let failed = |e: std::io::Error| Failure::new(71, format!("start the background process: {e}"));
    if let Some(parent) = log.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    // Not through a link that somebody else has put there.
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(log);
    let file = file.map_err(|e| Failure::new(73, format!("write the log {}: {e}", log.display())))?;
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(&program);
    // By the name of the mount helper it would read its arguments in another way.
    command.arg0(program.with_file_name("hekate"));
    command.env_remove(crate::notify::SOCKET);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).current_dir("/");
    // A group of its own, so that the terminal's signals do not reach it.
    command.process_group(0);
    command.spawn().map_err(failed)
}

/// Waits until `ready`; if the process ends before, its last words are the error.
pub fn wait_ready(child: &mut Child, log: &Path, what: &str, ready: impl Fn() -> bool) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut said = String::new();
    loop {
        if ready() {
            return Ok(());
        }
        if let Ok(Some(status)) = child.try_wait() {
            let words = last_line(log);
            let words = words.strip_prefix("hekate: ").unwrap_or(&words).to_string();
            let exit = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(70);
            return Err(Failure::new(exit, if words.is_empty() { format!("{what} ended at once") } else { words }));
        }
        let line = last_line(log);
        if begun.elapsed() > PROGRESS_AFTER && line != said {
            eprintln!("{line}");
            said = line;
        }
        std::thread::sleep(READY_PAUSE);
    }
}

fn last_line(log: &Path) -> String {
    let mut text = String::new();
    let _ = File::open(log).and_then(|mut file| file.read_to_string(&mut text));
    text.lines().last().unwrap_or_default().to_string()
}

/// Others are told the address before anybody listens there.
pub fn check_listen(address: Option<SocketAddr>) -> Result<(), Failure> {
    match address {
        Some(address) if address.port() == 0 => {
            Err(Failure::usage("--listen needs a port that others can know, not 0"))
        }
        _ => Ok(()),
    }
}

/// Set once somebody wants the process to end.
pub fn stop_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).map_err(|e| Error::io("register a signal", e))?;
    }
    Ok(stop)
}

/// A process that was killed a moment ago may still hold its files.
pub fn open_patiently<T>(open: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(Error::Unavailable { .. }) if begun.elapsed() < IN_USE_PATIENCE => std::thread::sleep(READY_PAUSE),
            settled => return settled,
        }
    }
}

/// As many open files, and files as large, as the system lets us have: each connection and each data file is an open
/// file, and a brick's index grows. A write beyond the limit then fails with EFBIG, instead of ending the process.
pub fn raise_file_limits() {
    for resource in [Resource::Nofile, Resource::Fsize] {
        let mut limit = getrlimit(resource);
        limit.current = limit.maximum;
        let _ = setrlimit(resource, limit);
    }
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: ignoring a signal runs no code of ours.
    let _ = unsafe { sigaction(Signal::SIGXFSZ, &ignore) };
}

/// The name that `ps` and `top` show for the process.
pub fn name_process(name: &std::ffi::CStr) {
    let _ = rustix::thread::set_name(name);
}
