//! `hekate brick`: inspecting a stopped brick and copying the files out of it (neither writes to it), and bricks in
//! use.

mod export;
mod inspect;
pub mod json;
pub mod lines;
mod members;
pub mod table;
pub mod words;

use crate::cli::{Brick, Cli};
use crate::commands::scrub;
use crate::failure::Failure;

pub fn brick(cli: &Cli, command: &Brick) -> Result<(), Failure> {
    quiet_library_panics();
    match command {
        Brick::List => members::list(cli),
        Brick::Show { brick } => members::show(cli, brick),
        Brick::Add(options) => members::add(cli, options),
        Brick::Remove { brick } => members::remove(cli, brick),
        Brick::Drain { brick } => members::drain(cli, brick),
        Brick::Replace(options) => members::replace(cli, options),
        Brick::Inspect(options) => inspect::inspect(cli, options),
        Brick::Export(options) => export::export(cli, options),
        Brick::Scrub(options) => scrub::of_brick(cli, options),
    }
}

/// Hides panics of redb: it panics on some damaged pages, and `hekate_brick::inspect` catches that. Other panics are
/// shown.
pub fn quiet_library_panics() {
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.location().is_none_or(|location| !location.file().contains("redb")) {
            shown(info);
        }
    }));
}
