//! One peer: its link, the connection that carries the link, and the events that wait for the handler.

use super::outbox::Outbox;
use super::{Shared, cork};
use crate::endpoint::Endpoint;
use crate::link::{Ended, Event, Link, Output, Packet};
use crate::stream::Stream;
use bytes::Bytes;
use hekate_proto::ServerId;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

/// Pause before events are offered again to a handler that was busy.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Peer {
    pub server: ServerId,
    state: Mutex<State>,
    /// Held while the handler is called, so that it gets all events in order; the vector is the buffer of the events.
    /// Locked before `state`.
    delivery: Mutex<Vec<Event>>,
}

struct State {
    link: Link,
    endpoint: Option<Endpoint>,
    connection: Option<Connection>,
    /// Number of connections so far; the current one has this id.
    connections: u64,
    outbox: Outbox,
    /// The socket is full, so the writer thread waits for room.
    blocked: bool,
    /// True while nothing may be written: the handler must be called with the end of a generation before the peer
    /// receives a packet of the next one.
    held: bool,
    /// Events for the handler, in order.
    events: Vec<Event>,
    /// Buffer of [`State::act`].
    outputs: Vec<Output>,
}

struct Connection {
    id: u64,
    stream: Stream,
    writer: Arc<Condvar>,
}

impl Peer {
    pub fn new(server: ServerId, link: Link) -> Self {
        let state = State {
            link,
            endpoint: None,
            connection: None,
            connections: 0,
            outbox: Outbox::default(),
            blocked: false,
            held: false,
            events: Vec::new(),
            outputs: Vec::new(),
        };
        Self { server, state: Mutex::new(state), delivery: Mutex::default() }
    }

    /// Sets the peer's address. True if it had none.
    pub fn set_endpoint(&self, endpoint: Endpoint) -> bool {
        self.state.lock().endpoint.replace(endpoint).is_none()
    }

    pub fn endpoint(&self) -> Option<Endpoint> {
        self.state.lock().endpoint.clone()
    }

    /// See [`Peers::send`](super::Peers::send).
    pub fn send(self: &Arc<Self>, shared: &Shared, message: Bytes) -> bool {
        let corked = cork::defer_flush(self);
        let mut state = self.state.lock();
        let taken = state.act(|link, out| link.send(message, shared.now(), out));
        if !corked {
            state.write();
        }
        state.set_alarm(shared);
        if !taken {
            state.schedule_delivery(shared);
        }
        taken
    }

    pub fn flush(&self) {
        self.state.lock().write();
    }

    pub fn reset(&self, shared: &Shared) {
        let mut state = self.state.lock();
        state.act(|link, out| link.reset(shared.now(), out));
        state.schedule_delivery(shared);
    }

    /// Closes the current connection, which ends its reader thread.
    pub fn disconnect(&self) {
        self.state.lock().disconnect();
    }

    /// Closes connection `id`, unless another one has replaced it.
    pub fn disconnected(&self, id: u64) {
        let mut state = self.state.lock();
        if state.is_current(id) {
            state.disconnect();
        }
    }

    /// A new connection carries the link from now on. Events of the previous one are delivered first. Returns its id.
    pub fn connected(&self, shared: &Shared, stream: Stream, writer: Arc<Condvar>) -> u64 {
        let mut delivery = self.delivery.lock();
        self.deliver(shared, &mut delivery);
        let mut state = self.state.lock();
        state.disconnect();
        state.connections += 1;
        let id = state.connections;
        state.connection = Some(Connection { id, stream, writer });
        state.act(|link, out| link.connected(shared.now(), out));
        state.write();
        state.set_alarm(shared);
        id
    }

    /// Passes packets of a connection to the link, and its events to the handler. False if another connection has
    /// replaced this one.
    pub fn receive(self: &Arc<Self>, shared: &Shared, id: u64, packets: &mut Vec<Packet>) -> bool {
        let mut delivery = self.delivery.lock();
        let _cork = cork::Cork::new();
        cork::defer_flush(self);
        let mut state = self.state.lock();
        if !state.is_current(id) {
            return false;
        }
        for packet in packets.drain(..) {
            state.act(|link, out| link.receive(packet, shared.now(), out));
        }
        state.held = state.events.iter().any(|event| !matches!(event, Event::Message(_)));
        state.set_alarm(shared);
        drop(state);
        self.deliver(shared, &mut delivery);
        true
    }

