//! The POSIX gateway: a volume as a directory of this machine, over `/dev/fuse` (docs/adr/0001-fuse.md).
//!
//! The gateway is thin: it translates the kernel's requests into calls of `hekate_client` and keeps only what belongs
//! to the kernel's cache of inodes. It is strict unless [`MountOptions::cache`] allows otherwise: names and
//! attributes are requested each time, and cached pages are dropped when the file has changed. Locks (flock, fcntl)
//! apply between all mounts.
//!
//! Read in this order: `session` and `workers` (reading and answering requests), `ring` and `session/over_rings` (the
//! same over io_uring), `request` (parsing), `filesystem` (execution), `nodes` (inodes that the kernel knows).

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
mod kept_pages;
mod mount;
mod negotiate;
mod nodes;
mod passed_names;
mod recalls;
mod removals;
mod removed_directory;
mod request;
mod ring;
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

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// How long the kernel may use names and attributes without a request. Zero: never, so changes by other mounts
    /// are visible at once.
    pub cache: Duration,
    /// The mount is read-only.
    pub read_only: bool,
    /// Other users than the one who mounts may use the mount, as far as the modes of the files allow.
    pub allow_other: bool,
    /// Set-user-id and set-group-id bits of programs take effect (mounts by root only).
    pub set_id: bool,
    /// Device nodes give access to devices (mounts by root only).
    pub devices: bool,
    /// Programs can be executed.
    pub execute: bool,
    /// Reads change times of access, as with relatime.
    pub access_times: bool,
    /// File handles (name_to_handle_at(2), NFS servers) remain valid after the kernel has forgotten their inodes.
    /// Costs 48 bytes for each inode that was ever looked up.
    pub export: bool,
    /// How long an op waits for an unavailable server before it fails. `None`: without limit.
    pub soft: Option<Duration>,
    /// Requests come over io_uring if the kernel offers it, otherwise over `/dev/fuse`.
    pub rings: bool,
    /// Most requests that are executed at once.
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
            rings: true,
            workers_max: 32,
        }
    }
}

/// A mounted volume. It is unmounted when this is dropped before the mount has ended.
pub struct Mounted {
    session: Arc<Session<Filesystem>>,
    counters: Arc<Counters>,
    mount_point: PathBuf,
    ended: AtomicBool,
}

/// Unmounts from another thread, for example on a signal.
#[derive(Debug, Clone)]
pub struct Unmounter(PathBuf);

/// Mounts a volume. `source` is what `mount` shows as the source. The kernel waits with all requests but the first
/// until [`Mounted::run`].
///
/// Root mounts with mount(2), other users with fusermount3. Threads are started by `run`, so a program that becomes a
/// daemon forks before it opens the volume.
///
/// # Errors
/// `Invalid` if the mount point is unsuitable, `Denied` if the user may not mount, `NotSupported` without FUSE or
/// with a kernel older than Linux 5.4. The text names the fix.
pub fn mount(volume: Arc<Volume>, source: &str, mount_point: &Path, options: &MountOptions) -> Result<Mounted> {
    let mount_point = mount::check(mount_point)?;
    let device = mount::attach(source, &mount_point, options)?;
    let counters = Arc::<Counters>::default();
    let pledged = volume.pledges().is_used();
    let filesystem = Filesystem::new(volume, options);
    let session = Session::new(filesystem, device, options.workers_max, counters.clone());
    let mounted = Mounted { session, counters, mount_point, ended: AtomicBool::new(false) };
    let background_max = options.workers_max.clamp(1, usize::from(u16::MAX)) as u16;
    let (cache, export, rings) = (!options.cache.is_zero(), options.export, options.rings);
    let wishes = Wishes { cache, pledged, export, rings, background_max };
    let agreed = mounted.session.handshake(&wishes)?;
    mounted.session.handler().note_agreed(&agreed);
    mount::read_ahead(&mounted.mount_point);
    recalls::pass_on_recalls(&mounted.session);
    Ok(mounted)
}

impl Mounted {
    /// Serves requests until the volume is unmounted.
    ///
    /// # Errors
    /// The device failed; the mount is to be removed.
    pub fn run(&self) -> Result<()> {
        let outcome = self.session.run();
        self.ended.store(outcome.is_ok(), Ordering::SeqCst);
        outcome
    }

    /// A handle to unmount from the thread of a signal handler.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(self.mount_point.clone())
    }

    /// The mount point, as an absolute path.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Counters of requests, readable while `run` blocks.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Number of inodes that the kernel knows, and of worker threads.
    pub fn load(&self) -> (usize, usize) {
        (self.session.handler().node_count(), self.session.worker_count())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After this mount has ended, whatever is mounted there belongs to another process.
        if !self.ended.load(Ordering::SeqCst) {
            let _ = unmount(&self.mount_point, true);
        }
    }
}

impl Unmounter {
    /// As [`unmount`].
    ///
    /// # Errors
    /// Those of [`unmount`].
    pub fn unmount(&self, lazy: bool) -> Result<()> {
        unmount(&self.0, lazy)
    }
}
