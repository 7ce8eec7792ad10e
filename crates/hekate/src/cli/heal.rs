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
    /// The replicas that lack something, being healed or away, and the files that each of them lacks something of.
    #[command(after_help = LIST_EXAMPLES)]
    List,
}

const LIST_EXAMPLES: &str = "\
Examples:
  hekate heal list
  hekate heal list --json | jq -r '.missing.files[] | [.path, .bytes] | @tsv'

Files come from the journals of the replicas that lead: what was changed since a replica left, and has not been healed yet.
A file whose name is not found is shown by its inode, or by the id of its bytes. At most 10,000 are listed. If a journal
has gone on past the beginning, that is said: the replica is compared as a whole then, and what differs is sent.

Exit status: 0; 69 no server; 77 not permitted.";

const STATUS_EXAMPLES: &str = "\
Examples:
  hekate heal status
  hekate heal status --prove      entries, and stamps and lengths of shards, at the same record on each replica

A shard that is being written past the log (mode hsr) is left out of a proof, and counted.

Exit status: 0 all replicas have everything, and (--prove) hold the same; 1 some lack something, or differ; 75 a proof was
interrupted, since a server went away or came back; 69 no server; 77 (--prove) not permitted.";