    /// Delivers all waiting events to the handler.
    fn deliver(&self, shared: &Shared, delivery: &mut MutexGuard<'_, Vec<Event>>) {
        let unwinding = ResetIfUnwound { peer: self, shared };
        loop {
            let mut state = self.state.lock();
            if state.events.is_empty() {
                state.held = false;
                break;
            }
            std::mem::swap(&mut state.events, delivery);
            drop(state);
            for event in delivery.drain(..) {
                match event {
                    _ if shared.stopping() => {}
                    Event::Up { boot, .. } => shared.handler.up(self.server, boot),
                    Event::Message(bytes) => shared.handler.message(self.server, bytes),
                    Event::Down(_) => shared.handler.down(self.server),
                }
            }
        }
        std::mem::forget(unwinding);
    }

    /// Runs the timers of the link that are due. Returns the time of the next one.
    pub fn tick(&self, shared: &Shared) -> Option<Duration> {
        let mut state = self.state.lock();
        let now = shared.now();
        if state.link.next_tick().is_some_and(|due| due <= now) {
            state.act(|link, out| link.tick(now, out));
            state.write();
        }
        let due = state.link.next_tick();
        if state.events.is_empty() {
            return due;
        }
        drop(state);
        match self.delivery.try_lock() {
            Some(mut delivery) => {
                self.deliver(shared, &mut delivery);
                due
            }
            None => Some(now + BUSY_PAUSE),
        }
    }

    #[cfg(test)]
    pub fn writes(&self) -> u64 {
        self.state.lock().outbox.writes
    }

    /// Body of the writer thread of a connection: waits until the socket is full, and then for room in it.
    pub fn write_when_blocked(&self, id: u64, stream: &Stream, writer: &Condvar) {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut state = self.state.lock();
        while state.is_current(id) {
            if !state.blocked {
                writer.wait(&mut state);
                continue;
            }
            MutexGuard::unlocked(&mut state, || {
                // The write that follows reports errors and the end of the connection.
                let _ = poll(&mut [PollFd::new(stream, PollFlags::OUT)], None);
            });
            if state.is_current(id) {
                state.blocked = false;
                state.write();
            }
        }
    }
}

/// Ends the generation if the handler panics: its messages are lost, so the generation must not continue.
struct ResetIfUnwound<'a> {
    peer: &'a Peer,
    shared: &'a Shared,
}

impl Drop for ResetIfUnwound<'_> {
    fn drop(&mut self) {
        self.peer.state.lock().held = false;
        self.peer.reset(self.shared);
    }
}

impl State {
    fn is_current(&self, id: u64) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.id == id)
    }

    /// Calls the link and executes its outputs: packets go to the outbox, events wait for the handler.
    fn act<T>(&mut self, act: impl FnOnce(&mut Link, &mut Vec<Output>) -> T) -> T {
        let mut outputs = std::mem::take(&mut self.outputs);
        let value = act(&mut self.link, &mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Transmit(packet) if self.connection.is_some() => self.outbox.push(&packet),
                Output::Transmit(_) => {}
                Output::Event(event) => {
                    // A connection that is stuck, or on which the ends disagree, is replaced.
                    if matches!(event, Event::Down(why) if !matches!(why, Ended::PeerRestarted | Ended::PeerEnded)) {
                        self.disconnect();
                    }
                    self.events.push(event);
                }
            }
        }
        self.outputs = outputs;
        value
    }

    /// Writes what the socket takes; the writer thread writes the rest.
    fn write(&mut self) {
        let Some(connection) = self.connection.as_ref().filter(|_| !self.blocked && !self.held) else { return };
        match self.outbox.write(&connection.stream) {
            Ok(true) => {}
            Ok(false) => {
                self.blocked = true;
                connection.writer.notify_one();
            }
            Err(_) => self.disconnect(),
        }
    }

    fn disconnect(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        connection.stream.shutdown();
        connection.writer.notify_one();
        self.link.disconnected();
        self.outbox.clear();
        self.blocked = false;
    }

    /// Makes the timer thread deliver the waiting events: without a connection there is no reader thread.
    fn schedule_delivery(&self, shared: &Shared) {
        if !self.events.is_empty() {
            shared.alarm.fire_now();
        }
    }

    fn set_alarm(&self, shared: &Shared) {
        if let Some(due) = self.link.next_tick() {
            shared.alarm.set(due);
        }
    }
}
