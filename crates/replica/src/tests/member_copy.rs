//! Shards that are closed, or reconciled with a member's copy, during other events; and learners that lack loose
//! writes.

use super::fast::{BLOCK, DATA, FIRST, Lane, bytes, shard};
use super::heal::{form, set_view};
use super::*;

fn loose(op_id: u64) -> Ask {
    Ask { loose: true, ..Lane::ask(FIRST, op_id) }
}

/// Writes through the leader.
fn slow(lane: &mut Lane, op_id: u64, byte: u8) -> Result<Reply> {
    let bytes = bytes(byte, BLOCK_BYTES);
    let op = DataOp::WriteShard { data: DATA, index: 0, offset: 0, bytes, follow: None, fast: true };
    let reply = lane.request_as(loose(op_id), lane.leader, op);
    if let Ok(Reply::Written { stamp, fast }) = reply {
        (lane.stamp, lane.term) = (stamp, fast.unwrap_or(lane.term));
    }
    reply
}

/// Sends a fast write to one replica.
fn fast(lane: &mut Lane, to: Address, op_id: u64, block: u32, byte: u8) -> Result<Reply> {
    let (follow, term, bytes) = (lane.stamp, lane.term, bytes(byte, BLOCK_BYTES));
    let offset = block * BLOCK;
    let op = DataOp::FastWrite { data: DATA, index: 0, offset, bytes, follow, settled: true, term };
    lane.request_as(loose(op_id), to, op)
}

/// Opens a shard for loose writes of the session.
fn open_loosely() -> Lane {
    let mut lane = Lane::new();
    for op in 2..10 {
        if matches!(slow(&mut lane, op * 256, 1), Ok(Reply::Written { fast: Some(_), .. })) {
            return lane;
        }
    }
    panic!("it is never opened");
}

/// Sends a fast write to all members.
fn fast_by_all(lane: &mut Lane, op_id: u64, block: u32, byte: u8) {
    for at in [lane.leader, lane.follower] {
        assert!(fast(lane, at, op_id, block, byte).is_ok());
    }
    lane.stamp = lane.fast_stamp(op_id);
}

fn is_marked(ring: &TestRing, at: Address) -> bool {
    let key = Key::loose(RING, at.partition.first_position(COUNT));
    ring.bricks[at.brick.0 as usize].get(&key).unwrap().is_some()
}

/// The replica loses its power, with all that it has not synced. The other one keeps its memory.
fn lose_power(lane: &mut Lane, at: Address) {
    let number = at.brick.0 as usize;
    let storage = lane.storages[number].after_power_cut();
    let settings =
        BrickSettings { journal_segments: 4, segment_bytes: 512 << 10, index_cache_bytes: 1 << 20, reserve_bytes: 0 };
    let identity = Identity::new(at.brick, "c", settings);
    let opened = Brick::open_on(Arc::new(storage), &identity, Incarnation(1), true).unwrap().0;
    lane.ring.bricks[number] = opened;
    let brick = at.brick;
    lane.ring.partitions.retain(|address, _| address.brick != brick);
    lane.ring.host_all();
    let all: Vec<Address> = lane.ring.partitions.keys().copied().collect();
    let own = || all.iter().filter(|address| address.brick == brick);
    own().for_each(|address| lane.ring.tell(*address, Event::Start));
    let bricks: Vec<BrickId> = (0..BRICKS).map(|brick| BrickId(u128::from(brick))).collect();
    own().for_each(|address| lane.ring.tell(*address, Event::Up { bricks: bricks.clone() }));
}

