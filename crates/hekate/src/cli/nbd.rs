//! Options of the block door's commands.

use clap::{ArgGroup, Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The block door: vDisks of a volume over NBD.
#[derive(Subcommand, Debug)]
pub enum Nbd {
    /// Open the block door of a volume at each server, or change how it is open.
    #[command(after_help = ENABLE_EXAMPLES)]
    Enable(NbdEnable),
    /// Close the block door of a volume: its clients' connections end. Its vDisks stay.
    #[command(after_help = "Example: hekate nbd disable photos")]
    Disable {
        /// The volume.
        volume: String,
    },
    /// The volumes whose block door is open.
    #[command(after_help = "Example: hekate nbd list")]
    List,
    /// Serve the vDisks of a volume to NBD clients (qemu, libnbd, nbd-client) in a process of its own.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(NbdServe),
}

const ENABLE_EXAMPLES: &str = "\
Examples:
  hekate nbd enable photos --listen 0.0.0.0:10809              TLS; clients show a credential of `hekate client create`
  hekate nbd enable photos --socket /run/hekate-photos.nbd     at each server, for machines that run there
  hekate nbd enable photos --listen 127.0.0.1:10809 --plain    anybody on a server's machine can read and write the vDisks";

const SERVE_EXAMPLES: &str = "\
Examples:
  hekate nbd serve photos --socket /run/photos.nbd
      qemu-img info 'nbd+unix:///web1?socket=/run/photos.nbd'
  hekate nbd serve photos --listen 0.0.0.0:10809 --certificate nbd.crt --key nbd.key --client-ca ca.crt
      nbdinfo 'nbds://server/web1?tls-certificates=/etc/pki/nbd'
  hekate nbd serve photos --listen 127.0.0.1:10809 --plain       anybody on this machine can read and write the vDisks";

/// Where a door listens, and what it shows.
#[derive(Args, Debug, Clone)]
#[command(group(ArgGroup::new("where").required(true).multiple(true).args(["listen", "sockets"])))]
pub struct NbdListen {
    /// A unix socket to listen at; its file's permissions decide who may connect. May be given again.
    #[arg(long = "socket", value_name = "PATH")]
    pub sockets: Vec<PathBuf>,
    /// An address to listen at; may be given again.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Vec<SocketAddr>,
    /// Without TLS: whoever can reach the address can read and write the vDisks.
    #[arg(long, requires = "listen", conflicts_with_all = ["certificate", "key", "client_ca"])]
    pub plain: bool,
    /// The door's certificate, and those between it and its root: a PEM file. It is read again when it changes.
    #[arg(long, value_name = "FILE", requires = "key", requires = "client_ca")]
    pub certificate: Option<PathBuf>,
    /// The certificate's key: a PEM file.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// Clients need a certificate of this authority: a PEM file.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub client_ca: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct NbdEnable {
    /// The volume.
    pub volume: String,
    #[command(flatten)]
    pub listen: NbdListen,
    /// A further name or address for the certificate of the cluster's authority; may be given again.
    #[arg(long = "name", value_name = "NAME", conflicts_with_all = ["plain", "certificate"])]
    pub names: Vec<String>,
}

#[derive(Args, Debug)]
pub struct NbdServe {
    /// The volume.
    pub volume: String,
    #[command(flatten)]
    pub listen: NbdListen,
}
