//! Fast writes that need not be on stable storage, and members that lose power (rules L18 to L22).

use super::closing::beside;
use super::fast::{BLOCK, FIRST, Lane, SECOND, bytes, shard};
use super::heal::{form, heal, healing, set_view};
use super::*;

fn conflicts(outcome: &Result<Reply>) -> bool {
    matches!(outcome, Err(Error::Conflict { .. }))
}

fn key(lane: &Lane) -> Key {
    Key::loose(RING, lane.leader.partition.first_position(COUNT))
}

/// Whether the leader and the follower have the marker.
fn noted(lane: &Lane) -> [bool; 2] {
    [lane.leader, lane.follower].map(|at| lane.ring.bricks[at.brick.0 as usize].get(&key(lane)).unwrap().is_some())
}

/// A write through the leader to another shard of the partition, whose record sets the marker.
fn note(lane: &Lane) -> DataOp {
    let (data, bytes) = (beside(lane), bytes(9, BLOCK_BYTES));
    DataOp::WriteShard { data, index: 0, offset: 0, bytes, follow: None, fast: true }
}

/// A lane whose first session asks for no stable storage. Its initial contents are on stable storage.
fn loose_lane() -> Lane {
    let mut lane = Lane::new();
    let token = Token(55);
    lane.ring.tell(lane.leader, Event::Sync { token, shards: vec![shard()], own: false });
    assert_eq!(lane.ring.answers.remove(&token), Some(Ok(Reply::Done)));
    lane.loose = true;
    let op = note(&lane);
    assert!(lane.request(lane.leader, FIRST, 257, op).is_ok());
    assert_eq!(noted(&lane), [true, true]);
    lane
}

/// Two writes on both members. No replica lists the first any more.
fn write_two(lane: &mut Lane) {
    for (op, block) in [(512, 0), (768, 1)] {
        for at in [lane.leader, lane.follower] {
            let written = lane.fast(at, op, block * BLOCK, bytes(block as u8 + 2, BLOCK_BYTES));
            assert!(written.is_ok(), "{written:?}");
        }
        lane.stamp = lane.fast_stamp(op);
    }
}

fn loses_power(lane: &mut Lane, at: Address) {
    let number = at.brick.0 as usize;
    lane.storages[number] = lane.storages[number].after_power_cut();
    lane.ring.bricks[number] = brick_on(number, &lane.storages[number], 512 << 10, false);
    lane.ring.partitions.retain(|address, _| address.brick != at.brick);
    lane.ring.host_all();
    let own: Vec<Address> = lane.ring.partitions.keys().filter(|address| address.brick == at.brick).copied().collect();
    own.into_iter().for_each(|address| lane.ring.tell(address, Event::Start));
    for address in lane.ring.partitions.keys().copied().collect::<Vec<_>>() {
        let bricks: Vec<BrickId> = (0..u128::from(BRICKS)).map(BrickId).collect();
        let event = if address.brick == at.brick { bricks } else { vec![at.brick] };
        lane.ring.tell(address, Event::Up { bricks: event });
    }
}

/// The follower is left out, and comes back.
fn comes_back(lane: &mut Lane) {
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    form(&mut lane.ring, number, first, &[first], &[]);
    form(&mut lane.ring, number, first, &[first], &[second]);
    heal(&mut lane.ring, number);
    form(&mut lane.ring, number, first, &[first, second], &[]);
}

fn loses_power_and_comes_back(lane: &mut Lane) {
    let (number, first) = (lane.leader.partition.0, lane.leader.brick.0);
    form(&mut lane.ring, number, first, &[first], &[]);
    loses_power(lane, lane.follower);
    comes_back(lane);
}

