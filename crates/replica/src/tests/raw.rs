//! Raw writes: what a leader takes if the feature `measuring` is on, and the refusal if it is off.

use super::fast::{DATA, Lane, SECOND, bytes};
#[cfg(feature = "measuring")]
use super::heal::set_view;
use super::*;

fn raw_write(lane: &mut Lane, to: Address, op_id: u64, byte: u8) -> Result<Reply> {
    let step = RawStep::Write { offset: 0, bytes: bytes(byte, BLOCK_BYTES) };
    lane.request(to, SECOND, op_id, DataOp::RawWrite { data: DATA, index: 0, step })
}

/// Raw writes only measure, but the leader acknowledges none that too few members have.
#[cfg(feature = "measuring")]
#[test]
fn a_raw_write_is_taken_by_a_leader_that_serves() {
    let mut lane = Lane::new();
    let leader = lane.leader;
    assert_eq!(raw_write(&mut lane, leader, 256, 2), Ok(Reply::Done));
    let number = leader.partition.0;
    let view = View { epoch: Epoch(2), too_few: true, ..lane.ring.views[number as usize].clone() };
    set_view(&mut lane.ring, number, view);
    (0..10).for_each(|_| lane.ring.tick());
    assert_eq!(raw_write(&mut lane, leader, 512, 3), Err(Error::Conflict { stamp: None }));
    assert_eq!(lane.held(leader).1[0], 2);
}

#[cfg(not(feature = "measuring"))]
#[test]
fn a_raw_write_is_refused_without_the_feature_measuring() {
    let mut lane = Lane::new();
    for to in [lane.leader, lane.follower] {
        let refusal = raw_write(&mut lane, to, 256, 2);
        assert_eq!(refusal, Err(Error::needs_measuring("a raw write")));
        assert_eq!(lane.held(to).1[0], 1);
    }
}
