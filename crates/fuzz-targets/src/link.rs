//! Targets of the links between servers.

use crate::allocation::bounded;
use crate::values::{FIXED_BYTES, encoded, value};
use bytes::Bytes;
use hekate_proto::{Input, ServerId, Wire};
use hekate_transport::link::*;
use std::time::Duration;

const OWN: Boot = Boot(1);
const PEER: Boot = Boot(2);

pub fn packet(bytes: &[u8]) {
    value::<Packet>(bytes);
}

pub fn packet_seeds() -> Vec<Vec<u8>> {
    encoded(packets_of_a_peer())
}

/// Any packets, some milliseconds apart, received by a link that also sends. The link does not panic and keeps no more
/// than its limits allow.
pub fn received(bytes: &[u8]) {
    bounded(bytes.len(), FIXED_BYTES, || {
        let mut link = Link::new((ServerId(1), OWN), ServerId(2), LinkSettings::default());
        let (mut now, mut out) = (Duration::ZERO, Vec::new());
        link.connected(now, &mut out);
        let mut input = Input::new(Bytes::copy_from_slice(bytes));
        while let Ok(packet) = Packet::take(&mut input) {
            now += Duration::from_millis(packet.from.number % 100);
            link.receive(packet, now, &mut out);
            assert_eq!(link.send(Bytes::new(), now, &mut out), link.is_up());
            link.tick(now, &mut out);
            assert!(link.next_tick().is_none_or(|due| due > now), "the timers of a link that are due run");
            out.clear();
        }
    });
}

pub fn received_seeds() -> Vec<Vec<u8>> {
    vec![packets_of_a_peer().iter().flat_map(|packet| packet.to_bytes()).collect()]
}

/// The packets of a peer that connects, sends messages, restarts and connects again.
fn packets_of_a_peer() -> Vec<Packet> {
    let packet = |boot: Boot, own_number: Option<u64>, body: Body| Packet {
        from: Attempt { boot, number: 0 },
        to: own_number.map(|number| Attempt { boot: OWN, number }),
        body,
    };
    let message = |number: u64, until: u64| Body::Message {
        until: MessageNumber(until),
        number: MessageNumber(number),
        bytes: Bytes::from_static(b"what is said"),
    };
    vec![
        packet(PEER, None, Body::Open),
        packet(PEER, Some(0), Body::Open),
        packet(PEER, Some(0), message(2, 0)),
        packet(PEER, Some(0), message(1, 1)),
        packet(PEER, Some(0), Body::Received { until: MessageNumber(2) }),
        packet(Boot(3), None, Body::Open),
        packet(Boot(3), Some(0), Body::Doubt),
        packet(Boot(3), Some(2), Body::Open),
        packet(Boot(3), Some(2), message(1, 0)),
    ]
}
