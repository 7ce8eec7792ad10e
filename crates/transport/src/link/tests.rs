//! One test for each rule of a link. `property.rs` tests all rules at once, over a medium with all faults.

use super::*;

mod medium;
mod property;

use medium::{LEFT, Medium, RIGHT};

const MS: Duration = Duration::from_millis(1);

fn text(packet: &Packet) -> String {
    let names = |attempt: Attempt| format!("{}.{}", attempt.boot, attempt.number);
    let to = packet.to.map(names).unwrap_or_default();
    let body = match &packet.body {
        Body::Doubt => "doubt".into(),
        Body::Open => "open".into(),
        Body::Received { until } => format!("received {until}"),
        Body::Message { until, number, .. } => format!("message {number} received {until}"),
    };
    format!("{}>{to} {body}", names(packet.from))
}

#[test]
fn both_ends_come_up_in_the_same_generation_before_any_message() {
    let mut medium = Medium::new(LinkSettings::default());
    assert!(!medium.send(LEFT, b"too early"), "nothing is taken before Up");
    medium.connect_both();
    assert_eq!(medium.up(LEFT), medium.up(RIGHT));
    assert!(medium.up(LEFT).is_some());
    assert!(medium.send(LEFT, b"now"));
    medium.deliver_all();
    assert_eq!(medium.received(RIGHT), ["now"]);
}

#[test]
fn a_message_that_overtakes_the_open_brings_the_link_up_first() {
    let mut medium = Medium::new(LinkSettings::default());
    medium.connect(LEFT);
    medium.connect(RIGHT);
    // The right end answers the first Open, which brings the left end up; the left end's last packet arrives first.
    medium.deliver(0);
    medium.deliver(1);
    assert!(medium.up(LEFT).is_some() && medium.up(RIGHT).is_none());
    assert!(medium.send(LEFT, b"first"));
    let last = medium.flying.len() - 1;
    medium.deliver(last);
    assert!(medium.up(RIGHT).is_some());
    medium.deliver_all();
    assert_eq!(medium.received(RIGHT), ["first"]);
}

#[test]
fn a_request_and_its_answer_are_two_packets() {
    let mut medium = Medium::paired(LinkSettings::default());
    for _ in 0..100 {
        medium.send(LEFT, b"request");
        assert_eq!(medium.flying.len(), 1);
        medium.deliver_all();
        medium.send(RIGHT, b"answer");
        assert_eq!(medium.flying.len(), 1);
        medium.deliver_all();
        medium.advance(MS);
    }
}

#[test]
fn an_acknowledgement_waits_and_then_goes_alone() {
    let mut medium = Medium::paired(LinkSettings::default());
    medium.send(LEFT, b"one");
    medium.deliver_all();
    assert_eq!(medium.flying.len(), 0);
    medium.advance(9 * MS);
    assert_eq!(medium.flying.len(), 0);
    medium.advance(MS);
    assert_eq!(medium.flying.iter().map(|(_, packet)| text(packet)).collect::<Vec<_>>(), ["2.0>1.0 received 1"]);
    medium.deliver_all();
    assert_eq!(medium.next_tick(LEFT), None);
    assert_eq!(medium.next_tick(RIGHT), None);
}

#[test]
fn many_messages_or_bytes_are_acknowledged_at_once() {
    for (settings, size) in [
        (LinkSettings { report_after_messages: 4, ..LinkSettings::default() }, 1),
        (LinkSettings { report_after_bytes: 4000, ..LinkSettings::default() }, 1000),
    ] {
        let mut medium = Medium::paired(settings);
        for _ in 0..4 {
            assert_eq!(medium.flying.len(), 0);
            medium.send(LEFT, &vec![b'x'; size]);
            medium.deliver(0);
        }
        assert_eq!(medium.flying.len(), 1);
    }
}

#[test]
fn what_arrives_twice_is_delivered_once_and_what_comes_early_waits() {
    let mut medium = Medium::paired(LinkSettings::default());
    for message in ["1", "2", "3", "4"] {
        medium.send(LEFT, message.as_bytes());
    }
    let again: Vec<_> = medium.flying.clone();
    medium.deliver(3);
    medium.deliver(1);
    assert_eq!(medium.received(RIGHT), [""; 0]);
    medium.deliver(0);
    assert_eq!(medium.received(RIGHT), ["1", "2"]);
    medium.deliver(0);
    assert_eq!(medium.received(RIGHT), ["1", "2", "3", "4"]);
    medium.flying.extend(again);
    medium.deliver_all();
    assert_eq!(medium.received(RIGHT), ["1", "2", "3", "4"]);
}

