//! What each command does.

mod brick;
mod ca;
mod client;
mod completion;
mod control;
mod coordinator;
mod debug;
mod doctor;
mod doors;
mod graph;
mod heal;
mod init;
mod join;
mod man;
mod mount;
mod nbd;
mod network;
mod partition;
mod plugin;
mod pool;
mod proof;
mod renewal;
mod s3;
mod scrub;
mod serve;
mod state;
mod status;
mod stop;
mod translator;
#[cfg(feature = "variation")]
mod variation;
mod vdisk;
mod volume;
mod way;
mod where_is;

use crate::cli::{Cli, Command, Token};
use crate::failure::Failure;

/// Runs the command.
///
/// # Errors
///
/// Why the command failed, with its exit status. So does the function of each command.
pub fn run(cli: &Cli) -> Result<(), Failure> {
    match &cli.command {
        Command::Init(options) => init::init(cli, options),
        Command::Join(options) => join::join(cli, options),
        Command::Coordinator(options) => coordinator::coordinator(cli, options),
        Command::Serve(options) => serve::serve(cli, options),
        Command::Token(Token::Create(options)) => ca::create_token(cli, options),
        Command::Client(command) => client::client(cli, command),
        Command::Ca(command) => ca::ca(cli, command),
        Command::Translator(command) => translator::translator(cli, command),
        Command::Graph(options) => graph::graph(cli, options),
        Command::Plugin(command) => plugin::plugin(cli, command),
        Command::Python(command) => plugin::python(cli, command),
        Command::Network(command) => network::network(cli, command),
        Command::S3(command) => s3::s3(cli, command),
        Command::Vdisk(command) => vdisk::vdisk(cli, command),
        Command::Nbd(command) => nbd::nbd(cli, command),
        Command::Stop => stop::stop(cli),
        Command::Status(options) => status::status(cli, options),
        Command::Metrics => status::metrics(cli),
        Command::Pool(command) => pool::pool(cli, command),
        Command::Volume(command) => volume::volume(cli, command),
        Command::Partition(command) => partition::partition(cli, command),
        Command::Heal(command) => heal::heal(cli, command),
        Command::Scrub(command) => scrub::scrub(cli, command),
        Command::Brick(command) => brick::brick(cli, command),
        Command::Where(options) => where_is::where_is(cli, options),
        Command::Debug(command) => debug::debug(cli, command),
        Command::Mount(options) => mount::mount(cli, options),
        Command::MountHelper(options) => mount::helper::mount_helper(cli, options),
        Command::Umount(options) => mount::umount(cli, options),
        #[cfg(feature = "variation")]
        Command::Variation(command) => variation::variation(cli, command),
        Command::Doctor => doctor::doctor(cli),
        Command::Completion { shell } => completion::completion(*shell),
        Command::Man { directory } => man::man(directory),
    }
}
