//! What each command does.

mod brick;
mod completion;
mod control;
mod coordinator;
mod debug;
mod doctor;
mod heal;
mod init;
mod join;
mod man;
mod mount;
mod partition;
mod proof;
mod scrub;
mod serve;
mod state;
mod status;
mod variation;
mod where_is;

use crate::cli::{Cli, Command};

/// Why a command failed: words and an exit status.
#[derive(Debug)]
pub struct Failure {
    pub text: String,
    pub exit: u8,
}

impl Failure {
    pub fn new(exit: u8, text: impl Into<String>) -> Self {
        Self { text: text.into(), exit }
    }

    /// What was printed has said it all.
    pub fn said(exit: u8) -> Self {
        Self::new(exit, "")
    }

    /// Wrong use: exit status 64.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(64, text)
    }
}

impl From<hekate_proto::Error> for Failure {
    fn from(error: hekate_proto::Error) -> Self {
        Self::new(error.entry().exit, error.to_string())
    }
}

/// Runs the command.
pub fn run(cli: &Cli) -> Result<(), Failure> {
    match &cli.command {
        Command::Init(options) => init::init(cli, options),
        Command::Join(options) => join::join(cli, options),
        Command::Coordinator(options) => coordinator::coordinator(cli, options),
        Command::Serve(options) => serve::serve(cli, options),
        Command::Stop => control::stop(cli),
        Command::Status(options) => status::status(cli, options),
        Command::Metrics => status::metrics(cli),
        Command::Pool(command) => control::pool(cli, command),
        Command::Volume(command) => control::volume(cli, command),
        Command::Partition(command) => partition::partition(cli, command),
        Command::Heal(command) => heal::heal(cli, command),
        Command::Scrub(command) => scrub::scrub(cli, command),
        Command::Brick(command) => brick::brick(cli, command),
        Command::Where(options) => where_is::where_is(cli, options),
        Command::Debug(command) => debug::debug(cli, command),
        Command::Mount(options) => mount::mount(cli, options),
        Command::MountHelper(options) => mount::helper::mount_helper(cli, options),
        Command::Umount(options) => mount::umount(cli, options),
        Command::Variation(command) => variation::variation(cli, command),
        Command::Doctor => doctor::doctor(cli),
        Command::Completion { shell } => completion::completion(*shell),
        Command::Man { directory } => man::man(directory),
    }
}

/// The exit status that mount(8) documents for what sysexits(3) calls so.
pub fn helper_exit(exit: u8) -> u8 {
    const WRONG_USE_OR_NOT_PERMITTED: u8 = 1;
    const MOUNT_FAILED: u8 = 32;
    match exit {
        64 | 77 => WRONG_USE_OR_NOT_PERMITTED,
        _ => MOUNT_FAILED,
    }
}
