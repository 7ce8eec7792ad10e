//! The command line: nouns, verbs, options, and their help.

mod access;
pub mod address;
mod brick;
mod coordinator;
mod documentation;
mod heal;
mod inside;
mod mounting;
mod nbd;
mod partition;
mod s3;
mod scrub;
mod translators;
#[cfg(feature = "variation")]
mod variation;
mod vdisk;

pub use access::{Ca, Client, ClientCreate, ClientRenew, Network, Rotate, Token, TokenCreate};
pub use address::Listen;
pub use brick::{Brick, BrickAdd, BrickExport, BrickInspect, BrickReplace, BrickScrub};
pub use coordinator::{CoordinatorCommand, CoordinatorEtcd, CoordinatorMember, CoordinatorOptions, CoordinatorRestore};
pub use documentation::Shell;
pub use heal::Heal;
pub use inside::{Debug, DebugBundle, DebugCompare, Where};
pub use mounting::{Mount, MountHelper, Options, OwnMount, Source, Umount, mount_options};
pub use nbd::{Nbd, NbdEnable, NbdServe};
pub use partition::Partition;
pub use s3::{BucketOwner, S3, S3Bucket, S3BucketSet, S3Enable, S3Gc, S3Key, S3KeyCreate, S3Serve};
pub use scrub::{Scrub, ScrubStart};
pub use translators::{Graph, Plugin, Python, SetTranslators, Translator, VolumeSetting};
#[cfg(feature = "variation")]
pub use variation::{
    Access, Pattern, Sync, Unit, Variation, VariationLatency, VariationMeasure, VariationPlan, VariationShow,
};
pub use vdisk::{Vdisk, VdiskCreate, VdiskDelete, VdiskDurability, VdiskRollback};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// One store as POSIX files, S3 objects and block devices on ordinary servers.
#[derive(Parser, Debug)]
#[command(version, propagate_version = true, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    /// Answer in JSON.
    #[arg(long, global = true)]
    pub json: bool,

    /// Where this server keeps its state [env: HEKATE_STATE] [default: /var/lib/hekate as root, else
    /// $XDG_STATE_HOME/hekate].
    #[arg(long, global = true, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// The server to talk to: HOST:PORT or unix:PATH; several, separated by commas, are tried in order [env:
    /// HEKATE_SERVER] [default: those of the credential, or the one of this machine].
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub server: Option<String>,

    /// The credential to show over TCP, a file of `hekate client create` [env: HEKATE_CREDENTIAL] [default: that of
    /// this machine's server].
    #[arg(long, global = true, value_name = "FILE")]
    pub credential: Option<PathBuf>,

    #[command(subcommand)]
    pub command: Command,
}

/// Path of the systemd unit in the Debian package.
const UNIT: &str = "/usr/lib/systemd/system/hekate.service";

impl Cli {
    /// Parses a command line. A negative number counts as a value that is out of range, not as an unknown option.
    ///
    /// # Errors
    ///
    /// The usage error, or the request for help or the version, for clap to print.
    pub fn parse_from_words(words: Vec<OsString>) -> Result<Self, clap::Error> {
        let mut command = takes_negative_numbers(Self::command());
        let matches = command.try_get_matches_from_mut(words).map_err(|error| {
            // clap's own list of commands includes the hidden ones.
            let is_of_all =
                error.kind() == ErrorKind::MissingSubcommand && error.to_string().contains("'hekate' requires");
            match is_of_all {
                true => clap::Error::raw(ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, command.render_help()),
                false => error,
            }
        })?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }

    /// Takes options that the command line lacks from the environment. clap's own `env` would show an option whose
    /// variable is set in every usage line, as if it were required.
    pub fn with_environment(mut self) -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        self.state = self.state.or_else(|| variable("HEKATE_STATE").map(PathBuf::from));
        self.credential = self.credential.or_else(|| variable("HEKATE_CREDENTIAL").map(PathBuf::from));
        self.server =
            self.server.or_else(|| variable("HEKATE_SERVER").map(|value| value.to_string_lossy().into_owned()));
        self
    }

    /// The command line that serves the state directory which this one has made.
    pub fn line_to_serve(&self) -> String {
        let for_systemd = ["/run/systemd/system", UNIT].iter().all(|path| Path::new(path).exists());
        if self.state.is_none() && for_systemd && rustix::process::geteuid().is_root() {
            return "systemctl enable --now hekate".into();
        }
        line_with(self.state.as_deref(), "serve --detach")
    }
}

