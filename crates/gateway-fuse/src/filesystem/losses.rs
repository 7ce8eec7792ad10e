//! Changes that were lost before they were on stable storage. Each open file gets one EIO, from fsync(2) or close(2),
//! as after a failed write-back of a local file system.

use super::{Caller, Filesystem};
use crate::encode::Outcome;
use bytes::Bytes;
use hekate_proto::{Error, InodeId};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// Files with losses, and the handles that have got the error.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// True if there was a loss at all.
    any: AtomicBool,
    reported: Mutex<HashMap<InodeId, HashSet<u64>>>,
}

impl Losses {
    /// A loss was found through this handle, which gets the error.
    fn found(&self, inode: InodeId, handle: u64) {
        self.any.store(true, Ordering::Release);
        self.reported.lock().insert(inode, HashSet::from([handle]));
    }

    /// True if the handle has yet to get the error. It counts as reported from now on.
    fn report(&self, inode: InodeId, handle: u64) -> bool {
        self.any.load(Ordering::Acquire)
            && self.reported.lock().get_mut(&inode).is_some_and(|reported| reported.insert(handle))
    }

    /// A handle that was opened after a loss does not get the error.
    pub fn opened(&self, inode: InodeId, handle: u64) {
        self.report(inode, handle);
    }

    /// The last handle of the inode was closed.
    pub fn closed(&self, inode: InodeId) {
        if self.any.load(Ordering::Acquire) {
            self.reported.lock().remove(&inode);
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
            // The changes in a removed directory were removed with it.
            Err(Error::Stale | Error::NotFound) if self.nodes.with_removed(caller.inode, |_| ()).is_some() => {
                Ok(Bytes::new())
            }
            Err(error) => Err(error.into()),
            Ok(()) => self.report_loss(caller.inode, handle),
        }
    }

    /// Reports losses at close(2), as far as they are known without a request.
    pub(super) fn flush_losses(&self, caller: &Caller, handle: u64) -> Outcome {
        if self.volume.is_lost(caller.inode) {
            self.losses.found(caller.inode, handle);
            return Err(Errno::IO.into());
        }
        self.report_loss(caller.inode, handle)
    }

    fn report_loss(&self, inode: InodeId, handle: u64) -> Outcome {
        if self.losses.report(inode, handle) { Err(Errno::IO.into()) } else { Ok(Bytes::new()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handle_that_was_open_gets_the_error_once() {
        let losses = Losses::default();
        let (inode, other) = (InodeId::new(1, 1, 1), InodeId::new(1, 1, 2));
        assert!(!losses.report(inode, 1), "nothing was lost");
        losses.found(inode, 1);
        losses.opened(inode, 3);
        assert_eq!([1, 2, 2, 3].map(|handle| losses.report(inode, handle)), [false, true, false, false]);
        assert!(!losses.report(other, 1));
        // After another loss all handles get the error again.
        losses.found(inode, 2);
        assert_eq!([1, 2, 3].map(|handle| losses.report(inode, handle)), [true, false, true]);
        losses.closed(inode);
        assert!(!losses.report(inode, 4));
    }
}
