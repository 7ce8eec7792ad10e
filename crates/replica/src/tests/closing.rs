//! Closing of shards while messages are lost, members come back and writes arrive late.

use super::fast::{BLOCK, DATA, FIRST, Lane, SECOND, bytes, shard};
use super::heal::{allocate, form, set_view};
use super::*;

/// Another data id in the same partition.
pub(super) fn beside(lane: &Lane) -> DataId {
    let of = |data| ShardId { volume: VOLUME, data: DataId(data), index: 0 }.position().partition(COUNT);
    DataId((100..).find(|data| of(*data) == lane.leader.partition).unwrap())
}

fn write_beside(lane: &Lane, byte: u8) -> DataOp {
    let (data, bytes) = (beside(lane), bytes(byte, BLOCK_BYTES));
    DataOp::WriteShard { data, index: 0, offset: 0, bytes, follow: None, fast: false }
}

/// Both replicas lose their connection, with all messages in flight.
pub(super) fn reconnect(lane: &mut Lane) {
    let (leader, follower) = (lane.leader, lane.follower);
    for (at, other) in [(leader, follower), (follower, leader)] {
        lane.ring.tell(at, Event::Down { bricks: vec![other.brick] });
    }
    lane.ring.held_back = None;
    for (at, other) in [(leader, follower), (follower, leader)] {
        lane.ring.tell(at, Event::Up { bricks: vec![other.brick] });
    }
}

/// Writes as the first session until the shard is open again.
fn open_again(lane: &mut Lane, byte: u8) {
    let is_open = |reply| matches!(reply, Ok(Reply::Written { fast: Some(_), .. }));
    let opened =
        (0..10).find(|turn| is_open(lane.slow(FIRST, (1000 + turn) * 256, 3 * BLOCK, bytes(byte, BLOCK_BYTES))));
    assert!(opened.is_some());
}

#[test]
fn the_leader_takes_nothing_for_a_shard_from_the_record_on_that_closes_it() {
    let mut lane = Lane::new();
    lane.ring.held_back = Some((lane.follower, Vec::new()));
    lane.ring.tell(lane.leader, Event::CloseShards);
    let late = lane.fast(lane.leader, 512, 0, bytes(2, BLOCK_BYTES));
    assert!(matches!(late, Err(Error::Conflict { .. })), "{late:?}: the other member would not learn of it");
    let (_, held) = lane.ring.held_back.take().unwrap();
    lane.ring.queue.extend(held);
    lane.ring.deliver();
    lane.check_even([1; 4]);
}

