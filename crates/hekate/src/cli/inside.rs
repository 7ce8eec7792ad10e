//! Commands that inspect: where something is stored, and whether its replicas are the same.

use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum Debug {
    /// Compare the replicas of each partition on stopped bricks; nothing is changed.
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(DebugCompare),
    /// Show the ops that the server is working on, and the last slow ones.
    #[command(after_help = SLOW_EXAMPLES)]
    Slow,
    /// Gather states and logs for support into a tar file, without secrets, names and addresses.
    #[command(after_help = BUNDLE_EXAMPLES)]
    Bundle(DebugBundle),
}

const SLOW_EXAMPLES: &str = "\
Examples:
  hekate debug slow
  hekate debug slow --json | jq '.ops[] | select(.syncing_milliseconds > 500)'
  find /mnt -inum 4711    finds the file of an inode in the output

An op is slow from `hekate serve --slow-op MILLISECONDS` on, by default one second. The server keeps the last 256 until it
stops. Names of files are not shown.";

const BUNDLE_EXAMPLES: &str = "\
Examples:
  hekate debug bundle
  hekate debug bundle /tmp/hekate.tar.gz --with-names

The file has status, pools, bricks, volumes, slow ops and metrics of the server, if it answers; doctor; this machine's kernel,
disks and mounts of Hekate; the ends of the logs. Names of volumes, pools and hosts, paths and addresses are replaced by
tokens such as volume-1, the same everywhere; the list of tokens is printed and not in the file. Read it before you send it.";

const COMPARE_EXAMPLES: &str = "\
Examples:
  hekate stop && hekate debug compare         all bricks of this machine
  hekate debug compare /srv/disk1 /mnt/copy   two bricks, or a brick and a copy of it
  hekate debug compare --json | jq '.partitions[] | select(.state == \"different\")'

Every file, name, attribute, byte and stamp is read, by code that is not the server's. Entries of the journal count like
those of the index. Without this cluster's state, a brick that has no log of a partition does not count as a replica of it.
After a kill or a power cut the bricks may differ until a server has started once, which reconciles them.

Exit status: 0 all replicas are equal; 1 some differ, as listed; 74 none differ, but something is damaged, as listed; 69 a
server has a brick open (`hekate stop`); 64 no brick, or bricks of several clusters.";

pub const WHERE_EXAMPLES: &str = "\
Examples:
  hekate where photos:/2026/cat.jpg
  hekate where /mnt/photos/2026/cat.jpg
  hekate where photos:/ --json
  hekate where backup:/disk.img --offset 17179869184    continue where an answer ended

The stamp of each shard on each replica is shown as COUNT/SESSION/OP: equal stamps mean equal bytes. A running server
answers this to root and to its own user.

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
    /// The volume's name, a colon, and the path from the volume's root; or a whole path below a mount of this machine.
    /// A symbolic link at its end is not followed.
    #[arg(value_name = "VOLUME:/PATH or PATH")]
    pub place: OsString,
    /// Show shards from this byte of the file on; an answer has at most 2,048 of them.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub offset: u64,
}

#[derive(Args, Debug)]
pub struct DebugBundle {
    /// The file to make [default: hekate-debug-TIME.tar.gz here].
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Leave names, paths and addresses as they are.
    #[arg(long)]
    pub with_names: bool,
}
