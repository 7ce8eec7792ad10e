//! `hekate completion`: commands and options, for shells to complete.

use crate::cli::{Cli, Shell};
use crate::failure::Failure;
use clap::{Command, CommandFactory};
use clap_complete::aot;
use std::io::Write;

pub fn completion(shell: Shell) -> Result<(), Failure> {
    let text = script(shell);
    let failed = |e: std::io::Error| Failure::new(74, format!("write to standard output: {e}"));
    std::io::stdout().lock().write_all(&text).map_err(failed)
}

fn script(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    let mut text = Vec::new();
    aot::generate(shell, &mut offered(&Cli::command()), "hekate", &mut text);
    text
}

/// The command line without its hidden commands, which the generators would offer.
fn offered(command: &Command) -> Command {
    Command::new("hekate")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments())
        .subcommands(command.get_subcommands().filter(|one| !one.is_hide_set()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_offered_and_no_hidden_one() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(script(shell)).unwrap();
            for command in Cli::command().get_subcommands() {
                let name = command.get_name();
                assert_eq!(text.contains(name) && name != "man", !command.is_hide_set(), "{name} for {shell:?}");
            }
        }
    }
}
