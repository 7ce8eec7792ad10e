//! `hekate`: the one binary. It parses the command line and wires crates together; nothing else.

mod cli;
mod commands;
mod daemon;
mod output;
mod paths;

use clap::Parser;
use std::process::ExitCode;

/// EX_USAGE of sysexits(3).
const WRONG_USE: u8 = 64;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) => {
            let wrong = told.use_stderr();
            let _ = told.print();
            return ExitCode::from(if wrong { WRONG_USE } else { 0 });
        }
    };
    match commands::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if error.text.is_empty() {
                return ExitCode::from(error.exit);
            }
            if cli.json {
                let text = serde_json::json!({ "error": error.text, "exit": error.exit });
                println!("{text}");
            } else {
                eprintln!("hekate: {}", error.text);
            }
            ExitCode::from(error.exit)
        }
    }
}