fn takes_negative_numbers(command: clap::Command) -> clap::Command {
    let command =
        command.mut_args(|argument| match argument.get_action().takes_values() && !argument.is_positional() {
            true => argument.allow_negative_numbers(true),
            false => argument,
        });
    command.mut_subcommands(takes_negative_numbers)
}

/// A `hekate` command line for this state directory.
pub fn line_with(state: Option<&Path>, words: &str) -> String {
    let state = state.map(|path| format!("--state {} ", path.display())).unwrap_or_default();
    format!("hekate {state}{words}")
}

const EXAMPLES: &str = "\
From nothing to a mounted volume with two copies:
  hekate init --brick /srv/disk1 --brick /srv/disk2 --volume photos --copies 2
  hekate serve --detach
  hekate mount photos /mnt/photos

Exit status: 0 done; 64 to 78 as in sysexits(3), for example 64 wrong use, 69 not available, 77 not permitted; 1 a
comparison found a difference.";

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a new cluster of this server, with bricks and a pool of them.
    #[command(after_help = "Example: hekate init --brick /srv/disk1 --brick /srv/disk2 --volume photos --copies 2")]
    Init(Init),
    /// Make a further server of a cluster, with bricks in one of its pools.
    #[command(after_help = JOIN_EXAMPLES)]
    Join(Join),
    /// The coordinator, which keeps the cluster's records: show and move it, its etcd, backups; or run one as a process
    /// of its own.
    #[command(after_help = coordinator::EXAMPLES, args_conflicts_with_subcommands = true)]
    Coordinator(CoordinatorOptions),
    /// Run the server.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Serve),
    /// Invitations of servers.
    #[command(subcommand)]
    Token(Token),
    /// Clients of other machines, and their credentials.
    #[command(subcommand)]
    Client(Client),
    /// The S3 door: buckets and objects of a volume over HTTP.
    #[command(subcommand)]
    S3(S3),
    /// vDisks: block devices that live in a volume.
    #[command(subcommand)]
    Vdisk(Vdisk),
    /// The block door: vDisks of a volume over NBD.
    #[command(subcommand)]
    Nbd(Nbd),
    /// Translators: what is built in and installed, and their options.
    #[command(subcommand)]
    Translator(Translator),
    /// Show the live graphs of a volume: its translators with their options and counters, the layers and partitions
    /// below.
    #[command(after_help = translators::GRAPH_EXAMPLES)]
    Graph(Graph),
    /// Translators in shared libraries: install, list, remove.
    #[command(subcommand)]
    Plugin(Plugin),
    /// Translators in Python: make, test, install, list, remove.
    #[command(subcommand)]
    Python(Python),
    /// Networks: their addresses, and what they carry.
    #[command(subcommand)]
    Network(Network),
    /// The cluster's authority, which signs certificates.
    #[command(subcommand)]
    Ca(Ca),
    /// Stop the server in order: it answers the ops in progress and completes a checkpoint of every brick.
    #[command(after_help = "Example: hekate stop && hekate serve --detach")]
    Stop,
    /// Show the state of the servers, their bricks and the volumes.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Status),
    /// Print the server's counters and latency histograms as Prometheus reads them (OpenMetrics text).
    #[command(after_help = METRICS_EXAMPLES)]
    Metrics,
    /// Pools: the bricks that volumes are placed on.
    #[command(subcommand)]
    Pool(Pool),
    /// Volumes: make, show, delete.
    #[command(subcommand)]
    Volume(Volume),
    /// Partitions: their views and the positions of their replicas; forcing one whose replicas are lost for good.
    #[command(subcommand)]
    Partition(Partition),
    /// Healing: replicas that lack data, and the proof that all replicas hold the same.
    #[command(subcommand)]
    Heal(Heal),
    /// Scrubbing: bricks in use are read and checked, and damage is repaired from other replicas.
    #[command(subcommand)]
    Scrub(Scrub),
    /// Bricks: list, add, remove; inspect a stopped one, copy the files out of it, scrub those in use.
    #[command(subcommand)]
    Brick(Brick),
    /// Show where a file or directory of a volume is stored: partition, replicas, pieces, shards, and each replica's
    /// stamps.
    #[command(after_help = inside::WHERE_EXAMPLES)]
    Where(Where),
    /// Inspect a server or stopped bricks, to find out what is wrong.
    #[command(subcommand)]
    Debug(Debug),
    /// Mount a volume.
    #[command(after_help = mounting::mount_help())]
    Mount(Mount),
    /// Mount as mount(8) asks for it; the same as calling this program by the name mount.hekate.
    #[command(hide = true)]
    MountHelper(MountHelper),
    /// Unmount a volume.
    #[command(
        after_help = "Examples:\n  hekate umount /mnt/photos\n  hekate umount photos            where it is mounted once\n  \
        hekate umount --lazy /mnt/photos"
    )]
    Umount(Umount),
    /// Measure how the rate of a store varies, show it, and plan how many machines a rate needs. Needs no server.
    #[command(subcommand)]
    #[cfg(feature = "variation")]
    Variation(Variation),
    /// Check whether this machine has what Hekate needs, and print the fix for what it lacks.
    #[command(after_help = "Example: hekate doctor --json | jq '.checks[] | select(.state != \"good\")'")]
    Doctor,
    /// Print a script that makes a shell complete commands and options.
    #[command(after_help = documentation::COMPLETION_EXAMPLES)]
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Write the man pages into DIR/man1 and DIR/man8, for packages.
    #[command(hide = true)]
    Man {
        /// The directory; created if it does not exist.
        directory: PathBuf,
    },
}

