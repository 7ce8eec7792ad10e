//! Commands that look inside: whether replicas are the same.

use clap::{Args, Subcommand};
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

#[derive(Args, Debug)]
pub struct DebugCompare {
    /// Directories of stopped bricks [default: all that this server's state names].
    #[arg(value_name = "DIR")]
    pub directories: Vec<PathBuf>,
}
