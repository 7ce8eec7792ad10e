//! One end of a link between two server processes: messages in order and exactly once, within a *generation*.
//!
//! Pure: it opens no socket and reads no clock. Packets may be lost, duplicated, delayed and reordered, as in the
//! simulator; over a stream socket they are lost only with the connection. The two ends agree as follows:
//!
//! - Each end contributes an [`Attempt`] to a generation: its boot and a counter. It never uses an attempt for two
//!   generations, so the pair of attempts names the generation, and every packet carries both.
//! - An end without a generation sends `Open` to the peer's attempt that it last received from. Two ends that name
//!   each other's attempts are *paired*.
//! - An end sends an attempt (in `Open`) to one process of the peer only, and to that process's attempts in ascending
//!   order; for another process it takes a new attempt. So once an end is paired with an attempt, no packet of an
//!   earlier attempt can pair it again.
//! - A paired end that receives a packet of another process of its peer ends its generation only if the packet names
//!   its current attempt, which a delayed packet of an earlier process does not. Otherwise it answers `Doubt`.

mod flow;
mod packet;
#[cfg(test)]
mod tests;

pub use flow::LinkSettings;
pub use packet::{Attempt, Body, Boot, Generation, MessageNumber, PACKET_OVERHEAD, Packet};

use crate::frame::FRAME_BYTES_MAX;
use bytes::Bytes;
use flow::Flow;
use hekate_proto::ServerId;
use std::time::Duration;

/// Longest message, in bytes: its packet fits in a frame.
pub const MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX - PACKET_OVERHEAD;

/// An action that a link requests. Actions are executed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this packet to the peer.
    Transmit(Packet),
    /// Pass this event to the user of the link.
    Event(Event),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A generation begins.
    Up {
        /// The peer's process.
        boot: Boot,
        /// Name of the generation, equal at both ends.
        generation: Generation,
    },
    /// The generation has ended. The peer received a prefix of the messages that it has not acknowledged, possibly
    /// all.
    Down(Ended),
    /// The next message of the generation.
    Message(Bytes),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// A packet of another process of the peer arrived.
    PeerRestarted,
    /// A packet of a later attempt of the peer arrived: the peer has ended the generation.
    PeerEnded,
    /// The unacknowledged messages exceed their limit, or a message is longer than [`MESSAGE_BYTES_MAX`].
    Limit,
    /// The peer acknowledged nothing for [`LinkSettings::give_up_after`].
    Silence,
    /// The peer acknowledged a message that this end has not sent.
    Nonsense,
    /// [`Link::reset`] was called.
    Reset,
}

/// One end of a link. `now` is a time on any monotonic clock.
#[derive(Debug)]
pub struct Link {
    own_server: ServerId,
    peer_server: ServerId,
    settings: LinkSettings,
    connected: bool,
    own: Attempt,
    /// The peer's attempt that `own` is sent to or paired with.
    peer: Option<Attempt>,
    /// The messages of the generation of `own` and `peer`, if they are paired.
    pair: Option<Flow>,
    /// When the last `Open` was sent.
    opened_at: Duration,
}

impl Link {
    /// A link that is not connected.
    pub fn new(own: (ServerId, Boot), peer: ServerId, settings: LinkSettings) -> Self {
        assert_ne!(own.0, peer, "a server has no link to itself");
        let attempt = Attempt { boot: own.1, number: 0 };
        Self {
            own_server: own.0,
            peer_server: peer,
            settings,
            connected: false,
            own: attempt,
            peer: None,
            pair: None,
            opened_at: Duration::ZERO,
        }
    }

    /// True if a generation is up, so that messages can be sent.
    pub fn is_up(&self) -> bool {
        self.pair.is_some()
    }

    /// The medium carries packets from now on. Unacknowledged messages are sent again.
    pub fn connected(&mut self, now: Duration, out: &mut Vec<Output>) {
        self.connected = true;
        let Some(flow) = &mut self.pair else { return self.open(now, out) };
        let again = flow.resend(Duration::MAX, now);
        again.into_iter().for_each(|body| self.transmit(body, out));
    }

    /// The medium is lost. The generation continues if a new connection comes in time.
    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    /// Sends a message. Returns false if no generation is up, or if the message ended the generation because it
    /// exceeds a limit.
    pub fn send(&mut self, message: Bytes, now: Duration, out: &mut Vec<Output>) -> bool {
        let Some(flow) = &mut self.pair else { return false };
        if message.len() > MESSAGE_BYTES_MAX || !flow.has_room(&message, &self.settings) {
            self.end(Ended::Limit, out);
            self.open(now, out);
            return false;
        }
        let body = flow.push(message, now);
        self.transmit(body, out);
        true
    }

    /// Ends the generation, because the user of the link cannot continue in it.
    pub fn reset(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.is_up() {
            self.end(Ended::Reset, out);
            self.open(now, out);
        }
    }

