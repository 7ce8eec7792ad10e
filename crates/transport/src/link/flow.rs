//! The messages of one generation in both directions: their numbers, those not acknowledged yet, and those received
//! out of order.

use super::packet::{Body, MessageNumber};
use super::{Ended, Event, Output};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Bytes that a message counts beside its length, so that empty messages count too.
const MESSAGE_COST: usize = 64;

/// Timers and limits of a link.
#[derive(Debug, Clone)]
pub struct LinkSettings {
    /// Limit of unacknowledged messages in bytes, each message counting 64 bytes more than its length. A message
    /// beyond it ends the generation.
    pub unacknowledged_bytes_max: usize,
    /// How long an acknowledgement waits for a message that carries it.
    pub report_after: Duration,
    /// Received messages after which an acknowledgement is sent at once.
    pub report_after_messages: usize,
    /// Received bytes after which an acknowledgement is sent at once.
    pub report_after_bytes: usize,
    /// Time after which an unacknowledged message is sent again. `None` for a medium that loses nothing while it is
    /// connected.
    pub resend_after: Option<Duration>,
    /// Time without an acknowledgement after which the generation ends, while messages are unacknowledged.
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
    /// Messages sent and not acknowledged. The first has number `acknowledged + 1`.
    unacknowledged: VecDeque<Sent>,
    unacknowledged_cost: usize,
    acknowledged: u64,
    /// When the peer last acknowledged something, or when the first unacknowledged message was sent if that is later.
    waiting_since: Duration,
    /// Number of the last message that was delivered; all before it were, too.
    delivered: u64,
    /// Messages received ahead of their turn, by number.
    early: BTreeMap<u64, Bytes>,
    early_cost: usize,
    unreported: Unreported,
}

#[derive(Debug)]
struct Sent {
    bytes: Bytes,
    /// When it was last sent.
    at: Duration,
}

/// Received messages that the peer has no acknowledgement of.
#[derive(Debug, Default)]
struct Unreported {
    since: Option<Duration>,
    messages: usize,
    bytes: usize,
}

fn cost(bytes: &Bytes) -> usize {
    bytes.len() + MESSAGE_COST
}

impl Flow {
    /// True if the limit allows one more unacknowledged message.
    pub fn has_room(&self, bytes: &Bytes, settings: &LinkSettings) -> bool {
        self.unacknowledged_cost + cost(bytes) <= settings.unacknowledged_bytes_max
    }

    /// Adds a message to the unacknowledged ones and returns the packet's body that carries it.
    pub fn push(&mut self, bytes: Bytes, now: Duration) -> Body {
        if self.unacknowledged.is_empty() {
            self.waiting_since = now;
        }
        self.unacknowledged_cost += cost(&bytes);
        self.unacknowledged.push_back(Sent { bytes: bytes.clone(), at: now });
        self.message(self.acknowledged + self.unacknowledged.len() as u64, bytes)
    }

    fn message(&mut self, number: u64, bytes: Bytes) -> Body {
        self.unreported = Unreported::default();
        Body::Message { until: MessageNumber(self.delivered), number: MessageNumber(number), bytes }
    }

    /// An acknowledgement of everything delivered so far.
    pub fn report(&mut self) -> Body {
        self.unreported = Unreported::default();
        Body::Received { until: MessageNumber(self.delivered) }
    }

    /// Removes the messages up to `until`, which the peer has received.
    ///
    /// # Errors
    /// `Nonsense` if `until` was never sent.
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

    /// Delivers a message if its turn has come, and then those received ahead of it.
    pub fn arrive(
        &mut self,
        number: MessageNumber,
        bytes: Bytes,
        now: Duration,
        settings: &LinkSettings,
        out: &mut Vec<Output>,
    ) {
        self.unreported.since.get_or_insert(now);
        if number.0 <= self.delivered || self.early.contains_key(&number.0) {
            return;
        }
        if number.0 > self.delivered + 1 {
            // A message without room is dropped; the peer sends it again.
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
        self.unreported.messages += 1;
        self.unreported.bytes += cost(&bytes);
        out.push(Output::Event(Event::Message(bytes)));
    }

    #[cfg(test)]
    pub fn early_cost(&self) -> usize {
        self.early_cost
    }

    /// True if so much is unreported that an acknowledgement is sent at once.
    pub fn must_report(&self, settings: &LinkSettings) -> bool {
        self.unreported.messages >= settings.report_after_messages
            || self.unreported.bytes >= settings.report_after_bytes
    }

    /// When an acknowledgement is sent, unless a message carries it before.
    pub fn report_due(&self, settings: &LinkSettings) -> Option<Duration> {
        self.unreported.since.map(|since| since + settings.report_after)
    }

    /// When the generation ends, unless the peer acknowledges something before.
    pub fn give_up_due(&self, settings: &LinkSettings) -> Option<Duration> {
        (!self.unacknowledged.is_empty()).then(|| self.waiting_since + settings.give_up_after)
    }

    /// When the first unacknowledged message is sent again.
    pub fn resend_due(&self, settings: &LinkSettings) -> Option<Duration> {
        let after = settings.resend_after?;
        self.unacknowledged.iter().map(|sent| sent.at + after).min()
    }

    /// The unacknowledged messages that were last sent at `before` or earlier, to be sent again.
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