/// The learner's log is the beginning of the leader's, and does not show what was lost.
#[test]
fn a_learner_that_lost_a_loose_write_gets_it_back() {
    for follows in [false, true] {
        let mut lane = open_loosely();
        lane.ring.bricks.iter().for_each(|brick| brick.sync(brick.end()).unwrap());
        // The second write says that the first is settled, so no replica lists the first any more.
        fast_by_all(&mut lane, 1 << 16, 1, 7);
        fast_by_all(&mut lane, (1 << 16) + 256, 2, 8);
        let (follower, number) = (lane.follower, lane.leader.partition.0);
        lose_power(&mut lane, follower);
        assert_eq!(lane.held(follower).1[BLOCK_BYTES], 1, "the member has lost the write");
        form(&mut lane.ring, number, lane.leader.brick.0, &[lane.leader.brick.0], &[]);
        if follows {
            // A later record is about the same shard.
            let _ = lane.slow(super::fast::SECOND, 256, 3 * BLOCK, bytes(9, BLOCK_BYTES)).unwrap();
        }
        form(&mut lane.ring, number, lane.leader.brick.0, &[lane.leader.brick.0], &[follower.brick.0]);
        (0..50).for_each(|_| lane.ring.tick());
        form(&mut lane.ring, number, lane.leader.brick.0, &[lane.leader.brick.0, follower.brick.0], &[]);
        lane.check_even([1, 7, 8, if follows { 9 } else { 1 }]);
    }
}

/// A replica that comes back after that gets records only, which is fast.
#[test]
fn the_note_goes_when_nobody_writes_and_stays_while_somebody_is_missing() {
    let mut lane = open_loosely();
    fast_by_all(&mut lane, 1 << 16, 1, 7);
    let (leader, follower, number) = (lane.leader, lane.follower, lane.leader.partition.0);
    form(&mut lane.ring, number, leader.brick.0, &[leader.brick.0], &[]);
    let mut alone = lane.ring.views[number as usize].clone();
    (alone.whole, alone.epoch) = (false, Epoch(alone.epoch.0 + 1));
    set_view(&mut lane.ring, number, alone);
    (0..20).for_each(|_| lane.ring.tick());
    assert!(is_marked(&lane.ring, leader), "the other replica may lack what it had");
    form(&mut lane.ring, number, leader.brick.0, &[leader.brick.0], &[follower.brick.0]);
    (0..50).for_each(|_| lane.ring.tick());
    form(&mut lane.ring, number, leader.brick.0, &[leader.brick.0, follower.brick.0], &[]);
    (0..20).for_each(|_| lane.ring.tick());
    assert!(!is_marked(&lane.ring, leader) && !is_marked(&lane.ring, follower));
    assert!(lane.ring.partitions[&leader].is_idle());
    assert!(lane.listed(leader) == lane.listed(follower) && shard().index == 0);
}

/// A ring on three bricks, where the third replica lists a write that the others lack, and learns. Returns the third
/// replica.
fn a_learner_lists(lane: &mut Lane) -> Address {
    let (l, f) = (lane.leader.brick.0, lane.follower.brick.0);
    let t = 3 - l - f;
    let number = lane.leader.partition.0;
    let third = Address { brick: BrickId(t), ..lane.leader };
    form(&mut lane.ring, number, l, &[l, f], &[t]);
    (0..100).for_each(|_| lane.ring.tick());
    form(&mut lane.ring, number, l, &[l, f, t], &[]);
    for op in 2..10 {
        if matches!(lane.slow(FIRST, op * 256, 0, bytes(1, BLOCK_BYTES)), Ok(Reply::Written { fast: Some(_), .. })) {
            break;
        }
    }
    assert!(lane.fast(third, 1 << 16, 0, bytes(7, 3 * BLOCK_BYTES)).is_ok());
    third
}

