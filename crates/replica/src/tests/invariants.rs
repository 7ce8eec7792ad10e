//! A rule of the protocol that does not hold stops the replica that finds it.

use super::*;
use crate::partition::Role;
use crate::requests::Waiting;

/// Has the leader that takes `op` believe that its log has 7 records more than it has, and handle an event. Returns what
/// the event produced and the error that stopped the leader.
fn handle_behind_a_gap(ring: &mut TestRing, at: Address, waiting: Vec<Event>, event: Event) -> (Out, String) {
    let around = TestRing::around(&ring.bricks, &ring.views, at, 1_000);
    let partition = ring.partitions.get_mut(&at).unwrap();
    let Role::Leader(leader) = &mut partition.role else { panic!("{at:?} leads") };
    let last = leader.log.last();
    leader.log.set_last(Sequence(last.0 + 7));
    leader.requests.wait_all(waiting.into_iter().map(Waiting::of));
    let mut out = Out::default();
    partition.handle(event, &around, &mut out);
    let error = partition.failure().expect("the replica has stopped").to_string();
    assert!(out.sends.is_empty() && out.open.is_none(), "{out:?}");
    (out, error)
}

#[test]
fn a_leader_that_finds_a_rule_violated_stops_and_sends_nothing() {
    let mut ring = open(&storages());
    let op = make_directory(ROOT, b"d", 1);
    let (at, ask) = (ring.place(&op), ring.ask());
    let request = Event::Request { token: Token(1), ask, op };
    let (out, error) = handle_behind_a_gap(&mut ring, at, Vec::new(), request);
    assert!(error.contains("rule R1 does not hold"), "{error}");
    assert!(matches!(&out.answers[..], [(Token(1), Err(Error::Bug { .. }))]), "{:?}", out.answers);
}

/// A request without an answer blocks its client until the server's time limit. Two answers to one request would be
/// taken for the answer to another one.
#[test]
fn requests_behind_one_that_meets_a_violated_rule_are_answered_once_each() {
    let mut ring = open(&storages());
    let asked = |ring: &TestRing, number: u64, op: Op| {
        let ask = Ask { op_id: OpId((1 << 20) + number), ..ring.ask() };
        Event::Request { token: Token(number), ask, op }
    };
    let op = make_directory(ROOT, b"d", 1);
    let at = ring.place(&op);
    let list = Op::Name { op: NameOp::List { dir: ROOT, after: None, limit: 9, attributes: false, touch: false } };
    // The first op is in flight by the time at which it meets the rule.
    let waiting = vec![
        asked(&ring, 1, op),
        Event::Collect { volume: VOLUME, inode: ROOT },
        asked(&ring, 2, make_directory(ROOT, b"e", 2)),
        asked(&ring, 3, list),
    ];
    let (out, error) = handle_behind_a_gap(&mut ring, at, waiting, Event::Room);
    assert!(error.contains("rule R1 does not hold"), "{error}");
    let tokens: Vec<u64> = out.answers.iter().map(|(token, _)| token.0).collect();
    assert_eq!(tokens, [1, 2, 3]);
    assert!(out.answers.iter().all(|(_, answer)| matches!(answer, Err(Error::Bug { .. }))), "{:?}", out.answers);
}
