//! `hekate`: the one binary. It parses the command line and wires crates together; nothing else.

mod cli;
mod commands;
mod daemon;
mod failure;
mod log_lines;
mod notify;
mod output;
mod paths;

use rustix::fs::Mode;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// EX_USAGE of sysexits(3).
const WRONG_USE: u8 = 64;
/// Beginning of the name under which mount(8) calls a mount helper.
const HELPER_NAME: &str = "mount.";

fn main() -> ExitCode {
    // Files and directories that this process makes for itself are private, whatever umask it inherits; those that
    // other users need get their mode explicitly. FUSE sends the umask of the calling program for files in a mount.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    return_large_blocks();
    let (arguments, is_helper) = arguments();
    let exit = |exit: u8| ExitCode::from(if is_helper { failure::helper_exit(exit) } else { exit });
    let json = arguments.iter().any(|word| word == "--json");
    let cli = match cli::Cli::parse_from_words(arguments) {
        Ok(cli) => cli.with_environment(),
        Err(refused) => {
            let wrong = refused.use_stderr();
            match wrong && json {
                true => println!("{}", serde_json::json!({ "error": refused.to_string().trim(), "exit": WRONG_USE })),
                false => _ = refused.print(),
            }
            return if wrong { exit(WRONG_USE) } else { ExitCode::SUCCESS };
        }
    };
    if !cli.command.goes_on() {
        end_when_nobody_reads();
    }
    match commands::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if error.text.is_empty() {
                return exit(error.exit);
            }
            if cli.json {
                let text = serde_json::json!({ "error": error.text, "exit": error.exit });
                println!("{text}");
            } else {
                log_lines::failure(&error.text);
            }
            exit(error.exit)
        }
    }
}

/// Makes the allocator return blocks of 2 MiB and more, such as the shards of uploads, to the system when they are freed.
/// By itself glibc raises this limit to 32 MiB once such a block was freed; from then on each arena keeps what it once
/// had in use: twice as much as is in use while 256 clients upload (docs/performance.md).
fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;
        const M_TRIM_THRESHOLD: c_int = -1;
        const M_MMAP_THRESHOLD: c_int = -3;
        const LARGE: c_int = 2 << 20;
        unsafe extern "C" {
            /// mallopt(3)
            fn mallopt(what: c_int, value: c_int) -> c_int;
        }
        // SAFETY: no other thread runs yet.
        unsafe {
            mallopt(M_MMAP_THRESHOLD, LARGE);
            mallopt(M_TRIM_THRESHOLD, 2 * LARGE);
        }
    }
}

/// Lets SIGPIPE end a command whose reader has closed the pipe (`hekate status | head`). Rust ignores the signal at the
/// start of a program, as a server or a mount needs it.
fn end_when_nobody_reads() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: the default action is no handler of ours, and no other thread runs yet.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// The command line, and whether it is that of the mount helper, which mount(8) calls by the name mount.hekate.
fn arguments() -> (Vec<OsString>, bool) {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().and_then(|program| Path::new(program).file_name());
    if name.is_some_and(|name| name.to_string_lossy().starts_with(HELPER_NAME)) {
        arguments.splice(..1, ["hekate".into(), "mount-helper".into()]);
    }
    let is_helper = arguments.iter().skip(1).any(|word| word == "mount-helper");
    (arguments, is_helper)
}
