//! Locks as a session sees them: those that it holds, those that it waits for, and what it reports to a new leader.
//!
//! Leaders keep locks in memory only. The session therefore remembers the locks that it holds (`locks/held.rs`), and
//! reports them when a leader asks: in the reply to a heartbeat, or by refusing an op with `LocksNotRestored`.
//! Invariants:
//! - The report matches the last ops of the session: ops on one inode run one after the other, and none runs while
//!   the locks of its partition are reported (`locks/turns.rs`).
//! - A waiting lock occupies no thread, only the slot of its op (`locks/waits.rs`).
//! - A release that could not be sent is owed, and is sent before any other op of that owner on that file.

mod held;
mod turns;
mod waits;

use crate::replicate::{Recipient, Replicate};
use hekate_graph::Context;
use hekate_proto::*;
use hekate_threads::{HashMap, HashSet, Mutex, now};
use held::Held;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;
use turns::{Turn, Turns};
use waits::Wait;

/// Pause before an op without a reply is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Time limit of an attempt that is repeated later.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);

/// A session's locks.
pub struct Locks {
    replicate: Arc<Replicate>,
    turns: Turns,
    /// Serializes the appends of this session to one inode: all have the same lock owner, so the lock does not.
    appends: Turns,
    state: Mutex<State>,
    /// Number of waits that are registered at leaders.
    registered: Arc<AtomicUsize>,
    own: Weak<Locks>,
}

struct State {
    held: Held,
    /// Owners that may hold locks on a file. Their locks are released when they close it.
    owners: HashSet<(InodeId, LockOwner)>,
    /// Owners that closed a file, and whose release no leader has confirmed.
    owed: BTreeSet<(InodeId, LockOwner)>,
    waits: HashMap<OpId, Wait>,
    /// Servers that a thread listens to for notifications.
    listening: HashSet<ServerId>,
    closed: bool,
}

impl Locks {
    pub(crate) fn new(replicate: Arc<Replicate>) -> Arc<Self> {
        let state = State {
            held: Held::new(replicate.session()),
            owners: HashSet::default(),
            owed: BTreeSet::new(),
            waits: HashMap::default(),
            listening: HashSet::default(),
            closed: false,
        };
        Arc::new_cyclic(|own| Self {
            replicate,
            turns: Turns::default(),
            appends: Turns::default(),
            state: Mutex::new(state),
            registered: Arc::default(),
            own: own.clone(),
        })
    }

    pub(crate) fn handle(&self, context: &Context, op: LockOp) -> Result<Reply> {
        match op {
            LockOp::Get { inode, .. } => {
                self.retry_in_turn(context, inode, || self.send(context, OpId(0), inode, op.clone()))
            }
            LockOp::Set { inode, lock, wait } if wait && lock.kind != LockKind::Unlock => {
                self.wait(context, inode, lock)
            }
            LockOp::Set { inode, lock, .. } => self.set(context, inode, lock),
            LockOp::Cancel { inode, op_id } => Ok(Reply::Cancelled { ended: self.cancel(inode, op_id) }),
            LockOp::Release { inode, owner } => self.release(context, inode, owner),
            LockOp::Restore { .. } => Err(Error::invalid("the op is internal to the layers below distribute")),
        }
    }

    fn partition(&self, inode: InodeId) -> PartitionNumber {
        self.replicate.map().partition_of(inode.position())
    }

    fn recipient(&self, inode: InodeId) -> Recipient {
        Recipient::Leader(self.partition(inode))
    }

    /// A lock op that is sent again under its id needs no check for retries at the server: the lock table knows the
    /// id.
    fn send(&self, context: &Context, op_id: OpId, inode: InodeId, op: LockOp) -> Result<Reply> {
        self.replicate.send_as(context, op_id, self.recipient(inode), Op::Lock { op })
    }

    /// Makes one attempt; the caller repeats it later if it fails.
    fn attempt(&self, op_id: OpId, inode: InodeId, op: LockOp) -> Result<Reply> {
        self.replicate.attempt(op_id, false, self.recipient(inode), Op::Lock { op }, ATTEMPT_LIMIT)
    }

    fn gave_up(&self, context: &Context) -> bool {
        context.interrupted() || self.replicate.servers().is_closed()
    }