/// The next leader relies on the marker (rule L21).
#[test]
fn a_loose_write_is_refused_until_all_members_have_the_note() {
    let mut lane = Lane::new();
    lane.loose = true;
    assert!(conflicts(&lane.fast(lane.leader, 512, 0, bytes(2, BLOCK_BYTES))), "no replica has the marker");
    lane.ring.held_back = Some((lane.follower, Vec::new()));
    let event = |lane: &Lane, op_id| {
        let ask = Ask { loose: true, ..Lane::ask(FIRST, op_id) };
        Event::Request { token: Token(op_id), ask, op: Op::Data { op: note(lane) } }
    };
    let first = event(&lane, 257);
    lane.ring.tell(lane.leader, first);
    assert_eq!(noted(&lane), [true, false]);
    assert!(conflicts(&lane.fast(lane.leader, 512, 0, bytes(2, BLOCK_BYTES))), "the leader has the marker");
    let (_, held) = lane.ring.held_back.take().unwrap();
    lane.ring.queue.extend(held);
    lane.ring.deliver();
    let opened = lane.ring.answers.remove(&Token(257));
    assert!(matches!(opened, Some(Ok(Reply::Written { fast: None, .. }))), "its shard is not open: {opened:?}");
    let second = event(&lane, 513);
    lane.ring.tell(lane.leader, second);
    let opened = lane.ring.answers.remove(&Token(513));
    assert!(matches!(opened, Some(Ok(Reply::Written { fast: Some(_), .. }))), "{opened:?}");
    for at in [lane.leader, lane.follower] {
        assert!(lane.fast(at, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    }
    lane.check_even([2, 1, 1, 1]);
    assert_eq!(noted(&lane), [false, false]);
}

/// While the marker is set, each replica that comes back is compared, which takes longer.
#[test]
fn the_note_is_made_for_loose_writes_only_and_goes_with_the_last() {
    let mut lane = Lane::new();
    lane.ring.tick();
    let op = note(&lane);
    assert!(lane.request(lane.leader, FIRST, 257, op).is_ok());
    assert_eq!(noted(&lane), [false, false], "these are to be on stable storage");
    let mut lane = loose_lane();
    let mut stamp = lane.stamp;
    for turn in 2..12 {
        for at in [lane.leader, lane.follower] {
            lane.stamp = stamp;
            assert!(lane.fast(at, turn * 256, 0, bytes(2, BLOCK_BYTES)).is_ok());
        }
        stamp = lane.fast_stamp(turn * 256);
        (0..3).for_each(|_| lane.ring.tick());
        assert_eq!(noted(&lane), [true, true], "the shard is open: nothing has synced the first of them");
        lane.loose = false;
    }
    lane.check_even([2, 1, 1, 1]);
    assert_eq!(noted(&lane), [false, false]);
}

/// Without the marker the member's log would be the beginning of the leader's (rule L19).
#[test]
fn what_a_member_loses_with_its_power_it_gets_again() {
    for is_at_rest in [false, true] {
        let mut lane = loose_lane();
        write_two(&mut lane);
        if is_at_rest {
            // The shard is closed and the marker removed: only the log is left (rules L18, L22).
            (0..15).for_each(|_| lane.ring.tick());
        }
        assert_eq!(noted(&lane), [!is_at_rest, !is_at_rest]);
        loses_power_and_comes_back(&mut lane);
        assert_eq!(lane.ring.branches.contains("a learner is compared from the beginning"), !is_at_rest);
        lane.check_even([2, 3, 1, 1]);
        assert_eq!(noted(&lane), [false, false]);
    }
}

/// Otherwise the leader's record would not follow on a member's disk what it followed at the leader (rule L18).
#[test]
fn a_shard_is_closed_once_all_members_have_synced_its_loose_writes() {
    for is_loose in [true, false] {
        let mut lane = if is_loose { loose_lane() } else { Lane::new() };
        write_two(&mut lane);
        let before = lane.ring.bricks[lane.leader.brick.0 as usize].position(RING, lane.leader.partition);
        lane.ring.held_back = Some((lane.follower, Vec::new()));
        lane.ring.tell(lane.leader, Event::CloseShards);
        let late = lane.fast(lane.leader, 1024, 2 * BLOCK, bytes(4, BLOCK_BYTES));
        assert!(conflicts(&late), "{late:?}: not every member would have synced it");
        let now = lane.ring.bricks[lane.leader.brick.0 as usize].position(RING, lane.leader.partition);
        let (_, held) = lane.ring.held_back.take().unwrap();
        let syncs = held.iter().filter(|sent| matches!(sent.message, Message::Sync { .. })).count();
        assert_eq!((now == before, syncs), if is_loose { (true, 1) } else { (false, 0) }, "{held:?}");
        lane.ring.queue.extend(held);
        lane.ring.deliver();
        assert!(!lane.listed(lane.follower), "the shard is closed and reconciled");
        lane.check_even([2, 3, 1, 1]);
    }
}

/// The sync for the first shard does not cover later writes to the second.
#[test]
fn a_shard_that_is_written_loosely_while_another_is_synced_is_synced_as_well() {
    let mut lane = loose_lane();
    let data = beside(&lane);
    let slow = |lane: &mut Lane, turn: u64| lane.request(lane.leader, SECOND, 257 + turn * 256, note(lane));
    let opened = (0..12).find_map(|turn| match slow(&mut lane, turn) {
        Ok(Reply::Written { stamp, fast: Some(term) }) => Some((stamp, term)),
        _ => None,
    });
    let (follow, term) = opened.unwrap();
    write_two(&mut lane);
    lane.ring.held_back = Some((lane.follower, Vec::new()));
    lane.ring.tell(lane.leader, Event::SessionEnded { session: FIRST });
    let bytes = bytes(7, BLOCK_BYTES);
    let op = Op::Data { op: DataOp::FastWrite { data, index: 0, offset: 0, bytes, follow, settled: false, term } };
    let ask = Ask { loose: true, ..Lane::ask(SECOND, 1 << 20) };
    lane.ring.tell(lane.leader, Event::Request { token: Token(78), ask, op });
    assert!(lane.ring.answers.remove(&Token(78)).is_some_and(|reply| reply.is_ok()));
    let (_, held) = lane.ring.held_back.replace((lane.follower, Vec::new())).unwrap();
    held.into_iter().for_each(|envelope| lane.ring.handle(lane.follower, Event::Message(envelope)));
    lane.ring.deliver();
    lane.ring.tell(lane.leader, Event::CloseShards);
    let (_, held) = lane.ring.held_back.take().unwrap();
    let closes = |change: &Change| change.shard().is_some_and(|shard| shard.data == data);
    let is_closed = |sent: &Envelope| match &sent.message {
        Message::Append { entry, .. } => entry.record.changes.iter().any(closes),
        _ => false,
    };
    assert!(!held.iter().any(is_closed), "{held:?}");
    lane.ring.queue.extend(held);
    lane.check_even([2, 3, 1, 1]);
}

/// Members may lack more than what they list. A record that reconciles a list would follow something else on the disk
/// of one of them.
#[test]
fn a_leader_that_begins_anew_has_all_synced_before_it_evens_what_they_list() {
    let mut lane = loose_lane();
    write_two(&mut lane);
    lane.ring.handle(lane.leader, Event::Start);
    let (mut is_synced, mut reconciled) = (false, 0);
    while let Some(envelope) = lane.ring.queue.pop_front() {
        is_synced |= matches!(envelope.message, Message::Synced { .. });
        if let Message::Append { entry, .. } = &envelope.message
            && entry.record.changes.iter().any(|change| change.shard() == Some(shard()))
        {
            assert!(is_synced, "{entry:?}");
            reconciled += 1;
        }
        lane.ring.handle(envelope.to, Event::Message(envelope));
    }
    assert_eq!(reconciled, 1);
    lane.ring.rest();
    assert_eq!(noted(&lane), [false, false], "the leader has found the marker");
    loses_power_and_comes_back(&mut lane);
    lane.check_even([2, 3, 1, 1]);
}

/// Two replicas may have lost different writes, and no list names them, so one copy is kept (rule L20).
#[test]
fn a_view_without_memory_is_to_have_one_member_if_there_were_loose_writes() {
    for is_loose in [true, false] {
        let mut lane = loose_lane();
        if !is_loose {
            lane.ring.rest();
            assert_eq!(noted(&lane), [false, false]);
            lane.loose = false;
        } else {
            let token = Token(56);
            lane.ring.tell(lane.leader, Event::Sync { token, shards: Vec::new(), own: false });
            write_two(&mut lane);
            let brick = &lane.ring.bricks[lane.follower.brick.0 as usize];
            brick.sync(brick.end()).unwrap();
        }
        let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
        let (leader, follower) = (lane.leader, lane.follower);
        let epoch = Epoch(lane.ring.views[number as usize].epoch.0 + 1);
        let before = lane.ring.views[number as usize].clone();
        lane.ring.views[number as usize] = View { epoch, forgetful: true, opened: false, ..before };
        loses_power(&mut lane, leader);
        loses_power(&mut lane, follower);
        (0..20).for_each(|_| lane.ring.tick());
        assert_eq!(lane.ring.partitions[&leader].wants_alone(), is_loose);
        assert_eq!(lane.ring.opens.contains(&(leader.partition, epoch)), !is_loose);
        if !is_loose {
            let view = View { opened: true, ..lane.ring.views[number as usize].clone() };
            set_view(&mut lane.ring, number, view);
            lane.check_even([1; 4]);
            continue;
        }
        let member = |brick| Member { brick: BrickId(brick), incarnation: Incarnation(1) };
        let alone = View::new(Epoch(epoch.0 + 1), leader.brick, vec![member(first)]);
        set_view(&mut lane.ring, number, View { forgetful: true, opened: false, ..alone.clone() });
        (0..20).for_each(|_| lane.ring.tick());
        assert!(lane.ring.opens.contains(&(leader.partition, alone.epoch)), "the view of one member begins");
        set_view(&mut lane.ring, number, View { forgetful: true, ..alone });
        assert_ne!(lane.held(leader).1, lane.held(follower).1, "the other replica kept more");
        form(&mut lane.ring, number, first, &[first], &[second]);
        heal(&mut lane.ring, number);
        assert!(healing(&lane.ring, number)[0].whole);
        form(&mut lane.ring, number, first, &[first, second], &[]);
        lane.check_even([1; 4]);
        assert_eq!(noted(&lane), [false, false]);
    }
}
