//! One end of a link between two server processes: messages in order and exactly once, in *generations*.
//!
//! Pure: it opens no socket and reads no clock. Packets may be lost, doubled, delayed for long and reordered, as the
//! simulator's are; over a stream socket they are lost only with the connection. How the ends agree:
//!
//! - An end puts an [`Attempt`] into a generation: its boot and a counter. It never puts the same one into two, so the
//!   pair of attempts names the generation, and each packet bears both.
//! - Who is in no generation says `Open` to the attempt that it heard of last. Two that name each other are *paired*.
//! - An attempt is shown (`Open`) to one process of the peer only, and to its attempts in their order; for another process
//!   a new one is taken. So once an end is paired with an attempt, no packet of an earlier one finds the peer willing.
//! - A paired end that hears of another process of its peer gives up only if that one has heard of this attempt: a
//!   packet that was long on its way has not. That is what `Doubt` asks.

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

/// Bytes of the greatest message: with its packet it fits in a frame.
pub const MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX - PACKET_OVERHEAD;

/// What a link wants done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Goes over the medium.
    Transmit(Packet),
    /// Goes to whoever uses the link.
    Event(Event),
}

/// What happened on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A generation begins.
    Up {
        /// The peer's process.
        boot: Boot,
        /// The same at both ends.
        generation: Generation,
    },
    /// It has ended: the peer may or may not have had what it has not answered.
    Down(Ended),
    /// The next message of the generation.
    Message(Bytes),
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The peer is another process.
    PeerRestarted,
    /// The peer has ended it.
    PeerEnded,
    /// More would wait for an acknowledgement than may, or the message is too large for any generation.
    Limit,
    /// The peer acknowledged nothing for too long.
    Silence,
    /// The peer acknowledged what was never sent.
    Nonsense,
    /// [`Link::reset`].
    Reset,
}

/// One end of a link. `now` is the time since any moment, on a clock that never goes back.
#[derive(Debug)]
pub struct Link {
    own_server: ServerId,
    peer_server: ServerId,
    settings: LinkSettings,
    connected: bool,
    own: Attempt,
    /// The peer's attempt that `own` is shown to, or is paired with.
    peer: Option<Attempt>,
    /// The generation of `own` and `peer`.
    pair: Option<Flow>,
    opened_at: Duration,
}

impl Link {
    /// An end that is not connected yet.
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

    /// Whether messages are taken.
    pub fn is_up(&self) -> bool {
        self.pair.is_some()
    }

    /// The medium carries packets from now on. What was not acknowledged before goes again.
    pub fn connected(&mut self, now: Duration, out: &mut Vec<Output>) {
        self.connected = true;
        let Some(flow) = &mut self.pair else { return self.open(now, out) };
        let again = flow.resend(Duration::MAX, now);
        again.into_iter().for_each(|body| self.transmit(body, out));
    }

    /// The medium is gone; the generation goes on, if it comes back in time.
    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    /// Takes a message; false if no generation is there to carry it, or if it ended by this.
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

    /// Ends the generation: whoever uses the link cannot go on in it.
    pub fn reset(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.is_up() {
            self.end(Ended::Reset, out);
            self.open(now, out);
        }
    }

    /// A packet has come.
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
            self.meet(from);
            if to != Some(self.own) || body == Body::Doubt {
                return self.open(now, out);
            }
            self.begin(from, out);
        }
        match body {
            // The peer does not know of the generation.
            _ if to != Some(self.own) => self.report(out),
            Body::Doubt | Body::Open => self.report(out),
            Body::Received { until } => self.carry(until, None, now, out),
            Body::Message { until, number, bytes } => self.carry(until, Some((number, bytes)), now, out),
        }
    }

    /// Does what is due by now.
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

    /// When [`Link::tick`] has something to do next, if nothing else happens.
    pub fn next_tick(&self) -> Option<Duration> {
        let Some(flow) = &self.pair else { return self.open_due() };
        let connected = [flow.resend_due(&self.settings), flow.report_due(&self.settings)];
        let due = connected.into_iter().flatten().filter(|_| self.connected);
        due.chain(flow.give_up_due(&self.settings)).min()
    }

    fn open_due(&self) -> Option<Duration> {
        self.settings.resend_after.filter(|_| self.connected).map(|after| self.opened_at + after)
    }

    /// Outside of a generation: from now on the own attempt is for `from`.
    fn meet(&mut self, from: Attempt) {
        if self.peer.is_some_and(|peer| peer.boot != from.boot) {
            self.own.number += 1;
        }
        self.peer = Some(from);
    }

    fn begin(&mut self, from: Attempt, out: &mut Vec<Output>) {
        self.pair = Some(Flow::default());
        let (lower, higher) = match self.own_server < self.peer_server {
            true => (self.own, from),
            false => (from, self.own),
        };
        let generation = Generation { lower, higher };
        out.push(Output::Event(Event::Up { boot: from.boot, generation }));
    }

    /// The attempt is spent with its generation.
    fn end(&mut self, why: Ended, out: &mut Vec<Output>) {
        self.pair = None;
        self.own.number += 1;
        out.push(Output::Event(Event::Down(why)));
    }

    fn carry(
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
        if flow.owes_much(&self.settings) {
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
