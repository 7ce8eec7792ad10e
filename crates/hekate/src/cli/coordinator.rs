//! `hekate coordinator`.

use crate::cli::address;
use clap::{Args, Subcommand};
use hekate_control::{CoordinatorKind, CoordinatorMove};
use std::net::SocketAddr;
use std::path::PathBuf;

pub const EXAMPLES: &str = "\
Three servers, each with a member of etcd, and the records moved there while volumes are mounted:
  hekate coordinator etcd          on each of the three servers (needs the package etcd-server)
  hekate coordinator move --to etcd
  hekate coordinator show
A coordinator of its own, with a state directory of its own, and an invitation for the machine of the first server:
  hekate --state /srv/c coordinator --detach --listen 10.0.0.9:7000
  hekate --state /srv/c token create
  hekate init --coordinator TOKEN --brick /srv/disk1
`hekate --state /srv/c stop` ends it. Nobody is served for longer than three seconds without a coordinator.";

#[derive(Args, Debug)]
pub struct CoordinatorOptions {
    /// Run a coordinator here, and listen at this address, with TLS, for servers of other machines.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address::socket)]
    pub listen: Option<SocketAddr>,
    /// Run it in the background once it answers.
    #[arg(long)]
    pub detach: bool,
    #[command(subcommand)]
    pub command: Option<CoordinatorCommand>,
}

#[derive(Subcommand, Debug)]
pub enum CoordinatorCommand {
    /// Show where the records are, and the members of etcd.
    #[command(after_help = "Example: hekate coordinator show --json | jq .members")]
    Show,
    /// Make a member of the cluster's etcd beside this server, or start the one that is there.
    #[command(after_help = ETCD_EXAMPLES)]
    Etcd(CoordinatorEtcd),
    /// Members of the cluster's etcd.
    #[command(subcommand)]
    Member(CoordinatorMember),
    /// Move the records to another coordinator while the cluster is in use. Writes wait for less than five seconds.
    #[command(
        after_help = MOVE_EXAMPLES
    )]
    Move {
        /// etcd: the cluster's etcd; embedded: a file of the server that answers; an address: the coordinator that is a
        /// process of its own, answers there, and has held the records before.
        #[arg(long, value_name = "etcd|embedded|HOST:PORT", value_parser = move_target)]
        to: CoordinatorMove,
    },
    /// Copy the records into a file. It names users, volumes and servers, and holds sealed keys.
    #[command(after_help = "Example: hekate coordinator backup /root/hekate-records.json")]
    Backup {
        /// The file; - for the standard output.
        file: PathBuf,
    },
    /// Put the records of a backup in the place of lost ones. The servers must be stopped.
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(CoordinatorRestore),
}

const MOVE_EXAMPLES: &str = "\
Examples:
  hekate coordinator move --to etcd
  hekate coordinator move --to embedded          to a file of the server that answers
  hekate coordinator move --to 10.0.0.9:7000     back to a coordinator of its own";

/// Parses where the records go. An address without a scheme is one over TCP.
fn move_target(text: &str) -> Result<CoordinatorMove, String> {
    let (to, address) = match text {
        "etcd" => (CoordinatorKind::Etcd, None),
        "embedded" => (CoordinatorKind::Embedded, None),
        _ if text.starts_with("unix:") || text.starts_with("tcp:") => (CoordinatorKind::Apart, Some(text.to_string())),
        _ if text.contains(':') => (CoordinatorKind::Apart, Some(format!("tcp:{text}"))),
        _ => return Err("say etcd, embedded, or HOST:PORT of a coordinator of its own".into()),
    };
    Ok(CoordinatorMove { to, address })
}

const ETCD_EXAMPLES: &str = "\
Examples:
  hekate coordinator etcd                          writes the configuration and a unit of systemd, and starts it
  hekate coordinator etcd --address 10.1.0.5       at another address than that of `hekate serve --listen`
  hekate coordinator etcd --detach                 without systemd: in the background
  hekate coordinator etcd --stop";

#[derive(Args, Debug)]
pub struct CoordinatorEtcd {
    /// A name or IP address at which the other servers reach this machine [default: that of this server].
    #[arg(long, value_name = "HOST")]
    pub address: Option<String>,
    /// Port for servers.
    #[arg(long, default_value_t = 2379, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub client_port: u16,
    /// Port for the other members.
    #[arg(long, default_value_t = 2380, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub peer_port: u16,
    /// The program.
    #[arg(long, default_value = "etcd", value_name = "FILE")]
    pub program: PathBuf,
    /// Run it in the background, without systemd.
    #[arg(long)]
    pub detach: bool,
    /// Stop the member that --detach has started.
    #[arg(long, conflicts_with = "detach")]
    pub stop: bool,
}

#[derive(Subcommand, Debug)]
pub enum CoordinatorMember {
    /// List the members.
    #[command(after_help = "Example: hekate coordinator member list --json | jq '.[].state'")]
    List,
    /// Remove a member, for example that of a server that is gone. Another server takes its place with `hekate
    /// coordinator etcd`.
    #[command(after_help = "Example: hekate coordinator member remove server-3")]
    Remove {
        /// Its name, as `hekate coordinator member list` shows it.
        name: String,
    },
}

const RESTORE_EXAMPLES: &str = "\
Examples:
  hekate coordinator restore /root/hekate-records.json
  hekate coordinator restore /root/hekate-records.json --accept     what was recorded since is given up
  hekate coordinator restore /root/hekate-records.json --here       etcd is lost: into a file of this server
After --accept run `hekate heal prove`.";

#[derive(Args, Debug)]
pub struct CoordinatorRestore {
    /// A file of `hekate coordinator backup`.
    pub file: PathBuf,
    /// Go on although bricks know more than the backup: epochs and counts are raised above all that bricks can know.
    #[arg(long)]
    pub accept: bool,
    /// Put the backup in the place of records that are there.
    #[arg(long)]
    pub replace: bool,
    /// Keep the records in this server's state directory from now on, wherever they were.
    #[arg(long)]
    pub here: bool,
}
