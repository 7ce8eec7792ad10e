//! Look-ups of `.` and `..`: how the kernel finds inodes by handles (name_to_handle_at(2), NFS servers) that it has
//! forgotten since. A handle has the node; [`crate::nodes`] keeps the rest of the inode's id for as long as it is mounted.

use super::{Caller, Filesystem};
use crate::encode::Outcome;
use hekate_proto::Error;
use rustix::io::Errno;

impl Filesystem {
    /// What a handle leads to, if it is still there.
    pub(super) fn lookup_self(&self, caller: &Caller) -> Outcome {
        match self.volume.getattr(&caller.context, caller.inode) {
            Ok(attr) => self.entry(&attr),
            Err(Error::NotFound | Error::Stale) => {
                self.nodes.gone(caller.inode.number());
                Err(Errno::STALE.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Where a directory lies that a handle led to: the kernel wants the way to it from the root.
    pub(super) fn lookup_parent(&self, caller: &Caller) -> Outcome {
        let attr = self.volume.parent(&caller.context, caller.inode)?;
        self.entry(&attr)
    }
}
