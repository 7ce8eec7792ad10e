//! Copies of ops that were answered already: a retry's, or the network's.

use super::*;

fn remove(dir: InodeId, text: &[u8]) -> Op {
    Op::Name { op: NameOp::Rmdir { dir, name: name(text) } }
}

/// The simulator found it (seed 3205 of `legs`): a mkdir waited for a hold, its retry was told that the name exists, the name was
/// removed, and then the first one made a directory that nobody had asked for any more.
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
        assert_eq!(tell(&mut ring, 2, ask.op_id, &again), Err(Error::Exists), "as it was told before");
        let next = OpId(ask.op_id.0 + SESSION_SLOTS as u64);
        assert_eq!(tell(&mut ring, 3, next, &remove(ROOT, b"d")), Err(Error::NotFound), "the slot is used again");
        assert!(matches!(tell(&mut ring, 4, ask.op_id, &again), Err(Error::Protocol { .. })), "nobody waits for it");
        assert!(ring.list(ROOT).is_empty());
        assert!(ring.execute(again).is_ok(), "another op is another matter");
        ring.rest();
        ring.check();
    }
}
