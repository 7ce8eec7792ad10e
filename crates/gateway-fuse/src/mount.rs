//! Mounting and unmounting: with mount(2) for root, with fusermount3 for other users.

mod flags;
mod fusermount;
mod table;

pub use flags::Change;

use crate::MountOptions;
use crate::device::{Device, PATH};
use crate::negotiate::IO_BYTES;
use hekate_proto::{Error, Result};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::CString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file system type that `mount` and `/proc/mounts` show.
const TYPE: &str = "fuse.hekate";

/// How far the kernel reads ahead, in KiB.
const READ_AHEAD_KIB: u32 = 512;

/// Mounts, and returns the connection to the kernel.
pub(crate) fn attach(volume_name: &str, mount_point: &Path, options: &MountOptions) -> Result<Device> {
    if is_root() {
        direct(volume_name, mount_point, options)
    } else {
        fusermount::attach(volume_name, mount_point, options)
    }
}

/// The absolute path of the mount point.
///
/// # Errors
/// It does not exist, is not a directory, cannot be accessed, or has a Hekate volume mounted. The text names the fix.
pub fn check(mount_point: &Path) -> Result<PathBuf> {
    let shown = mount_point.display();
    let found = std::fs::metadata(mount_point).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Error::invalid(format!("the mount point {shown} does not exist; make it with: mkdir -p {shown}"))
        }
        ErrorKind::NotConnected => Error::invalid(format!(
            "a mount whose process is gone is still at {shown}; remove it with: umount --lazy {shown}"
        )),
        ErrorKind::PermissionDenied => Error::Denied {
            what: format!("the mount point {shown}: permission denied; check the modes of the directories above it"),
        },
        _ => Error::io(format!("the mount point {shown}"), error),
    })?;
    if !found.is_dir() {
        return Err(Error::invalid(format!("the mount point {shown} is not a directory")));
    }
    let absolute = absolute(mount_point)?;
    match table::mounted_at(&absolute)? {
        Some(mount) if mount.kind == TYPE => Err(Error::invalid(format!(
            "volume {:?} is mounted at {shown} already; unmount it first with: hekate umount {shown}",
            mount.source
        ))),
        _ => Ok(absolute),
    }
}

/// True if a Hekate volume is mounted there, also if its process has ended.
///
/// # Errors
/// `Io` if the mount table cannot be read.
pub fn is_mounted(mount_point: &Path) -> Result<bool> {
    Ok(ours_at(&absolute(mount_point)?)?.is_some())
}

/// A Hekate mount on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedVolume {
    /// The mount point.
    pub directory: PathBuf,
    /// The source of the mount as the user wrote it: a volume, with or without the address of a server.
    pub source: String,
}

/// All Hekate mounts in this mount namespace, in the order of mounting. Of several mounts at one directory only the
/// topmost is listed.
///
/// # Errors
/// `Io` if the mount table cannot be read.
pub fn mounted_volumes() -> Result<Vec<MountedVolume>> {
    let mut found: Vec<MountedVolume> = Vec::new();
    for (directory, mount) in table::all()? {
        found.retain(|known| known.directory != directory);
        if mount.kind == TYPE {
            found.push(MountedVolume { directory, source: mount.source });
        }
    }
    Ok(found)
}

/// Removes Hekate mounts whose process has ended from this directory. True if there was one.
///
/// # Errors
/// `Io` if the mount table cannot be read; those of [`unmount`].
pub fn remove_dead(mount_point: &Path) -> Result<bool> {
    let mut removed = false;
    while is_dead(mount_point) {
        let absolute = absolute(mount_point)?;
        if ours_at(&absolute)?.is_none() {
            break;
        }
        unmount(&absolute, true)?;
        removed = true;
    }
    Ok(removed)
}

