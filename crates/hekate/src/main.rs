//! `hekate`: the one binary. It parses the command line and wires crates together; nothing else.

mod cli;
mod commands;
mod daemon;
mod output;
mod paths;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
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
