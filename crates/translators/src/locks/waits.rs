//! Waiting locks. Each keeps the slot of its op and occupies no thread. For each server with waits, one thread
//! listens for notifications of waits that have a reply, and requests these replies. After it has connected it
//! requests the replies of all waits, so a lost connection loses nothing.
//!
//! A session has few slots, so only a limited number of waits are registered at leaders. The thread polls for the
//! others with ops that do not wait.
//!
//! A wait whose caller gave up while its server was unavailable stays here as abandoned until the server has
//! cancelled it. If the server had granted the lock before, the lock is held until its owner closes the file.

use super::{ATTEMPT_LIMIT, Locks, State, gave_up, is_passing};
use crate::replicate::OpTicket;
use hekate_graph::Context;
use hekate_proto::*;
use hekate_threads::{Condvar, Mutex, elapsed, now};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Waits of one mount that are registered at leaders: half of its session's slots, so that other ops find a free one.
const REGISTERED_MAX: usize = SESSION_SLOTS / 2;
/// All waits of one mount; one more is refused.
const WAITS_MAX: usize = 4096;
/// Interval at which each wait that is not registered is polled.
const POLL_PAUSE: Duration = Duration::from_millis(500);
/// Interval at which a listening thread checks for waits that other threads marked as due.
const LISTEN_PAUSE: Duration = Duration::from_millis(100);
/// Time without waits after which a listening thread ends.
const IDLE: Duration = Duration::from_secs(5);
/// Attempts to cancel a wait before that is left to the listening thread.
const CANCEL_TRIES: u32 = 3;

/// Interval at which a thread that waits for a lock checks whether its caller gave up.
const CALLER_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Receives the outcome of a wait.
type OnAnswer = Box<dyn FnOnce(Result<()>) + Send>;

/// The outcome of a wait, for the thread that waits for it.
#[derive(Default)]
struct Outcome {
    answer: Mutex<Option<Result<()>>>,
    given: Condvar,
}

impl Outcome {
    fn set(&self, answer: Result<()>) {
        *self.answer.lock() = Some(answer);
        self.given.notify_all();
    }

    /// The outcome, or `None` if there is none within `limit`.
    fn wait(&self, limit: Duration) -> Option<Result<()>> {
        let mut answer = self.answer.lock();
        if answer.is_none() {
            self.given.wait_for(&mut answer, limit);
        }
        answer.take()
    }
}

/// The right to register one wait at a leader, until it is dropped.
pub(super) struct Registration(Arc<AtomicUsize>);