/// True if the process of a mount has ended: the kernel returns ECONNABORTED while it ends, and ENOTCONN afterwards.
fn is_dead(mount_point: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    // The kernel may have attributes of its root that are still valid: it is made to ask.
    let asked = statx(CWD, mount_point, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    asked.is_err_and(|errno| [Errno::NOTCONN, Errno::CONNABORTED].contains(&errno))
}

fn ours_at(absolute: &Path) -> Result<Option<table::Mount>> {
    Ok(table::mounted_at(absolute)?.filter(|mount| mount.kind == TYPE))
}

/// Changes the flags of a mounted Hekate volume. Flags that `change` leaves out stay as they are.
///
/// # Errors
/// `Invalid` if no Hekate volume is mounted there, `Denied` if the user is not root, `Unavailable` if files are open
/// for writing.
pub fn remount(mount_point: &Path, change: &Change) -> Result<()> {
    let shown = mount_point.display();
    let absolute = absolute(mount_point)?;
    let Some(mount) = ours_at(&absolute)? else {
        return Err(Error::invalid(format!("no Hekate volume is mounted at {shown}, so there is nothing to remount")));
    };
    let flags = change.applied_to(&mount)?;
    rustix::mount::mount_remount(&absolute, flags, "").map_err(|errno| match errno {
        Errno::PERM => Error::Denied { what: format!("remount {shown}: only root may change how it is mounted") },
        Errno::BUSY => Error::Unavailable {
            what: format!("{shown}: files are open for writing; see by whom with: fuser -vm {shown}"),
        },
        other => Error::io(format!("remount {shown}"), other.into()),
    })
}

/// Unmounts a Hekate volume. `lazy`: detaches it at once, and ends it when its current users are done.
///
/// # Errors
/// `Invalid` if no Hekate volume is mounted there, `Unavailable` if it is in use.
pub fn unmount(mount_point: &Path, lazy: bool) -> Result<()> {
    let shown = mount_point.display();
    let absolute = absolute(mount_point)?;
    match table::mounted_at(&absolute)? {
        Some(mount) if mount.kind == TYPE => {}
        Some(mount) => return Err(Error::invalid(format!("{shown} is a mount of {}, not of Hekate", mount.kind))),
        None => return Err(Error::invalid(format!("nothing is mounted at {shown}"))),
    }
    if !is_root() {
        return fusermount::detach(&absolute, lazy);
    }
    let lazily = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(&absolute, UnmountFlags::NOFOLLOW | lazily).map_err(|errno| match errno {
        Errno::BUSY => busy(&absolute),
        other => Error::io(format!("unmount {shown}"), other.into()),
    })
}

fn busy(mount_point: &Path) -> Error {
    let shown = mount_point.display();
    Error::Unavailable {
        what: format!("{shown} is in use; see by whom with: fuser -vm {shown}; or unmount with --lazy"),
    }
}

/// The absolute path of a mount point, also of a dead mount, which has no attributes.
fn absolute(mount_point: &Path) -> Result<PathBuf> {
    let full = std::path::absolute(mount_point)
        .map_err(|error| Error::io(format!("the path {}", mount_point.display()), error))?;
    if let Ok(canonical) = full.canonicalize() {
        return Ok(canonical);
    }
    let parent = full.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, full.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.join(name)),
        _ => Ok(full),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn direct(volume_name: &str, mount_point: &Path, options: &MountOptions) -> Result<Device> {
    let device = rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(no_device)?;
    let data = data(device.as_raw_fd(), options);
    let data = CString::new(data).map_err(|_| Error::bug("the mount options contain a NUL"))?;
    rustix::mount::mount(volume_name, mount_point, TYPE, flags::of(options), data.as_c_str()).map_err(|errno| {
        let doing = format!("mount {volume_name} on {}", mount_point.display());
        match errno {
            Errno::PERM => Error::Denied { what: format!("{doing}: root lacks CAP_SYS_ADMIN here (a container?)") },
            Errno::NODEV => {
                Error::NotSupported { what: format!("{doing}: the kernel has no FUSE; try: modprobe fuse") }
            }
            other => Error::io(doing, other.into()),
        }
    })?;
    Ok(Device(device))
}

/// Has the kernel read ahead further. It lets a FUSE server ask for 128 KiB at most; more is a file of sysfs, which root
/// may write unless a container hides it.
pub(crate) fn read_ahead(mount_point: &Path) {
    let Ok(Some(mount)) = ours_at(mount_point) else { return };
    let path = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    if let Err(error) = std::fs::write(&path, READ_AHEAD_KIB.to_string()) {
        log::debug!("{path} stays as it is, so streams are read in smaller pieces: {error}");
    }
}

fn no_device(errno: Errno) -> Error {
    match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => Error::NotSupported {
            what: format!("{PATH} is missing; load the module with: modprobe fuse (in a container: --device {PATH})"),
        },
        other => Error::io(format!("open {PATH}"), other.into()),
    }
}

/// The options of mount(2) for FUSE (fuse(4)).
fn data(device: i32, options: &MountOptions) -> String {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let others = if options.allow_other { ",allow_other" } else { "" };
    format!(
        "fd={device},rootmode=40000,user_id={user},group_id={group},default_permissions,max_read={IO_BYTES}{others}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_that_cannot_be_is_refused_with_the_fix() {
        let missing = check(Path::new("/nonexistent/hekate")).unwrap_err();
        assert!(missing.to_string().contains("mkdir -p /nonexistent/hekate"), "{missing}");
        let file = check(Path::new("/etc/hostname")).unwrap_err();
        assert!(file.to_string().contains("not a directory"), "{file}");
        assert!(check(Path::new("/tmp")).unwrap().is_absolute());
    }

    #[test]
    fn only_our_mounts_are_unmounted() {
        let foreign = unmount(Path::new("/proc"), false).unwrap_err();
        assert!(foreign.to_string().contains("not of Hekate"), "{foreign}");
        let nothing = unmount(Path::new("/nonexistent/hekate"), false).unwrap_err();
        assert!(nothing.to_string().contains("nothing is mounted"), "{nothing}");
    }

    #[test]
    fn only_our_dead_mounts_are_removed() {
        assert!(!remove_dead(Path::new("/proc")).unwrap());
        assert!(!remove_dead(Path::new("/nonexistent/hekate")).unwrap());
        assert!(!is_mounted(Path::new("/proc")).unwrap());
        let foreign = remount(Path::new("/proc"), &Change::default()).unwrap_err();
        assert!(foreign.to_string().contains("nothing to remount"), "{foreign}");
    }

    #[test]
    fn options_become_data() {
        let safe = MountOptions::default();
        assert!(!data(5, &safe).contains("allow_other"));
        let open = MountOptions { allow_other: true, ..safe };
        assert!(data(5, &open).starts_with("fd=5,rootmode=40000,") && data(5, &open).ends_with(",allow_other"));
    }
}
