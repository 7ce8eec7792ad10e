//! Repository chores. `cargo xtask tidy` checks what no compiler checks; `cargo test -p xtask` runs the same checks.
//!
//! Every check is a function from a [`tree::Tree`] (the files, in memory) to a list of [`report::Offence`]s, in a file
//! of its own under `checks/`. The list of crates, the limits and the exceptions stand in `tidy.toml`.

mod checks;
mod comments;
mod markdown;
mod report;
mod rust;
mod settings;
mod tidy;
mod tree;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy           check the repository; writes nothing
       cargo xtask tidy --bless   first bring the hashes in docs/format/*.md up to date";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["tidy"] => tidy::run(),
        ["tidy", "--bless"] => tidy::bless().and_then(|()| tidy::run()),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(trouble) => {
            eprintln!("xtask: {trouble}");
            ExitCode::from(2)
        }
    }
}
