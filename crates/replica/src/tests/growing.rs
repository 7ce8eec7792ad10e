//! Fast writes that make a shard longer, or fill its holes.

use super::fast::{BLOCK, DATA, FIRST, Lane, SECOND, bytes, rot};
use super::heal::{allocate, form};
use super::room::brick;
use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

const END: u32 = 4 * BLOCK;

fn lengths(lane: &Lane) -> [usize; 2] {
    [lane.leader, lane.follower].map(|at| lane.held(at).1.len())
}

/// Closes the shard with a write of another session, at its begin, and checks that both replicas end alike.
fn close_and_check(lane: &mut Lane, length: u32) -> Bytes {
    lane.ring.op_id += 256;
    let op_id = 1 << 20 | lane.ring.op_id;
    assert!(lane.slow(SECOND, op_id, 0, bytes(9, 1)).is_ok());
    lane.ring.rest();
    let (ours, theirs) = (lane.held(lane.leader), lane.held(lane.follower));
    assert!(ours == theirs, "{:?} {:?}, {:?} bytes", ours.0, theirs.0, lengths(lane));
    assert_eq!(ours.1.len(), length as usize);
    assert!(!lane.listed(lane.leader) && !lane.listed(lane.follower));
    ours.1
}

#[test]
fn a_file_grows_on_the_fast_lane() {
    let mut lane = Lane::new();
    for (turn, offset) in [END, END + 100, 7 * BLOCK, 5 * BLOCK].into_iter().enumerate() {
        let op_id = 512 + 256 * turn as u64;
        for at in [lane.leader, lane.follower] {
            assert!(lane.fast(at, op_id, offset, bytes(2 + turn as u8, 200)).is_ok(), "at {offset}");
        }
        lane.stamp = lane.fast_stamp(op_id);
    }
    let held = close_and_check(&mut lane, 7 * BLOCK + 200);
    let at = |block: u32, offset: usize| held[(block * BLOCK) as usize + offset];
    assert_eq!([at(4, 0), at(4, 100), at(4, 299), at(4, 300), at(5, 0), at(6, 0), at(7, 199)], [2, 3, 3, 0, 5, 0, 4]);
}

#[test]
fn the_end_that_the_leader_lacks_is_undone() {
    let mut lane = Lane::new();
    assert!(lane.fast(lane.follower, 512, END - 10, bytes(2, 5000)).is_ok());
    assert_eq!(lengths(&lane), [END as usize, END as usize + 4990]);
    let held = close_and_check(&mut lane, END);
    assert_eq!(held[END as usize - 1], 1);
    // Nothing of it shows when the shard grows again.
    assert!(lane.slow(FIRST, 2 << 20, 6 * BLOCK, bytes(3, 1)).is_ok());
    assert!(close_and_check(&mut lane, 6 * BLOCK + 1)[END as usize..6 * BLOCK_BYTES].iter().all(|byte| *byte == 0));
}

#[test]
fn the_end_that_only_the_leader_has_is_brought_to_all() {
    let mut lane = Lane::new();
    assert!(lane.fast(lane.leader, 512, END - 10, bytes(2, 5000)).is_ok());
    let held = close_and_check(&mut lane, END + 4990);
    assert!(held[END as usize - 10..].iter().all(|byte| *byte == 2));
}

/// What undid the write has been sent, and its record has not been made: the member that leads next still has it whole.
#[test]
fn a_write_is_whole_though_the_leader_that_began_to_undo_it_is_gone() {
    let mut lane = Lane::new();
    let stamp = lane.fast_stamp(512);
    assert!(lane.fast(lane.follower, 512, END - 10, bytes(2, 5000)).is_ok());
    lane.ring.held_back = Some((lane.leader, Vec::new()));
    lane.ring.tell(lane.leader, Event::CloseShards);
    assert_eq!(lengths(&lane), [END as usize, END as usize + 4990], "another stamp, and nothing else");
    lane.ring.held_back = None;
    let (leader, follower) = (lane.leader.brick.0, lane.follower.brick.0);
    form(&mut lane.ring, lane.leader.partition.0, follower, &[follower, leader], &[]);
    std::mem::swap(&mut lane.leader, &mut lane.follower);
    let held = close_and_check(&mut lane, END + 4990);
    assert!(held[END as usize - 10..].iter().all(|byte| *byte == 2));
    let again = lane.slow(FIRST, 512, END - 10, bytes(2, 5000));
    assert_eq!(again, Ok(Reply::Written { stamp, fast: None }), "it is not done again");
}

