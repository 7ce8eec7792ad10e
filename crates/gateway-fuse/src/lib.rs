//! The POSIX door: a volume as a directory of this machine, over `/dev/fuse` (docs/adr/0001-fuse.md).
//!
//! The door is thin: it translates the kernel's requests into calls of `hekate_client` and keeps only what the kernel
//! remembers. It is strict unless [`MountOptions::cache`] asks for less: names and attributes are asked for each time,
//! and cached pages are dropped when the file has changed. Locks (flock, fcntl) hold between all
//! mounts.

mod abi;
mod buffers;
mod counters;
mod device;
mod directory;
mod encode;
mod filesystem;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod in_flight;
mod mount;
mod negotiate;
mod nodes;
mod removals;
mod removed_directory;
mod request;
mod session;
mod workers;

pub use counters::Counters;
pub use mount::{Change, MountedVolume, check, is_mounted, mounted_volumes, remount, remove_dead, unmount};

use filesystem::Filesystem;
use hekate_client::Volume;
use hekate_proto::Result;
use negotiate::Wishes;
use session::Session;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// How long the kernel may believe names and attributes without asking. Zero: never; changes by others show at once.
    pub cache: Duration,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Users besides the one who mounts may come in, as far as the modes of the files allow.
    pub allow_other: bool,
    /// Programs may have set-user-id and set-group-id (root's mounts only).
    pub set_id: bool,
    /// Device nodes lead to devices (root's mounts only).
    pub devices: bool,
    /// Programs can be started from it.
    pub execute: bool,
    /// Reading a file is recorded in its access time, as with relatime.
    pub access_times: bool,
    /// Files and directories can be opened by handles that outlive what the kernel remembers, as NFS servers do. Costs 40
    /// bytes for each inode that was ever looked up.
    pub export: bool,
    /// How long an op waits for a server that is away before it fails. `None`: for ever.
    pub soft: Option<Duration>,
    /// Requests that are answered at once.
    pub workers_max: usize,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            cache: Duration::ZERO,
            read_only: false,
            allow_other: false,
            set_id: false,
            devices: false,
            execute: true,
            access_times: true,
            export: false,
            soft: None,
            workers_max: 32,
        }
    }
}

/// A volume that is mounted. Dropped before its end it is unmounted.
pub struct Mounted {
    session: Arc<Session<Filesystem>>,
    counters: Arc<Counters>,
    mount_point: PathBuf,
    ended: AtomicBool,
}

/// Unmounts from another thread, for example on a signal.
#[derive(Debug, Clone)]
pub struct Unmounter(PathBuf);

/// Mounts a volume; `source` is what `mount` shows as such. The kernel waits with all requests but the first
/// until [`Mounted::run`].
///
/// As root with mount(2), else with fusermount3. Threads are started by `run`, so a program that wants to become a
/// daemon forks before it opens the volume.
pub fn mount(volume: Arc<Volume>, source: &str, mount_point: &Path, options: &MountOptions) -> Result<Mounted> {
    let mount_point = mount::check(mount_point)?;
    let device = mount::attach(source, &mount_point, options)?;
    let counters = Arc::<Counters>::default();
    let filesystem = Filesystem::new(volume, options);
    let session = Session::new(filesystem, device, options.workers_max, counters.clone());
    let mounted = Mounted { session, counters, mount_point, ended: AtomicBool::new(false) };
    let background_max = options.workers_max.clamp(1, usize::from(u16::MAX)) as u16;
    let wishes = Wishes { cache: !options.cache.is_zero(), export: options.export, background_max };
    let agreed = mounted.session.shake_hands(&wishes)?;
    mounted.session.answers().agreed(&agreed);
    Ok(mounted)
}

impl Mounted {
    /// Serves until the volume is unmounted.
    pub fn run(&self) -> Result<()> {
        let outcome = self.session.run();
        self.ended.store(outcome.is_ok(), Ordering::SeqCst);
        outcome
    }

    /// For signal handlers' threads.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(self.mount_point.clone())
    }

    /// Where, as an absolute path.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Requests so far; stays readable while `run` blocks.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Inodes that the kernel remembers, and threads at work.
    pub fn load(&self) -> (usize, usize) {
        (self.session.answers().node_count(), self.session.workers())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What is there after the end of ours is somebody else's.
        if !self.ended.load(Ordering::SeqCst) {
            let _ = unmount(&self.mount_point, true);
        }
    }
}

impl Unmounter {
    /// As [`unmount`].
    pub fn unmount(&self, lazy: bool) -> Result<()> {
        unmount(&self.0, lazy)
    }
}
