//! Two links, the packets in flight between them, and checks of everything that a link promises.

use super::*;
use std::collections::HashMap;

pub const LEFT: usize = 0;
pub const RIGHT: usize = 1;

/// Settings for a medium that loses packets.
pub fn lossy() -> LinkSettings {
    LinkSettings { resend_after: Some(Duration::from_millis(100)), ..LinkSettings::default() }
}

/// The two ends, and the packets in flight.
pub struct Medium {
    ends: [End; 2],
    settings: LinkSettings,
    /// Receiving end and packet.
    pub flying: Vec<(usize, Packet)>,
    now: Duration,
    boots: u64,
    /// Messages that each end accepted, by generation.
    sent: HashMap<(usize, Generation), Vec<Bytes>>,
}

struct End {
    link: Link,
    connected: bool,
    up: Option<Generation>,
    /// Generations of all processes of this end, in order.
    ups: Vec<Generation>,
    downs: Vec<Ended>,
    /// Messages of the generation that is up, or of the last one.
    received: Vec<Bytes>,
}

impl Medium {
    /// Two ends that are not connected.
    pub fn new(settings: LinkSettings) -> Self {
        let end = |own: u32, peer: u32| End {
            link: Link::new((ServerId(own), Boot(own.into())), ServerId(peer), settings.clone()),
            connected: false,
            up: None,
            ups: Vec::new(),
            downs: Vec::new(),
            received: Vec::new(),
        };
        let ends = [end(1, 2), end(2, 1)];
        Self { ends, settings, flying: Vec::new(), now: Duration::ZERO, boots: 2, sent: HashMap::new() }
    }

    /// Two ends with a generation up.
    pub fn paired(settings: LinkSettings) -> Self {
        let mut medium = Self::new(settings);
        medium.connect_both();
        assert!(medium.up(LEFT).is_some());
        medium
    }

    fn act<T>(&mut self, end: usize, act: impl FnOnce(&mut Link, Duration, &mut Vec<Output>) -> T) -> T {
        let mut out = Vec::new();
        let value = act(&mut self.ends[end].link, self.now, &mut out);
        for output in out {
            match output {
                Output::Transmit(packet) => {
                    assert!(self.ends[end].connected);
                    self.flying.push((1 - end, packet));
                }
                Output::Event(event) => self.check(end, event),
            }
        }
        assert_eq!(self.ends[end].link.is_up(), self.ends[end].up.is_some());
        value
    }

    fn check(&mut self, at: usize, event: Event) {
        let other = self.ends[1 - at].ups.last().copied();
        let end = &mut self.ends[at];
        match event {
            Event::Up { generation, .. } => {
                assert_eq!(end.up, None, "Up twice");
                assert!(!end.ups.contains(&generation), "a generation begins twice");
                end.up = Some(generation);
                end.ups.push(generation);
                end.received.clear();
            }
            Event::Down(why) => {
                assert!(end.up.take().is_some(), "Down twice");
                end.downs.push(why);
            }
            Event::Message(bytes) => {
                assert!(end.up.is_some(), "a message outside of a generation");
                assert_eq!(end.up, other, "a message after the sender has begun the next generation");
                let sent = &self.sent[&(1 - at, end.ups[end.ups.len() - 1])];
                assert_eq!(Some(&bytes), sent.get(end.received.len()), "not the next message");
                end.received.push(bytes);
            }
        }
    }

    pub fn send(&mut self, end: usize, message: &[u8]) -> bool {
        let generation = self.ends[end].up;
        let bytes = Bytes::copy_from_slice(message);
        let taken = self.act(end, |link, now, out| link.send(bytes.clone(), now, out));
        if taken {
            self.sent.entry((end, generation.unwrap())).or_default().push(bytes);
        }
        taken
    }

    /// Delivers one packet. An end without a connection loses it.
    pub fn deliver(&mut self, index: usize) {
        let (end, packet) = self.flying.remove(index);
        if self.ends[end].connected {
            self.act(end, |link, now, out| link.receive(packet, now, out));
        }
    }

    pub fn deliver_all(&mut self) {
        for _ in 0..10_000 {
            if self.flying.is_empty() {
                return;
            }
            self.deliver(0);
        }
        panic!("the ends never stop talking");
    }

    pub fn advance(&mut self, by: Duration) {
        self.now += by;
        for end in [LEFT, RIGHT] {
            self.act(end, |link, now, out| link.tick(now, out));
        }
    }

    pub fn connect(&mut self, end: usize) {
        self.ends[end].connected = true;
        self.act(end, |link, now, out| link.connected(now, out));
    }

    pub fn disconnect(&mut self, end: usize) {
        self.ends[end].connected = false;
        self.ends[end].link.disconnected();
    }

    /// Breaks the connection, which loses the packets in flight.
    pub fn cut(&mut self) {
        self.flying.clear();
        for end in [LEFT, RIGHT] {
            self.disconnect(end);
        }
    }

    pub fn connect_both(&mut self) {
        for end in [LEFT, RIGHT] {
            self.connect(end);
        }
        self.deliver_all();
    }

    /// Replaces an end by a new process, connected at once.
    pub fn restart(&mut self, at: usize) {
        self.boots += 1;
        let own = (ServerId(at as u32 + 1), Boot(self.boots));
        let end = &mut self.ends[at];
        end.link = Link::new(own, ServerId(2 - at as u32), self.settings.clone());
        end.up = None;
        self.connect(at);
    }

    /// Ends all faults: both ends come up, and all messages sent in that generation arrive.
    pub fn heal(&mut self) {
        for end in [LEFT, RIGHT] {
            if !self.ends[end].connected {
                self.connect(end);
            }
        }
        self.settle();
        for number in 0..5 {
            assert!(self.send(LEFT, format!("left {number}").as_bytes()));
            assert!(self.send(RIGHT, format!("right {number}").as_bytes()));
        }
        self.settle();
        for end in [LEFT, RIGHT] {
            let generation = self.ends[end].up.unwrap();
            assert_eq!(self.ends[1 - end].up, Some(generation), "both ends come up");
            assert_eq!(self.ends[1 - end].received, self.sent[&(end, generation)], "everything arrives");
        }
    }

    /// Runs until no packet is in flight and no timer is set.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.deliver_all();
            let Some(next) = [LEFT, RIGHT].iter().filter_map(|end| self.next_tick(*end)).min() else { return };
            self.advance(next.saturating_sub(self.now));
        }
        panic!("the ends never settle");
    }

    pub fn up(&self, end: usize) -> Option<Generation> {
        self.ends[end].up
    }

    pub fn downs(&self, end: usize) -> &[Ended] {
        &self.ends[end].downs
    }

    pub fn received(&self, end: usize) -> Vec<&str> {
        self.ends[end].received.iter().map(|bytes| std::str::from_utf8(bytes).unwrap()).collect()
    }

    pub fn next_tick(&self, end: usize) -> Option<Duration> {
        self.ends[end].link.next_tick()
    }

    pub fn kept_early(&self, end: usize) -> usize {
        self.ends[end].link.pair.as_ref().unwrap().early_cost()
    }
}
