//! Fast writes that need not be on stable storage, and what keeps them from being missed (rules L18 to L22).

use super::fast::{BLOCK, DATA, FIRST, Lane, bytes, shard};
use super::heal::{form, set_view};
use super::*;

fn loose(op_id: u64) -> Ask {
    Ask { loose: true, ..Lane::ask(FIRST, op_id) }
}

/// On the leader's lane.
fn slow(lane: &mut Lane, op_id: u64, byte: u8) -> Result<Reply> {
    let bytes = bytes(byte, BLOCK_BYTES);
    let op = DataOp::WriteShard { data: DATA, index: 0, offset: 0, bytes, follow: None, fast: true };
    let reply = lane.request_as(loose(op_id), lane.leader, op);
    if let Ok(Reply::Written { stamp, fast }) = reply {
        (lane.stamp, lane.term) = (stamp, fast.unwrap_or(lane.term));
    }
    reply
}

/// At one member.
fn fast(lane: &mut Lane, to: Address, op_id: u64, block: u32, byte: u8) -> Result<Reply> {
    let (follow, term, bytes) = (lane.stamp, lane.term, bytes(byte, BLOCK_BYTES));
    let offset = block * BLOCK;
    let op = DataOp::FastWrite { data: DATA, index: 0, offset, bytes, follow, settled: true, term };
    lane.request_as(loose(op_id), to, op)
}

/// A shard that the session may write loosely.
fn open_loosely() -> Lane {
    let mut lane = Lane::new();
    for op in 2..10 {
        if matches!(slow(&mut lane, op * 256, 1), Ok(Reply::Written { fast: Some(_), .. })) {
            return lane;
        }
    }
    panic!("it is never opened");
}

/// By all members.
fn fast_by_all(lane: &mut Lane, op_id: u64, block: u32, byte: u8) {
    for at in [lane.leader, lane.follower] {
        assert!(fast(lane, at, op_id, block, byte).is_ok());
    }
    lane.stamp = lane.fast_stamp(op_id);
}

fn is_noted(ring: &TestRing, at: Address) -> bool {
    let key = Key::loose(RING, at.partition.first_position(COUNT));
    ring.bricks[at.brick.0 as usize].get(&key).unwrap().is_some()
}

/// All but the other member's memory.
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

/// Else whoever leads next, without the note, feeds a learner the log.
#[test]
fn a_loose_write_is_taken_once_all_members_have_the_note() {
    let mut lane = Lane::new();
    let leader = lane.leader;
    let conflict = fast(&mut lane, leader, 512, 1, 2);
    assert!(matches!(conflict, Err(Error::Conflict { .. })), "{conflict:?}");
    let opened = slow(&mut lane, 768, 2);
    assert!(matches!(opened, Ok(Reply::Written { fast: None, .. })), "with the write that brings the note: {opened:?}");
    assert!(is_noted(&lane.ring, lane.leader) && is_noted(&lane.ring, lane.follower));
    let mut lane = open_loosely();
    assert!(fast(&mut lane, leader, 1 << 16, 1, 2).is_ok());
}

/// Who did not sync would have the stamp of the record that follows, and not the bytes.
#[test]
fn what_a_closed_shard_has_is_on_stable_storage_of_all_members() {
    let mut lane = open_loosely();
    fast_by_all(&mut lane, 1 << 16, 1, 7);
    // Another one is closed as it is changed.
    let _ = lane.slow(super::fast::SECOND, 256, 3 * BLOCK, bytes(9, BLOCK_BYTES)).unwrap();
    let follower = lane.follower;
    let before = lane.held(follower).1;
    assert_eq!((before[BLOCK_BYTES], before[3 * BLOCK_BYTES]), (7, 9));
    lose_power(&mut lane, follower);
    assert_eq!(lane.held(follower).1[BLOCK_BYTES], 7, "the record may be gone, what it follows may not");
}

/// Its log is the beginning of the leader's, and says nothing of what it has lost.
#[test]
fn a_learner_that_lost_a_loose_write_gets_it_back() {
    for follows in [false, true] {
        let mut lane = open_loosely();
        lane.ring.bricks.iter().for_each(|brick| brick.sync(brick.end()).unwrap());
        // The second says that the first is settled, so nobody lists that any more.
        fast_by_all(&mut lane, 1 << 16, 1, 7);
        fast_by_all(&mut lane, (1 << 16) + 256, 2, 8);
        let (follower, number) = (lane.follower, lane.leader.partition.0);
        lose_power(&mut lane, follower);
        assert_eq!(lane.held(follower).1[BLOCK_BYTES], 1, "it is lost there");
        form(&mut lane.ring, number, lane.leader.brick.0, &[lane.leader.brick.0], &[]);
        if follows {
            // A record about the same shard comes after it.
            let _ = lane.slow(super::fast::SECOND, 256, 3 * BLOCK, bytes(9, BLOCK_BYTES)).unwrap();
        }
        form(&mut lane.ring, number, lane.leader.brick.0, &[lane.leader.brick.0], &[follower.brick.0]);
        (0..50).for_each(|_| lane.ring.tick());
        form(&mut lane.ring, number, lane.leader.brick.0, &[lane.leader.brick.0, follower.brick.0], &[]);
        lane.check_even([1, 7, 8, if follows { 9 } else { 1 }]);
    }
}

/// What members have of fast writes differs, and what they list says nothing of it.
#[test]
fn a_view_without_memory_wants_one_member_as_long_as_the_note_is_there() {
    for is_loose in [false, true] {
        let mut lane = if is_loose { open_loosely() } else { Lane::new() };
        let (leader, number) = (lane.leader, lane.leader.partition.0 as usize);
        assert!(!lane.ring.partitions[&leader].wants_alone());
        let before = lane.ring.views[number].clone();
        let epoch = Epoch(before.epoch.0 + 1);
        set_view(&mut lane.ring, number as u32, View { epoch, opened: false, forgetful: true, ..before.clone() });
        (0..10).for_each(|_| lane.ring.tick());
        let opens = lane.ring.opens.contains(&(leader.partition, epoch));
        assert_eq!((lane.ring.partitions[&leader].wants_alone(), opens), (is_loose, !is_loose));
        if is_loose {
            let (members, learners) = before.members.into_iter().partition(|member| member.brick == leader.brick);
            let epoch = Epoch(epoch.0 + 1);
            let view = View { epoch, members, learners, opened: false, forgetful: true, whole: false, ..before };
            set_view(&mut lane.ring, number as u32, view);
            (0..10).for_each(|_| lane.ring.tick());
            assert!(lane.ring.opens.contains(&(leader.partition, epoch)), "alone it begins");
        }
    }
}

/// Who comes back after that is fed the log alone, which is quick.
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
    assert!(is_noted(&lane.ring, leader), "the other one may lack what it had");
    form(&mut lane.ring, number, leader.brick.0, &[leader.brick.0], &[follower.brick.0]);
    (0..50).for_each(|_| lane.ring.tick());
    form(&mut lane.ring, number, leader.brick.0, &[leader.brick.0, follower.brick.0], &[]);
    (0..20).for_each(|_| lane.ring.tick());
    assert!(!is_noted(&lane.ring, leader) && !is_noted(&lane.ring, follower));
    assert!(lane.ring.partitions[&leader].is_idle());
    assert!(lane.listed(leader) == lane.listed(follower) && shard().index == 0);
}
