//! `hekate scrub`.

use clap::{Args, Subcommand};

#[derive(Subcommand, Debug)]
pub enum Scrub {
    /// Let all servers read and check everything that rests on their bricks, and mend from other replicas what has rotted.
    #[command(after_help = START_EXAMPLES)]
    Start(ScrubStart),
    /// How far passes are, how the last ones went, and what is damaged.
    #[command(after_help = STATUS_EXAMPLES)]
    Status,
}

#[derive(Args, Debug)]
pub struct ScrubStart {
    /// Only this brick, of any server: its directory, or the first digits of its id.
    #[arg(long, value_name = "BRICK")]
    pub brick: Option<String>,
    /// Only what is of this volume.
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Wait for the end, and tell what was found.
    #[arg(long)]
    pub wait: bool,
}

const START_EXAMPLES: &str = "\
Examples:
  hekate scrub start                           all bricks of all servers, in the background
  hekate scrub start --volume photos --wait    what is of one volume, with progress, until it is done
  hekate scrub start --brick /srv/disk1 --wait

Each entry and each block is read and compared with its checksum. What does not match is mended from another replica, on
this server or another one, through the log. Afterwards the leaders compare entries, stamps and lengths of all shards
with those of the other members, as `hekate heal status --prove` does.

A pass over each brick begins by itself once a week. It reads at most 32 MiB a second, and 8 MiB while clients ask for
something.

Exit status: 0 begun, or with --wait all is right by now; 1 (--wait) replicas differ; 74 something is damaged and no other
replica has it, as listed; 69 no server, or one with such a brick is away.";

const STATUS_EXAMPLES: &str = "\
Examples:
  hekate scrub status
  hekate scrub status --json | jq '.bricks[].scrub.now.seconds_left'

Exit status: 0 nothing is known to be damaged, and replicas are not known to differ; 1 replicas differ; 74 something is
damaged and no other replica has it, as listed; 69 no server.";