#[test]
fn what_comes_early_is_kept_only_as_far_as_there_is_room() {
    let settings = LinkSettings { unacknowledged_bytes_max: 10_000, ..LinkSettings::default() };
    let mut medium = Medium::paired(settings);
    medium.send(LEFT, b"1");
    let Packet { from, to, .. } = medium.flying[0].1.clone();
    medium.flying.clear();
    for number in 2..1000 {
        let bytes = Bytes::from(vec![b'x'; 1000]);
        let body = Body::Message { until: MessageNumber(0), number: MessageNumber(number), bytes };
        medium.flying.push((RIGHT, Packet { from, to, body }));
    }
    medium.deliver_all();
    assert!(medium.kept_early(RIGHT) <= 10_000);
    assert!(medium.kept_early(RIGHT) > 8_000);
}

#[test]
fn what_came_early_makes_room_again_when_it_is_delivered() {
    let settings = LinkSettings { unacknowledged_bytes_max: 1000, report_after_messages: 2, ..LinkSettings::default() };
    let mut medium = Medium::paired(settings);
    for round in 1..100 {
        assert!(medium.send(LEFT, b"first") && medium.send(LEFT, b"second"));
        medium.deliver(1);
        medium.deliver_all();
        assert_eq!(medium.received(RIGHT).len(), 2 * round);
    }
}

#[test]
fn a_message_for_another_attempt_is_not_taken() {
    let mut medium = Medium::paired(LinkSettings::default());
    medium.send(LEFT, b"1");
    let (_, mut packet) = medium.flying.remove(0);
    packet.to = packet.to.map(|to| Attempt { number: to.number + 1, ..to });
    medium.flying.push((RIGHT, packet));
    medium.deliver_all();
    assert_eq!(medium.received(RIGHT), [""; 0]);
}

#[test]
fn a_lost_acknowledgement_is_sent_again_when_the_message_is() {
    let mut medium = Medium::paired(medium::lossy());
    medium.send(LEFT, b"1");
    medium.deliver(0);
    medium.advance(10 * MS);
    medium.flying.clear();
    medium.advance(90 * MS);
    medium.deliver_all();
    medium.advance(10 * MS);
    medium.deliver_all();
    assert_eq!((medium.next_tick(LEFT), medium.next_tick(RIGHT)), (None, None));
}

#[test]
fn a_lost_packet_is_sent_again_by_the_timer() {
    let mut medium = Medium::paired(medium::lossy());
    medium.send(LEFT, b"1");
    medium.advance(MS);
    medium.send(LEFT, b"2");
    medium.flying.clear();
    medium.advance(99 * MS);
    assert_eq!(
        medium.flying.iter().map(|(_, packet)| text(packet)).collect::<Vec<_>>(),
        ["1.0>2.0 message 1 received 0"]
    );
    medium.advance(MS);
    medium.deliver_all();
    assert_eq!(medium.received(RIGHT), ["1", "2"]);
}

#[test]
fn a_lost_open_is_sent_again_by_the_timer() {
    let mut medium = Medium::new(medium::lossy());
    medium.connect_both();
    medium.restart(LEFT);
    medium.flying.clear();
    medium.advance(100 * MS);
    medium.deliver_all();
    assert!(medium.up(LEFT).is_some());
    assert_eq!(medium.up(LEFT), medium.up(RIGHT));
}

#[test]
fn a_connection_made_anew_goes_on_with_the_generation() {
    let mut medium = Medium::paired(LinkSettings::default());
    let before = medium.up(LEFT);
    for message in ["1", "2", "3"] {
        medium.send(LEFT, message.as_bytes());
    }
    medium.deliver(0);
    medium.cut();
    assert!(medium.send(LEFT, b"4"), "the generation lasts");
    assert_eq!(medium.flying.len(), 0, "nothing is transmitted without a connection");
    medium.connect_both();
    assert_eq!((medium.up(LEFT), medium.up(RIGHT)), (before, before));
    assert_eq!(medium.received(RIGHT), ["1", "2", "3", "4"]);
    assert_eq!(medium.downs(LEFT).len() + medium.downs(RIGHT).len(), 0);
}

