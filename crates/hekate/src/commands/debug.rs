//! `hekate debug`: inspecting a server or stopped bricks.

mod bundle;
mod compare;
mod slow;

use crate::cli::{Cli, Debug};
use crate::commands::brick::quiet_library_panics;
use crate::failure::Failure;

pub fn debug(cli: &Cli, command: &Debug) -> Result<(), Failure> {
    quiet_library_panics();
    match command {
        Debug::Compare(options) => compare::compare(cli, options),
        Debug::Slow => slow::slow(cli),
        Debug::Bundle(options) => bundle::bundle(cli, options),
    }
}
