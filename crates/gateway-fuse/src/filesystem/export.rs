//! Look-ups of `.` and `..`, by which the kernel resolves file handles (name_to_handle_at(2), NFS servers) of inodes
//! that it has forgotten. A handle contains the node; [`crate::nodes`] keeps the rest of the inode id while the
//! volume is mounted.

use super::{Caller, Filesystem};
use crate::encode::Outcome;
use hekate_proto::Error;
use rustix::io::Errno;

impl Filesystem {
    /// The inode of a handle, if it still exists.
    pub(super) fn lookup_self(&self, caller: &Caller) -> Outcome {
        match self.volume.getattr(&caller.context, caller.inode) {
            Ok(attr) => self.entry(&attr),
            Err(Error::NotFound | Error::Stale) => {
                self.nodes.remove_gone(caller.inode.number());
                Err(Errno::STALE.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The parent of a directory that a handle led to: the kernel needs the path from the root.
    pub(super) fn lookup_parent(&self, caller: &Caller) -> Outcome {
        let attr = self.volume.parent(&caller.context, caller.inode)?;
        self.entry(&attr)
    }
}
