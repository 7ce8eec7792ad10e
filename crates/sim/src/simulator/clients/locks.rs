//! Locks: the connections on which servers notify sessions, and the calls of clients about locks.

use crate::history::CallNumber;
use crate::simulator::threads::{self, Action, Answer, MessageNumber, Owner};
use crate::simulator::world::{Event, World, trace};
use hekate_brick::storage::Random;
use hekate_client::{Context, Volume};
use hekate_proto::*;
use hekate_transport::{NotificationSink, Peer, Service};
use std::sync::Arc;
use std::time::Duration;

/// Longest time for which a client waits for a lock.
const WAIT_MAX: u64 = 3_000_000;
/// Owners of a client, and bytes that their locks are about.
const OWNERS: u64 = 2;
const BYTES: u64 = 4;

/// A connection on which a session is notified.
pub struct Listener {
    client: u32,
    server: u32,
    session: SessionId,
    sink: Arc<dyn NotificationSink>,
    /// It is cut, which neither end has noticed: it carries nothing.
    is_mute: bool,
}

/// The server's end of such a connection.
struct Sink(MessageNumber);

impl NotificationSink for Sink {
    fn tell(&self, notification: &Notification) {
        threads::ask(Action::Tell { listener: self.0, notification: notification.clone() });
    }
}

/// A call about a lock of a file.
pub fn lock_op(inode: InodeId, random: &mut Random) -> LockOp {
    let owner = LockOwner(1 + random.below(OWNERS));
    let kind = [LockKind::Read, LockKind::Write, LockKind::Write, LockKind::Unlock][random.below(4) as usize];
    if random.once_in(12) {
        return LockOp::Release { inode, owner };
    }
    let (start, length) = (random.below(BYTES), random.below(BYTES));
    let lock = match random.once_in(3) {
        true => Lock { kind, style: LockStyle::Flock, start: 0, end: LOCK_END, owner, pid: 0 },
        // A shared lock has one byte: one that goes beyond an exclusive lock of its owner is in docs/limits.md.
        false => {
            let end = if kind == LockKind::Read { start } else { (start + length).min(BYTES - 1) };
            Lock { kind, style: LockStyle::Posix, start, end, owner, pid: 0 }
        }
    };
    LockOp::Set { inode, lock, wait: kind != LockKind::Unlock && random.once_in(3) }
}

/// Makes a call about a lock, which waits for at most `limit`.
pub fn call_lock(volume: &Volume, op: LockOp, limit: Duration) -> Result<Reply> {
    let done = match op {
        LockOp::Set { inode, lock, wait } => {
            let deadline = wait.then(|| hekate_threads::now() + limit);
            volume.lock(&Context { deadline, ..Context::default() }, inode, lock, wait)
        }
        LockOp::Release { inode, owner } => volume.release_locks(&Context::default(), inode, owner),
        other => return volume.call(&Context::default(), Op::Lock { op: other }),
    };
    done.map(|()| Reply::Done)
}

impl World {
    /// How long the next call about a lock waits.
    pub fn lock_limit(&mut self) -> Duration {
        Duration::from_micros(self.delay(WAIT_MAX))
    }

    /// Opens a connection for notifications.
    pub fn listen(&mut self, client: u32, server: u32, message: MessageNumber) {
        let Some(session) = self.people[client as usize].volume.as_ref().map(|volume| volume.session()) else { return };
        self.serve(server, message, move |node| {
            if let Err(error) =
                node.open(&Peer::Local { uid: 0 }, crate::simulator::servers::VOLUME_NAME, Some(session))
            {
                return Answer::Refused(error);
            }
            node.disconnected(session);
            let sink: Arc<dyn NotificationSink> = Arc::new(Sink(message));
            node.listening(session, sink.clone());
            let listener = Listener { client, server, session, sink: sink.clone(), is_mute: false };
            if threads::in_world(move |world: &mut World| world.listens(message, listener)) != Some(true) {
                node.deaf(session, &sink);
            }
            Answer::Listening
        });
    }

    /// A server has registered the connection. False: the client does not wait for it any more.
    fn listens(&mut self, message: MessageNumber, listener: Listener) -> bool {
        let is_wanted = self.messages.contains_key(&message);
        if is_wanted {
            trace!(self, "client {} listens to server {}", listener.client, listener.server);
            self.listeners.insert(message, listener);
        }
        is_wanted
    }

    /// Notifies a session.
    pub fn tell(&mut self, listener: MessageNumber, notification: Notification) {
        let max = if self.is_message_slow() { self.settings.late_max } else { self.settings.delay_max };
        let delay = self.delay(max);
        self.report.count(match notification {
            Notification::Answered { .. } => "notifications of locks",
            Notification::Recall { .. } => "recalls of pledges",
        });
        self.later(delay, move |world| {
            if world.listeners.get(&listener).is_some_and(|of| world.hears(of)) {
                world.deliver_answer(listener, Answer::Notified(vec![notification]));
            }
        });
    }

    /// True if a notification arrives on this connection.
    fn hears(&self, of: &Listener) -> bool {
        let is_cut = self.settings.listener_notice_max > 0 && !self.reaches(Owner::Client(of.client), of.server);
        !of.is_mute && !is_cut
    }

    /// Closes a connection: its server sees that, and the client if it still runs.
    pub fn close_listener(&mut self, message: MessageNumber) {
        let Some(Listener { server, session, sink, .. }) = self.listeners.remove(&message) else { return };
        self.deliver_answer(message, Answer::Lost);
        let Some(node) = self.servers[server as usize].node.clone() else { return };
        let thread = self.threads.add(Owner::Server(server), move || node.deaf(session, &sink));
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }

    pub fn close_listeners_of(&mut self, server: u32) {
        self.close_where(|listener| listener.server == server);
    }

    pub fn close_listeners_of_client(&mut self, client: u32) {
        self.close_where(|listener| listener.client == client);
    }

    fn close_where(&mut self, closes: impl Fn(&Listener) -> bool) {
        let closed = self.listeners.iter().filter(|(_, listener)| closes(listener));
        let closed: Vec<MessageNumber> = closed.map(|(message, _)| *message).collect();
        closed.into_iter().for_each(|message| self.close_listener(message));
    }

    /// A random connection for notifications ends.
    pub fn cut_listener(&mut self) {
        let chosen = self.random.below(self.listeners.len().max(1) as u64) as usize;
        let Some((message, listener)) = self.listeners.iter_mut().nth(chosen) else { return };
        self.report.count("fault: a connection for notifications is cut");
        let message = *message;
        if self.settings.listener_notice_max == 0 {
            return self.close_listener(message);
        }
        listener.is_mute = true;
        let (client, server) = (listener.client, listener.server);
        let notice = self.delay(self.settings.listener_notice_max);
        trace!(self, "client {client} receives no notifications of server {server}, and notices after {notice}");
        self.later(notice, move |world| world.close_listener(message));
    }

    /// The call of a client that has ended may have been about a lock.
    pub fn count_lock(&mut self, call: CallNumber) {
        let call = self.history.call(call);
        if let Op::Lock { op: LockOp::Set { wait: true, .. } } = &call.op
            && let Some(answer) = &call.answer
        {
            let what = if answer.outcome.is_ok() { "locks that were waited for" } else { "waits for locks that ended" };
            self.report.count(what);
        }
    }
}
