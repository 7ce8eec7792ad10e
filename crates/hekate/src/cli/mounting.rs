//! How to mount: `hekate mount`, `hekate umount`, and what mount(8) calls as `mount.hekate`.

mod options;
mod own;
mod source;

pub use options::{Options, rows as mount_options};
pub use own::OwnMount;
pub use source::Source;

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Mount {
    /// The volume: NAME, or SERVER/NAME, where SERVER is ADDRESS:PORT or unix:PATH.
    pub source: Source,
    /// An existing directory.
    pub directory: PathBuf,
    /// Options, separated by commas, as listed below; may be given again.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub options: Vec<Options>,
    /// Let the kernel cache names, attributes and pages for this time. Weaker than the contract: changes by other
    /// clients become visible up to that much later. As -o cache=SECONDS.
    #[arg(long, value_name = "SECONDS", value_parser = options::seconds)]
    pub cache: Option<std::time::Duration>,
    /// Mount read-only. As -o ro.
    #[arg(long)]
    pub read_only: bool,
    /// Give other users access, as file permissions allow (always so for root's mounts). As -o allow_other.
    #[arg(long)]
    pub allow_other: bool,
    /// Log a line of JSON for every op and its outcome, as the translator trace does.
    #[arg(long)]
    pub trace: bool,
    /// Stay in the foreground.
    #[arg(long)]
    pub foreground: bool,
}

impl Mount {
    /// The union of `-o` and the single options.
    pub fn all(&self) -> Options {
        let mut all = self.options.iter().fold(Options::default(), |all, more| all.and(more));
        all.cache = self.cache.or(all.cache);
        all.allow_other |= self.allow_other;
        if self.read_only {
            all.change.read_only = Some(true);
        }
        all
    }
}

#[derive(Args, Debug)]
pub struct Umount {
    /// The directory of the mount; or the volume, if it is mounted once.
    #[arg(value_name = "DIRECTORY or VOLUME")]
    pub directory: PathBuf,
    /// Detach the mount at once, even if it is in use; open files stay usable until they are closed.
    #[arg(long)]
    pub lazy: bool,
}

/// The command line by which mount(8) calls a helper: `mount.hekate SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS]
/// [-t TYPE]`.
#[derive(Args, Debug)]
pub struct MountHelper {
    /// The volume: NAME, or SERVER/NAME, where SERVER is ADDRESS:PORT or unix:PATH.
    pub source: Source,
    /// An existing directory.
    pub directory: PathBuf,
    /// Options, separated by commas, as in `hekate mount --help`.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Ignore options that are not known.
    #[arg(short = 's')]
    pub sloppy: bool,
    /// Check everything, and mount nothing.
    #[arg(short = 'f')]
    pub fake: bool,
    /// Accepted for mount(8); no table of mounts is written in any case.
    #[arg(short = 'n')]
    pub no_table: bool,
    /// Print what was done.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Refused: mount from within the namespace instead.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Accepted for mount(8): hekate or fuse.hekate.
    #[arg(short = 't', value_name = "TYPE")]
    pub kind: Option<String>,
}

/// The text of `hekate mount --help` below the arguments.
pub fn mount_help() -> String {
    format!("{EXAMPLES}\n\nOptions (-o), as in /etc/fstab:\n{}\n\n{AFTER}", options::help())
}

const EXAMPLES: &str = "\
Examples:
  hekate mount photos /mnt/photos
  hekate mount -o ro,noexec photos /mnt/photos
  hekate mount unix:/run/hekate/server.sock/photos /mnt/photos
  hekate mount -o remount,ro photos /mnt/photos
From another machine, with a credential of `hekate client create`:
  hekate mount --credential web1.hekate photos /mnt/photos
By mount(8), once `hekate doctor` finds the mount helper, and as a line of /etc/fstab:
  mount -t hekate photos /mnt/photos
  photos  /mnt/photos  hekate  _netdev,nofail  0 0
  photos  /mnt/photos  hekate  _netdev,nofail,credential=/etc/hekate/web1.hekate  0 0";

const AFTER: &str = "\
If the process of a mount was killed, mounting there again removes its remains.

Exit status: 0 mounted; 64 wrong use; 69 no server, or files are open (remount); 77 not permitted.";