#[test]
fn a_member_that_comes_back_is_asked_again_what_it_lists() {
    let mut lane = Lane::new();
    assert!(lane.fast(lane.follower, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    lane.ring.held_back = Some((lane.follower, Vec::new()));
    lane.ring.tell(lane.leader, Event::CloseShards);
    reconnect(&mut lane);
    lane.check_even([1; 4]);
    assert!(lane.slow(SECOND, 256, 0, bytes(3, BLOCK_BYTES)).is_ok());
}

#[test]
fn a_read_that_waits_for_a_member_begins_again_when_that_comes_back() {
    let mut lane = Lane::new();
    for at in [lane.leader, lane.follower] {
        assert!(lane.fast(at, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    }
    lane.ring.held_back = Some((lane.follower, Vec::new()));
    let op = Op::Data { op: DataOp::ReadShard { data: DATA, index: 0, offset: 0, length: 1 } };
    let token = Token(77);
    lane.ring.tell(lane.leader, Event::Request { token, ask: Lane::ask(SECOND, 256), op });
    assert!(!lane.ring.answers.contains_key(&token), "it asks the member first");
    reconnect(&mut lane);
    (0..20).for_each(|_| lane.ring.tick());
    assert_eq!(lane.ring.answers.remove(&token), Some(Ok(Reply::Data { bytes: bytes(2, 1) })));
}

/// Bricks rely on the counts of stamps: a count that is not above the last synced one counts as synced.
#[test]
fn closing_gives_a_shard_greater_counts_than_anybody_had() {
    let mut lane = Lane::new();
    let before = lane.held(lane.leader).0.count;
    lane.ring.tell(lane.leader, Event::CloseShards);
    assert_eq!(lane.held(lane.leader).0.count, before + 1);
    open_again(&mut lane, 1);
    let (leader, follower) = (lane.leader, lane.follower);
    assert!(lane.fast(follower, 1 << 20, 0, bytes(2, BLOCK_BYTES)).is_ok());
    let theirs = lane.held(follower).0.count;
    lane.ring.tell(leader, Event::CloseShards);
    assert!(lane.held(leader).0.count > theirs, "{} {theirs}", lane.held(leader).0.count);
    lane.check_even([1; 4]);
}

#[test]
fn what_closing_remembers_of_a_session_hides_no_later_op_of_it() {
    let mut lane = Lane::new();
    for at in [lane.leader, lane.follower] {
        assert!(lane.fast(at, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    }
    let op = write_beside(&lane, 3);
    let first = lane.request(lane.leader, FIRST, 768, op.clone());
    assert!(first.is_ok());
    lane.ring.tell(lane.leader, Event::CloseShards);
    lane.check_even([2, 1, 1, 1]);
    assert_eq!(lane.request(lane.leader, FIRST, 768, op), first, "it is not done a second time");
}

/// The record would get the sequence of one that the leader lacks.
#[test]
fn a_leader_evens_nothing_before_it_has_the_records_that_it_lacks() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    assert!(lane.fast(leader, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    let op = Op::Data { op: write_beside(&lane, 3) };
    lane.ring.handle(leader, Event::Request { token: Token(77), ask: Lane::ask(SECOND, 256), op });
    lane.ring.queue.clear();
    let (old, new) = (leader.brick.0, follower.brick.0);
    form(&mut lane.ring, leader.partition.0, new, &[new, old], &[]);
    (lane.leader, lane.follower) = (follower, leader);
    lane.check_even([1; 4]);
    let shard = ShardId { data: beside(&lane), ..shard() };
    for at in [leader, follower] {
        let brick = &lane.ring.bricks[at.brick.0 as usize];
        assert_eq!(brick.read_shard(RING, shard, 0, 1).unwrap(), bytes(3, 1), "{at:?}");
    }
}

/// A member that comes back may list blocks that have become holes.
#[test]
fn a_hole_is_made_even_as_zeros_in_its_place() {
    let mut lane = Lane::new();
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    assert!(lane.fast(lane.follower, 512, 0, bytes(2, 2 * BLOCK_BYTES)).is_ok());
    form(&mut lane.ring, number, first, &[first], &[]);
    lane.ring.op_id = 600 * 256;
    allocate(&mut lane.ring, DATA.0, 0, BLOCK, Fill::Nothing).unwrap();
    form(&mut lane.ring, number, first, &[first], &[second]);
    (0..20).for_each(|_| lane.ring.tick());
    form(&mut lane.ring, number, first, &[first, second], &[]);
    lane.check_even([0, 1, 1, 1]);
}

/// A member that kept the write in its list could lead next and take the write for done.
#[test]
fn a_member_lists_no_more_what_the_leader_made_even() {
    let mut lane = Lane::new();
    let follower = lane.follower;
    assert!(lane.fast(follower, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    assert!(lane.slow(SECOND, 256, 0, bytes(5, BLOCK_BYTES)).is_ok());
    open_again(&mut lane, 1);
    let (follow, term, op_id) = (lane.stamp, lane.term, 1 << 20);
    let bytes = bytes(3, BLOCK_BYTES);
    let write = DataOp::FastWrite { data: DATA, index: 0, offset: BLOCK, bytes, follow, settled: false, term };
    assert!(lane.request(follower, FIRST, op_id, write).is_ok());
    let listed = lane.ring.bricks[follower.brick.0 as usize].get(&Key::unsettled(RING, shard())).unwrap().unwrap();
    let listed: Vec<Stamp> =
        UnsettledRecord::from_bytes(listed).unwrap().writes.iter().map(|write| write.stamp).collect();
    assert_eq!(listed, [lane.fast_stamp(op_id)]);
}

/// The answer would be taken for one to another question about a record with the same sequence.
#[test]
fn what_a_leader_asked_in_an_earlier_view_is_not_answered_in_the_next() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    let last = lane.ring.bricks[follower.brick.0 as usize].position(RING, leader.partition).sequence;
    let epoch = lane.ring.views[leader.partition.0 as usize].epoch;
    let message = Message::ListFast { sequence: Sequence(last.0 + 5), shards: vec![shard()] };
    assert!(lane.fast(follower, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    lane.ring.handle(follower, Event::Message(Envelope { ring: RING, from: leader, to: follower, epoch, message }));
    // The member's list is reconciled when it sends its position in the new view. Then it takes one more write.
    let (first, second) = (leader.brick.0, follower.brick.0);
    form(&mut lane.ring, leader.partition.0, first, &[first, second], &[]);
    for turn in 0..10 {
        let op = Op::Data { op: write_beside(&lane, 3) };
        let (token, ask) = (Token(turn), Lane::ask(SECOND, (turn + 1) * 256));
        lane.ring.handle(leader, Event::Request { token, ask, op });
        while let Some(envelope) = lane.ring.queue.pop_front() {
            assert!(!matches!(envelope.message, Message::FastListed { .. }), "{envelope:?}");
            lane.ring.handle(envelope.to, Event::Message(envelope));
        }
    }
    lane.check_even([1; 4]);
}

/// Appends records of no client until the journal is full. No room is made from then on.
pub(super) fn fill_journal(lane: &mut Lane, at: Address) {
    lane.ring.messages_left = u64::MAX - 1;
    fill(&lane.ring.bricks[at.brick.0 as usize], at.partition);
}

/// As `fill_journal`, for any brick.
pub(super) fn fill(brick: &Brick, partition: PartitionNumber) {
    let epoch = brick.position(RING, partition).epoch;
    for bytes in [10_000, 100] {
        let key = Key::session(RING, partition.first_position(COUNT), SessionId(77), 1);
        let changes = vec![Change::Put { key, value: super::fast::bytes(7, bytes) }];
        let (session, op_id, sequence) = (SYSTEM_SESSION, OpId(0), Sequence(0));
        let record = Record { ring: RING, partition, epoch, sequence, session, op_id, changes };
        let entry = hekate_brick::LogEntry::new(record);
        while brick.takes_now(&entry) {
            brick.append(&entry).unwrap();
        }
    }
}

/// A record that reconciled the shard without the learner would remove its list, and only this leader would know of it
/// (rule L15).
#[test]
fn a_learner_gets_no_records_as_long_as_there_is_no_room_to_even_what_it_lists() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    let (number, first, second) = (leader.partition.0, leader.brick.0, follower.brick.0);
    assert!(lane.fast(follower, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    form(&mut lane.ring, number, first, &[first], &[]);
    assert!(lane.slow(SECOND, 256, BLOCK, bytes(3, BLOCK_BYTES)).is_ok());
    lane.ring.write_home();
    let before = lane.ring.views[number as usize].clone();
    let learners = vec![Member { brick: follower.brick, incarnation: Incarnation(1) }];
    fill_journal(&mut lane, leader);
    // The leader stays, so nothing has to be levelled.
    set_view(&mut lane.ring, number, View { learners, epoch: Epoch(before.epoch.0 + 1), ..before });
    let lacks = |lane: &Lane| {
        let position = |at: Address| lane.ring.bricks[at.brick.0 as usize].position(RING, at.partition).sequence;
        position(follower) < position(leader)
    };
    (0..20).for_each(|_| lane.ring.tick());
    assert!(lane.listed(follower) && lacks(&lane));
    lane.ring.messages_left = u64::MAX;
    (0..20).for_each(|_| lane.ring.tick());
    assert!(!lane.listed(follower) && !lacks(&lane));
    form(&mut lane.ring, number, first, &[first, second], &[]);
    lane.check_even([1, 3, 1, 1]);
}

/// One range that is longer than a record, and many ranges together. What is not reconciled would stay different on the
/// member that took it.
#[test]
fn a_list_that_is_longer_than_a_record_is_made_even_in_parts() {
    for apart in [15, 16] {
        let mut lane = Lane::new();
        let (leader, follower) = (lane.leader, lane.follower);
        for part in 0..10 {
            let op_id = 512 + 256 * u64::from(part);
            assert!(lane.slow(FIRST, op_id, 64 * BLOCK * part, bytes(1, 64 * BLOCK_BYTES)).is_ok());
            lane.ring.write_home();
        }
        open_again(&mut lane, 1);
        for turn in 0..32 {
            let (follow, term, op_id) = (lane.stamp, lane.term, (1 << 20) + u64::from(turn));
            let (offset, bytes) = ((100 + apart * turn) * BLOCK, bytes(2, 16 * BLOCK_BYTES));
            let write = DataOp::FastWrite { data: DATA, index: 0, offset, bytes, follow, settled: false, term };
            assert!(lane.request(follower, FIRST, op_id, write).is_ok());
            lane.stamp = lane.fast_stamp(op_id);
            lane.ring.write_home();
        }
        assert!(lane.slow(SECOND, 256, 0, bytes(3, BLOCK_BYTES)).is_ok());
        lane.ring.rest();
        let (ours, theirs) = (lane.held(leader), lane.held(follower));
        assert!(ours == theirs, "{:?} {:?}", ours.0, theirs.0);
        assert!(ours.1 == [bytes(3, BLOCK_BYTES), bytes(1, 639 * BLOCK_BYTES)].concat(), "what the leader had");
        assert!(!lane.listed(leader) && !lane.listed(follower));
    }
}
