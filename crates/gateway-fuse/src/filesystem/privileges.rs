//! Clears set-user-id and set-group-id when an unprivileged caller changes a file (inode_drop_sgid and
//! `setattr_should_drop_sgid` of Linux).
//!
//! The servers clear set-user-id, and set-group-id if the group may execute the file. If it may not, set-group-id is
//! cleared only for callers outside of the file's group. FUSE does not send the groups, so they are read from /proc
//! for the few files with such a bit: these are marked in [`crate::nodes`] when their attributes are sent to the
//! kernel.

use super::{Caller, Filesystem};
use hekate_proto::{Attr, AttrChanges, Error, InodeId, NodeKind, Result};

/// CAP_FSETID, as a bit of a capability set (capabilities(7)).
const CAP_FSETID: u64 = 1 << 4;

const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// True if a file has set-group-id and its group may not execute it.
pub(crate) fn has_lone_set_group(attr: &Attr) -> bool {
    attr.kind != NodeKind::Directory && attr.mode & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID
}

/// Effective capabilities and groups of a calling thread, from `/proc/PID/status` (proc(5)).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Credentials {
    effective: u64,
    groups: Vec<u32>,
}

impl Credentials {
    /// `None` if the thread has ended or cannot be seen from this pid namespace.
    fn of(thread: u32) -> Option<Self> {
        let status = (thread != 0).then(|| std::fs::read_to_string(format!("/proc/{thread}/status")).ok())??;
        Self::parse(&status)
    }

    fn parse(status: &str) -> Option<Self> {
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        let effective = u64::from_str_radix(line("CapEff:")?.trim(), 16).ok()?;
        let groups = line("Groups:")?.split_ascii_whitespace().map(str::parse).collect::<std::result::Result<_, _>>();
        Some(Self { effective, groups: groups.ok()? })
    }
}

impl Filesystem {
    /// True if changes by the caller keep set-id bits, for requests that do not say so. The capability counts for
    /// root only: that of another user may apply to its user namespace alone.
    pub(super) fn may_keep_set_id(&self, caller: &Caller) -> bool {
        let has = |credentials: Credentials| credentials.effective & CAP_FSETID != 0;
        caller.uid == 0 && Credentials::of(caller.thread).is_none_or(has)
    }

    /// Called after a change of the file's content by a caller that may not keep set-id bits.
    pub(super) fn drop_group_bit(&self, caller: &Caller, inode: InodeId) -> Result<()> {
        if !self.nodes.is_set_group(inode.number()) {
            return Ok(());
        }
        let attr = self.volume.getattr(&caller.context, inode)?;
        self.without_group_bit(caller, &attr).map(|_| ())
    }

    /// Clears the bits of a file with these attributes, if the caller is outside of its group. Returns the new
    /// attributes if they changed.
    pub(super) fn without_group_bit(&self, caller: &Caller, attr: &Attr) -> Result<Option<Attr>> {
        if !has_lone_set_group(attr) || !is_outsider(caller, attr.gid) {
            return Ok(None);
        }
        let mode = attr.mode & !(SET_USER_ID | SET_GROUP_ID);
        let changes = AttrChanges { mode: Some(mode), ..AttrChanges::default() };
        let after = match self.volume.setattr(&caller.context, attr.id, changes) {
            Err(Error::Stale) => return Ok(None),
            after => after?,
        };
        self.nodes.note_attr(&after);
        Ok(Some(after))
    }

    /// The mode after a change of owner, if it must clear a set-group-id bit that the servers would keep.
    pub(super) fn mode_after_chown(&self, caller: &Caller) -> Result<Option<u16>> {
        if !self.nodes.is_set_group(caller.inode.number()) || self.may_keep_set_id(caller) {
            return Ok(None);
        }
        let attr = self.volume.getattr(&caller.context, caller.inode)?;
        let goes = has_lone_set_group(&attr) && is_outsider(caller, attr.gid);
        Ok(goes.then_some(attr.mode & !(SET_USER_ID | SET_GROUP_ID)))
    }
}

/// True if the caller is not in the group, or if its groups cannot be read.
fn is_outsider(caller: &Caller, gid: u32) -> bool {
    caller.gid != gid && Credentials::of(caller.thread).is_none_or(|known| !known.groups.contains(&gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_from_a_status() {
        let status = "Name:\tx\nGroups:\t5 100 \nCapInh:\t0\nCapEff:\t000001ffffffffff\n";
        let known = Credentials::parse(status).unwrap();
        assert_eq!((known.groups, known.effective & CAP_FSETID), (vec![5, 100], CAP_FSETID));
        let none = Credentials::parse("Groups:\t\nCapEff:\t0000000000000000\n");
        assert_eq!(none, Some(Credentials::default()));
        assert_eq!([Credentials::parse(""), Credentials::parse("Groups:\tx\nCapEff:\t0\n")], [None, None]);
        assert!(Credentials::of(std::process::id()).is_some());
        assert_eq!(Credentials::of(0), None);
    }
}