#[test]
fn what_is_lent_is_not_put_over_a_write_that_came_meanwhile() {
    use hekate_brick::storage::Storage;
    for is_rotten in [false, true] {
        let mut lane = Lane::new();
        let third = a_learner_lists(&mut lane);
        let (leader, follower, number) = (lane.leader, lane.follower, lane.leader.partition.0);
        // No message reaches the third replica.
        lane.ring.held_back = Some((third, Vec::new()));
        form(&mut lane.ring, number, leader.brick.0, &[leader.brick.0, follower.brick.0], &[third.brick.0]);
        assert!(lane.ring.partitions[&leader].serves());
        if is_rotten {
            lane.ring.write_home();
            let file =
                lane.storages[leader.brick.0 as usize].open(&hekate_brick::data_file_path(shard()), false).unwrap();
            file.write_at(&[&[9; 100]], BLOCK_BYTES as u64).unwrap();
        }
        // Messages reach the third replica again, and those to the follower are held back.
        let (_, to_third) = lane.ring.held_back.replace((follower, Vec::new())).unwrap();
        to_third.into_iter().for_each(|envelope| lane.ring.handle(third, Event::Message(envelope)));
        lane.ring.deliver();
        (0..2).for_each(|_| lane.ring.tick());
        // A write to block 0, which no replica has lost.
        let op = DataOp::WriteShard {
            data: DATA,
            index: 0,
            offset: 0,
            bytes: bytes(5, BLOCK_BYTES),
            follow: None,
            fast: false,
        };
        let (token, ask) = (Token(99), Lane::ask(super::fast::SECOND, 256));
        lane.ring.tell(leader, Event::Request { token, ask, op: Op::Data { op } });
        let (_, held) = lane.ring.held_back.take().unwrap();
        held.into_iter().for_each(|envelope| lane.ring.handle(follower, Event::Message(envelope)));
        lane.ring.deliver();
        (0..10).for_each(|_| lane.ring.tick());
        let answer = lane.ring.answers.remove(&token);
        assert!(matches!(answer, Some(Ok(Reply::Written { .. }))), "{answer:?}");
        for at in [leader, follower] {
            assert_eq!(lane.held(at).1[0], 5, "rotten: {is_rotten}: what was acknowledged is gone on {at:?}");
        }
    }
}

/// Shards become due one after the other, while a sync takes longer than the time between two of them.
#[test]
fn a_shard_is_closed_though_others_are_due_all_the_time() {
    let mut lane = open_loosely();
    fast_by_all(&mut lane, 1 << 16, 1, 7);
    let (leader, follower) = (lane.leader, lane.follower);
    let open_another = |lane: &mut Lane, number: u128| {
        // The same partition: the upper half of the id and the index are the same.
        let data = DataId(DATA.0 + (number << 8));
        let shard = ShardId { volume: VOLUME, data, index: 0 };
        if shard.position().partition(COUNT) != leader.partition {
            return None;
        }
        let op = |offset, count| DataOp::WriteShard {
            data,
            index: 0,
            offset,
            bytes: bytes(1, count),
            follow: None,
            fast: true,
        };
        let id = (1 << 20) + number as u64 * 1024;
        let reply = lane.request_as(loose(id), leader, op(0, 4 * BLOCK_BYTES));
        let Ok(Reply::Written { stamp, fast: Some(term) }) = reply else { panic!("{reply:?}") };
        let op = DataOp::FastWrite {
            data,
            index: 0,
            offset: 0,
            bytes: bytes(2, BLOCK_BYTES),
            follow: stamp,
            settled: true,
            term,
        };
        for at in [leader, follower] {
            assert!(lane.request_as(loose(id + 256), at, op.clone()).is_ok());
        }
        Some(shard)
    };
    let others: Vec<ShardId> = (1..200).filter_map(|number| open_another(&mut lane, number)).take(20).collect();
    assert!(others.len() >= 10, "{}", others.len());
    // Another session writes the first shard, so that is to be closed, and a sync of the follower is in flight.
    lane.ring.held_back = Some((follower, Vec::new()));
    let second = |data, token: u64| {
        let op =
            DataOp::WriteShard { data, index: 0, offset: 0, bytes: bytes(9, BLOCK_BYTES), follow: None, fast: true };
        Event::Request { token: Token(token), ask: Lane::ask(super::fast::SECOND, 256 * token), op: Op::Data { op } }
    };
    lane.ring.tell(leader, second(DATA, 1000));
    let mut rounds = 0;
    for (number, other) in others.iter().enumerate() {
        // Another shard becomes due before the sync has ended.
        lane.ring.tell(leader, second(other.data, 1001 + number as u64));
        let held = std::mem::take(&mut lane.ring.held_back.as_mut().unwrap().1);
        held.into_iter().for_each(|envelope| lane.ring.handle(follower, Event::Message(envelope)));
        lane.ring.deliver();
        rounds += 1;
        if lane.ring.answers.contains_key(&Token(1000)) {
            break;
        }
    }
    assert!(
        rounds <= 5,
        "the first write still waits after {rounds} rounds of syncs: {}",
        lane.ring.answers.contains_key(&Token(1000))
    );
}
