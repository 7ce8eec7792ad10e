//! A rule of the protocol that does not hold stops the replica that finds it.

use super::fast::{FIRST, Lane};
use super::*;
use crate::context::Context;
use crate::leader::Leader;
use crate::log::append::Draft;
use crate::ops::step::OpProgress;
use crate::partition::Role;
use crate::requests::Waiting;
use crate::transactions::driven::{Aim, Driven};

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

/// The error of what `act` does with a leader that has a shard open.
fn error_of(act: impl FnOnce(&mut Leader, &mut Context) -> Result<()>) -> String {
    let mut lane = Lane::new();
    let around = TestRing::around(&lane.ring.bricks, &lane.ring.views, lane.leader, 1_000);
    let Partition { at, role: Role::Leader(leader), .. } = lane.ring.partitions.get_mut(&lane.leader).unwrap() else {
        panic!("{:?} leads", lane.leader)
    };
    let mut out = Out::default();
    act(leader, &mut Context { at, around: &around, out: &mut out }).expect_err("a rule is violated").to_string()
}

fn check_names(rule: &str, act: impl FnOnce(&mut Leader, &mut Context) -> Result<()>) {
    let error = error_of(act);
    assert!(error.contains(&format!("rule {rule} does not hold")), "{rule}: {error}");
}

#[test]
fn records_that_violate_a_rule_are_not_made() {
    let append = |leader: &mut Leader, cx: &mut Context, changes: Vec<Change>| {
        leader.append_own(cx, Commit { changes, ..Commit::default() }).map(drop)
    };
    check_names("R1", |leader, cx| {
        cx.at.view.leader = BrickId(99);
        append(leader, cx, Vec::new())
    });
    check_names("L16", |leader, cx| {
        cx.at.view.whole = false;
        append(leader, cx, Vec::new())
    });
    check_names("L22", |leader, cx| {
        let key = Key::loose(RING, cx.at.own.partition.first_position(COUNT));
        append(leader, cx, vec![Change::Delete { key }])
    });
    check_names("P11", |leader, cx| {
        let prefix = Lane::ask(FIRST, 512).names_prefix(cx.at.own.partition, ROOT);
        let changes = vec![Change::Delete { key: Key::name(prefix, ROOT, b"a") }];
        let commit = &Commit { changes, ..Commit::default() };
        let (session, op_id, step, also) = (FIRST, OpId(512), None, Vec::new());
        let draft = Draft { session, op_id, by: Some(session), commit, also, must: false, step, closes: false };
        leader.append(cx, draft).map(drop)
    });
}

#[test]
fn steps_that_violate_a_rule_are_not_taken() {
    check_names("R5", |leader, _| {
        leader.remember_slot(&Lane::ask(FIRST, 512));
        leader.check_slot(&Lane::ask(FIRST, 512)).expect("the last op of the slot");
        leader.check_slot(&Lane::ask(FIRST, 256))
    });
    check_names("R7", |leader, cx| {
        let aim = Aim::Op(Lane::ask(FIRST, 512), Box::new(make_directory(ROOT, b"d", 1)));
        leader.transactions.begin(IntentId(7), Vec::new(), Driven::new(aim, Vec::new(), OpProgress::default()));
        leader.send_legs(cx, IntentId(7), Sequence(leader.log.last().0 + 1))
    });
    check_names("L20", |leader, cx| {
        leader.check_members(cx.at).expect("no loose writes");
        leader.loose_marker_set(leader.log.last(), cx.around.now);
        leader.check_members(cx.at).expect("a view with memory");
        cx.at.view.forgetful = true;
        leader.check_members(cx.at)
    });
    check_names("L21", |leader, cx| {
        leader.loose_marker_set(leader.log.settled(), cx.around.now);
        leader.note_loose_write(cx.around.now).expect("all members have the marker");
        leader.loose_marker_set(Sequence(leader.log.settled().0 + 1), cx.around.now);
        leader.note_loose_write(cx.around.now)
    });
}