impl Registration {
    fn take(count: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |registered: usize| (registered < REGISTERED_MAX).then_some(registered + 1);
        count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok().then(|| Self(count.clone()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One waiting lock.
pub(super) struct Wait {
    /// `None`: the wait is not registered at the leader, and is polled.
    ticket: Option<(OpTicket, Registration)>,
    /// When the lock was last requested.
    asked_at: Instant,
    inode: InodeId,
    lock: Lock,
    /// The reply is to be requested again.
    due: bool,
    /// `Interrupted` was returned to the caller, and the wait is not yet cancelled at the server.
    abandoned: bool,
    answer: Option<Result<()>>,
    on_answer: Option<OnAnswer>,
}

impl Locks {
    /// Requests a lock that may have to wait. Replies `Done` or `Waiting`.
    pub(super) fn wait(&self, context: &Context, inode: InodeId, lock: Lock) -> Result<Reply> {
        let op_id = self.begin_wait(inode, lock)?;
        let asked = self.retry_in_turn(context, inode, || {
            self.send_owed_release(context, inode, lock.owner)?;
            self.request(op_id, |op_id, op| self.send(context, op_id, inode, op))
        });
        if asked == Ok(Reply::Waiting { op_id }) {
            self.listen_to(inode);
            return asked;
        }
        let mut state = self.state.lock();
        let answered = state.waits.get(&op_id).is_some_and(|wait| wait.answer.is_some());
        if answered && let Some(Wait { answer: Some(answer), .. }) = state.waits.remove(&op_id) {
            return answer.map(|()| Reply::Done);
        }
        drop(state);
        self.abandon(op_id);
        Err(asked.err().unwrap_or_else(gave_up))
    }

    /// Takes a lock, waiting for it on this thread. If the caller gives up, it holds nothing new.
    pub(crate) fn acquire(&self, context: &Context, inode: InodeId, lock: Lock) -> Result<()> {
        match self.wait(context, inode, lock)? {
            Reply::Waiting { op_id } => self.await_lock(context, inode, op_id),
            _ => Ok(()),
        }
    }

    /// Waits for the outcome of a waiting lock on this thread.
    ///
    /// # Errors
    /// The error with which the leader refused the lock; `Interrupted` if the caller gave up before it was granted;
    /// `SessionEnded` if the session ended.
    pub fn await_lock(&self, context: &Context, inode: InodeId, op_id: OpId) -> Result<()> {
        let outcome = Arc::new(Outcome::default());
        let given = outcome.clone();
        self.when_answered(op_id, move |answer| given.set(answer));
        let mut cancelled = false;
        loop {
            if let Some(answer) = outcome.wait(CALLER_POLL_INTERVAL) {
                return answer;
            }
            // The wait was dropped without an outcome.
            if Arc::strong_count(&outcome) == 1 {
                return outcome.wait(Duration::ZERO).unwrap_or(Err(Error::SessionEnded));
            }
            if context.interrupted() && !cancelled {
                cancelled = true;
                self.cancel(inode, op_id);
            }
        }
    }

    /// Releases a lock that is held. If its server is unavailable and the caller does not wait, the release is owed.
    pub(crate) fn unlock(&self, context: &Context, inode: InodeId, lock: Lock) {
        if self.set(context, inode, Lock { kind: LockKind::Unlock, ..lock }).is_err() {
            // A release that cannot be sent now is owed.
            let _ = self.release(context, inode, lock.owner);
        }
    }

    /// Adds a wait before it is sent, so that a listening thread that connects meanwhile requests its reply.
    fn begin_wait(&self, inode: InodeId, lock: Lock) -> Result<OpId> {
        // Taking a slot may wait, so it happens without the lock on the table.
        let ticket = Registration::take(&self.registered).map(|registration| (self.replicate.ticket(), registration));
        let op_id = ticket.as_ref().map_or_else(|| self.replicate.unused_id(), |(ticket, _)| ticket.op_id);
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::SessionEnded);
        }
        if state.waits.len() >= WAITS_MAX {
            let what = format!("{WAITS_MAX} lock requests of this mount are waiting already; try again later");
            return Err(Error::TooManyLocks { what });
        }
        let (asked_at, (due, abandoned, answer, on_answer)) = (now(), Default::default());
        state.waits.insert(op_id, Wait { ticket, asked_at, inode, lock, due, abandoned, answer, on_answer });
        Ok(op_id)
    }

    /// Sends a wait in its inode's turn, for the first time or again, and stores its outcome if there is one.
    fn request(&self, op_id: OpId, send: impl FnOnce(OpId, LockOp) -> Result<Reply>) -> Result<Reply> {
        let open = |wait: &Wait| wait.answer.is_none().then_some((wait.inode, wait.lock, wait.ticket.is_some()));
        let Some((inode, lock, is_registered)) = self.state.lock().waits.get(&op_id).and_then(open) else {
            return Ok(Reply::Waiting { op_id });
        };
        let before = self.assume_pending(inode, &lock);
        let answer = match is_registered {
            true => send(op_id, LockOp::Set { inode, lock, wait: true }),
            false => {
                let ticket = self.replicate.ticket();
                match send(ticket.op_id, LockOp::Set { inode, lock, wait: false }) {
                    Err(Error::WouldBlock) => Ok(Reply::Waiting { op_id }),
                    other => other,
                }
            }
        };
        let mut state = self.state.lock();
        let outcome = match &answer {
            Ok(Reply::Waiting { .. }) => {
                state.held.undo_pending(inode, &lock, before);
                return answer;
            }
            Ok(_) => Ok(()),
            Err(error) if is_passing(error) => return answer,
            Err(error) => {
                state.held.undo_pending(inode, &lock, before);
                Err(error.clone())
            }
        };
        let on_answer = state.finish(op_id, outcome.clone());
        drop(state);
        if let Some(on_answer) = on_answer {
            on_answer(outcome);
        }
        answer
    }

    /// Calls `on_answer` with the outcome of a wait, now or later, on any thread.
    pub fn when_answered(&self, op_id: OpId, on_answer: impl FnOnce(Result<()>) + Send + 'static) {
        let mut state = self.state.lock();
        let answer = match state.waits.get_mut(&op_id) {
            Some(Wait { answer: Some(_), .. }) => state.waits.remove(&op_id).and_then(|wait| wait.answer),
            Some(Wait { abandoned: true, .. }) => Some(Err(Error::Interrupted)),
            Some(wait) => {
                wait.on_answer = Some(Box::new(on_answer));
                return;
            }
            None => None,
        };
        drop(state);
        on_answer(answer.unwrap_or(Err(Error::SessionEnded)));
    }

    /// Cancels a wait. True if the wait ends with `Interrupted`; false if the lock had been granted or refused before,
    /// which is then the wait's outcome.
    pub(super) fn cancel(&self, inode: InodeId, op_id: OpId) -> bool {
        let is_registered = |wait: &Wait| wait.ticket.is_some();
        if !self.state.lock().waits.get(&op_id).is_none_or(is_registered) {
            return self.cancel_polled(inode, op_id);
        }
        for _ in 0..CANCEL_TRIES {
            let ticket = self.replicate.ticket();
            match self.attempt(ticket.op_id, inode, LockOp::Cancel { inode, op_id }) {
                Ok(Reply::Cancelled { ended: true }) => {
                    self.end_cancelled(op_id);
                    return true;
                }
                Ok(_) => {
                    self.request_in_turn(op_id, inode);
                    if self.has_ended(op_id) {
                        return false;
                    }
                    // A new leader did not know of the wait. It does now.
                }
                Err(Error::LocksNotRestored) => _ = self.restore(self.partition(inode)),
                Err(_) => break,
            }
        }
        self.abandon(op_id);
        true
    }

    /// True if the wait has an outcome.
    fn has_ended(&self, op_id: OpId) -> bool {
        self.state.lock().waits.get(&op_id).is_none_or(|wait| wait.answer.is_some())
    }

    /// Ends a wait that is not registered, after a request of it that is on its way.
    fn cancel_polled(&self, inode: InodeId, op_id: OpId) -> bool {
        let end = now() + ATTEMPT_LIMIT;
        match self.turns.begin(inode, self.partition(inode), || now() > end) {
            Some(_turn) => self.end_cancelled(op_id),
            None => self.abandon(op_id),
        }
        true
    }

    /// Ends the wait with `Interrupted`.
    fn end_cancelled(&self, op_id: OpId) {
        let on_answer = self.state.lock().finish(op_id, Err(Error::Interrupted));
        if let Some(on_answer) = on_answer {
            on_answer(Err(Error::Interrupted));
        }
    }

    /// Marks a wait whose caller gave up and that is not yet cancelled at the server.
    fn abandon(&self, op_id: OpId) {
        let mut state = self.state.lock();
        let Some(wait) = state.waits.get_mut(&op_id).filter(|wait| wait.answer.is_none()) else { return };
        wait.abandoned = true;
        let (on_answer, inode) = (wait.on_answer.take(), wait.inode);
        drop(state);
        if let Some(on_answer) = on_answer {
            on_answer(Err(Error::Interrupted));
        }
        self.listen_to(inode);
    }

    /// Marks the waits on inodes for which `belongs` is true, so that a listening thread requests their replies.
    pub(super) fn mark_due(&self, belongs: impl Fn(InodeId) -> bool) {
        let waits = &mut self.state.lock().waits;
        waits.values_mut().filter(|wait| belongs(wait.inode)).for_each(|wait| wait.due = true);
    }

    /// Starts the listening threads of all waits that lack one.
    pub(super) fn listen_to_all(&self) {
        let waiting: Vec<InodeId> = self.state.lock().waits.values().map(|wait| wait.inode).collect();
        waiting.into_iter().for_each(|inode| self.listen_to(inode));
    }

    /// Starts a thread that listens to the server of an inode with a wait, unless one runs.
    fn listen_to(&self, inode: InodeId) {
        let (Ok(server), Some(own)) = (self.replicate.server_of(self.recipient(inode)), self.own.upgrade()) else {
            return;
        };
        if !self.state.lock().listening.insert(server) {
            return;
        }
        let listen = move || own.listen(server);
        if let Err(error) = hekate_threads::spawn("hekate-lock-wait", listen) {
            log::warn!(
                "cannot start a thread that listens for lock notifications, the next heartbeat retries: {error}"
            );
            self.state.lock().listening.remove(&server);
        }
    }

    /// Body of a listening thread: runs until no wait needs that server.
    fn listen(self: Arc<Self>, server: ServerId) {
        let mut needed_at = now();
        loop {
            if self.is_needed(server) {
                needed_at = now();
            } else if elapsed(needed_at) > IDLE && self.stop_listening(server) {
                return;
            }
            let mut notifications = match self.replicate.servers().listen(server) {
                Ok(notifications) => notifications,
                Err(Error::SessionEnded) => return self.close(),
                Err(_) if self.is_closed() => return,
                Err(_) => {
                    hekate_threads::sleep(LISTEN_PAUSE);
                    continue;
                }
            };
            self.mark_due(|inode| self.is_at(inode, server));
            loop {
                self.request_due(server);
                match notifications.next(LISTEN_PAUSE) {
                    Ok(Some(Notification::Answered { op_ids })) => self.mark_notified(&op_ids),
                    Ok(_) => {}
                    Err(_) => break,
                }
                if self.is_needed(server) {
                    needed_at = now();
                } else if self.is_closed() || elapsed(needed_at) > IDLE {
                    break;
                }
            }
        }
    }

    /// True if the leader of the inode is at that server.
    fn is_at(&self, inode: InodeId, server: ServerId) -> bool {
        self.replicate.server_of(self.recipient(inode)) == Ok(server)
    }

    fn is_needed(&self, server: ServerId) -> bool {
        self.state.lock().waits.values().any(|wait| self.is_at(wait.inode, server))
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Removes the server from those listened to, unless a wait needs it again. True if the thread may end.
    fn stop_listening(&self, server: ServerId) -> bool {
        let mut state = self.state.lock();
        let needed = state.waits.values().any(|wait| self.is_at(wait.inode, server));
        if !needed || state.closed {
            state.listening.remove(&server);
        }
        !needed || state.closed
    }

    /// Marks waits that have a reply.
    fn mark_notified(&self, op_ids: &[OpId]) {
        let mut state = self.state.lock();
        for op_id in op_ids {
            if let Some(wait) = state.waits.get_mut(op_id) {
                wait.due = true;
            }
        }
    }

    /// Requests the replies of due waits, and cancels abandoned ones.
    fn request_due(&self, server: ServerId) {
        let due: Vec<(OpId, InodeId, bool)> = {
            let mut state = self.state.lock();
            let open = state.waits.iter_mut().filter(|(_, wait)| wait.answer.is_none());
            let due = open.filter(|(_, wait)| wait.is_due() && self.is_at(wait.inode, server));
            due.map(|(op_id, wait)| {
                (wait.due, wait.asked_at) = (false, now());
                (*op_id, wait.inode, wait.abandoned)
            })
            .collect()
        };
        for (op_id, inode, abandoned) in due {
            match abandoned {
                true => _ = self.cancel(inode, op_id),
                false => self.request_in_turn(op_id, inode),
            }
        }
    }

    /// Requests the reply of a wait, with one attempt. If that fails, the wait stays due.
    fn request_in_turn(&self, op_id: OpId, inode: InodeId) {
        let end = now() + ATTEMPT_LIMIT;
        let partition = self.partition(inode);
        let turn = self.turns.begin(inode, partition, || now() > end);
        let asked = match turn {
            Some(_) => self.request(op_id, |op_id, op| self.attempt(op_id, inode, op)),
            None => Err(gave_up()),
        };
        drop(turn);
        if asked == Err(Error::LocksNotRestored) {
            self.restore(partition);
        }
        if asked.as_ref().is_err_and(is_passing) {
            self.mark_notified(&[op_id]);
        }
    }

    /// The session is about to end: all waits end with an error.
    pub fn close(&self) {
        let waits = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.waits)
        };
        for on_answer in waits.into_values().filter_map(|wait| wait.on_answer) {
            on_answer(Err(Error::SessionEnded));
        }
    }
}

impl Wait {
    fn is_due(&self) -> bool {
        self.due || self.abandoned || self.ticket.is_none() && elapsed(self.asked_at) > POLL_PAUSE
    }
}

impl State {
    /// Stores the outcome of a wait, unless it has one. Returns the callback that receives it.
    fn finish(&mut self, op_id: OpId, answer: Result<()>) -> Option<OnAnswer> {
        let wait = self.waits.get_mut(&op_id).filter(|wait| wait.answer.is_none())?;
        if answer.is_ok() {
            self.held.apply(wait.inode, &wait.lock);
        }
        let on_answer = wait.on_answer.take();
        if on_answer.is_some() || wait.abandoned {
            self.waits.remove(&op_id);
        } else {
            wait.answer = Some(answer);
        }
        on_answer
    }
}
