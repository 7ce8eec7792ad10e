//! Locks that wait. Each keeps its op's slot and occupies no thread: one thread for each server that has some listens
//! there, is told which have their answers, and asks for these. A connection for listening that is made anew asks for
//! all, so nothing is lost with one.
//!
//! Slots are few, so of very many waits the later ones are not the leader's: the thread asks for them now and then, as one
//! that does not wait.
//!
//! A wait whose caller gave up while its server was away stays here, abandoned, until the server has taken it back; if it
//! had been granted by then it is held until its owner closes the file.

use super::{ATTEMPT_LIMIT, Locks, State, gave_up, is_passing};
use crate::replicate::OpTicket;
use hekate_graph::Context;
use hekate_proto::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Waits of one mount that leaders know: half of its session's slots, so that other ops always find one.
const KNOWN_MAX: usize = SESSION_SLOTS / 2;
/// All of its waits; one more is refused.
const WAITS_MAX: usize = 4096;
/// How often each of those is asked for that leaders do not know.
const POLL_PAUSE: Duration = Duration::from_millis(500);
/// How often a thread that listens looks for what others have left it to do.
const LISTEN_PAUSE: Duration = Duration::from_millis(100);
/// How long it goes on listening for nobody.
const IDLE: Duration = Duration::from_secs(5);
/// How often a cancel is sent before it is left to the thread that listens.
const CANCEL_TRIES: u32 = 3;

/// How often who waits for a lock looks whether its caller gave up.
const LOOK_UP: Duration = Duration::from_millis(10);

/// Who is told the answer.
type Then = Box<dyn FnOnce(Result<()>) + Send>;

/// One of the waits that leaders know, until it is dropped.
pub(super) struct Known(Arc<AtomicUsize>);

