//! `hekate stop`.

use crate::cli::Cli;
use crate::commands::control::ask;
use crate::failure::Failure;
use crate::output;
use hekate_control::Stop;

pub fn stop(cli: &Cli) -> Result<(), Failure> {
    let stopped = ask(cli, Stop {})?;
    if let Some(pid) = i32::try_from(stopped.pid).ok().and_then(rustix::process::Pid::from_raw) {
        wait_for_end(cli, pid);
    }
    if cli.json {
        output::json(&stopped);
    } else {
        println!("process {} has stopped", stopped.pid);
    }
    Ok(())
}

/// Waits on a descriptor of the process, which is readable once the process has ended, reaped or not.
fn wait_for_end(cli: &Cli, pid: rustix::process::Pid) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Ok(process) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return };
    let patience = Timespec { tv_sec: 2, tv_nsec: 0 };
    let ended = |timeout: Option<&Timespec>| poll(&mut [PollFd::new(&process, PollFlags::IN)], timeout) == Ok(1);
    if !ended(Some(&patience)) {
        if !cli.json {
            eprintln!("waiting for the server to write everything home");
        }
        while !ended(None) {}
    }
}
