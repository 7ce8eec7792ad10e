//! The messages of one generation, both ways: numbers, what is not acknowledged yet, what came too early.

use super::packet::{Body, MessageNumber};
use super::{Ended, Event, Output};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What keeping a message costs beside its bytes, so that empty ones count too.
const MESSAGE_COST: usize = 64;

/// When a link says what, and how much it keeps.
#[derive(Debug, Clone)]
pub struct LinkSettings {
    /// Bytes (and 64 for each message) that may wait for their acknowledgement; one message more ends the generation.
    pub unacknowledged_bytes_max: usize,
    /// An acknowledgement waits so long for a message that takes it along.
    pub report_after: Duration,
    /// It waits for no more than so many messages,
    pub report_after_messages: usize,
    /// nor for more bytes than these.
    pub report_after_bytes: usize,
    /// What is not acknowledged by then is sent again. `None` over a medium that loses nothing while it is connected.
    pub resend_after: Option<Duration>,
    /// A peer that should acknowledge and does not for so long ends the generation.
    pub give_up_after: Duration,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            unacknowledged_bytes_max: 64 << 20,
            report_after: Duration::from_millis(10),
            report_after_messages: 256,
            report_after_bytes: 1 << 20,
            resend_after: None,
            give_up_after: Duration::from_millis(3500),
        }
    }
}

/// Both directions of a generation.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Sent and not acknowledged; the first has the number `acknowledged + 1`.
    unacknowledged: VecDeque<Sent>,
    unacknowledged_cost: usize,
    acknowledged: u64,
    /// Since when the peer has acknowledged nothing although it should.
    waiting_since: Duration,
    /// All messages up to this one have been delivered.
    delivered: u64,
    early: BTreeMap<u64, Bytes>,
    early_cost: usize,
    owed: Owed,
}

#[derive(Debug)]
struct Sent {
    bytes: Bytes,
    /// When it was sent last.
    at: Duration,
}

/// What the peer does not know to have arrived.
#[derive(Debug, Default)]
struct Owed {
    since: Option<Duration>,
    messages: usize,
    bytes: usize,
}

fn cost(bytes: &Bytes) -> usize {
    bytes.len() + MESSAGE_COST
}

impl Flow {
    /// Whether one more message may wait for its acknowledgement.
    pub fn has_room(&self, bytes: &Bytes, settings: &LinkSettings) -> bool {
        self.unacknowledged_cost + cost(bytes) <= settings.unacknowledged_bytes_max
    }

    /// Takes a message that is to be sent.
    pub fn push(&mut self, bytes: Bytes, now: Duration) -> Body {
        if self.unacknowledged.is_empty() {
            self.waiting_since = now;
        }
        self.unacknowledged_cost += cost(&bytes);
        self.unacknowledged.push_back(Sent { bytes: bytes.clone(), at: now });
        self.message(self.acknowledged + self.unacknowledged.len() as u64, bytes)
    }

    fn message(&mut self, number: u64, bytes: Bytes) -> Body {
        self.owed = Owed::default();
        Body::Message { until: MessageNumber(self.delivered), number: MessageNumber(number), bytes }
    }

    /// What has arrived so far.
    pub fn report(&mut self) -> Body {
        self.owed = Owed::default();
        Body::Received { until: MessageNumber(self.delivered) }
    }

    /// The peer has everything up to `until`.
    pub fn acknowledge(&mut self, until: MessageNumber, now: Duration) -> Result<(), Ended> {
        let Some(count) = until.0.checked_sub(self.acknowledged) else { return Ok(()) };
        if count > self.unacknowledged.len() as u64 {
            return Err(Ended::Nonsense);
        }
        for sent in self.unacknowledged.drain(..count as usize) {
            self.unacknowledged_cost -= cost(&sent.bytes);
        }
        if count > 0 {
            self.acknowledged = until.0;
            self.waiting_since = now;
        }
        Ok(())
    }

    /// Delivers a message if it is the next one, and those that had come early.
    pub fn arrive(
        &mut self,
        number: MessageNumber,
        bytes: Bytes,
        now: Duration,
        settings: &LinkSettings,
        out: &mut Vec<Output>,
    ) {
        self.owed.since.get_or_insert(now);
        if number.0 <= self.delivered || self.early.contains_key(&number.0) {
            return;
        }
        if number.0 > self.delivered + 1 {
            // What finds no room is sent again.
            if self.early_cost + cost(&bytes) <= settings.unacknowledged_bytes_max {
                self.early_cost += cost(&bytes);
                self.early.insert(number.0, bytes);
            }
            return;
        }
        self.deliver(bytes, out);
        while let Some(bytes) = self.early.remove(&(self.delivered + 1)) {
            self.early_cost -= cost(&bytes);
            self.deliver(bytes, out);
        }
    }

    fn deliver(&mut self, bytes: Bytes, out: &mut Vec<Output>) {
        self.delivered += 1;
        self.owed.messages += 1;
        self.owed.bytes += cost(&bytes);
        out.push(Output::Event(Event::Message(bytes)));
    }

    #[cfg(test)]
    pub fn early_cost(&self) -> usize {
        self.early_cost
    }

    /// Whether so much is owed that the peer is told at once.
    pub fn owes_much(&self, settings: &LinkSettings) -> bool {
        self.owed.messages >= settings.report_after_messages || self.owed.bytes >= settings.report_after_bytes
    }

    /// When the peer is told of what has arrived, should nothing else be sent to it before.
    pub fn report_due(&self, settings: &LinkSettings) -> Option<Duration> {
        self.owed.since.map(|since| since + settings.report_after)
    }

    /// When the generation ends unless the peer acknowledges something.
    pub fn give_up_due(&self, settings: &LinkSettings) -> Option<Duration> {
        (!self.unacknowledged.is_empty()).then(|| self.waiting_since + settings.give_up_after)
    }

    /// When something is to be sent again.
    pub fn resend_due(&self, settings: &LinkSettings) -> Option<Duration> {
        let after = settings.resend_after?;
        self.unacknowledged.iter().map(|sent| sent.at + after).min()
    }

    /// Everything unacknowledged that was sent last at `before` or earlier, to be sent again.
    pub fn resend(&mut self, before: Duration, now: Duration) -> Vec<Body> {
        let mut again = Vec::new();
        for (number, sent) in (self.acknowledged + 1..).zip(&mut self.unacknowledged) {
            if sent.at <= before {
                sent.at = now;
                again.push((number, sent.bytes.clone()));
            }
        }
        again.into_iter().map(|(number, bytes)| self.message(number, bytes)).collect()
    }
}
