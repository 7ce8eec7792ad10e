//! Mount flags that the kernel itself enforces: read-only, and what programs and device nodes may do.

use super::table::Mount;
use crate::MountOptions;
use hekate_proto::{Error, Result};
use rustix::mount::MountFlags;

/// Flags for mount(2).
pub(super) fn of(options: &MountOptions) -> MountFlags {
    let all = [
        (options.read_only, MountFlags::RDONLY),
        (!options.set_id, MountFlags::NOSUID),
        (!options.devices, MountFlags::NODEV),
        (!options.execute, MountFlags::NOEXEC),
        (!options.access_times, MountFlags::NOATIME),
    ];
    all.into_iter().filter_map(|(wanted, flag)| wanted.then_some(flag)).collect()
}

/// The options in the words of mount(8), where they differ from the default.
pub(super) fn words(options: &MountOptions) -> impl Iterator<Item = &'static str> {
    let all = [
        (options.read_only, "ro"),
        (options.set_id, "suid"),
        (options.devices, "dev"),
        (!options.execute, "noexec"),
        (!options.access_times, "noatime"),
    ];
    all.into_iter().filter_map(|(wanted, word)| wanted.then_some(word))
}

/// Changes for a remount. `None`: unchanged. Fields as in [`MountOptions`].
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct Change {
    pub read_only: Option<bool>,
    pub set_id: Option<bool>,
    pub devices: Option<bool>,
    pub execute: Option<bool>,
    pub access_times: Option<bool>,
}

impl Change {
    /// The flags after the change: mount(2) sets all flags, so the unchanged ones are included.
    pub(super) fn applied_to(&self, now: &Mount) -> Result<MountFlags> {
        let access_times = !now.has("noatime");
        if self.access_times.is_some_and(|wanted| wanted != access_times) {
            return Err(Error::invalid(
                "noatime and relatime cannot be changed by a remount; unmount, and choose when mounting".to_string(),
            ));
        }
        Ok(of(&MountOptions {
            read_only: self.read_only.unwrap_or(now.has("ro")),
            set_id: self.set_id.unwrap_or(!now.has("nosuid")),
            devices: self.devices.unwrap_or(!now.has("nodev")),
            execute: self.execute.unwrap_or(!now.has("noexec")),
            access_times,
            ..MountOptions::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags_and_words() {
        let safe = MountOptions::default();
        assert_eq!(of(&safe), MountFlags::NOSUID | MountFlags::NODEV);
        assert_eq!(words(&safe).count(), 0);
        let open = MountOptions { set_id: true, devices: true, read_only: true, ..safe };
        assert_eq!(of(&open), MountFlags::RDONLY);
        assert_eq!(words(&open).collect::<Vec<_>>(), ["ro", "suid", "dev"]);
    }

    #[test]
    fn a_change_leaves_the_rest_as_it_is() {
        let options = ["rw", "nosuid", "noexec", "relatime", "user_id=0"].map(String::from).to_vec();
        let now = Mount { device: "0:35".into(), kind: "fuse.hekate".into(), source: "v".into(), options };
        let change = Change { read_only: Some(true), ..Change::default() };
        let wanted = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
        assert_eq!(change.applied_to(&now).unwrap(), wanted);
        let change = Change { execute: Some(true), devices: Some(false), ..Change::default() };
        assert_eq!(change.applied_to(&now).unwrap(), MountFlags::NOSUID | MountFlags::NODEV);
        let refused = Change { access_times: Some(false), ..Change::default() }.applied_to(&now).unwrap_err();
        assert!(refused.to_string().contains("when mounting"), "{refused}");
    }
}