    /// Waits until no other thread of this session appends to the file.
    ///
    /// # Errors
    /// `Unavailable` if the caller gave up.
    pub(crate) fn begin_append(&self, context: &Context, inode: InodeId) -> Result<Turn<'_>> {
        self.appends.begin(inode, self.partition(inode), || self.gave_up(context)).ok_or_else(gave_up)
    }

    /// Runs `act` in the inode's turn until it gets a reply. If the leader has no report of the session's locks, it
    /// is sent first.
    fn retry_in_turn(&self, context: &Context, inode: InodeId, act: impl Fn() -> Result<Reply>) -> Result<Reply> {
        loop {
            let partition = self.partition(inode);
            let turn = self.turns.begin(inode, partition, || self.gave_up(context)).ok_or_else(gave_up)?;
            let answer = act();
            drop(turn);
            let is_restored = match &answer {
                Err(Error::LocksNotRestored) => self.restore(partition),
                Err(Error::Unavailable { .. }) => false,
                _ => return answer,
            };
            if self.gave_up(context) {
                return Err(gave_up());
            }
            if !is_restored {
                hekate_threads::sleep(RETRY_PAUSE);
            }
        }
    }

    /// Takes or releases a lock without waiting for other holders.
    fn set(&self, context: &Context, inode: InodeId, lock: Lock) -> Result<Reply> {
        let ticket = self.replicate.ticket();
        self.retry_in_turn(context, inode, || {
            self.send_owed_release(context, inode, lock.owner)?;
            let before = self.assume_pending(inode, &lock);
            let op = LockOp::Set { inode, lock, wait: false };
            let answer = self.send(context, ticket.op_id, inode, op);
            let held = &mut self.state.lock().held;
            match &answer {
                Ok(_) => held.apply(inode, &lock),
                Err(error) if is_passing(error) => {}
                Err(_) => held.undo_pending(inode, &lock, before),
            }
            answer
        })
    }

    /// Notes that an op is about to be sent, whose reply may be lost. Returns the locks held before.
    fn assume_pending(&self, inode: InodeId, lock: &Lock) -> Vec<HeldLock> {
        let mut state = self.state.lock();
        if lock.kind != LockKind::Unlock {
            state.owners.insert((inode, lock.owner));
        }
        state.held.assume_pending(inode, lock)
    }

    /// Releases the locks of an owner that closed the file. Sends nothing if the owner never had a lock there. A
    /// release that cannot be sent is owed; if the caller does not wait, one attempt is made now.
    fn release(&self, context: &Context, inode: InodeId, owner: LockOwner) -> Result<Reply> {
        {
            let mut state = self.state.lock();
            if !state.owners.contains(&(inode, owner)) {
                return Ok(Reply::Done);
            }
            state.owed.insert((inode, owner));
        }
        if self.gave_up(context) {
            return self.try_owed_release(inode, owner).map(|()| Reply::Done);
        }
        self.retry_in_turn(context, inode, || self.send_owed_release(context, inode, owner).map(|()| Reply::Done))
    }

    /// Sends the release that an owner owes, if there is one.
    fn send_owed_release(&self, context: &Context, inode: InodeId, owner: LockOwner) -> Result<()> {
        let ticket = match self.state.lock().owed.contains(&(inode, owner)) {
            true => self.replicate.ticket(),
            false => return Ok(()),
        };
        self.send(context, ticket.op_id, inode, LockOp::Release { inode, owner })?;
        self.release_done(inode, owner);
        Ok(())
    }

    /// As [`Locks::send_owed_release`], with one attempt.
    fn try_owed_release(&self, inode: InodeId, owner: LockOwner) -> Result<()> {
        let (end, partition) = (now() + ATTEMPT_LIMIT, self.partition(inode));
        let turn = self.turns.begin(inode, partition, || now() > end).ok_or_else(gave_up)?;
        if !self.state.lock().owed.contains(&(inode, owner)) {
            return Ok(());
        }
        let ticket = self.replicate.ticket();
        let sent = self.attempt(ticket.op_id, inode, LockOp::Release { inode, owner });
        if sent.is_ok() {
            self.release_done(inode, owner);
        }
        drop(turn);
        sent.map(|_| ())
    }

    fn release_done(&self, inode: InodeId, owner: LockOwner) {
        let mut state = self.state.lock();
        state.held.release(inode, owner);
        state.owed.remove(&(inode, owner));
        state.owners.remove(&(inode, owner));
    }

    /// Reports all locks of the session in a partition to its leader. True if the leader has them.
    fn restore(&self, partition: PartitionNumber) -> bool {
        let Some(_exclusive) = self.turns.exclusive(partition, ATTEMPT_LIMIT) else { return false };
        let locks = {
            let mut state = self.state.lock();
            // An owner that closed the file holds nothing there, whether or not the previous leader knew.
            let owed: Vec<_> = state.owed.iter().copied().collect();
            owed.into_iter().for_each(|(inode, owner)| state.held.release(inode, owner));
            state.held.locks_where(|inode| self.partition(inode) == partition)
        };
        let ticket = self.replicate.ticket();
        let op = Op::Lock { op: LockOp::Restore { locks, done: true } };
        // As a retry, it waits for an earlier attempt that may still be on its way, so that an older report cannot
        // replace it.
        match self.replicate.attempt(ticket.op_id, true, Recipient::Leader(partition), op, ATTEMPT_LIMIT) {
            Ok(Reply::Restored { lost }) => {
                self.lose(&lost);
                self.mark_due(|inode| self.partition(inode) == partition);
                true
            }
            _ => false,
        }
    }

    /// Removes and logs locks that the session held and that a new leader has granted to another session.
    fn lose(&self, lost: &[(InodeId, Lock)]) {
        let mut state = self.state.lock();
        for (inode, lock) in lost {
            let (kind, pid, number) = (lock.kind, lock.pid, inode.number());
            log::warn!(
                "the lock {kind:?} of process {pid} on inode {number} is lost: another client holds a conflicting lock"
            );
            state.held.apply(*inode, &Lock { kind: LockKind::Unlock, ..*lock });
        }
    }

    /// Runs with every heartbeat: reports locks to the leaders that asked for them, sends owed releases, and starts
    /// missing listeners.
    pub(crate) fn on_heartbeat(&self, unrestored: &[PartitionNumber]) {
        // A failed report waits for the next heartbeat, so that one server does not delay the others.
        let _ = unrestored.iter().all(|partition| self.restore(*partition));
        let owed: Vec<_> = self.state.lock().owed.iter().copied().collect();
        let _ = owed.into_iter().all(|(inode, owner)| self.try_owed_release(inode, owner).is_ok());
        self.listen_to_all();
    }
}

/// True if an error does not tell whether the op was executed.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::LocksNotRestored | Error::Unavailable { .. })
}

fn gave_up() -> Error {
    Error::Unavailable { what: "the caller gave up before the leader of the lock's inode answered".into() }
}
