//! Commands that look inside: where something rests, and whether its replicas are the same.

use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum Debug {
    /// Compare the replicas of each partition, from what rests on the disks of stopped bricks; nothing is changed.
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(DebugCompare),
}

const COMPARE_EXAMPLES: &str = "\
Examples:
  hekate stop && hekate debug compare         all bricks of this machine
  hekate debug compare /srv/disk1 /mnt/copy   two bricks, or a brick and a copy of it
  hekate debug compare --json | jq '.partitions[] | select(.state == \"different\")'

Every file, name, attribute, byte and stamp is read, by other code than that of a server. What is only in the journal
counts as what is in the index. Without this cluster's state, a brick that has no log of a partition counts as none of
its replicas. After a kill or a power cut the bricks may differ until a server has started once, which makes them even.

Exit status: 0 all replicas are equal; 1 some differ, as listed; 74 none differ, but something is damaged, as listed; 69 a
server has a brick open (`hekate stop`); 64 no brick, or bricks of several clusters.";

pub const WHERE_EXAMPLES: &str = "\
Examples:
  hekate where photos:/2026/cat.jpg
  hekate where photos:/ --json
  hekate where backup:/disk.img --offset 17179869184    go on where an answer ended

For each shard there is the stamp that each replica has, as COUNT/SESSION/OP: equal stamps mean equal bytes. A running
server answers, to root and to its own user.

Exit status: 0 found; 66 no such file; 65 something in the path is no directory; 64 no such volume; 69 no server; 77 not
permitted.";

#[derive(Args, Debug)]
pub struct DebugCompare {
    /// Directories of stopped bricks [default: all that this server's state names].
    #[arg(value_name = "DIR")]
    pub directories: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Where {
    /// The volume's name, a colon, and the path from the volume's root. Symbolic links are not followed.
    #[arg(value_name = "VOLUME:/PATH")]
    pub place: OsString,
    /// Show shards from this byte of the file on; an answer has at most 2,048 of them.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub offset: u64,
}