#[test]
fn the_end_is_that_of_the_member_whose_copy_counts() {
    for at_leader in [false, true] {
        let mut lane = Lane::new();
        let at = if at_leader { lane.leader } else { lane.follower };
        assert!(lane.fast(at, 512, BLOCK, bytes(2, 4 * BLOCK_BYTES)).is_ok());
        let leader = lane.leader;
        rot(&mut lane, leader);
        let length = if at_leader { END } else { 5 * BLOCK };
        let held = close_and_check(&mut lane, length);
        assert_eq!((held[BLOCK_BYTES], held[4 * BLOCK_BYTES - 1]), if at_leader { (1, 1) } else { (2, 2) });
    }
}

#[test]
fn a_hole_is_filled_on_the_fast_lane() {
    let mut lane = Lane::new();
    lane.ring.op_id = 600 * 256;
    allocate(&mut lane.ring, DATA.0, 0, BLOCK, Fill::Nothing).unwrap();
    let is_open = |reply| matches!(reply, Ok(Reply::Written { fast: Some(_), .. }));
    assert!((0..10).any(|turn| is_open(lane.slow(FIRST, (1000 + turn) * 256, 3 * BLOCK, bytes(1, BLOCK_BYTES)))));
    assert!(lane.fast(lane.follower, 1 << 19, 0, bytes(2, 1)).is_ok());
    assert!(close_and_check(&mut lane, END)[1..BLOCK_BYTES].iter().all(|byte| *byte == 0), "the leader's copy rules");
}

/// Deletes need what is kept for them.
#[test]
fn a_full_replica_refuses_to_grow_on_the_fast_lane() {
    let free: Vec<_> = (0..BRICKS).map(|_| Arc::new(AtomicU64::new(1 << 30))).collect();
    let mut lane =
        Lane::on(ring_of((0..BRICKS).map(|number| brick(number, &free[number as usize])).collect(), true), vec![]);
    let member = lane.follower.brick.0 as usize;
    free[member].store(0, Ordering::Relaxed);
    lane.ring.bricks[member].refresh_room().unwrap();
    let mut grow = |turn: u64| lane.fast(lane.follower, 512 + 256 * turn, END, bytes(2, BLOCK_BYTES));
    assert!(matches!(grow(0), Err(Error::Conflict { .. })));
    assert!(lane.fast(lane.follower, 1 << 20, 0, bytes(2, BLOCK_BYTES)).is_ok(), "an overwrite has its room");
}

/// Otherwise it would lie behind the new end, and show when the file grows again.
#[test]
fn a_truncate_refuses_what_is_on_its_way_to_a_shard_that_is_shorter() {
    let mut lane = Lane::new();
    let ask = Lane::ask(SECOND, 256);
    let mut commit = Commit::default();
    let brick = &lane.ring.bricks[lane.leader.brick.0 as usize];
    crate::transactions::legs::cut_shard(brick, &ask, &mut commit, super::fast::shard(), 6 * BLOCK).unwrap();
    assert!(matches!(commit.changes[..], [Change::Restamp { .. }]), "{:?}", commit.changes);
    lane.ring.tell(lane.leader, Event::Change { token: Token(7), commit: Box::new(commit) });
    for at in [lane.leader, lane.follower] {
        let late = lane.fast(at, 512, 8 * BLOCK, bytes(2, BLOCK_BYTES));
        assert!(matches!(late, Err(Error::Conflict { .. })), "{late:?}");
    }
    close_and_check(&mut lane, END);
}