#[test]
fn too_much_unacknowledged_ends_the_generation_at_both_ends() {
    let settings = LinkSettings { unacknowledged_bytes_max: 1000, ..LinkSettings::default() };
    let mut medium = Medium::paired(settings);
    let before = medium.up(LEFT);
    let taken = (0..100).take_while(|_| medium.send(LEFT, &[b'x'; 36])).count();
    assert_eq!(taken, 10, "a message counts its bytes and 64");
    assert_eq!(medium.downs(LEFT), [Ended::Limit]);
    assert!(!medium.send(LEFT, b"x"));
    medium.deliver_all();
    assert_eq!(medium.downs(RIGHT), [Ended::PeerEnded]);
    assert!(medium.up(LEFT).is_some() && medium.up(LEFT) != before);
    assert_eq!(medium.up(LEFT), medium.up(RIGHT));
    assert!(medium.send(LEFT, b"x"), "the new generation has its room");
}

#[test]
fn a_message_that_no_frame_holds_ends_the_generation() {
    let mut medium = Medium::paired(LinkSettings::default());
    assert!(medium.send(LEFT, &vec![b'x'; MESSAGE_BYTES_MAX]));
    assert!(!medium.send(LEFT, &vec![b'x'; MESSAGE_BYTES_MAX + 1]));
    assert_eq!(medium.downs(LEFT), [Ended::Limit]);
}

#[test]
fn acknowledged_messages_make_room() {
    let settings = LinkSettings { unacknowledged_bytes_max: 1000, report_after_messages: 5, ..LinkSettings::default() };
    let mut medium = Medium::paired(settings);
    for _ in 0..1000 {
        assert!(medium.send(LEFT, &[b'x'; 36]));
        medium.deliver_all();
    }
}

#[test]
fn a_peer_that_acknowledges_nothing_ends_the_generation() {
    for connected in [true, false] {
        let settings = LinkSettings::default();
        let limit = settings.give_up_after;
        let mut medium = Medium::paired(settings);
        medium.advance(100_000 * MS);
        assert_eq!(medium.downs(LEFT), [], "a silent link without messages is well");
        if !connected {
            medium.cut();
        }
        medium.send(LEFT, b"1");
        medium.flying.clear();
        medium.advance(limit - MS);
        assert_eq!(medium.downs(LEFT), []);
        medium.advance(MS);
        assert_eq!(medium.downs(LEFT), [Ended::Silence]);
        medium.connect_both();
        assert!(medium.up(LEFT).is_some());
        assert_eq!(medium.up(LEFT), medium.up(RIGHT));
    }
}

