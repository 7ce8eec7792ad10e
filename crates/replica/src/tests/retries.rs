//! Copies of ops that were answered: from a client's retry or from the network.

use super::fast::{BLOCK, FIRST, Lane, SECOND, bytes, rot};
use super::*;

fn remove(dir: InodeId, text: &[u8]) -> Op {
    Op::Name { op: NameOp::Rmdir { dir, name: name(text) } }
}

/// A mkdir waits for a hold, its retry fails as the name exists, and the name is removed. The first copy must not make
/// a directory then, as its client has the answer.
#[test]
fn an_op_that_failed_is_not_done_when_a_copy_comes_late() {
    for spread in [1, 8] {
        let mut ring = open(&storages());
        ring.spread = spread;
        ring.execute(make_directory(ROOT, b"d", 1)).unwrap();
        let again = make_directory(ROOT, b"d", 2);
        let (at, ask) = (ring.place(&again), Ask { op_id: OpId((1 << 20) + 1), ..ring.ask() });
        let tell = |ring: &mut TestRing, token, op_id, op: &Op| {
            let ask = Ask { op_id, ..ask };
            ring.tell(at, Event::Request { token: Token(token), ask, op: op.clone() });
            (0..20).for_each(|_| ring.tick());
            ring.answers.remove(&Token(token)).unwrap()
        };
        assert_eq!(tell(&mut ring, 1, ask.op_id, &again), Err(Error::Exists));
        ring.execute(remove(ROOT, b"d")).unwrap();
        assert_eq!(tell(&mut ring, 2, ask.op_id, &again), Err(Error::Exists), "the answer that was given before");
        let next = OpId(ask.op_id.0 + SESSION_SLOTS as u64);
        assert_eq!(tell(&mut ring, 3, next, &remove(ROOT, b"d")), Err(Error::NotFound), "the slot is used again");
        assert!(matches!(tell(&mut ring, 4, ask.op_id, &again), Err(Error::Protocol { .. })), "no client waits for it");
        assert!(ring.list(ROOT).is_empty());
        assert!(ring.execute(again).is_ok(), "another op is executed");
        ring.rest();
        ring.check();
    }
}

fn write(data: u128, byte: u8) -> Op {
    let (data, bytes) = (DataId(data), Bytes::from(vec![byte; 10]));
    Op::Data { op: DataOp::WriteShard { data, index: 0, offset: 0, bytes, follow: None, fast: false } }
}

/// The write would overwrite a later one of the same session. After the leader has begun again only the log shows that
/// it was done.
#[test]
fn an_op_that_was_done_is_not_done_again_when_a_copy_comes_late() {
    let storages = storages();
    let mut ring = open(&storages);
    let at = ring.place(&write(9, 1));
    let tell = |ring: &mut TestRing, token, op_id, byte| {
        let ask = Ask { op_id: OpId(op_id), ..ring.ask() };
        ring.tell(at, Event::Request { token: Token(token), ask, op: write(9, byte) });
        ring.answers.remove(&Token(token)).unwrap()
    };
    let (first, next) = (1 << 20, (1 << 20) + SESSION_SLOTS as u64);
    let done = tell(&mut ring, 1, first, 1);
    assert!(done.is_ok());
    assert!(tell(&mut ring, 2, next, 2).is_ok(), "the slot is used again");
    for round in 0..2 {
        assert!(matches!(tell(&mut ring, 3, first, 1), Err(Error::Protocol { .. })), "{round}: no client waits for it");
        let bytes = ring.bricks[at.brick.0 as usize].read_shard(RING, shard_of(9), 0, 10).unwrap();
        assert_eq!(bytes, vec![2; 10]);
        drop(ring);
        ring = open(&storages);
    }
}

fn shard_of(data: u128) -> ShardId {
    ShardId { volume: VOLUME, data: DataId(data), index: 0 }
}

/// Only the answers of the session that ended are dropped.
#[test]
fn a_session_that_ends_takes_no_answers_of_others_away() {
    let mut ring = open(&storages());
    ring.execute(make_directory(ROOT, b"d", 1)).unwrap();
    let again = make_directory(ROOT, b"d", 2);
    let (at, ask) = (ring.place(&again), Ask { op_id: OpId((1 << 20) + 1), ..ring.ask() });
    let tell = |ring: &mut TestRing, token| {
        ring.tell(at, Event::Request { token: Token(token), ask, op: again.clone() });
        ring.answers.remove(&Token(token)).unwrap()
    };
    assert_eq!(tell(&mut ring, 1), Err(Error::Exists));
    ring.execute(remove(ROOT, b"d")).unwrap();
    ring.tell(at, Event::SessionEnded { session: SessionId(2) });
    assert_eq!(tell(&mut ring, 2), Err(Error::Exists), "the answer that was given before");
    assert!(ring.list(ROOT).is_empty());
}

/// The server repairs a damaged block, and executes the op again with the same id.
#[test]
fn an_op_that_met_damage_is_done_once_that_is_mended() {
    let mut lane = Lane::new();
    let part = |lane: &mut Lane| lane.slow(SECOND, 1 << 20, BLOCK + 10, bytes(5, 10));
    let leader = lane.leader;
    rot(&mut lane, leader);
    let met = part(&mut lane);
    assert!(matches!(met, Err(Error::Damaged { .. } | Error::Io { .. })), "{met:?}");
    assert!(lane.slow(FIRST, 1 << 20, BLOCK, bytes(1, BLOCK_BYTES)).is_ok(), "the damaged block is overwritten");
    assert!(part(&mut lane).is_ok());
    assert_eq!(lane.held(lane.follower).1[BLOCK_BYTES + 9..BLOCK_BYTES + 11], [1, 5]);
}
