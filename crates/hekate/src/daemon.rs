//! What server, coordinator and mount have in common: running in the background (the same command again without a
//! terminal, watched until it is ready or has failed), the signals that end them, waiting for files that are still in
//! use.

use crate::failure::Failure;
use hekate_proto::Error;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::fs::OFlags;
use rustix::process::{Resource, getrlimit, setrlimit, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
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

/// Time to wait for files that another process has open.
pub const IN_USE_PATIENCE: Duration = Duration::from_secs(2);
const READY_PAUSE: Duration = Duration::from_millis(20);
const PROGRESS_AFTER: Duration = Duration::from_secs(2);

/// Starts this program with other arguments; its standard error is `log`. It is in a session of its own (setsid(2)), so
/// neither the keys of the terminal nor its hang-up send it a signal.
///
/// # Errors
///
/// The log cannot be written (exit status 73), or the process cannot be started (71).
pub fn spawn(arguments: &[std::ffi::OsString], log: &Path) -> Result<Child, Failure> {
    let failed = |e: std::io::Error| Failure::new(71, format!("start the background process: {e}"));
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(&program);
    // Under the name of the mount helper it would parse its arguments as mount(8) writes them.
    command.arg0(program.with_file_name("hekate"));
    command.args(arguments);
    spawn_apart(command, log)
}

/// Starts a program as [`spawn`] does.
///
/// # Errors
///
/// As [`spawn`].
pub fn spawn_apart(mut command: Command, log: &Path) -> Result<Child, Failure> {
    let failed = |e: std::io::Error| Failure::new(71, format!("start the background process: {e}"));
    if let Some(parent) = log.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    // Not through a symbolic link, which another user could have planted.
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(log);
    let file = file.map_err(|e| Failure::new(73, format!("write the log {}: {e}", log.display())))?;
    command.env_remove(crate::notify::SOCKET);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).current_dir("/");
    let leave_terminal = || setsid().map(|_| ()).map_err(std::io::Error::from);
    // SAFETY: between fork and exec only setsid(2) is called, which is async-signal-safe and allocates nothing.
    unsafe { command.pre_exec(leave_terminal) };
    command.spawn().map_err(failed)
}

/// Waits until `ready` returns true.
///
/// # Errors
///
/// The process has ended before; the text is the last line of its log.
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
            return Err(Failure::new(
                exit,
                if words.is_empty() { format!("{what} ended at once, without a line in its log") } else { words },
            ));
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

/// # Errors
///
/// The port is 0: the address is recorded before the socket is bound, so it must be the final one.
pub fn check_listen(address: Option<SocketAddr>) -> Result<(), Failure> {
    match address {
        Some(address) if address.port() == 0 => Err(Failure::usage(
            "--listen needs a fixed port: port 0 would be chosen only after the address is recorded",
        )),
        _ => Ok(()),
    }
}

/// The signals that end a process in order: SIGTERM, SIGINT, and SIGHUP, which a terminal sends when it is closed.
/// SIGHUP is left out if it was ignored when the process started, as nohup(1) has it.
pub fn ending_signals() -> Vec<std::ffi::c_int> {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: to ignore a signal runs no code of ours. The caller registers a handler next, unless it was ignored
    // before.
    let before = unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) };
    let was_ignored = matches!(before, Ok(SigHandler::SigIgn));
    let hangup = if was_ignored { None } else { Some(SIGHUP) };
    [SIGTERM, SIGINT].into_iter().chain(hangup).collect()
}

/// A flag that the signals of [`ending_signals`] set.
///
/// # Errors
///
/// `Io` if a handler cannot be registered.
pub fn stop_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in ending_signals() {
        signal_hook::flag::register(signal, stop.clone()).map_err(|e| Error::io("register a signal", e))?;
    }
    Ok(stop)
}

/// Calls `open`, and again for up to [`IN_USE_PATIENCE`] while the file is in use: a killed process has its files open
/// until the kernel has ended it.
///
/// # Errors
///
/// The last error of `open`.
pub fn open_patiently<T>(open: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(Error::Unavailable { .. }) if begun.elapsed() < IN_USE_PATIENCE => std::thread::sleep(READY_PAUSE),
            settled => return settled,
        }
    }
}

/// Raises the limits of open files and of file sizes to the hard limits: each connection and each data file is an open
/// file, and a brick's index grows. With SIGXFSZ ignored, a write beyond the limit fails with EFBIG instead of ending
/// the process.
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
