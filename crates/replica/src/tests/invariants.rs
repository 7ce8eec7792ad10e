//! A rule of the protocol that does not hold stops the replica that finds it.

use super::*;
use crate::partition::Role;

#[test]
fn a_leader_that_finds_a_rule_violated_stops_and_sends_nothing() {
    let mut ring = open(&storages());
    let op = make_directory(ROOT, b"d", 1);
    let at = ring.place(&op);
    let (ask, bricks, views) = (ring.ask(), &ring.bricks, ring.views.clone());
    let around = TestRing::around(bricks, &views, at, 1_000);
    let partition = ring.partitions.get_mut(&at).unwrap();
    let Role::Leader(leader) = &mut partition.role else { panic!("{at:?} leads") };
    let last = leader.log.last();
    leader.log.set_last(Sequence(last.0 + 7));
    let mut out = Out::default();
    partition.handle(Event::Request { token: Token(1), ask, op }, &around, &mut out);
    let error = partition.failure().expect("the replica has stopped").to_string();
    assert!(error.contains("rule R1 does not hold"), "{error}");
    assert!(out.sends.is_empty() && out.open.is_none(), "{out:?}");
    assert!(matches!(&out.answers[..], [(Token(1), Err(Error::Bug { .. }))]), "{:?}", out.answers);
}