    /// Processes a packet.
    pub fn receive(&mut self, packet: Packet, now: Duration, out: &mut Vec<Output>) {
        let Packet { from, to, body } = packet;
        if self.peer.is_some_and(|peer| peer.boot == from.boot && peer.number > from.number) {
            return;
        }
        let same = self.peer == Some(from);
        if self.pair.is_some() && !same {
            let restarted = self.peer.is_some_and(|peer| peer.boot != from.boot);
            if restarted && to != Some(self.own) {
                let to = Some(from);
                return self.transmit_to(to, Body::Doubt, out);
            }
            self.end(if restarted { Ended::PeerRestarted } else { Ended::PeerEnded }, out);
        }
        if self.pair.is_none() {
            self.adopt_peer(from);
            if to != Some(self.own) || body == Body::Doubt {
                return self.open(now, out);
            }
            self.begin(from, out);
        }
        match body {
            // The peer does not know yet that the generation is up.
            _ if to != Some(self.own) => self.report(out),
            Body::Doubt | Body::Open => self.report(out),
            Body::Received { until } => self.process(until, None, now, out),
            Body::Message { until, number, bytes } => self.process(until, Some((number, bytes)), now, out),
        }
    }

    /// Runs the timers that are due at `now`: `Open`, the end of a silent generation, resends, acknowledgements.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        let is_due = |due: Option<Duration>| due.is_some_and(|due| due <= now);
        let Some(flow) = &mut self.pair else {
            if is_due(self.open_due()) {
                self.open(now, out);
            }
            return;
        };
        if is_due(flow.give_up_due(&self.settings)) {
            self.end(Ended::Silence, out);
            return self.open(now, out);
        }
        if is_due(flow.resend_due(&self.settings)) {
            let before = now.saturating_sub(self.settings.resend_after.unwrap_or_default());
            let again = flow.resend(before, now);
            again.into_iter().for_each(|body| self.transmit(body, out));
        } else if is_due(flow.report_due(&self.settings)) {
            self.report(out);
        }
    }

    /// Time of the next call of [`Link::tick`], if nothing else happens before.
    pub fn next_tick(&self) -> Option<Duration> {
        let Some(flow) = &self.pair else { return self.open_due() };
        let connected = [flow.resend_due(&self.settings), flow.report_due(&self.settings)];
        let due = connected.into_iter().flatten().filter(|_| self.connected);
        due.chain(flow.give_up_due(&self.settings)).min()
    }

    /// When `Open` is to be sent again, while no generation is up.
    fn open_due(&self) -> Option<Duration> {
        self.settings.resend_after.filter(|_| self.connected).map(|after| self.opened_at + after)
    }

    /// Outside of a generation: `own` is sent to `from` from now on. An attempt is sent to one process only.
    fn adopt_peer(&mut self, from: Attempt) {
        if self.peer.is_some_and(|peer| peer.boot != from.boot) {
            self.own.number += 1;
        }
        self.peer = Some(from);
    }

    /// The generation of `own` and `from` begins.
    fn begin(&mut self, from: Attempt, out: &mut Vec<Output>) {
        self.pair = Some(Flow::default());
        let (lower, higher) = match self.own_server < self.peer_server {
            true => (self.own, from),
            false => (from, self.own),
        };
        let generation = Generation { lower, higher };
        out.push(Output::Event(Event::Up { boot: from.boot, generation }));
    }

    /// The generation ends, and its attempt is never used again.
    fn end(&mut self, why: Ended, out: &mut Vec<Output>) {
        self.pair = None;
        self.own.number += 1;
        out.push(Output::Event(Event::Down(why)));
    }

    /// Processes an acknowledgement and, if there is one, a message with its number.
    fn process(
        &mut self,
        until: MessageNumber,
        message: Option<(MessageNumber, Bytes)>,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let Some(flow) = &mut self.pair else { return };
        if let Err(why) = flow.acknowledge(until, now) {
            self.end(why, out);
            return self.open(now, out);
        }
        if let Some((number, bytes)) = message {
            flow.arrive(number, bytes, now, &self.settings, out);
        }
        if flow.must_report(&self.settings) {
            self.report(out);
        }
    }

    fn open(&mut self, now: Duration, out: &mut Vec<Output>) {
        self.opened_at = now;
        self.transmit(Body::Open, out);
    }

    fn report(&mut self, out: &mut Vec<Output>) {
        if let Some(flow) = self.pair.as_mut().filter(|_| self.connected) {
            let body = flow.report();
            self.transmit(body, out);
        }
    }

    fn transmit(&self, body: Body, out: &mut Vec<Output>) {
        self.transmit_to(self.peer, body, out);
    }

    fn transmit_to(&self, to: Option<Attempt>, body: Body, out: &mut Vec<Output>) {
        if self.connected {
            out.push(Output::Transmit(Packet { from: self.own, to, body }));
        }
    }
}
