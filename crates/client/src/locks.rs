//! File locks: fcntl(2) ranges, those of open file descriptions, and flock(2). They hold between all mounts and users of
//! the volume, as long as the session lives; a server that starts anew is told them again.

use crate::volume::{Volume, unexpected};
use hekate_graph::Context;
use hekate_proto::*;

impl Volume {
    /// `F_GETLK`: of the locks that this one conflicts with, the one with the lowest first byte.
    pub fn test_lock(&self, context: &Context, inode: InodeId, lock: Lock) -> Result<Option<HeldLock>> {
        match self.call(context, Op::Lock { op: LockOp::Get { inode, lock } })? {
            Reply::Lock { conflict } => Ok(conflict),
            _ => Err(unexpected()),
        }
    }

    /// Takes a lock, converts it, or (kind unlock) lets go of it. If another holds it: waits until it is free, or, not to
    /// `wait`, answers `WouldBlock`. Who gives up meanwhile is answered `Interrupted` and holds nothing new.
    pub fn lock(&self, context: &Context, inode: InodeId, lock: Lock, wait: bool) -> Result<()> {
        let op_id = match self.call(context, Op::Lock { op: LockOp::Set { inode, lock, wait } })? {
            Reply::Done => return Ok(()),
            Reply::Waiting { op_id } => op_id,
            _ => return Err(unexpected()),
        };
        self.locks.await_lock(context, inode, op_id)
    }

    /// Asks for a lock; `None`: it is held. If it has to wait for others the caller does not: the op's id is for
    /// [`Volume::when_locked`], which must follow, and [`Volume::cancel_lock`].
    pub fn begin_lock(&self, context: &Context, inode: InodeId, lock: Lock) -> Result<Option<OpId>> {
        match self.call(context, Op::Lock { op: LockOp::Set { inode, lock, wait: true } })? {
            Reply::Done => Ok(None),
            Reply::Waiting { op_id } => Ok(Some(op_id)),
            _ => Err(unexpected()),
        }
    }

    /// What is to be done once the lock that [`Volume::begin_lock`] asked for is held or refused, on any thread; at once,
    /// if that is so already.
    pub fn when_locked(&self, op_id: OpId, then: impl FnOnce(Result<()>) + Send + 'static) {
        self.locks.when_answered(op_id, then);
    }

    /// Ends the wait for a lock: its answer is `Interrupted`, unless it had come before.
    pub fn cancel_lock(&self, inode: InodeId, op_id: OpId) {
        // It fails for nobody: what the server does not answer now it is told later.
        let _ = self.call(&Context::default(), Op::Lock { op: LockOp::Cancel { inode, op_id } });
    }

    /// An owner closed the file: all that it holds there goes.
    pub fn release_locks(&self, context: &Context, inode: InodeId, owner: LockOwner) -> Result<()> {
        self.call(context, Op::Lock { op: LockOp::Release { inode, owner } }).map(|_| ())
    }
}
