//! What was lost before it was on stable storage: each open file is told once, by fsync(2) or close(2), as after a failed
//! write of a local file system (EIO).

use super::{Caller, Filesystem};
use crate::encode::Outcome;
use bytes::Bytes;
use hekate_proto::{Error, InodeId};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// Files that lost something, and which of their handles know it.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// There has been one.
    any: AtomicBool,
    told: Mutex<HashMap<InodeId, HashSet<u64>>>,
}

impl Losses {
    /// It is found through a handle, which is told.
    fn found(&self, inode: InodeId, handle: u64) {
        self.any.store(true, Ordering::Release);
        self.told.lock().insert(inode, HashSet::from([handle]));
    }

    /// Whether a handle that was open then is still to be told; now it is.
    fn tell(&self, inode: InodeId, handle: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.told.lock().get_mut(&inode).is_some_and(|told| told.insert(handle))
    }

    /// Who opens afterwards need not be told.
    pub fn opened(&self, inode: InodeId, handle: u64) {
        self.tell(inode, handle);
    }

    /// Nobody has it open any more.
    pub fn closed(&self, inode: InodeId) {
        if self.any.load(Ordering::Acquire) {
            self.told.lock().remove(&inode);
        }
    }
}

impl Filesystem {
    pub(super) fn fsync(&self, caller: &Caller, handle: u64) -> Outcome {
        match self.volume.fsync(&caller.context, caller.inode) {
            Err(error @ Error::Lost { .. }) => {
                log::error!("{error}");
                self.losses.found(caller.inode, handle);
                Err(error.into())
            }
            // All that was changed in a directory that is gone went with it.
            Err(Error::Stale | Error::NotFound) if self.nodes.with_gone(caller.inode, |_| ()).is_some() => {
                Ok(Bytes::new())
            }
            Err(error) => Err(error.into()),
            Ok(()) => self.tell_loss(caller.inode, handle),
        }
    }

    /// As far as it is known without asking a server.
    pub(super) fn flush_losses(&self, caller: &Caller, handle: u64) -> Outcome {
        if self.volume.is_lost(caller.inode) {
            self.losses.found(caller.inode, handle);
            return Err(Errno::IO.into());
        }
        self.tell_loss(caller.inode, handle)
    }

    fn tell_loss(&self, inode: InodeId, handle: u64) -> Outcome {
        if self.losses.tell(inode, handle) { Err(Errno::IO.into()) } else { Ok(Bytes::new()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handle_that_was_open_is_told_once() {
        let losses = Losses::default();
        let (inode, other) = (InodeId::new(1, 1, 1), InodeId::new(1, 1, 2));
        assert!(!losses.tell(inode, 1), "nothing was lost");
        losses.found(inode, 1);
        losses.opened(inode, 3);
        assert_eq!([1, 2, 2, 3].map(|handle| losses.tell(inode, handle)), [false, true, false, false]);
        assert!(!losses.tell(other, 1));
        // Another one: all are told again.
        losses.found(inode, 2);
        assert_eq!([1, 2, 3].map(|handle| losses.tell(inode, handle)), [true, false, true]);
        losses.closed(inode);
        assert!(!losses.tell(inode, 4));
    }
}
