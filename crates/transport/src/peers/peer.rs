//! One peer: its link, the connection that carries it now, and what the handler is still to be told.

use super::outbox::Outbox;
use super::{Shared, cork};
use crate::endpoint::{Endpoint, Stream};
use crate::link::{Ended, Event, Link, Output, Packet};
use bytes::Bytes;
use hekate_proto::ServerId;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

/// After a handler that was busy when there was something more to tell it.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Peer {
    pub server: ServerId,
    state: Mutex<State>,
    /// Held while the handler is called, so that it hears everything in order; the buffer is for the events. Taken
    /// before `state`.
    delivery: Mutex<Vec<Event>>,
}

struct State {
    link: Link,
    endpoint: Option<Endpoint>,
    connection: Option<Connection>,
    connections: u64,
    outbox: Outbox,
    /// The socket takes no more, so the writer thread waits for it.
    blocked: bool,
    /// Nothing is written: the handler is to hear of the end of a generation before the peer hears of the next one.
    held: bool,
    /// For the handler, in order.
    events: Vec<Event>,
    outputs: Vec<Output>,
}

struct Connection {
    id: u64,
    stream: Arc<Stream>,
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

    /// True if there was none before.
    pub fn set_endpoint(&self, endpoint: Endpoint) -> bool {
        self.state.lock().endpoint.replace(endpoint).is_none()
    }

    pub fn endpoint(&self) -> Option<Endpoint> {
        self.state.lock().endpoint.clone()
    }

    pub fn send(self: &Arc<Self>, shared: &Shared, message: Bytes) -> bool {
        let corked = cork::holds_back(self);
        let mut state = self.state.lock();
        let taken = state.act(|link, out| link.send(message, shared.now(), out));
        if !corked {
            state.write();
        }
        state.set_alarm(shared);
        if !taken {
            state.have_told(shared);
        }
        taken
    }

    pub fn flush(&self) {
        self.state.lock().write();
    }

    pub fn reset(&self, shared: &Shared) {
        let mut state = self.state.lock();
        state.act(|link, out| link.reset(shared.now(), out));
        state.have_told(shared);
    }

    /// The reader of the connection ends by this.
    pub fn disconnect(&self) {
        self.state.lock().disconnect();
    }

    /// The same, unless another connection has taken its place.
    pub fn disconnected(&self, id: u64) {
        let mut state = self.state.lock();
        if state.is_current(id) {
            state.disconnect();
        }
    }

    /// The link goes over this connection from now on; what went over another one before has been handled.
    pub fn connected(&self, shared: &Shared, stream: Arc<Stream>, writer: Arc<Condvar>) -> u64 {
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

    /// Hands packets of a connection to the link and what comes of them to the handler; false if the connection is no
    /// longer the peer's.
    pub fn hear(self: &Arc<Self>, shared: &Shared, id: u64, packets: &mut Vec<Packet>) -> bool {
        let mut delivery = self.delivery.lock();
        let _cork = cork::Cork::new();
        cork::holds_back(self);
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

    /// Tells the handler everything that it is to be told.
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

    /// Does what is due. When there is something to do next, if nothing happens.
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

    /// The writer thread of a connection: waits until the socket is full, and then for the socket.
    pub fn write_when_blocked(&self, id: u64, stream: &Stream, writer: &Condvar) {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut state = self.state.lock();
        while state.is_current(id) {
            if !state.blocked {
                writer.wait(&mut state);
                continue;
            }
            MutexGuard::unlocked(&mut state, || {
                // An error or an end is found by the write.
                let _ = poll(&mut [PollFd::new(stream, PollFlags::OUT)], None);
            });
            if state.is_current(id) {
                state.blocked = false;
                state.write();
            }
        }
    }
}

/// A handler that panics has not had its messages: the generation must not go on without them.
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

    /// Asks the link, and does or keeps what it wants.
    fn act<T>(&mut self, act: impl FnOnce(&mut Link, &mut Vec<Output>) -> T) -> T {
        let mut outputs = std::mem::take(&mut self.outputs);
        let value = act(&mut self.link, &mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Transmit(packet) if self.connection.is_some() => self.outbox.push(&packet),
                Output::Transmit(_) => {}
                Output::Event(event) => {
                    // A connection that is stuck, or that the peers no longer agree on, is made anew.
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

    /// Writes what the socket takes; the rest is the writer thread's.
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

    /// The timer tells the handler what no reader may be there to tell.
    fn have_told(&self, shared: &Shared) {
        if !self.events.is_empty() {
            shared.alarm.ring();
        }
    }

    fn set_alarm(&self, shared: &Shared) {
        if let Some(due) = self.link.next_tick() {
            shared.alarm.set(due);
        }
    }
}
