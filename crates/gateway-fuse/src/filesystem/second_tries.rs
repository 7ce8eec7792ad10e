//! Paths that the kernel resolves a second time.
//!
//! When an op on a path fails with ESTALE, the kernel resolves the path once more and repeats the op (`retry_estale`
//! in linux/fs/namei.h). A second ESTALE reaches the program, which never gets one on a local file system. So a file
//! that a thread finds in its second attempt is held, that is marked open, until the thread has used it, and cannot
//! be removed in between.
//!
//! Invariants: a thread whose last ESTALE is older than [`TRY_LASTS`] is in no second attempt; each held inode is
//! marked open in the library once. The table has entries only for threads that got ESTALE.

use super::names::new_file;
use super::{Caller, Filesystem};
use crate::abi::CreateIn;
use crate::encode::{Failed, Outcome};
use crate::request::Body;
use hekate_proto::{Attr, AttrChanges, Error, InodeId, Name, NodeKind, Result, SetTime};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time after an ESTALE within which requests of the same thread belong to its second attempt. The kernel repeats an
/// op at once.
const TRY_LASTS: Duration = Duration::from_secs(1);
/// Limit of look-ups of a name that leads to another file each time. The last file is returned without being held.
const LOOKUPS_MAX: usize = 64;

/// Role of a request in a system call with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It resolves the path, or may do so. Permission checks request attributes, ACLs and capabilities too.
    Resolves,
    /// The path was resolved for this request.
    Uses,
}

impl Step {
    /// `None` if the request may belong to a system call on a descriptor, or to no system call, beside the one with the
    /// path. An example is RELEASE.
    pub(super) fn of(body: &Body) -> Option<Self> {
        match body {
            Body::Lookup { .. } | Body::GetAttr { .. } | Body::GetXattr { .. } => Some(Step::Resolves),
            Body::Open { .. }
            | Body::Create { .. }
            | Body::SetAttr { .. }
            | Body::ReadLink
            | Body::SetXattr { .. }
            | Body::ListXattr { .. }
            | Body::RemoveXattr { .. }
            | Body::Link { .. } => Some(Step::Uses),
            _ => None,
        }
    }
}

/// Threads that are in a second attempt.
#[derive(Debug, Default)]
pub(super) struct SecondTries {
    /// True if there are any.
    any: AtomicBool,
    threads: Mutex<HashMap<u32, Try>>,
}

#[derive(Debug)]
struct Try {
    since: Instant,
    held: Option<InodeId>,
}

impl SecondTries {
    /// True if the thread is in a second attempt. Also returns the inodes that threads no longer hold.
    fn look(&self, thread: u32) -> (bool, Vec<InodeId>) {
        if !self.any.load(Ordering::Relaxed) {
            return (false, Vec::new());
        }
        let mut threads = self.threads.lock();
        let mut freed = Vec::new();
        threads.retain(|_, one| {
            let lasts = one.since.elapsed() < TRY_LASTS;
            freed.extend(one.held.filter(|_| !lasts));
            lasts
        });
        self.any.store(!threads.is_empty(), Ordering::Relaxed);
        (threads.contains_key(&thread), freed)
    }

    /// The thread gets ESTALE.
    fn begin(&self, thread: u32) {
        let mut threads = self.threads.lock();
        threads.insert(thread, Try { since: Instant::now(), held: None });
        self.any.store(true, Ordering::Relaxed);
    }

    /// The thread holds an inode. Returns the inode that it no longer holds.
    fn hold(&self, thread: u32, inode: InodeId) -> Option<InodeId> {
        match self.threads.lock().get_mut(&thread) {
            Some(one) => one.held.replace(inode),
            None => Some(inode),
        }
    }

    fn holds(&self, thread: u32, inode: InodeId) -> bool {
        self.threads.lock().get(&thread).is_some_and(|one| one.held == Some(inode))
    }

    /// The second attempt of a thread ends. Returns the inode that it no longer holds.
    fn end(&self, thread: u32) -> Option<InodeId> {
        let mut threads = self.threads.lock();
        let held = threads.remove(&thread).and_then(|one| one.held);
        self.any.store(!threads.is_empty(), Ordering::Relaxed);
        held
    }
}

impl Filesystem {
    /// True if the caller's thread is in its second attempt.
    pub(super) fn is_second_try(&self, caller: &Caller) -> bool {
        let (is_it, freed) = self.second_tries.look(caller.thread);
        freed.into_iter().for_each(|inode| self.release_hold(inode));
        is_it
    }

