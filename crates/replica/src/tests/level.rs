//! Members that come back to a leader, and a leader that comes back to its members.

use super::closing::fill_journal;
use super::fast::{FIRST, Lane, bytes};
use super::heal::{form, set_view};
use super::*;

fn set_owner(ring: &mut TestRing, leader: Address, uid: u32) -> Token {
    ring.op_id += 256;
    let changes = AttrChanges { uid: Some(uid), ..Default::default() };
    let (token, op) = (Token(ring.op_id), Op::Inode { op: InodeOp::SetAttr { inode: ROOT, changes } });
    let ask = ring.ask();
    ring.tell(leader, Event::Request { token, ask, op });
    token
}

/// The leader of the root's partition, and its member.
fn two(ring: &TestRing) -> (Address, Address) {
    let partition = ROOT.position().partition(COUNT);
    let view = &ring.views[partition.0 as usize];
    let member = view.members.iter().map(|member| member.brick).find(|brick| *brick != view.leader).unwrap();
    (Address { partition, brick: view.leader }, Address { partition, brick: member })
}

/// Both ends are linked anew before either has noticed that they were not.
#[test]
fn what_is_lost_with_a_connection_is_sent_again_on_the_next() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    ring.held_back = Some((member, Vec::new()));
    let token = set_owner(&mut ring, leader, 7);
    ring.held_back = None;
    assert!(!ring.answers.contains_key(&token));
    ring.tell(member, Event::Up { bricks: vec![leader.brick] });
    ring.tell(leader, Event::Up { bricks: vec![member.brick] });
    ring.rest();
    assert!(matches!(ring.answers.remove(&token), Some(Ok(_))));
    ring.check();
}

/// Else an fsync is answered never.
#[test]
fn a_sync_is_asked_again_of_who_comes_back_and_not_of_who_is_left_out() {
    for comes_back in [true, false] {
        let mut ring = open(&storages());
        let (leader, member) = two(&ring);
        ring.held_back = Some((member, Vec::new()));
        ring.tell(leader, Event::Sync { token: Token(3), shards: Vec::new(), own: false });
        assert!(!ring.answers.contains_key(&Token(3)), "a member has not synced it");
        ring.tell(leader, Event::Sync { token: Token(4), shards: Vec::new(), own: true });
        assert_eq!(
            ring.answers.remove(&Token(4)),
            Some(Ok(Reply::Done)),
            "who wants the leader alone waits for nobody"
        );
        ring.held_back = None;
        if comes_back {
            ring.tell(member, Event::Up { bricks: vec![leader.brick] });
            ring.tell(leader, Event::Up { bricks: vec![member.brick] });
        } else {
            form(&mut ring, leader.partition.0, leader.brick.0, &[leader.brick.0], &[]);
        }
        (0..3).for_each(|_| ring.tick());
        assert_eq!(ring.answers.remove(&Token(3)), Some(Ok(Reply::Done)), "comes back: {comes_back}");
    }
}

/// Two leaders made different records under one number: whichever is taken, somebody was told of the other.
#[test]
fn logs_of_which_none_is_the_beginning_of_the_other_are_not_served() {
    for leaders in [1, 2] {
        let mut ring = open(&storages());
        ring.rest();
        let (leader, member) = two(&ring);
        for (at, epoch, count) in [(leader, Epoch(1), leaders), (member, Epoch(2), 1)] {
            for _ in 0..count {
                let brick = &ring.bricks[at.brick.0 as usize];
                let (ring, partition, session, op_id) = (RING, at.partition, SYSTEM_SESSION, OpId(0));
                let sequence = Sequence(brick.position(ring, partition).sequence.0 + 1);
                let changes = Vec::new();
                let record = Record { ring, partition, epoch, sequence, session, op_id, changes };
                brick.append(&hekate_brick::LogEntry::new(record)).unwrap();
            }
        }
        ring.views.iter_mut().for_each(|view| view.epoch.0 += 2);
        ring.start_all();
        let failure = ring.partitions[&leader].failure().map(ToString::to_string).unwrap_or_default();
        assert!(failure.contains("differ between bricks"), "{leaders}: {failure}");
    }
}

/// Else it is served never; and what it had room for must be counted once.
#[test]
fn a_leader_without_room_for_what_it_fetches_goes_on_when_there_is_some() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    let (number, first, second) = (leader.partition.0, leader.brick.0, follower.brick.0);
    form(&mut lane.ring, number, second, &[second], &[]);
    lane.leader = follower;
    for turn in 2..5 {
        assert!(lane.slow(FIRST, turn * 256, 0, bytes(turn as u8, BLOCK_BYTES)).is_ok());
    }
    lane.leader = leader;
    lane.ring.write_home();
    fill_journal(&mut lane, leader);
    let before = lane.ring.views[number as usize].clone();
    let member = |brick| Member { brick: BrickId(brick), incarnation: Incarnation(1) };
    let members = vec![member(first), member(second)];
    set_view(&mut lane.ring, number, View::new(Epoch(before.epoch.0 + 1), leader.brick, members));
    (0..5).for_each(|_| lane.ring.tick());
    assert!(lane.ring.branches.contains("levelling: no room for what is fetched"));
    assert!(!lane.ring.partitions[&leader].serves());
    lane.ring.messages_left = u64::MAX;
    (0..5).for_each(|_| lane.ring.tick());
    assert!(lane.ring.partitions[&leader].serves());
    lane.check_even([4, 1, 1, 1]);
}

