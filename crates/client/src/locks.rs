//! File locks: fcntl(2) ranges, those of open file descriptions, and flock(2). They apply between all mounts and
//! users of the volume, and are held until their session ends. The session reports them to a server that restarted.

use crate::volume::{Volume, unexpected};
use hekate_graph::Context;
use hekate_proto::*;

impl Volume {
    /// `F_GETLK`: of the locks that conflict with this one, the one with the lowest first byte.
    ///
    /// # Errors
    /// Those of every method of [`Volume`].
    pub fn test_lock(&self, context: &Context, inode: InodeId, lock: Lock) -> Result<Option<HeldLock>> {
        match self.call(context, Op::Lock { op: LockOp::Get { inode, lock } })? {
            Reply::Lock { conflict } => Ok(conflict),
            _ => Err(unexpected()),
        }
    }

    /// Takes, converts or (with kind unlock) releases a lock. With `wait` it waits for locks in conflict.
    ///
    /// # Errors
    /// `WouldBlock` without `wait`, if another owner holds a lock in conflict. `Interrupted` if the caller gave up;
    /// it then holds nothing new. `Deadlock` if the wait would never end.
    pub fn lock(&self, context: &Context, inode: InodeId, lock: Lock, wait: bool) -> Result<()> {
        let op_id = match self.call(context, Op::Lock { op: LockOp::Set { inode, lock, wait } })? {
            Reply::Done => return Ok(()),
            Reply::Waiting { op_id } => op_id,
            _ => return Err(unexpected()),
        };
        self.locks.await_lock(context, inode, op_id)
    }

    /// Requests a lock without blocking for its holders. `None`: the lock is held. Otherwise the lock waits:
    /// [`Volume::when_locked`] must follow with the op's id, and [`Volume::cancel_lock`] may.
    ///
    /// # Errors
    /// `Deadlock` if the wait would never end, `TooManyLocks` if the limit of a file, a session or this client's waits
    /// is reached.
    pub fn begin_lock(&self, context: &Context, inode: InodeId, lock: Lock) -> Result<Option<OpId>> {
        match self.call(context, Op::Lock { op: LockOp::Set { inode, lock, wait: true } })? {
            Reply::Done => Ok(None),
            Reply::Waiting { op_id } => Ok(Some(op_id)),
            _ => Err(unexpected()),
        }
    }

    /// Calls `then` once the lock that [`Volume::begin_lock`] requested is granted or refused: on any thread, and at
    /// once if that has happened.
    pub fn when_locked(&self, op_id: OpId, then: impl FnOnce(Result<()>) + Send + 'static) {
        self.locks.when_answered(op_id, then);
    }

    /// Cancels the wait for a lock. The wait ends with `Interrupted`, unless it had ended before.
    pub fn cancel_lock(&self, inode: InodeId, op_id: OpId) {
        // A cancel that the server does not answer now is sent again later.
        let _ = self.call(&Context::default(), Op::Lock { op: LockOp::Cancel { inode, op_id } });
    }

    /// Releases all locks of an owner that closed the file.
    ///
    /// # Errors
    /// `Unavailable` if the caller gave up; the release is then sent later.
    pub fn release_locks(&self, context: &Context, inode: InodeId, owner: LockOwner) -> Result<()> {
        self.call(context, Op::Lock { op: LockOp::Release { inode, owner } }).map(|_| ())
    }
}
