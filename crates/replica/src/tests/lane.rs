//! What opens a shard for the fast lane, and what members and the leader refuse on it.

use super::drive::fill_for_new;
use super::fast::{BLOCK, DATA, FIRST, Lane, SECOND, bytes, shard};
use super::heal::{form, set_view};
use super::*;

fn conflicts(outcome: &Result<Reply>) -> bool {
    matches!(outcome, Err(Error::Conflict { .. }))
}

/// Both replicas refuse the write, and the leader then takes it on its own lane.
fn are_refused(lane: &mut Lane, offset: u32, count: usize) {
    for at in [lane.leader, lane.follower] {
        let outcome = lane.fast(at, 1 << 20, offset, bytes(2, count));
        assert!(conflicts(&outcome), "{count} bytes at {offset}: {outcome:?}");
    }
}

#[test]
fn the_greatest_write_and_the_last_byte_of_a_shard_are_no_faults_of_the_client() {
    let mut lane = Lane::new();
    assert!(lane.fast(lane.leader, 512, 0, bytes(2, FAST_BYTES_MAX)).is_ok());
    lane.stamp = lane.fast_stamp(512);
    assert!(lane.fast(lane.leader, 768, (SHARD_BYTES - 1) as u32, bytes(2, 1)).is_ok());
    lane.stamp = lane.fast_stamp(768);
    let beyond = lane.fast(lane.leader, 1 << 20, (SHARD_BYTES - 1) as u32, bytes(2, 2));
    assert!(matches!(beyond, Err(Error::Invalid { .. })), "{beyond:?}");
}

/// The first writes of two sessions could each be on one replica, with the same count (rule 1).
#[test]
fn a_write_that_follows_another_stamp_of_the_same_count_is_refused() {
    let mut lane = Lane::new();
    let stamp = lane.stamp;
    for other in [Stamp { op: OpId(stamp.op.0 + 1), ..stamp }, Stamp { session: SECOND, ..stamp }] {
        lane.stamp = other;
        are_refused(&mut lane, 0, BLOCK_BYTES);
    }
    lane.check_even([1; 4]);
}

/// The room would be lost that is reserved there: members count it behind `home_blocks` only.
#[test]
fn a_write_behind_the_end_is_the_leaders_if_room_is_reserved_there() {
    let mut lane = Lane { term: 0, ..Lane::new() };
    let shard = ShardId { index: 1, ..shard() };
    lane.ring.op_id = 600 * 256;
    let leader = lane.ring.leader(shard.position());
    let op = DataOp::AllocateShard { data: DATA, index: 1, offset: 0, length: 9 * BLOCK, fill: Fill::Holes };
    lane.ring.execute_at(leader, Op::Data { op }).unwrap();
    let op = DataOp::WriteShard { data: DATA, index: 1, offset: 0, bytes: bytes(1, 100), follow: None, fast: true };
    assert!(lane.request(leader, FIRST, 700 * 256, op).is_ok());
    let record = lane.ring.bricks[leader.brick.0 as usize].shard(RING, shard).unwrap().unwrap();
    assert_eq!((record.length, record.home_blocks, record.reserved_blocks), (100, 1, 9));
}

