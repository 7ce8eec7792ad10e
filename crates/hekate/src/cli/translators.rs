//! Options of the commands about translators and graphs.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Translators: those that are built in, and their options.
#[derive(Subcommand, Debug)]
pub enum Translator {
    /// The translators that this program has, and those that are installed on this machine.
    #[command(after_help = "Example: hekate translator list")]
    List,
    /// One translator: what it does, and its options.
    #[command(after_help = "Example: hekate translator show negative-lookup")]
    Show {
        /// Its name; `python:NAME` for one in Python.
        name: String,
    },
}

/// A setting of a volume.
#[derive(Subcommand, Debug)]
pub enum VolumeSetting {
    /// The volume's translators, the first one sees ops first. Programs that use the volume take them within seconds,
    /// with files open.
    #[command(after_help = TRANSLATORS_EXAMPLES)]
    Translators(SetTranslators),
}

const TRANSLATORS_EXAMPLES: &str = "\
Examples:
  hekate volume set photos translators negative-lookup:lifetime=5s io-stats
  hekate volume set photos translators python:translator=quota,limit=1000000
  hekate volume set photos translators --file graph.toml --dry-run
  hekate volume set photos translators --none

A file has a table [[translator]] for each, with its name and options:
  [[translator]]
  name = \"negative-lookup\"
  lifetime = \"5s\"";

#[derive(Args, Debug)]
pub struct SetTranslators {
    /// NAME, or NAME:OPTION=VALUE,OPTION=VALUE; a backslash before a comma that is part of a value.
    #[arg(value_name = "TRANSLATOR")]
    pub layers: Vec<String>,
    /// A TOML file with the translators; `-` for the standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "layers")]
    pub file: Option<PathBuf>,
    /// No translators.
    #[arg(long, conflicts_with_all = ["layers", "file"])]
    pub none: bool,
    /// Check and print the graph, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

pub const GRAPH_EXAMPLES: &str = "\
Examples:
  hekate graph photos                    of each program on this machine that uses the volume
  hekate graph photos --json | jq '.[].layers[] | {name, ops, p99_us}'
  hekate graph photos --svg > graph.svg";

#[derive(Args, Debug)]
pub struct Graph {
    /// The volume.
    pub volume: String,
    /// Only that of the program with this session.
    #[arg(long, value_name = "NUMBER")]
    pub session: Option<u64>,
    /// A picture (SVG); of the first program, if there are several.
    #[arg(long)]
    pub svg: bool,
}

/// Translators in shared libraries.
#[derive(Subcommand, Debug)]
pub enum Plugin {
    /// Install a shared library on this machine. Each machine that uses a volume with it needs it.
    #[command(after_help = "Example: hekate plugin install target/release/libfirst.so --name first")]
    Install {
        /// The library.
        file: PathBuf,
        /// Its name in graphs [default: the file's, without lib and .so].
        #[arg(long)]
        name: Option<String>,
    },
    /// The libraries that are installed on this machine.
    #[command(after_help = "Example: hekate plugin list")]
    List,
    /// Remove a library from this machine. Graphs that use it run on until their program ends.
    #[command(after_help = "Example: hekate plugin remove first")]
    Remove {
        /// Its name.
        name: String,
    },
}

/// Translators in Python.
#[derive(Subcommand, Debug)]
pub enum Python {
    /// Make a directory with a translator to start from, and its test.
    #[command(after_help = "Example: hekate python new quota")]
    New {
        /// The directory to make; its last part is the translator's name.
        directory: PathBuf,
    },
    /// Run a translator's tests, against a volume in memory.
    #[command(after_help = "Example: hekate python test quota -- -k limit")]
    Test {
        /// The translator's directory.
        directory: PathBuf,
        /// Further arguments of pytest.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Install a translator on this machine, or replace it: programs that use it take the new one within seconds.
    #[command(after_help = "Example: hekate python install quota")]
    Install {
        /// The translator's directory.
        directory: PathBuf,
        /// Its name in graphs [default: the directory's].
        #[arg(long)]
        name: Option<String>,
    },
    /// The translators in Python that are installed on this machine.
    #[command(after_help = "Example: hekate python list")]
    List,
    /// Remove a translator from this machine.
    #[command(after_help = "Example: hekate python remove quota")]
    Remove {
        /// Its name.
        name: String,
    },
}
