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
    /// Replicas that lack data, being healed or away, and the files of which each of them lacks data.
    #[command(after_help = LIST_EXAMPLES)]
    List,
}

const LIST_EXAMPLES: &str = "\
Examples:
  hekate heal list
  hekate heal list --json | jq -r '.missing.files[] | [.path, .bytes] | @tsv'

Files come from the journals of the leaders: those changed since a replica left, and not healed yet. A file whose name is
not found is shown by its inode, or by the id of its data. At most 10,000 are listed. If a journal does not reach back to
the time when a replica left, the output says so: that replica is compared as a whole, and the differences are sent.

Exit status: 0; 69 no server; 77 not permitted.";

const STATUS_EXAMPLES: &str = "\
Examples:
  hekate heal status
  hekate heal status --prove      entries, and stamps and lengths of shards, at the same record on each replica

A shard that is being written on the fast lane (mode hsr) is left out of a proof, and counted.

Exit status: 0 all replicas are complete, and (--prove) hold the same; 1 some lack data, or differ; 75 a proof was
interrupted because a server stopped or returned; 69 no server; 77 (--prove) not permitted.";
