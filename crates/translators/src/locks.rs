//! Locks as a session sees them: what it holds, what it waits for, and what it tells a leader that has begun anew.
//!
//! Leaders keep locks in memory only, so the session remembers what it holds (`locks/held.rs`) and tells it when a leader
//! asks: by its heartbeat, or by refusing an op with `LocksUntold`. Invariants: what it tells is what the last ops of the
//! session made of it, since ops on an inode go one after the other, and none is under way while its partition's leader
//! is told (`locks/turns.rs`); a lock that waits occupies no thread, only its op's slot (`locks/waits.rs`); a release
//! that could not be sent is owed, and comes before anything else of that owner on that file.

mod held;
mod turns;
mod waits;

use crate::replicate::{Replicate, Whom};
use hekate_graph::Context;
use hekate_proto::*;
use held::Held;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use turns::Turns;
use waits::Wait;

/// Before an op is sent again that could not be answered yet.
const AGAIN_PAUSE: Duration = Duration::from_millis(20);
/// How long one attempt may take that is made again later.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);

/// A session's locks.
pub struct Locks {
    replicate: Arc<Replicate>,
    turns: Turns,
    state: Mutex<State>,
    /// Waits that leaders know.
    known: Arc<AtomicUsize>,
    own: Weak<Locks>,
}

struct State {
    held: Held,
    /// Owners that may hold locks on a file: asked to be released when they close it.
    owners: HashSet<(InodeId, LockOwner)>,
    /// Owners that closed a file whose leader does not know it yet.
    owed: BTreeSet<(InodeId, LockOwner)>,
    waits: HashMap<OpId, Wait>,
    /// Servers that a thread listens to.
    listening: HashSet<ServerId>,
    closed: bool,
}

impl Locks {
    pub(crate) fn new(replicate: Arc<Replicate>) -> Arc<Self> {
        let state = State {
            held: Held::new(replicate.session()),
            owners: HashSet::new(),
            owed: BTreeSet::new(),
            waits: HashMap::new(),
            listening: HashSet::new(),
            closed: false,
        };
        Arc::new_cyclic(|own| Self {
            replicate,
            turns: Turns::default(),
            state: Mutex::new(state),
            known: Arc::default(),
            own: own.clone(),
        })
    }

    pub(crate) fn handle(&self, context: &Context, op: LockOp) -> Result<Reply> {
        match op {
            LockOp::Get { inode, .. } => {
                self.patiently(context, inode, || self.send(context, OpId(0), inode, op.clone()))
            }
            LockOp::Set { inode, lock, wait } if wait && lock.kind != LockKind::Unlock => {
                self.wait(context, inode, lock)
            }
            LockOp::Set { inode, lock, .. } => self.set(context, inode, lock),
            LockOp::Cancel { inode, op_id } => Ok(Reply::Cancelled { ended: self.cancel(inode, op_id) }),
            LockOp::Release { inode, owner } => self.release(context, inode, owner),
            LockOp::Restore { .. } => Err(Error::invalid("an op of the layers below distribute")),
        }
    }

    fn partition(&self, inode: InodeId) -> PartitionNumber {
        self.replicate.map().partition_of(inode.position())
    }

    fn whom(&self, inode: InodeId) -> Whom {
        Whom::Leader(self.partition(inode))
    }

    /// Sent again under its id it needs no gate at the server: the table of locks knows it.
    fn send(&self, context: &Context, op_id: OpId, inode: InodeId, op: LockOp) -> Result<Reply> {
        self.replicate.send_as(context, op_id, self.whom(inode), Op::Lock { op })
    }

    /// One attempt, which is made again later if it fails.
    fn attempt(&self, op_id: OpId, inode: InodeId, op: LockOp) -> Result<Reply> {
        self.replicate.attempt(op_id, false, self.whom(inode), Op::Lock { op }, ATTEMPT_LIMIT)
    }

    fn gave_up(&self, context: &Context) -> bool {
        context.interrupted() || self.replicate.servers().is_closed()
    }

    /// Acts in its turn, as often as it takes until there is an answer.
    fn patiently(&self, context: &Context, inode: InodeId, act: impl Fn() -> Result<Reply>) -> Result<Reply> {
        loop {
            let partition = self.partition(inode);
            let turn = self.turns.begin(inode, partition, || self.gave_up(context)).ok_or_else(gave_up)?;
            let answer = act();
            drop(turn);
            let told = match &answer {
                Err(Error::LocksUntold) => self.restore(partition),
                Err(Error::Unavailable { .. }) => false,
                _ => return answer,
            };
            if self.gave_up(context) {
                return Err(gave_up());
            }
            if !told {
                std::thread::sleep(AGAIN_PAUSE);
            }
        }
    }