impl Known {
    fn one_more(count: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |known: usize| (known < KNOWN_MAX).then_some(known + 1);
        count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok().then(|| Self(count.clone()))
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One lock that waits.
pub(super) struct Wait {
    /// None: the leader does not know of it.
    ticket: Option<(OpTicket, Known)>,
    asked_at: Instant,
    inode: InodeId,
    lock: Lock,
    /// It is to be asked for again.
    again: bool,
    /// Its caller was told that it is interrupted; it is yet to be cancelled.
    abandoned: bool,
    answer: Option<Result<()>>,
    then: Option<Then>,
}

impl Locks {
    /// Asks for a lock that may have to wait.
    pub(super) fn wait(&self, context: &Context, inode: InodeId, lock: Lock) -> Result<Reply> {
        let op_id = self.begin_wait(inode, lock)?;
        let asked = self.patiently(context, inode, || {
            self.pay(context, inode, lock.owner)?;
            self.ask(op_id, |op_id, op| self.send(context, op_id, inode, op))
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
        Err(gave_up())
    }

    /// Takes a lock and waits for it on this thread; who gives up holds nothing new.
    pub(crate) fn hold(&self, context: &Context, inode: InodeId, lock: Lock) -> Result<()> {
        match self.wait(context, inode, lock)? {
            Reply::Waiting { op_id } => self.await_lock(context, inode, op_id),
            _ => Ok(()),
        }
    }

    /// Waits for the answer of a lock that waits.
    pub fn await_lock(&self, context: &Context, inode: InodeId, op_id: OpId) -> Result<()> {
        let (tell, told) = channel();
        self.when_answered(op_id, move |answer| _ = tell.send(answer));
        let mut cancelled = false;
        loop {
            match told.recv_timeout(LOOK_UP) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => return Err(Error::SessionEnded),
                Err(RecvTimeoutError::Timeout) if context.interrupted() && !cancelled => {
                    cancelled = true;
                    self.cancel(inode, op_id);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Lets go of a lock that is held. If its server is away and the caller does not wait, that is done when it is back.
    pub(crate) fn let_go(&self, context: &Context, inode: InodeId, lock: Lock) {
        if self.set(context, inode, Lock { kind: LockKind::Unlock, ..lock }).is_err() {
            // What cannot be sent now is owed.
            let _ = self.release(context, inode, lock.owner);
        }
    }

    /// Known before it is sent, so that whoever connects for listening meanwhile asks for it.
    fn begin_wait(&self, inode: InodeId, lock: Lock) -> Result<OpId> {
        // A slot is waited for, which is not to be done with the table locked.
        let ticket = Known::one_more(&self.known).map(|known| (self.replicate.ticket(), known));
        let op_id = ticket.as_ref().map_or_else(|| self.replicate.unused_id(), |(ticket, _)| ticket.op_id);
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::SessionEnded);
        }
        if state.waits.len() >= WAITS_MAX {
            let what = format!("{WAITS_MAX} processes of this mount wait for locks already; try again later");
            return Err(Error::TooManyLocks { what });
        }
        let (asked_at, (again, abandoned, answer, then)) = (Instant::now(), Default::default());
        state.waits.insert(op_id, Wait { ticket, asked_at, inode, lock, again, abandoned, answer, then });
        Ok(op_id)
    }

    /// In its inode's turn: sends it (again), and takes its answer if that has come.
    fn ask(&self, op_id: OpId, send: impl FnOnce(OpId, LockOp) -> Result<Reply>) -> Result<Reply> {
        let open = |wait: &Wait| wait.answer.is_none().then_some((wait.inode, wait.lock, wait.ticket.is_some()));
        let Some((inode, lock, known)) = self.state.lock().waits.get(&op_id).and_then(open) else {
            return Ok(Reply::Waiting { op_id });
        };
        let before = self.doubt(inode, &lock);
        let answer = match known {
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
        let settled = match &answer {
            Ok(Reply::Waiting { .. }) => {
                state.held.was_not_done(inode, &lock, before);
                return answer;
            }
            Ok(_) => Ok(()),
            Err(error) if is_passing(error) => return answer,
            Err(error) => {
                state.held.was_not_done(inode, &lock, before);
                Err(error.clone())
            }
        };
        let then = state.settle(op_id, settled.clone());
        drop(state);
        if let Some(then) = then {
            then(settled);
        }
        answer
    }

    /// Whoever asked for it is told when the answer is there, now or later, by whichever thread finds it.
    pub fn when_answered(&self, op_id: OpId, then: impl FnOnce(Result<()>) + Send + 'static) {
        let mut state = self.state.lock();
        let answer = match state.waits.get_mut(&op_id) {
            Some(Wait { answer: Some(_), .. }) => state.waits.remove(&op_id).and_then(|wait| wait.answer),
            Some(Wait { abandoned: true, .. }) => Some(Err(Error::Interrupted)),
            Some(wait) => {
                wait.then = Some(Box::new(then));
                return;
            }
            None => None,
        };
        drop(state);
        then(answer.unwrap_or(Err(Error::SessionEnded)));
    }

    /// Ends a wait. -> whether that is its answer; else it had been granted before, and is told so.
    pub(super) fn cancel(&self, inode: InodeId, op_id: OpId) -> bool {
        let is_known = |wait: &Wait| wait.ticket.is_some();
        if !self.state.lock().waits.get(&op_id).is_none_or(is_known) {
            return self.cancel_unknown(inode, op_id);
        }
        for _ in 0..CANCEL_TRIES {
            let ticket = self.replicate.ticket();
            match self.attempt(ticket.op_id, inode, LockOp::Cancel { inode, op_id }) {
                Ok(Reply::Cancelled { ended: true }) => {
                    self.is_cancelled(op_id);
                    return true;
                }
                Ok(_) => {
                    self.take_turn_and_ask(op_id, inode);
                    return false;
                }
                Err(Error::LocksUntold) => _ = self.restore(self.partition(inode)),
                Err(_) => break,
            }
        }
        self.abandon(op_id);
        true
    }

    /// It is not asked for again; an answer that is on its way counts.
    fn cancel_unknown(&self, inode: InodeId, op_id: OpId) -> bool {
        let end = Instant::now() + ATTEMPT_LIMIT;
        match self.turns.begin(inode, self.partition(inode), || Instant::now() > end) {
            Some(_turn) => self.is_cancelled(op_id),
            None => self.abandon(op_id),
        }
        true
    }

    fn is_cancelled(&self, op_id: OpId) {
        let then = self.state.lock().settle(op_id, Err(Error::Interrupted));
        if let Some(then) = then {
            then(Err(Error::Interrupted));
        }
    }

    /// Its caller waits no more; the server is yet to be told.
    fn abandon(&self, op_id: OpId) {
        let mut state = self.state.lock();
        let Some(wait) = state.waits.get_mut(&op_id).filter(|wait| wait.answer.is_none()) else { return };
        wait.abandoned = true;
        let (then, inode) = (wait.then.take(), wait.inode);
        drop(state);
        if let Some(then) = then {
            then(Err(Error::Interrupted));
        }
        self.listen_to(inode);
    }

    /// Those on such inodes are asked for again, by whoever listens.
    pub(super) fn ask_again(&self, is_meant: impl Fn(InodeId) -> bool) {
        let waits = &mut self.state.lock().waits;
        waits.values_mut().filter(|wait| is_meant(wait.inode)).for_each(|wait| wait.again = true);
    }

    pub(super) fn listen_to_all(&self) {
        let waiting: Vec<InodeId> = self.state.lock().waits.values().map(|wait| wait.inode).collect();
        waiting.into_iter().for_each(|inode| self.listen_to(inode));
    }

    /// Sees to it that a thread listens to the server of an inode that somebody waits for.
    fn listen_to(&self, inode: InodeId) {
        let (Ok(server), Some(own)) = (self.replicate.server_of(self.whom(inode)), self.own.upgrade()) else { return };
        if !self.state.lock().listening.insert(server) {
            return;
        }
        let listen = move || own.listen(server);
        if let Err(error) = std::thread::Builder::new().name("hekate-ears".into()).spawn(listen) {
            log::warn!("a thread that listens for locks: {error}");
            self.state.lock().listening.remove(&server);
        }
    }

    /// Until nobody waits for that server.
    fn listen(self: Arc<Self>, server: ServerId) {
        let mut needed_at = Instant::now();
        loop {
            if self.is_needed(server) {
                needed_at = Instant::now();
            } else if needed_at.elapsed() > IDLE && self.leave(server) {
                return;
            }
            let mut ears = match self.replicate.servers().listen(server) {
                Ok(ears) => ears,
                Err(Error::SessionEnded) => return self.close(),
                Err(_) if self.is_closed() => return,
                Err(_) => {
                    std::thread::sleep(LISTEN_PAUSE);
                    continue;
                }
            };
            self.ask_again(|inode| self.is_at(inode, server));
            loop {
                self.tend(server);
                match ears.next(LISTEN_PAUSE) {
                    Ok(told) => self.are_told(&told.unwrap_or_default()),
                    Err(_) => break,
                }
                if self.is_needed(server) {
                    needed_at = Instant::now();
                } else if self.is_closed() || needed_at.elapsed() > IDLE {
                    break;
                }
            }
        }
    }

    fn is_at(&self, inode: InodeId, server: ServerId) -> bool {
        self.replicate.server_of(self.whom(inode)) == Ok(server)
    }

    fn is_needed(&self, server: ServerId) -> bool {
        self.state.lock().waits.values().any(|wait| self.is_at(wait.inode, server))
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Nobody listens there any more, unless somebody has begun to wait. -> whether that is so.
    fn leave(&self, server: ServerId) -> bool {
        let mut state = self.state.lock();
        let needed = state.waits.values().any(|wait| self.is_at(wait.inode, server));
        if !needed || state.closed {
            state.listening.remove(&server);
        }
        !needed || state.closed
    }

    fn are_told(&self, op_ids: &[OpId]) {
        let mut state = self.state.lock();
        for op_id in op_ids {
            if let Some(wait) = state.waits.get_mut(op_id) {
                wait.again = true;
            }
        }
    }

    /// Asks for what is to be asked for again, and cancels what was abandoned.
    fn tend(&self, server: ServerId) {
        let due: Vec<(OpId, InodeId, bool)> = {
            let mut state = self.state.lock();
            let open = state.waits.iter_mut().filter(|(_, wait)| wait.answer.is_none());
            let due = open.filter(|(_, wait)| wait.is_due() && self.is_at(wait.inode, server));
            due.map(|(op_id, wait)| {
                (wait.again, wait.asked_at) = (false, Instant::now());
                (*op_id, wait.inode, wait.abandoned)
            })
            .collect()
        };
        for (op_id, inode, abandoned) in due {
            match abandoned {
                true => _ = self.cancel(inode, op_id),
                false => self.take_turn_and_ask(op_id, inode),
            }
        }
    }

    /// What cannot be answered now is asked for again later.
    fn take_turn_and_ask(&self, op_id: OpId, inode: InodeId) {
        let end = Instant::now() + ATTEMPT_LIMIT;
        let partition = self.partition(inode);
        let turn = self.turns.begin(inode, partition, || Instant::now() > end);
        let asked = match turn {
            Some(_) => self.ask(op_id, |op_id, op| self.attempt(op_id, inode, op)),
            None => Err(gave_up()),
        };
        drop(turn);
        if asked == Err(Error::LocksUntold) {
            self.restore(partition);
        }
        if asked.as_ref().is_err_and(is_passing) {
            self.are_told(&[op_id]);
        }
    }

    /// The session is about to end: whoever waits is told.
    pub fn close(&self) {
        let waits = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.waits)
        };
        for then in waits.into_values().filter_map(|wait| wait.then) {
            then(Err(Error::SessionEnded));
        }
    }
}

impl Wait {
    fn is_due(&self) -> bool {
        self.again || self.abandoned || self.ticket.is_none() && self.asked_at.elapsed() > POLL_PAUSE
    }
}

impl State {
    /// A wait's answer, which counts once. -> who wants to know it.
    fn settle(&mut self, op_id: OpId, answer: Result<()>) -> Option<Then> {
        let wait = self.waits.get_mut(&op_id).filter(|wait| wait.answer.is_none())?;
        if answer.is_ok() {
            self.held.apply(wait.inode, &wait.lock);
        }
        let then = wait.then.take();
        if then.is_some() || wait.abandoned {
            self.waits.remove(&op_id);
        } else {
            wait.answer = Some(answer);
        }
        then
    }
}