#[test]
fn a_peer_that_acknowledges_slowly_is_given_time() {
    let settings = LinkSettings { report_after_messages: 1, ..LinkSettings::default() };
    let limit = settings.give_up_after;
    let mut medium = Medium::paired(settings);
    for _ in 0..5 {
        medium.send(LEFT, b"1");
    }
    for _ in 0..5 {
        medium.advance(limit * 9 / 10);
        medium.deliver(0);
        let last = medium.flying.len() - 1;
        medium.deliver(last);
    }
    assert_eq!(medium.downs(LEFT), []);
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_ends_the_generation() {
    let mut medium = Medium::paired(LinkSettings::default());
    medium.send(LEFT, b"1");
    let Packet { from, to, .. } = medium.flying[0].1.clone();
    let to = to.unwrap();
    medium.flying.push((LEFT, Packet { from: to, to: Some(from), body: Body::Received { until: MessageNumber(2) } }));
    medium.deliver(1);
    assert_eq!(medium.downs(LEFT), [Ended::Nonsense]);
}

#[test]
fn a_peer_that_restarts_is_another_generation() {
    for end in [LEFT, RIGHT] {
        let mut medium = Medium::paired(LinkSettings::default());
        let before = medium.up(LEFT);
        medium.send(LEFT, b"lost with the process, or delivered before");
        medium.send(RIGHT, b"as this");
        medium.restart(end);
        medium.connect_both();
        assert_eq!(medium.downs(1 - end), [Ended::PeerRestarted]);
        assert!(medium.up(LEFT).is_some() && medium.up(LEFT) != before);
        assert_eq!(medium.up(LEFT), medium.up(RIGHT));
    }
}

/// A packet of a process that has ended is answered with `Doubt`.
#[test]
fn a_packet_of_an_earlier_process_ends_nothing() {
    let mut medium = Medium::paired(LinkSettings::default());
    medium.send(RIGHT, b"late");
    let late = medium.flying.clone();
    medium.restart(RIGHT);
    medium.connect_both();
    let now = medium.up(LEFT);
    let downs = medium.downs(LEFT).len();
    let open = Packet { from: late[0].1.from, to: None, body: Body::Open };
    medium.flying.extend(late);
    medium.flying.push((LEFT, open));
    medium.deliver_all();
    assert_eq!((medium.up(LEFT), medium.up(RIGHT)), (now, now));
    assert_eq!(medium.downs(LEFT).len(), downs);
}

#[test]
fn a_packet_of_an_earlier_generation_is_not_delivered() {
    let settings = LinkSettings { unacknowledged_bytes_max: 1000, ..LinkSettings::default() };
    let mut medium = Medium::paired(settings);
    while medium.send(LEFT, b"of the first generation") {}
    let late: Vec<_> = medium.flying.drain(..).filter(|(_, packet)| packet.body != Body::Open).collect();
    medium.advance(MS);
    medium.cut();
    medium.connect_both();
    let now = medium.up(LEFT);
    assert!(now.is_some());
    medium.flying.extend(late);
    medium.deliver_all();
    assert_eq!(medium.up(RIGHT), now);
    assert_eq!(medium.received(RIGHT), [""; 0]);
}

/// An end that knows an attempt pairs with no earlier one, also while it has no generation.
#[test]
fn an_end_that_knows_of_a_newer_attempt_takes_no_older_one() {
    let old = Attempt { boot: Boot(2), number: 3 };
    let new = Attempt { boot: Boot(2), number: 4 };
    let (mut link, own) = waiting();
    let mut out = Vec::new();
    link.receive(Packet { from: new, to: None, body: Body::Open }, MS, &mut out);
    link.receive(Packet { from: old, to: Some(own), body: Body::Open }, MS, &mut out);
    assert!(!link.is_up());
    link.receive(Packet { from: new, to: Some(own), body: Body::Open }, MS, &mut out);
    assert!(link.is_up());
}

/// An attempt that was sent to one process is never paired with another.
#[test]
fn an_attempt_is_shown_to_one_process() {
    let (dead, living) = (Attempt { boot: Boot(8), number: 0 }, Attempt { boot: Boot(9), number: 0 });
    let (mut link, own) = waiting();
    let mut out = Vec::new();
    link.receive(Packet { from: dead, to: None, body: Body::Open }, MS, &mut out);
    link.receive(Packet { from: living, to: None, body: Body::Open }, MS, &mut out);
    let fresh = Attempt { number: own.number + 1, ..own };
    assert_eq!(out.last(), Some(&Output::Transmit(Packet { from: fresh, to: Some(living), body: Body::Open })));
    link.receive(Packet { from: dead, to: Some(own), body: Body::Open }, MS, &mut out);
    assert!(!link.is_up());
}

/// An end that sends `Doubt` is paired with another attempt.
#[test]
fn a_doubt_begins_no_generation() {
    let (mut link, own) = waiting();
    let from = Attempt { boot: Boot(2), number: 0 };
    let mut out = Vec::new();
    link.receive(Packet { from, to: Some(own), body: Body::Doubt }, MS, &mut out);
    assert!(!link.is_up());
    assert_eq!(out, [Output::Transmit(Packet { from: own, to: Some(from), body: Body::Open })]);
}

fn waiting() -> (Link, Attempt) {
    let mut link = Link::new((ServerId(1), Boot(1)), ServerId(2), LinkSettings::default());
    link.connected(Duration::ZERO, &mut Vec::new());
    (link, Attempt { boot: Boot(1), number: 0 })
}

#[test]
fn a_head_and_its_message_are_the_encoding() {
    use hekate_proto::Wire;
    let from = Attempt { boot: Boot(1), number: 2 };
    let message =
        Body::Message { until: MessageNumber(3), number: MessageNumber(4), bytes: Bytes::from_static(b"abc") };
    for body in [Body::Doubt, Body::Open, Body::Received { until: MessageNumber(9) }, message] {
        let packet = Packet { from, to: Some(from), body };
        let mut head = Vec::new();
        let bytes = packet.put_head(&mut head);
        assert!(head.len() <= PACKET_OVERHEAD);
        head.extend_from_slice(&bytes);
        assert_eq!(head, packet.to_bytes());
        assert_eq!(Packet::from_bytes(head.into()), Ok(packet));
    }
}
