//! `hekate scrub`.

use clap::{Args, Subcommand};

#[derive(Subcommand, Debug)]
pub enum Scrub {
    /// Have all servers read and check their bricks, and repair damage from other replicas.
    #[command(after_help = START_EXAMPLES)]
    Start(ScrubStart),
    /// Progress of the running passes, results of the last ones, and damage that was found.
    #[command(after_help = STATUS_EXAMPLES)]
    Status,
}

#[derive(Args, Debug)]
pub struct ScrubStart {
    /// Only this brick, of any server: its directory, or the first digits of its id.
    #[arg(long, value_name = "BRICK")]
    pub brick: Option<String>,
    /// Only this volume.
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Wait for the end, and print the result.
    #[arg(long)]
    pub wait: bool,
}

const START_EXAMPLES: &str = "\
Examples:
  hekate scrub start                           all bricks of all servers, in the background
  hekate scrub start --volume photos --wait    one volume, with progress, until it is done
  hekate scrub start --brick /srv/disk1 --wait

Each entry and each block is read and compared with its checksum. One that does not match is repaired from another replica,
on this server or another one, through the log. Then the leaders compare entries, stamps and lengths of all shards with
those of the other members, as `hekate heal status --prove` does.

Servers begin a pass over each brick once a week. It reads at most 32 MiB a second, and 8 MiB while clients send ops.

Exit status: 0 begun, or with --wait no damage is left; 1 (--wait) replicas differ; 74 something is damaged that no other
replica has, as listed; 69 no server, or the server of a brick does not answer.";

const STATUS_EXAMPLES: &str = "\
Examples:
  hekate scrub status
  hekate scrub status --json | jq '.bricks[].scrub.now.seconds_left'

Exit status: 0 no known damage or difference; 1 replicas differ; 74 something is damaged that no other replica has, as
listed; 69 no server.";
