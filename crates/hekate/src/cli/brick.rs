//! `hekate brick`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum Brick {
    /// All bricks of the cluster.
    #[command(after_help = "Example: hekate brick list")]
    List,
    /// One brick: its state, its space, and the number of its replicas.
    #[command(after_help = "Example: hekate brick show /srv/disk1")]
    Show {
        /// Its directory, or the first digits of its id.
        brick: String,
    },
    /// Make a further brick on the server that answers; it is used from the server's next start on.
    #[command(after_help = ADD_EXAMPLES)]
    Add(BrickAdd),
    /// Remove a brick that holds no replica from the cluster; its directory stays as it is.
    #[command(after_help = "Example: hekate brick remove /srv/disk3")]
    Remove {
        /// Its directory, or the first digits of its id.
        brick: String,
    },
    /// Move the replicas of a brick to other bricks (this version refuses, and says why).
    #[command(after_help = "Example: hekate brick drain /srv/disk1")]
    Drain {
        /// Its directory, or the first digits of its id.
        brick: String,
    },
    /// Replace a brick by a new one on the server that answers, which is healed from the other copies.
    #[command(after_help = REPLACE_EXAMPLES)]
    Replace(BrickReplace),
    /// Show what a stopped brick holds, and check it; nothing on its disk is changed.
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(BrickInspect),
    /// Copy the files of a stopped brick out of it, without a cluster; nothing on its disk is changed.
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(BrickExport),
    /// The same as `hekate scrub start`, of all bricks or one.
    #[command(after_help = SCRUB_EXAMPLES)]
    Scrub(BrickScrub),
}

const ADD_EXAMPLES: &str = "\
Example:
  hekate brick add /srv/disk3 --pool default
  hekate stop && hekate serve --detach

Existing volumes stay on their bricks. A new volume is placed on all bricks of its pool if it is the first one with that
number of copies; otherwise it is placed where the volumes with that number are.

Exit status: 0 made; 64 the directory cannot become a brick, and nothing was changed; 77 not permitted; 69 no server.";

const REPLACE_EXAMPLES: &str = "\
A disk that still works, by another one:
  hekate brick replace /srv/disk1 /srv/disk9
  hekate stop && hekate serve --detach      the server opens the new brick at its next start
  hekate status                             shows how far it is healed; the old brick serves until then
  hekate brick remove /srv/disk1            once it holds no replica

A disk that is gone, on a server that does not start without it:
  hekate serve --detach --without /srv/disk1
  hekate brick replace /srv/disk1 /srv/disk9
  hekate stop && hekate serve --detach

Exit status: 0 recorded; 64 the brick cannot be replaced, and nothing was changed; 77 not permitted; 69 no server.";

const INSPECT_EXAMPLES: &str = "\
Examples:
  hekate brick inspect /srv/disk1                 a summary, with the problems that the index and the journal show
  hekate brick inspect --check /srv/disk1         read and verify every byte
  hekate brick inspect --journal /srv/disk1       each record of the journal
  hekate brick inspect --all --json /srv/disk1    everything, a JSON object a line, each with a `type`

Exit status: 0 no problems; 74 problems, each is named; 69 a server has the brick open; 64 no brick.";

const SCRUB_EXAMPLES: &str = "\
Examples:
  hekate brick scrub                       all bricks, in the background
  hekate brick scrub --wait /srv/disk1     one brick, with progress, until it is done

`hekate scrub start --help` has the rest.

Exit status: 0 begun, or with --wait no damage is left; 74 something is damaged that no other replica has, as listed;
1 (--wait) replicas differ.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  hekate brick export /srv/disk1 /mnt/rescue
  hekate brick export --volume photos --json /srv/disk1 /mnt/rescue

A directory is made for each volume. Files whose directory is on other bricks are copied to lost+found/INODE; bytes that are
on other bricks, or damaged, become holes; each such file is listed.

Exit status: 0 everything is copied; 65 a part is on other bricks or could not be written, as listed; 74 something on this
brick is damaged, as listed; 69 a server has the brick open; 73 the directory to write to is not empty; 64 no brick.";

#[derive(Args, Debug)]
pub struct BrickReplace {
    /// The old brick, of any server: its directory, or the first digits of its id.
    pub brick: String,
    /// An empty directory on a disk of its own.
    pub directory: PathBuf,
    /// Size of its journal, in MiB.
    #[arg(long, default_value_t = 128, value_name = "MIB", value_parser = clap::value_parser!(u64).range(32..=65_536))]
    pub journal: u64,
}

#[derive(Args, Debug)]
pub struct BrickAdd {
    /// An empty directory on a disk of its own, on the server that answers.
    pub directory: PathBuf,
    /// The pool that the brick is for.
    #[arg(long, default_value = "default")]
    pub pool: String,
    /// Size of its journal, in MiB.
    #[arg(long, default_value_t = 128, value_name = "MIB", value_parser = clap::value_parser!(u64).range(32..=65_536))]
    pub journal: u64,
}

#[derive(Args, Debug)]
pub struct BrickInspect {
    /// The brick.
    pub directory: PathBuf,
    /// Show each segment and each record of the journal.
    #[arg(long)]
    pub journal: bool,
    /// Show each entry of the index, as the last checkpoint left it.
    #[arg(long)]
    pub index: bool,
    /// Show each data file and the state of its blocks.
    #[arg(long)]
    pub data: bool,
    /// Show all three.
    #[arg(long)]
    pub all: bool,
    /// Verify every checksum and every invariant: reads all of the brick.
    #[arg(long)]
    pub check: bool,
}

#[derive(Args, Debug)]
pub struct BrickScrub {
    /// Its directory, or the first digits of its id [default: all bricks].
    pub brick: Option<String>,
    /// Wait for the end, and print the result.
    #[arg(long)]
    pub wait: bool,
}

#[derive(Args, Debug)]
pub struct BrickExport {
    /// The brick.
    pub brick: PathBuf,
    /// Where the files go: an empty directory, or one that does not exist yet.
    pub to: PathBuf,
    /// Only this volume: its number, or its name if this server's state knows it.
    #[arg(long, value_name = "NAME_OR_ID")]
    pub volume: Option<String>,
    /// If the journal is damaged before its end, use the part before the damage: later changes are missing.
    #[arg(long)]
    pub up_to_damage: bool,
}
