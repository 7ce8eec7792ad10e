//! `hekate heal`.

use clap::Subcommand;

#[derive(Subcommand, Debug)]
pub enum Heal {
    /// Whether all replicas have everything.
    #[command(after_help = STATUS_EXAMPLES)]
    Status {
        /// Compare what all members of all partitions hold, while they serve, and wait for the result.
        #[arg(long)]
        prove: bool,
    },
    /// The replicas that lack something: being healed, and how far, or away.
    List,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  hekate heal status
  hekate heal status --prove      entries, and stamps and lengths of shards, at the same record on each replica
  hekate heal list --json | jq .

A shard that is being written past the log (mode hsr) is left out of a proof, and counted.

Exit status: 0 all replicas have everything, and (--prove) hold the same; 1 some lack something, or differ; 75 a proof was
interrupted, since a server went away or came back; 69 no server; 77 (--prove) not permitted.";