    /// Takes or lets go without waiting for others.
    fn set(&self, context: &Context, inode: InodeId, lock: Lock) -> Result<Reply> {
        let ticket = self.replicate.ticket();
        self.patiently(context, inode, || {
            self.pay(context, inode, lock.owner)?;
            let before = self.doubt(inode, &lock);
            let op = LockOp::Set { inode, lock, wait: false };
            let answer = self.send(context, ticket.op_id, inode, op);
            let held = &mut self.state.lock().held;
            match &answer {
                Ok(_) => held.apply(inode, &lock),
                Err(error) if is_passing(error) => {}
                Err(_) => held.was_not_done(inode, &lock, before),
            }
            answer
        })
    }

    /// An op is about to be sent.
    fn doubt(&self, inode: InodeId, lock: &Lock) -> Vec<HeldLock> {
        let mut state = self.state.lock();
        if lock.kind != LockKind::Unlock {
            state.owners.insert((inode, lock.owner));
        }
        state.held.doubt(inode, lock)
    }

    /// The owner closed the file. Nothing is asked if it never had a lock there. What cannot be sent is owed: at once, if
    /// the caller does not wait.
    fn release(&self, context: &Context, inode: InodeId, owner: LockOwner) -> Result<Reply> {
        {
            let mut state = self.state.lock();
            if !state.owners.contains(&(inode, owner)) {
                return Ok(Reply::Done);
            }
            state.owed.insert((inode, owner));
        }
        if self.gave_up(context) {
            return self.pay_soon(inode, owner).map(|()| Reply::Done);
        }
        self.patiently(context, inode, || self.pay(context, inode, owner).map(|()| Reply::Done))
    }

    /// Sends the release that is owed, if one is.
    fn pay(&self, context: &Context, inode: InodeId, owner: LockOwner) -> Result<()> {
        let ticket = match self.state.lock().owed.contains(&(inode, owner)) {
            true => self.replicate.ticket(),
            false => return Ok(()),
        };
        self.send(context, ticket.op_id, inode, LockOp::Release { inode, owner })?;
        self.is_paid(inode, owner);
        Ok(())
    }

    /// The same with one attempt.
    fn pay_soon(&self, inode: InodeId, owner: LockOwner) -> Result<()> {
        let (end, partition) = (Instant::now() + ATTEMPT_LIMIT, self.partition(inode));
        let turn = self.turns.begin(inode, partition, || Instant::now() > end).ok_or_else(gave_up)?;
        if !self.state.lock().owed.contains(&(inode, owner)) {
            return Ok(());
        }
        let ticket = self.replicate.ticket();
        let sent = self.attempt(ticket.op_id, inode, LockOp::Release { inode, owner });
        if sent.is_ok() {
            self.is_paid(inode, owner);
        }
        drop(turn);
        sent.map(|_| ())
    }

    fn is_paid(&self, inode: InodeId, owner: LockOwner) {
        let mut state = self.state.lock();
        state.held.release(inode, owner);
        state.owed.remove(&(inode, owner));
        state.owners.remove(&(inode, owner));
    }

    /// Tells a partition's leader all that is held there. -> whether it knows now.
    fn restore(&self, partition: PartitionNumber) -> bool {
        let Some(_alone) = self.turns.alone(partition, ATTEMPT_LIMIT) else { return false };
        let locks = {
            let mut state = self.state.lock();
            // Who closed the file holds nothing there, whether the last leader heard of it or not.
            let owed: Vec<_> = state.owed.iter().copied().collect();
            owed.into_iter().for_each(|(inode, owner)| state.held.release(inode, owner));
            state.held.tell(|inode| self.partition(inode) == partition)
        };
        let ticket = self.replicate.ticket();
        let op = Op::Lock { op: LockOp::Restore { locks, done: true } };
        // What an earlier attempt told, which may still be on its way, must not come after this.
        match self.replicate.attempt(ticket.op_id, true, Whom::Leader(partition), op, ATTEMPT_LIMIT) {
            Ok(Reply::Restored { lost }) => {
                self.lose(&lost);
                self.ask_again(|inode| self.partition(inode) == partition);
                true
            }
            _ => false,
        }
    }

    /// Another holds what we held.
    fn lose(&self, lost: &[(InodeId, Lock)]) {
        let mut state = self.state.lock();
        for (inode, lock) in lost {
            log::warn!("the lock {:?} of process {} on inode {} is lost", lock.kind, lock.pid, inode.number());
            state.held.apply(*inode, &Lock { kind: LockKind::Unlock, ..*lock });
        }
    }

    /// Now and then: tells the leaders that asked, sends what is owed, and sees to it that somebody listens to whom this
    /// session waits for.
    pub(crate) fn beat(&self, untold: &[PartitionNumber]) {
        // One that fails waits for its server, and the heartbeat does not wait with it.
        let _ = untold.iter().all(|partition| self.restore(*partition));
        let owed: Vec<_> = self.state.lock().owed.iter().copied().collect();
        let _ = owed.into_iter().all(|(inode, owner)| self.pay_soon(inode, owner).is_ok());
        self.listen_to_all();
    }
}

/// Whether an error says nothing of what became of the op.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::LocksUntold | Error::Unavailable { .. })
}

fn gave_up() -> Error {
    Error::Unavailable { what: "the caller gave up before the lock's server answered".into() }
}
