//! Commands that print descriptions of this command line for other programs: shells, and man(1).

use clap::ValueEnum;

/// The shells of `hekate completion`.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub const COMPLETION_EXAMPLES: &str = "\
For yourself:
  hekate completion bash > ~/.local/share/bash-completion/completions/hekate
  hekate completion zsh > ~/.zsh/completions/_hekate       a directory that $fpath has before compinit
  hekate completion fish > ~/.config/fish/completions/hekate.fish
For everybody the Debian package has done it.";