const SERVE_EXAMPLES: &str = "\
Examples:
  hekate serve --detach                                   for this machine only
  hekate serve --detach --listen 0.0.0.0:7100             for other machines too, with TLS
  hekate serve --listen front=0.0.0.0:7100 --listen back=10.1.0.5:7101";

const STATUS_EXAMPLES: &str = "\
Examples:
  hekate status
  hekate status --watch          every two seconds, with the rates and latencies of the ops since the last look
  hekate status --watch 10 --json | jq -c .health    a JSON object a line
  hekate status --json | jq .ops";

const METRICS_EXAMPLES: &str = "\
Examples:
  hekate metrics | grep hekate_brick
  hekate serve --metrics 127.0.0.1:9464    lets Prometheus read them by HTTP";

impl Command {
    /// True for a command whose process serves until it is stopped and writes to sockets: SIGPIPE must not end it.
    pub fn goes_on(&self) -> bool {
        match self {
            Command::Serve(_) | Command::Mount(_) | Command::MountHelper(_) => true,
            Command::Coordinator(options) => options.command.is_none(),
            _ => false,
        }
    }
}

#[derive(Args, Debug)]
pub struct Status {
    /// Repeat every SECONDS until interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

#[derive(Args, Debug)]
pub struct Init {
    /// An empty directory on a disk of its own; name it once for each brick.
    #[arg(long = "brick", required = true, value_name = "DIR")]
    pub bricks: Vec<PathBuf>,
    /// The name of the pool.
    #[arg(long, default_value = "default")]
    pub pool: String,
    /// Make a volume of this name as well.
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Copies of everything in that volume.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub copies: u32,
    /// Size of each brick's journal, in MiB.
    #[arg(long, default_value_t = 128, value_name = "MIB", value_parser = clap::value_parser!(u64).range(32..=65_536))]
    pub journal: u64,
    /// Keep the cluster's records at a coordinator (`hekate coordinator`): its token, or unix:PATH on its own machine.
    #[arg(long, value_name = "TOKEN", conflicts_with = "etcd")]
    pub coordinator: Option<String>,
    /// Keep the cluster's records in an etcd that is there (version 3.4 or later) and that nothing else uses: the
    /// addresses of its members, separated by commas.
    #[arg(long, value_name = "https://HOST:2379,…")]
    pub etcd: Option<String>,
    /// With --etcd: certificates (PEM) of the authority that has signed those of etcd.
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_ca: Option<PathBuf>,
    /// With --etcd: the certificate (PEM) that servers show to etcd.
    #[arg(long, value_name = "FILE", requires_all = ["etcd", "etcd_key"])]
    pub etcd_cert: Option<PathBuf>,
    /// With --etcd: the key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires_all = ["etcd", "etcd_cert"])]
    pub etcd_key: Option<PathBuf>,
}

const JOIN_EXAMPLES: &str = "\
The first server listens where others reach it, and makes an invitation:
  hekate serve --detach --listen 10.0.0.1:7100
  hekate token create
On the second machine:
  hekate join TOKEN --brick /srv/disk3
  hekate serve --detach --listen 10.0.0.2:7100
A third vote for two servers, on any small machine (then `hekate coordinator etcd` there):
  hekate join TOKEN --witness
A second server on one machine needs no token: hekate --state /srv/b join unix:/run/hekate/server.sock --brick DIR";

#[derive(Args, Debug)]
pub struct Join {
    /// The line that `hekate token create` prints, or - to read it from the standard input; or unix:PATH, the socket of
    /// a server or coordinator of this machine.
    #[arg(value_name = "TOKEN")]
    pub invitation: String,
    /// An empty directory on a disk of its own; name it once for each brick.
    #[arg(long = "brick", required_unless_present = "witness", value_name = "DIR")]
    pub bricks: Vec<PathBuf>,
    /// Join without a brick, to hold a member of etcd only (`hekate coordinator etcd`): any small machine will do.
    #[arg(long, conflicts_with = "bricks")]
    pub witness: bool,
    /// The pool that the bricks are for.
    #[arg(long, default_value = "default")]
    pub pool: String,
    /// Size of each brick's journal, in MiB.
    #[arg(long, default_value_t = 128, value_name = "MIB", value_parser = clap::value_parser!(u64).range(32..=65_536))]
    pub journal: u64,
}

#[derive(Args, Debug)]
pub struct Serve {
    /// Listen at this address, with TLS, for clients and servers of other machines; may be given again, for further
    /// networks. The network `back` is for servers among themselves, every other one for clients [default network:
    /// front].
    #[arg(long, value_name = "[NETWORK=]ADDRESS:PORT", value_parser = address::listen)]
    pub listen: Vec<Listen>,
    /// Where others reach this server, if not at the address of --listen: behind address translation, or by a name; may
    /// be given again.
    #[arg(long, value_name = "[NETWORK=]HOST:PORT", value_parser = address::advertise)]
    pub advertise: Vec<Listen>,
    /// Join a cluster with this token (or unix:PATH), unless this server is a member of it already. A member that
    /// knows its coordinator no more names a server that does, or the coordinator: HOST:PORT or unix:PATH.
    #[arg(long, value_name = "TOKEN")]
    pub join: Option<String>,
    /// To join: an empty directory for a brick; may be given again.
    #[arg(long = "brick", value_name = "DIR", requires = "join")]
    pub bricks: Vec<PathBuf>,
    /// To join: the pool that the bricks are for.
    #[arg(long, default_value = "default", requires = "join")]
    pub pool: String,
    /// To join: size of each brick's journal, in MiB.
    #[arg(long, default_value_t = 128, value_name = "MIB", value_parser = clap::value_parser!(u64).range(32..=65_536))]
    pub journal: u64,
    /// Run without this brick, which cannot be opened; may be given again. Volumes with other copies are served from
    /// those.
    #[arg(long, value_name = "DIR")]
    pub without: Vec<PathBuf>,
    /// Serve counters and histograms to Prometheus at this address, path /metrics. Anybody who reaches the address can
    /// read them.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address::socket)]
    pub metrics: Option<SocketAddr>,
    /// Record ops that take longer than this, in ms (`hekate debug slow`, and a line in the log at most every second);
    /// 0: none.
    #[arg(long, default_value_t = 1000, value_name = "MILLISECONDS")]
    pub slow_op: u64,
    /// Mount a volume in the server's own process, as VOLUME:DIR or VOLUME:DIR:OPTIONS (those of `hekate mount`); may
    /// be given again. The fastest way to a volume on a machine that serves it. It is unmounted when the server stops.
    #[arg(long = "mount", value_name = "VOLUME:DIR")]
    pub mounts: Vec<OwnMount>,
    /// Run in the background once the server answers.
    #[arg(long)]
    pub detach: bool,
}

#[derive(Subcommand, Debug)]
pub enum Pool {
    /// All pools with their bricks.
    #[command(after_help = "Example: hekate pool list")]
    List,
    /// One pool.
    #[command(after_help = "Example: hekate pool show default")]
    Show {
        /// Its name.
        name: String,
    },
}

#[derive(Subcommand, Debug)]
pub enum Volume {
    /// Make a volume.
    #[command(after_help = "Example: hekate volume create photos --copies 2")]
    Create(VolumeCreate),
    /// All volumes.
    #[command(after_help = "Example: hekate volume list")]
    List,
    /// One volume: its policy, where its partitions are, and each way in which it promises less than the contract.
    #[command(after_help = "Example: hekate volume show photos")]
    Show {
        /// Its name.
        name: String,
    },
    /// Change a setting of a volume while it is used.
    Set {
        /// Its name.
        name: String,
        #[command(subcommand)]
        setting: VolumeSetting,
    },
    /// Delete a volume and everything in it.
    #[command(after_help = "Example: hekate volume delete photos --confirm photos")]
    Delete {
        /// Its name.
        name: String,
        /// The name once more: a deleted volume cannot be restored.
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
    },
}

#[derive(Args, Debug)]
pub struct VolumeCreate {
    /// Its name: letters, digits, dots, dashes, underlines.
    pub name: String,
    /// The pool that it is placed on.
    #[arg(long, default_value = "default")]
    pub pool: String,
    /// Copies of everything, each on another brick.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub copies: u32,
    /// What no two copies share [default: server if the pool has bricks on enough of them, else disk].
    #[arg(long, value_enum)]
    pub domain: Option<FailureDomain>,
    /// Number of copies that must be available; with fewer, clients wait [default: all but one].
    #[arg(long, value_name = "COPIES", value_parser = clap::value_parser!(u32).range(1..))]
    pub min_replicas: Option<u32>,
    /// Partitions that share the names of each directory made in the volume's root, such as a bucket: a power of two,
    /// at most the partitions of the ring (`hekate pool list`). More of them hold more names and take more creates a
    /// second; making, removing and changing such a directory involves all of them.
    #[arg(long, default_value_t = 1, value_name = "PARTITIONS")]
    pub spread: u32,
    /// How writes are replicated.
    #[arg(long, value_enum, default_value_t = VolumeMode::Hsr)]
    pub mode: VolumeMode,
    /// Mode afr: keep the lock for the next write.
    #[arg(long, requires = "mode", hide = !MEASURES)]
    pub eager_lock: bool,
    /// Mode afr: concurrent writes share a changelog entry; under an eager lock, later ones too.
    #[arg(long, requires = "mode", hide = !MEASURES)]
    pub piggyback: bool,
    /// Number of the server that leads all partitions of the volume while it is available, and has a copy of each. Mode
    /// bypass needs it.
    #[arg(long, value_name = "SERVER")]
    pub leader: Option<u32>,
    /// Number of a user that may open the volume besides root and its owner; may be given again.
    #[arg(long = "allow-uid", value_name = "UID", value_parser = uid)]
    pub allow_uids: Vec<u32>,
    /// Number of the user that owns the volume and its root directory [default: the user of this command].
    #[arg(long, value_name = "UID", value_parser = uid)]
    pub owner: Option<u32>,
}

/// A user's number.
fn uid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is no user's number from 0 to {}; `id -u NAME` prints it", u32::MAX))
}