/// Otherwise a record that another brick has would wait for room as long as fast writes come.
#[test]
fn a_fast_write_takes_no_room_that_is_kept_for_records_of_others() {
    let mut lane = Lane::new();
    for at in [lane.leader, lane.follower] {
        fill_for_new(&lane.ring.bricks[at.brick.0 as usize]);
        assert!(conflicts(&lane.fast(at, 512, 0, bytes(2, BLOCK_BYTES))));
        lane.ring.write_home();
        assert!(lane.fast(at, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    }
}

#[test]
fn who_is_left_out_takes_no_fast_writes_of_the_view_before() {
    let mut lane = Lane::new();
    let first = lane.leader.brick.0;
    form(&mut lane.ring, lane.leader.partition.0, first, &[first], &[]);
    are_refused(&mut lane, 0, BLOCK_BYTES);
}

/// A replica that is away or learns would not get the fast writes, which are in no log.
#[test]
fn shards_are_opened_only_where_all_replicas_are_members() {
    let third = |lane: &Lane| {
        let known = [lane.leader.brick, lane.follower.brick];
        (0..u128::from(BRICKS)).find(|brick| !known.contains(&BrickId(*brick))).unwrap()
    };
    let is_opened = |lane: &mut Lane| {
        let reply = lane.slow(FIRST, 512, 0, bytes(1, BLOCK_BYTES));
        let Ok(Reply::Written { fast, .. }) = reply else { panic!("{reply:?}") };
        fast.is_some()
    };
    let mut lane = Lane::new();
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    form(&mut lane.ring, number, first, &[first, second], &[]);
    assert!(is_opened(&mut lane));
    let mut lane = Lane::new();
    let learns = third(&lane);
    form(&mut lane.ring, number, first, &[first, second], &[learns]);
    assert!(!is_opened(&mut lane), "the view has a learner");
    let mut lane = Lane::new();
    form(&mut lane.ring, number, first, &[first], &[]);
    assert!(!is_opened(&mut lane), "the view leaves a replica out");
    let mut lane = Lane::new();
    let view = View { epoch: Epoch(2), whole: false, ..lane.ring.views[number as usize].clone() };
    set_view(&mut lane.ring, number, view);
    assert!(!is_opened(&mut lane), "a replica is away that the view does not name");
}

#[test]
fn a_term_says_of_which_epoch_it_is() {
    let mut lane = Lane::new();
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    for epoch in 2..5 {
        form(&mut lane.ring, number, first, &[first, second], &[]);
        lane.term = 0;
        assert!(lane.slow(FIRST, 256 * epoch, 0, bytes(1, BLOCK_BYTES)).is_ok());
        let generation = u64::from(lane.ring.bricks[first as usize].generation());
        assert_eq!((lane.term >> 40, lane.term >> 24 & 0xffff), (epoch, generation), "{:#x}", lane.term);
    }
}

#[test]
fn a_session_that_has_ended_writes_no_more() {
    let mut lane = Lane::new();
    lane.ring.tell(lane.leader, Event::SessionEnded { session: SECOND });
    for at in [lane.leader, lane.follower] {
        assert!(lane.fast(at, 512, 0, bytes(2, BLOCK_BYTES)).is_ok(), "another session has ended");
    }
    lane.stamp = lane.fast_stamp(512);
    lane.ring.tell(lane.leader, Event::SessionEnded { session: FIRST });
    are_refused(&mut lane, 0, BLOCK_BYTES);
    lane.check_even([2, 1, 1, 1]);
}

/// Tools that compare or repair replicas rely on that.
#[test]
fn a_partition_with_an_open_shard_is_not_settled() {
    let mut lane = Lane::new();
    assert!(lane.fast(lane.follower, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    assert!(!lane.ring.partitions[&lane.leader].is_settled());
    lane.ring.tell(lane.leader, Event::CloseShards);
    assert!(lane.ring.partitions[&lane.leader].is_settled());
}

/// A copy must not show what a read of the shard would not show yet.
#[test]
fn what_is_copied_from_a_shard_is_on_all_members() {
    for is_here in [true, false] {
        let mut lane = Lane::new();
        let (leader, follower) = (lane.leader, lane.follower);
        assert!(lane.fast(leader, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
        let at = |data| ShardId { data: DataId(data), ..shard() }.position();
        let data = (100..).find(|data| (at(*data).partition(COUNT) == leader.partition) == is_here).unwrap();
        let from = ShardRange { data: DATA, index: 0, offset: 0, length: BLOCK };
        let copy = DataOp::CopyShard { from, data: DataId(data), index: 0, offset: 0 };
        let to = lane.ring.leader(at(data));
        assert!(matches!(lane.request(to, SECOND, 256, copy), Ok(Reply::Written { .. })));
        assert_eq!(lane.held(follower).1[0], 2, "the other member has it too");
        let copied = ShardId { data: DataId(data), ..shard() };
        assert_eq!(lane.ring.bricks[to.brick.0 as usize].read_shard(RING, copied, 0, 1).unwrap(), bytes(2, 1));
        lane.check_even([2, 1, 1, 1]);
    }
}

/// Otherwise the other write is shown though the member lacks it and may lead next.
#[test]
fn that_a_member_has_one_write_says_nothing_of_another() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    let data = super::closing::beside(&lane);
    let of_all = bytes(1, BLOCK_BYTES);
    let open = DataOp::WriteShard { data, index: 0, offset: 0, bytes: of_all, follow: None, fast: true };
    let opened = lane.request(leader, FIRST, 257, open);
    let Ok(Reply::Written { stamp: follow, fast: Some(term) }) = opened else { panic!("{opened:?}") };
    for at in [leader, follower] {
        assert!(lane.fast(at, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    }
    let of_one = bytes(2, BLOCK_BYTES);
    let write = DataOp::FastWrite { data, index: 0, offset: 0, bytes: of_one, follow, settled: true, term };
    assert!(lane.request(leader, FIRST, 513, write).is_ok());
    lane.ring.held_back = Some((follower, Vec::new()));
    for (token, data) in [(77, DATA), (78, data)] {
        let op = Op::Data { op: DataOp::ReadShard { data, index: 0, offset: 0, length: 1 } };
        lane.ring.tell(leader, Event::Request { token: Token(token), ask: Lane::ask(SECOND, token * 256), op });
    }
    let (_, mut held) = lane.ring.held_back.replace((follower, Vec::new())).unwrap();
    assert!(held.len() == 2 && lane.ring.answers.is_empty(), "{held:?}");
    lane.ring.handle(follower, Event::Message(held.remove(0)));
    lane.ring.deliver();
    let shown = Ok(Reply::Data { bytes: bytes(2, 1) });
    assert_eq!(lane.ring.answers, BTreeMap::from([(Token(77), shown.clone())]));
    lane.ring.held_back = None;
    lane.ring.queue.extend(held);
    (0..20).for_each(|_| lane.ring.tick());
    assert_eq!(lane.ring.answers.get(&Token(78)), Some(&shown));
    let other = ShardId { data, ..shard() };
    assert_eq!(lane.ring.bricks[follower.brick.0 as usize].read_shard(RING, other, 0, 1).unwrap(), bytes(2, 1));
}

/// They change without a record of their own, so nobody could be told before.
#[test]
fn the_bytes_of_an_open_shard_are_not_pledged() {
    let mut lane = Lane::new();
    let read = DataOp::ReadShard { data: DATA, index: 0, offset: 0, length: 10 };
    let ask = Ask { pledge: true, ..Lane::ask(SECOND, 0) };
    let answer = |lane: &mut Lane| lane.ring.read_as(&ask, lane.leader, Op::Data { op: read.clone() });
    let reply = answer(&mut lane);
    assert!(matches!(reply, Ok(Reply::Data { .. })), "{reply:?}");
    // Another session's write closes it.
    lane.slow(SECOND, 256, 0, bytes(2, BLOCK_BYTES)).unwrap();
    lane.ring.rest();
    let reply = answer(&mut lane);
    assert!(matches!(reply, Ok(Reply::Pledged { found: Found::Data { .. }, .. })), "{reply:?}");
}