/// What the leader sent it is not sent again.
#[test]
fn a_member_forgets_nothing_of_its_leader_for_the_connection_of_another_brick() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    let other = (0..u128::from(BRICKS)).map(BrickId).find(|brick| ![leader.brick, member.brick].contains(brick));
    ring.held_back = Some((member, Vec::new()));
    let token = set_owner(&mut ring, leader, 7);
    let syncs = [Token(3), Token(4)];
    syncs.iter().for_each(|token| ring.tell(leader, Event::Sync { token: *token, shards: Vec::new(), own: false }));
    let (_, held) = ring.held_back.take().unwrap();
    let (asked, records): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|sent| matches!(sent.message, Message::Sync { .. }));
    assert!(asked.len() == 2 && !records.is_empty());
    asked.into_iter().for_each(|sync| ring.handle(member, Event::Message(sync)));
    ring.tell(member, Event::Up { bricks: vec![other.unwrap()] });
    ring.queue.extend(records);
    ring.deliver();
    assert!(matches!(ring.answers.remove(&token), Some(Ok(_))));
    syncs.iter().for_each(|token| assert_eq!(ring.answers.remove(token), Some(Ok(Reply::Done))));
}

/// Its brick waits for that before it gives journal back; without, it takes no records any more.
#[test]
fn a_member_gets_what_it_has_made_stable_everywhere() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    let token = set_owner(&mut ring, leader, 7);
    assert!(matches!(ring.answers.remove(&token), Some(Ok(_))));
    let last = ring.bricks[member.brick.0 as usize].position(RING, member.partition).sequence;
    assert!(ring.partitions[&member].stable() < last);
    ring.tell(member, Event::Stabilize);
    ring.tell(member, Event::Stabilize);
    assert_eq!(ring.partitions[&member].stable(), last);
    assert_eq!(ring.partitions[&leader].stable(), last);
}

/// A leader that was started anew counts its questions from the beginning: what was synced for an earlier one it would take for what it asks.
#[test]
fn a_member_answers_no_sync_that_an_earlier_life_of_its_leader_asked_for() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    let last = ring.bricks[member.brick.0 as usize].position(RING, leader.partition).sequence;
    let (ticket, epoch) = (1 << 30, ring.views[leader.partition.0 as usize].epoch);
    let message = Message::Sync { ticket, sequence: Sequence(last.0 + 1), shards: Vec::new() };
    ring.handle(member, Event::Message(Envelope { ring: RING, from: leader, to: member, epoch, message }));
    ring.tell(member, Event::Up { bricks: vec![leader.brick] });
    ring.held_back = Some((leader, Vec::new()));
    set_owner(&mut ring, leader, 7);
    let (_, held) = ring.held_back.take().unwrap();
    assert!(held.iter().any(|sent| matches!(sent.message, Message::Held { .. })), "it has the record");
    assert!(!held.iter().any(|sent| matches!(sent.message, Message::Synced { .. })), "{held:?}");
}

/// Who asks the wrong one is not left waiting.
#[test]
fn a_member_that_does_not_lead_answers_that() {
    let mut ring = open(&storages());
    let (_, member) = two(&ring);
    let changes = AttrChanges { uid: Some(7), ..Default::default() };
    let op = Op::Inode { op: InodeOp::SetAttr { inode: ROOT, changes } };
    let ask = ring.ask();
    ring.tell(member, Event::Request { token: Token(1), ask, op });
    ring.tell(member, Event::Change { token: Token(2), commit: Box::default() });
    ring.tell(member, Event::ChangeNow { token: Token(3), commit: Box::default() });
    ring.tell(member, Event::Sync { token: Token(4), shards: Vec::new(), own: false });
    for token in 1..=4 {
        assert!(matches!(ring.answers.remove(&Token(token)), Some(Err(Error::StaleView { .. }))), "{token}");
    }
}

/// The coordinator may not have heard it; until it has recorded it, nobody is answered.
#[test]
fn that_a_view_may_begin_is_told_until_it_has() {
    let mut ring = open(&storages());
    let (leader, _) = two(&ring);
    let number = leader.partition.0;
    let view = View { epoch: Epoch(2), opened: false, ..ring.views[number as usize].clone() };
    set_view(&mut ring, number, view.clone());
    for _ in 0..3 {
        (0..10).for_each(|_| ring.tick());
        assert!(std::mem::take(&mut ring.opens).contains(&(leader.partition, Epoch(2))));
    }
    set_view(&mut ring, number, View { opened: true, ..view });
    ring.opens.clear();
    (0..10).for_each(|_| ring.tick());
    assert!(ring.opens.is_empty() && ring.partitions[&leader].serves());
}