/// True if this program has the modes that are for measuring. A program without them does not list their names and
/// options in its help, and parses them so that it can refuse them with the reason.
const MEASURES: bool = cfg!(feature = "measuring");

/// How a volume's writes are replicated.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeMode {
    /// Each write goes to the leader of its partition, and from there to the other replicas.
    Leader,
    /// High Speed Replication: overwrites of up to 64 KiB go to all replicas at once, one round trip instead of two,
    /// while all replicas are available and one client writes. The promises are those of mode leader.
    Hsr,
    /// UNSAFE: the leader acknowledges before the other replicas have the write. Acknowledged writes are lost with the
    /// leader's machine.
    Async,
    /// UNSAFE: as async, and one server (--leader) leads all of the volume.
    Bypass,
    /// For measuring: durable overwrites as GlusterFS's AFR does them, five round trips.
    #[value(hide = !MEASURES)]
    Afr,
    /// For measuring, UNSAFE: durable overwrites to all replicas at once, without stamps and lists: the lower bound of
    /// the latency.
    #[value(hide = !MEASURES)]
    FastPath,
}

impl VolumeCreate {
    /// The mode with its options.
    ///
    /// # Errors
    ///
    /// In words: an option of another mode is set.
    pub fn replication(&self) -> Result<hekate_proto::map::Mode, String> {
        use hekate_proto::map::Mode;
        let (eager_lock, piggyback) = (self.eager_lock, self.piggyback);
        if self.mode != VolumeMode::Afr && (eager_lock || piggyback) {
            return Err("--eager-lock and --piggyback are for --mode afr".into());
        }
        Ok(match self.mode {
            VolumeMode::Leader => Mode::Leader,
            VolumeMode::Hsr => Mode::Hsr,
            VolumeMode::Async => Mode::Async,
            VolumeMode::Bypass => Mode::Bypass,
            VolumeMode::Afr => Mode::Afr { eager_lock, piggyback },
            VolumeMode::FastPath => Mode::FastPath,
        })
    }
}

/// What may fail without taking more than one copy.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureDomain {
    /// A brick.
    Disk,
    /// A server with all of its bricks.
    Server,
}

impl From<FailureDomain> for hekate_control::Domain {
    fn from(domain: FailureDomain) -> Self {
        match domain {
            FailureDomain::Disk => hekate_control::Domain::Disk,
            FailureDomain::Server => hekate_control::Domain::Server,
        }
    }
}
