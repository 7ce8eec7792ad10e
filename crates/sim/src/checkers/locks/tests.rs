//! Correct and incorrect histories of locks.

use super::*;
use crate::history::Moment;
use hekate_proto::{LOCK_END, LockOwner, SessionId};

const FILE: InodeId = InodeId::new(1, 1, 2);

#[derive(Default)]
struct Locks(History);

impl Locks {
    fn tried(&mut self, client: u32, (from, to): (Moment, Moment), lock: Lock, granted: bool) {
        let op = Op::Lock { op: LockOp::Set { inode: FILE, lock, wait: false } };
        let call = self.0.invoke(client, SessionId(client.into()), op, false, from);
        self.0.answer(call, to, if granted { Ok(Reply::Done) } else { Err(Error::WouldBlock) });
    }

    fn complaints(&self) -> usize {
        check(&self.0).len()
    }
}

fn range(kind: LockKind, start: u64, end: u64) -> Lock {
    Lock { kind, style: LockStyle::Posix, start, end, owner: LockOwner(0), pid: 0 }
}

fn flock(kind: LockKind) -> Lock {
    Lock { style: LockStyle::Flock, ..range(kind, 0, LOCK_END) }
}

use LockKind::{Read, Unlock, Write};

#[test]
fn two_exclusive_locks_at_once_are_noticed() {
    let mut locks = Locks::default();
    locks.tried(1, (0, 1), range(Write, 0, 9), true);
    locks.tried(2, (2, 3), range(Write, 10, 19), true);
    assert_eq!(locks.complaints(), 0, "they do not overlap");
    locks.tried(2, (4, 5), range(Read, 9, 12), true);
    assert_eq!(locks.complaints(), 1);
    assert!(check(&locks.0)[0].what.contains("no order of the calls"), "{}", check(&locks.0)[0]);
}

#[test]
fn a_refusal_needs_a_holder() {
    let mut locks = Locks::default();
    locks.tried(1, (0, 4), range(Read, 0, 9), true);
    locks.tried(2, (1, 5), range(Write, 0, 0), false);
    locks.tried(1, (6, 7), range(Unlock, 0, LOCK_END), true);
    assert_eq!(locks.complaints(), 0);
    locks.tried(2, (8, 9), range(Write, 0, 0), false);
    assert_eq!(locks.complaints(), 1);
}

#[test]
fn a_lock_replaces_the_owners_byte_by_byte() {
    let mut locks = Locks::default();
    locks.tried(1, (0, 1), range(Write, 0, 9), true);
    locks.tried(1, (2, 3), range(Read, 3, 5), true);
    locks.tried(2, (4, 5), range(Read, 3, 5), true);
    locks.tried(2, (6, 7), range(Read, 5, 6), false);
    assert_eq!(locks.complaints(), 0);
    locks.tried(2, (8, 9), range(Read, 2, 3), true);
    assert_eq!(locks.complaints(), 1);
}

#[test]
fn a_flock_that_is_converted_is_let_go_first() {
    let mut locks = Locks::default();
    locks.tried(1, (0, 1), flock(Read), true);
    locks.tried(2, (2, 3), flock(Read), true);
    locks.tried(1, (4, 5), flock(Write), false);
    locks.tried(2, (6, 7), flock(Write), true);
    locks.tried(3, (6, 7), range(Write, 0, LOCK_END), true);
    assert_eq!(locks.complaints(), 0, "flock and fcntl do not meet");
    locks.tried(1, (8, 9), flock(Read), true);
    assert_eq!(locks.complaints(), 1);
}

#[test]
fn a_wait_that_was_given_up_may_have_been_granted() {
    let mut locks = Locks::default();
    locks.tried(1, (0, 1), range(Write, 0, 9), true);
    let op = Op::Lock { op: LockOp::Set { inode: FILE, lock: range(Write, 5, 5), wait: true } };
    let call = locks.0.invoke(2, SessionId(2), op, false, 2);
    locks.tried(3, (3, 4), range(Read, 5, 5), false);
    locks.tried(1, (5, 6), range(Unlock, 0, LOCK_END), true);
    locks.0.answer(call, 7, Err(Error::Interrupted));
    locks.tried(3, (8, 9), range(Read, 5, 5), false);
    assert_eq!(locks.complaints(), 0, "the second one was granted what it waited for");
    locks.tried(3, (10, 11), range(Read, 6, 6), false);
    assert_eq!(locks.complaints(), 1);
}

#[test]
fn locks_of_a_client_that_died_end_later_and_those_of_others_do_not() {
    for (died, complaints) in [(1, 0), (2, 1)] {
        let mut locks = Locks::default();
        locks.tried(1, (0, 1), range(Write, 0, 9), true);
        locks.0.client_died(SessionId(died), 2);
        locks.tried(3, (3, 4), range(Write, 3, 5), true);
        assert_eq!(locks.complaints(), complaints);
    }
}