    /// A look-up of a second attempt: the file that is found is held until the thread has used it.
    pub(super) fn lookup_held(&self, caller: &Caller, name: &Name) -> Result<Attr> {
        let mut tries = 0;
        loop {
            let attr = self.volume.lookup(&caller.context, caller.inode, name.clone())?;
            tries += 1;
            if attr.kind == NodeKind::Directory || tries == LOOKUPS_MAX {
                return Ok(attr);
            }
            self.hold(attr.id);
            self.removals.wait(&caller.signals.fatal);
            match self.volume.getattr(&caller.context, attr.id) {
                Ok(attr) => {
                    let freed = self.second_tries.hold(caller.thread, attr.id);
                    freed.into_iter().for_each(|inode| self.release_hold(inode));
                    return Ok(attr);
                }
                Err(error) => {
                    self.release_hold(attr.id);
                    if error != Error::Stale {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Marks the inode open, so that it is not removed.
    fn hold(&self, inode: InodeId) {
        self.volume.opened(inode);
        self.nodes.held();
    }

    fn release_hold(&self, inode: InodeId) {
        self.nodes.unheld();
        self.volume.closed(inode);
    }

    /// A CREATE without O_EXCL whose second attempt again finds that another client made the name. The kernel checks
    /// no permission of the inode in a reply to CREATE, so only a file of the caller is opened.
    pub(super) fn create_or_open(&self, caller: &Caller, name: &Name, create: &CreateIn) -> Result<Attr> {
        for _ in 0..LOOKUPS_MAX {
            match self.lookup_held(caller, name) {
                Ok(attr) if attr.kind == NodeKind::File && attr.uid == caller.uid => {
                    may_open_own(&attr, create.flags)?;
                    return match create.flags & OFlags::TRUNC.bits() {
                        0 => Ok(attr),
                        _ => self.volume.setattr(&caller.context, attr.id, emptied(caller.uid != 0)),
                    };
                }
                Ok(_) => return Err(Error::Stale),
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
            match self.volume.create(&caller.context, caller.inode, name.clone(), new_file(caller, create)) {
                Err(Error::Exists) => {}
                made => return made.map(|(attr, _)| attr),
            }
        }
        Err(Error::Stale)
    }

    /// True if the kernel has found this file by a name that it had: a second attempt looks names up, and then the file is
    /// held. So this is the first attempt of the thread's next system call.
    fn is_found_by_kernel(&self, caller: &Caller) -> bool {
        let kind = self.nodes.get(caller.inode.number()).map(|(_, kind)| kind);
        kind.is_some_and(|kind| kind != NodeKind::Directory) && !self.second_tries.holds(caller.thread, caller.inode)
    }

    /// The outcome that is sent to the kernel: the first ESTALE begins a second attempt, and there is no third.
    pub(super) fn finish_attempt(&self, caller: &Caller, second: bool, step: Step, outcome: Outcome) -> Outcome {
        let is_stale = outcome == Err(Failed(Errno::STALE));
        let second = second && !(is_stale && self.is_found_by_kernel(caller));
        if is_stale && !second && caller.thread != 0 {
            self.second_tries.end(caller.thread).into_iter().for_each(|inode| self.release_hold(inode));
            self.second_tries.begin(caller.thread);
            return outcome;
        }
        if second && (is_stale || step == Step::Uses) {
            self.second_tries.end(caller.thread).into_iter().for_each(|inode| self.release_hold(inode));
        }
        if is_stale && second { Err(Errno::NOENT.into()) } else { outcome }
    }
}

/// Checks that the owner of a file may open it with these flags (open(2)).
fn may_open_own(attr: &Attr, flags: u32) -> Result<()> {
    let wanted = match flags & OFlags::RWMODE.bits() {
        flags if flags == OFlags::RDONLY.bits() => 0o400,
        flags if flags == OFlags::WRONLY.bits() => 0o200,
        _ => 0o600,
    };
    match attr.uid == 0 || attr.mode & wanted == wanted {
        true => Ok(()),
        false => Err(Error::NoAccess { what: format!("a file with mode {:o} of user {}", attr.mode, attr.uid) }),
    }
}

/// The changes that O_TRUNC makes.
fn emptied(drop_set_id: bool) -> AttrChanges {
    AttrChanges { size: Some(0), mtime: Some(SetTime::Now), drop_set_id, ..AttrChanges::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::Time;

    #[test]
    fn an_owner_opens_a_file_as_its_mode_says() {
        let attr = |uid, mode| {
            let seen = crate::removed_directory::LastAttributes {
                atime: Time(0),
                mtime: Time(0),
                ctime: Time(0),
                uid,
                gid: 1,
                mode,
            };
            seen.removed_elsewhere(InodeId::new(1, 1, 5)).attr
        };
        let may = |uid, mode, flags: OFlags| may_open_own(&attr(uid, mode), flags.bits()).is_ok();
        assert!(may(1, 0o400, OFlags::RDONLY | OFlags::CREATE) && may(1, 0o200, OFlags::WRONLY | OFlags::TRUNC));
        assert!(may(1, 0o600, OFlags::RDWR) && may(0, 0, OFlags::RDWR));
        assert!(!may(1, 0o277, OFlags::RDONLY) && !may(1, 0o477, OFlags::RDWR) && !may(1, 0o577, OFlags::WRONLY));
    }

    #[test]
    fn a_thread_holds_one_inode_from_its_first_estale_until_it_has_used_it() {
        let tries = SecondTries::default();
        let (one, other) = (InodeId::new(1, 1, 5), InodeId::new(1, 1, 6));
        assert_eq!(tries.look(7), (false, vec![]));
        tries.begin(7);
        assert_eq!(tries.look(7), (true, vec![]));
        assert_eq!(tries.look(8), (false, vec![]));
        assert_eq!(tries.hold(7, one), None);
        assert_eq!(tries.hold(7, other), Some(one));
        assert!(tries.holds(7, other) && !tries.holds(7, one) && !tries.holds(8, other));
        assert_eq!(tries.hold(8, one), Some(one), "a thread that is in no second try holds nothing");
        assert_eq!(tries.end(7), Some(other));
        assert_eq!((tries.end(7), tries.look(7)), (None, (false, vec![])));
    }
}
