//! Options of the commands about who may connect.

use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

fn life(text: &str) -> Result<Duration, String> {
    let life = humantime::parse_duration(text).map_err(|error| format!("{error}; say 12h or 90d"))?;
    if life.is_zero() { Err("a time of 0 s expires at once".into()) } else { Ok(life) }
}

fn days(text: &str) -> Result<u32, String> {
    let days = life(text)?.as_secs() / 86_400;
    u32::try_from(days).ok().filter(|days| *days > 0).ok_or_else(|| "say whole days, as 90d".into())
}

/// Invitations of servers.
#[derive(Subcommand, Debug)]
pub enum Token {
    /// Make an invitation for one server, and print it as one line.
    #[command(after_help = "Example: hekate token create --expires 1h")]
    Create(TokenCreate),
}

#[derive(Args, Debug)]
pub struct TokenCreate {
    /// How long it is good for: 30m, 1h, 2d; 30 days at most.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = life)]
    pub expires: Duration,
}

/// Clients and their credentials.
#[derive(Subcommand, Debug)]
pub enum Client {
    /// Make a client, and write its credential to a file.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(ClientCreate),
    /// All clients.
    #[command(after_help = "Example: hekate client list")]
    List,
    /// One client.
    #[command(after_help = "Example: hekate client show web1")]
    Show {
        /// Its name.
        name: String,
    },
    /// Write a new credential of a client to a file. The earlier ones stay valid until they expire.
    #[command(after_help = "Example: hekate client renew web1 -o web1.hekate")]
    Renew(ClientRenew),
    /// Write the certificates and the key of a credential as PEM files, as NBD clients take them: ca-cert.pem,
    /// client-cert.pem and client-key.pem.
    #[command(
        after_help = "Example: hekate client pem web1.hekate /etc/pki/hekate\n         nbdinfo \"nbds://server/web1?tls-certificates=/etc/pki/hekate\""
    )]
    Pem {
        /// The credential.
        file: PathBuf,
        /// The directory for the three files, which is made if it is missing. Files that are there are replaced.
        directory: PathBuf,
    },
    /// Refuse a client from now on, for good: its connections and mounts end within 5 s.
    #[command(after_help = "Example: hekate client revoke web1")]
    Revoke {
        /// Its name.
        name: String,
    },
}

const CREATE_EXAMPLES: &str = "\
Examples:
  hekate client create web1 --volume photos -o web1.hekate
  hekate client create backup --volume photos --read-only --expires 30d -o backup.hekate
  hekate client create ann --admin -o ann.hekate
  hekate mount --credential web1.hekate photos /mnt/photos        on the client's machine";

#[derive(Args, Debug)]
pub struct ClientCreate {
    /// Its name: letters, digits, dots, dashes, underlines.
    pub name: String,
    /// A volume that it may use; may be given again.
    #[arg(long = "volume", value_name = "NAME")]
    pub volumes: Vec<String>,
    /// It may change nothing.
    #[arg(long)]
    pub read_only: bool,
    /// It may do what root may do on a server, and use every volume.
    #[arg(long)]
    pub admin: bool,
    /// The network at which it reaches servers, if clients have several.
    #[arg(long, value_name = "NAME")]
    pub network: Option<String>,
    /// How long its certificate is valid: 12h, 90d [default: the cluster's setting].
    #[arg(long, value_name = "TIME", value_parser = life)]
    pub expires: Option<Duration>,
    /// The file to write, which only its owner can read.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

#[derive(Args, Debug)]
pub struct ClientRenew {
    /// Its name.
    pub name: String,
    /// How long the new certificate is valid: 12h, 90d [default: the cluster's setting].
    #[arg(long, value_name = "TIME", value_parser = life)]
    pub expires: Option<Duration>,
    /// The file to write; one that exists is replaced.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Networks: a server has an address at each (`hekate serve --listen NETWORK=ADDRESS:PORT`).
#[derive(Subcommand, Debug)]
pub enum Network {
    /// All networks, their addresses, and what they have carried.
    #[command(after_help = "Example: hekate network list")]
    List,
    /// One network.
    #[command(after_help = "Example: hekate network show back")]
    Show {
        /// Its name.
        name: String,
    },
    /// Choose the network that servers use among themselves; clients use every other one. Without this command it is
    /// `back`, if servers have addresses there.
    #[command(after_help = "Example: hekate network set storage --for-servers")]
    Set {
        /// Its name.
        name: String,
        /// Servers connect to each other there, and clients are refused.
        #[arg(long, required = true)]
        for_servers: bool,
    },
}

/// The cluster's authority, which signs the certificates of servers and clients.
#[derive(Subcommand, Debug)]
pub enum Ca {
    /// Its certificates, and when they expire.
    #[command(after_help = "Example: hekate ca show")]
    Show,
    /// Set how long new certificates live. Those that were issued stay as they are.
    #[command(after_help = "Example: hekate ca set --servers 30d --clients 180d")]
    Set {
        /// Of servers: 1d to 1825d.
        #[arg(long, value_name = "TIME", value_parser = days, required_unless_present = "clients")]
        servers: Option<u32>,
        /// Of clients, unless `client create --expires` says otherwise: 1d to 1825d.
        #[arg(long, value_name = "TIME", value_parser = days)]
        clients: Option<u32>,
    },
    /// Replace the root in steps, while everything runs.
    #[command(subcommand)]
    Rotate(Rotate),
}

/// The steps of the replacement of the root.
#[derive(Subcommand, Debug)]
pub enum Rotate {
    /// Make a new root, which all trust beside the old one.
    #[command(after_help = "Example: hekate ca rotate start --root-key /media/stick/root.key")]
    Start {
        /// The file for the new root's key; its certificate is written beside it.
        #[arg(long, value_name = "FILE")]
        root_key: PathBuf,
    },
    /// Sign new certificates below the new root.
    #[command(after_help = "Example: hekate ca rotate switch")]
    Switch {
        /// Switch although some clients do not trust the new root: they cannot connect afterwards.
        #[arg(long)]
        force: bool,
    },
    /// Trust the old root no more.
    #[command(after_help = "Example: hekate ca rotate finish")]
    Finish {
        /// Finish although some clients do not know the new root.
        #[arg(long)]
        force: bool,
    },
}
