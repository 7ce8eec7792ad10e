//! `hekate debug`: looking below what users see.

mod compare;

use crate::cli::{Cli, Debug};
use crate::commands::Failure;
use crate::commands::brick::quiet_library_panics;

pub fn debug(cli: &Cli, command: &Debug) -> Result<(), Failure> {
    quiet_library_panics();
    match command {
        Debug::Compare(options) => compare::compare(cli, options),
    }
}
