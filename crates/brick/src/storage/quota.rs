//! Disk quotas of the user and the group that this process runs as (quotactl(2)).
//!
//! statvfs(2) reports only project quotas. Root may exceed quotas, so none apply to it.

use super::Space;
use nix::sys::quota::{Dqblk, QuotaType, quotactl_get};
use std::path::{Path, PathBuf};

/// Quota limits are counted in blocks of this size (`QIF_DQBLKSIZE`), usage in bytes.
const QUOTA_BLOCK_BYTES: u64 = 1024;

/// The quotas that apply to this process on a file system.
pub struct Quotas {
    /// The block device of the file system; `None`: no quota applies.
    device: Option<PathBuf>,
    user: i32,
    group: i32,
}

impl Quotas {
    /// No quota applies.
    pub fn none() -> Self {
        Self { device: None, user: 0, group: 0 }
    }

    /// The quotas of the file system that a directory is on.
    pub fn of(directory: &Path) -> Self {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        if user.is_root() {
            return Self::none();
        }
        Self { device: device_of(directory), user: user.as_raw() as i32, group: group.as_raw() as i32 }
    }

    /// `space`, with its free bytes and files reduced to what these quotas leave.
    pub fn limit(&self, space: Space) -> Space {
        let Some(device) = &self.device else { return space };
        let quota = |kind, id| quotactl_get(kind, device.as_path(), id).ok();
        let bound = [quota(QuotaType::USRQUOTA, self.user), quota(QuotaType::GRPQUOTA, self.group)];
        bound.iter().flatten().fold(space, |space, quota| limited(space, &Limits::of(quota)))
    }
}

/// A quota; `None`: no limit.
struct Limits {
    bytes: Option<u64>,
    bytes_used: u64,
    files: Option<u64>,
    files_used: u64,
}

impl Limits {
    fn of(quota: &Dqblk) -> Self {
        let set = |limit: Option<u64>| limit.filter(|limit| *limit > 0);
        Self {
            bytes: set(quota.blocks_hard_limit()).map(|blocks| blocks.saturating_mul(QUOTA_BLOCK_BYTES)),
            bytes_used: quota.occupied_space().unwrap_or(0),
            files: set(quota.inodes_hard_limit()),
            files_used: quota.allocated_inodes().unwrap_or(0),
        }
    }
}

fn limited(mut space: Space, limits: &Limits) -> Space {
    if let Some(bytes) = limits.bytes {
        let left = bytes.saturating_sub(limits.bytes_used);
        space.total = space.total.min(bytes);
        (space.free, space.available) = (space.free.min(left), space.available.min(left));
    }
    if let Some(files) = limits.files {
        let left = files.saturating_sub(limits.files_used);
        space.files = if space.files == 0 { files } else { space.files.min(files) };
        space.files_available = space.files_available.min(left);
    }
    space
}

/// The block device that is mounted where a directory is (proc(5), `mountinfo`); `None` if it is no block device.
fn device_of(directory: &Path) -> Option<PathBuf> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let mount = statx(CWD, directory, AtFlags::empty(), StatxFlags::MNT_ID).ok()?.stx_mnt_id;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&mount.to_string()))?;
    let source = line.split(" - ").nth(1)?.split(' ').nth(1)?;
    source.starts_with("/dev/").then(|| source.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_leaves_less_than_the_file_system_has() {
        let space = Space { total: 1000, free: 900, available: 800, files: 100, files_available: 90 };
        let none = Limits { bytes: None, bytes_used: 7, files: None, files_used: 7 };
        assert_eq!(limited(space, &none), space);
        let both = Limits { bytes: Some(500), bytes_used: 450, files: Some(20), files_used: 19 };
        let wanted = Space { total: 500, free: 50, available: 50, files: 20, files_available: 1 };
        assert_eq!(limited(space, &both), wanted);
        let exceeded = Limits { bytes: Some(500), bytes_used: 600, files: Some(20), files_used: 30 };
        assert_eq!(limited(space, &exceeded).available, 0);
        assert_eq!(limited(Space::of_bytes(10, 10), &both).files_available, 1, "where the file system counts none");
    }
}
