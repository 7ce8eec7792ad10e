//! The rules of fcntl(2), flock(2) and of this table, one at a time.

use super::*;
use LockKind::{Read, Unlock, Write};

pub(super) const FILE: LockedFile = LockedFile { volume: VolumeId(1), inode: ROOT };
const OTHER_FILE: LockedFile = LockedFile { volume: VolumeId(2), inode: ROOT };

/// Session n/10, owner n%10.
type Who = u64;

pub(super) fn lock(who: Who, kind: LockKind, start: u64, end: u64) -> Lock {
    Lock { kind, style: LockStyle::Posix, start, end, owner: LockOwner(who % 10), pid: 0 }
}

fn flock(who: Who, kind: LockKind) -> Lock {
    Lock { style: LockStyle::Flock, ..lock(who, kind, 0, LOCK_END) }
}

fn ticket(who: Who, op: u64) -> Ticket {
    Ticket { session: SessionId(who / 10), op_id: OpId(op) }
}

/// A table, and op ids that never repeat.
struct Bench {
    table: LockTable,
    op: u64,
}

fn bench() -> Bench {
    Bench { table: LockTable::new(LockSettings::default()), op: 0 }
}

impl Bench {
    fn ticket(&mut self, who: Who) -> Ticket {
        self.op += 257;
        ticket(who, self.op)
    }
    fn set(&mut self, file: LockedFile, who: Who, lock: Lock, wait: bool) -> Outcome {
        let ticket = self.ticket(who);
        self.table.set(ticket, file, &lock, wait).unwrap()
    }
    fn granted(&mut self, who: Who, kind: LockKind, start: u64, end: u64) {
        assert_eq!(self.set(FILE, who, lock(who, kind, start, end), false), Outcome::Granted);
    }
    fn refused(&mut self, who: Who, kind: LockKind, start: u64, end: u64) {
        let outcome = self.set(FILE, who, lock(who, kind, start, end), false);
        assert!(matches!(outcome, Outcome::Conflict(_)), "{outcome:?}");
    }
    fn waits(&mut self, file: LockedFile, who: Who, lock: Lock) -> Ticket {
        match self.set(file, who, lock, true) {
            Outcome::Waiting(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }
    /// The ops that were granted since the last call.
    fn woken(&mut self) -> Vec<Ticket> {
        let waits = self.table.take_ended_waits();
        self.table.unseen.retain(|ticket, _| !waits.iter().any(|wait| wait.ticket == *ticket));
        waits.into_iter().map(|wait| wait.answer.map(|_| wait.ticket).unwrap()).collect()
    }
    /// The ranges that an owner holds, by first byte.
    fn held(&self, who: Who) -> Vec<(LockKind, u64, u64)> {
        let own = |held: &&HeldLock| held.holder() == (SessionId(who / 10), LockOwner(who % 10));
        let held = self.table.files.values().flat_map(|locks| locks.held.iter().filter(own));
        held.map(|held| (held.lock.kind, held.lock.start, held.lock.end)).collect()
    }
}

#[test]
fn many_may_read_and_one_may_write() {
    let mut b = bench();
    b.granted(11, Read, 0, 9);
    b.granted(21, Read, 5, 14);
    b.refused(31, Write, 14, 20);
    b.refused(11, Write, 5, 9);
    b.granted(11, Write, 0, 4);
    b.granted(12, Write, 15, LOCK_END);
    b.refused(21, Read, 1 << 60, 1 << 60);
}

#[test]
fn an_unlock_splits_a_range_and_a_lock_joins_its_neighbours() {
    let mut b = bench();
    b.granted(11, Write, 0, 9);
    b.granted(11, Unlock, 4, 5);
    assert_eq!(b.held(11), [(Write, 0, 3), (Write, 6, 9)]);
    b.granted(11, Write, 4, 5);
    assert_eq!(b.held(11), [(Write, 0, 9)]);
    b.granted(11, Write, 10, LOCK_END);
    assert_eq!(b.held(11), [(Write, 0, LOCK_END)]);
    b.granted(11, Unlock, 0, LOCK_END);
    assert!(b.table.files.is_empty() && b.table.held_by_session.is_empty());
}

#[test]
fn a_new_kind_replaces_the_old_one_byte_by_byte() {
    let mut b = bench();
    b.granted(11, Write, 0, 9);
    b.granted(11, Read, 3, 5);
    assert_eq!(b.held(11), [(Write, 0, 2), (Read, 3, 5), (Write, 6, 9)]);
    b.granted(11, Read, 0, 20);
    assert_eq!(b.held(11), [(Read, 0, 20)]);
    b.granted(11, Write, 0, 20);
    assert_eq!(b.held(11), [(Write, 0, 20)]);
}

#[test]
fn an_upgrade_that_is_refused_leaves_what_was_held() {
    let mut b = bench();
    b.granted(11, Read, 0, 9);
    b.granted(21, Read, 0, 9);
    b.refused(11, Write, 0, 9);
    assert_eq!(b.held(11), [(Read, 0, 9)]);
}

#[test]
fn a_downgrade_lets_readers_in() {
    let mut b = bench();
    b.granted(11, Write, 0, 9);
    let reader = b.waits(FILE, 21, lock(21, Read, 0, 0));
    b.granted(11, Read, 0, 9);
    assert_eq!(b.woken(), [reader]);
}

#[test]
fn get_names_the_first_conflict_and_nothing_of_ones_own() {
    let mut b = bench();
    b.granted(11, Read, 8, 9);
    b.granted(21, Read, 2, 3);
    let conflict = |b: &Bench, who, kind| b.table.get(SessionId(who / 10), FILE, &lock(who, kind, 0, 20)).unwrap();
    assert_eq!(conflict(&b, 31, Write).map(|held| (held.session, held.lock.start)), Some((SessionId(2), 2)));
    assert_eq!(conflict(&b, 21, Write).map(|held| held.lock.start), Some(8));
    assert_eq!(conflict(&b, 31, Read), None);
    assert!(b.table.get(SessionId(1), FILE, &lock(11, Read, 2, 1)).is_err());
}

#[test]
fn closing_a_file_releases_what_its_owner_held_there_and_nothing_else() {
    let mut b = bench();
    b.granted(11, Write, 0, 3);
    b.granted(12, Write, 5, 6);
    assert_eq!(b.set(OTHER_FILE, 11, lock(11, Write, 7, 9), false), Outcome::Granted);
    let waiting = b.waits(FILE, 21, lock(21, Write, 3, 3));
    b.table.release(SessionId(1), LockOwner(1), FILE);
    assert_eq!(b.woken(), [waiting]);
    assert_eq!((b.held(11), b.held(12)), (vec![(Write, 7, 9)], vec![(Write, 5, 6)]));
}

#[test]
fn flock_and_fcntl_do_not_meet() {
    let mut b = bench();
    b.granted(11, Write, 0, LOCK_END);
    assert_eq!(b.set(FILE, 21, flock(21, Write), false), Outcome::Granted);
    assert!(matches!(b.set(FILE, 12, flock(12, Read), false), Outcome::Conflict(_)));
    let part = Lock { end: 5, ..flock(21, Read) };
    assert!(b.table.set(ticket(21, 1), FILE, &part, false).is_err());
}

#[test]
fn a_flock_conversion_lets_go_first() {
    let mut b = bench();
    assert_eq!(b.set(FILE, 11, flock(11, Read), false), Outcome::Granted);
    assert_eq!(b.set(FILE, 21, flock(21, Read), false), Outcome::Granted);
    // Both owners ask for an exclusive lock. If the first kept its shared one, they would wait for each other.
    let first = b.waits(FILE, 11, flock(11, Write));
    let second = b.waits(FILE, 21, flock(21, Write));
    assert_eq!(b.woken(), [first]);
    b.table.release(SessionId(1), LockOwner(1), FILE);
    assert_eq!(b.woken(), [second]);
    // A conversion that does not wait may lose the old lock.
    b.table.release(SessionId(2), LockOwner(1), FILE);
    b.set(FILE, 11, flock(11, Read), false);
    b.set(FILE, 21, flock(21, Read), false);
    assert!(matches!(b.set(FILE, 11, flock(11, Write), false), Outcome::Conflict(_)));
    assert_eq!(b.held(11), []);
}

/// flock(2): a request for a lock that the owner has is no conversion.
#[test]
fn who_asks_for_the_flock_that_it_holds_keeps_it_though_others_wait() {
    for kind in [Read, Write] {
        let mut b = bench();
        assert_eq!(b.set(FILE, 11, flock(11, kind), false), Outcome::Granted);
        let waiting = b.waits(FILE, 21, flock(21, Write));
        assert_eq!(b.set(FILE, 11, flock(11, kind), false), Outcome::Granted);
        assert_eq!((b.woken(), b.held(11)), (vec![], vec![(kind, 0, LOCK_END)]));
        b.table.release(SessionId(1), LockOwner(1), FILE);
        assert_eq!(b.woken(), [waiting]);
    }
}

#[test]
fn waits_are_granted_in_order_and_readers_do_not_pass_a_writer() {
    let mut b = bench();
    b.granted(11, Read, 0, 9);
    let writer = b.waits(FILE, 21, lock(21, Write, 0, 9));
    let near = b.waits(FILE, 31, lock(31, Read, 0, 4));
    let also = b.waits(FILE, 32, lock(32, Read, 2, 2));
    // A request that does not wait depends on held locks only.
    b.granted(33, Read, 9, 9);
    b.granted(33, Unlock, 9, 9);
    b.granted(11, Unlock, 0, 9);
    assert_eq!(b.woken(), [writer]);
    b.granted(21, Unlock, 0, 9);
    assert_eq!(b.woken(), [near, also]);
}

#[test]
fn a_reader_passes_a_writer_that_waits_for_it() {
    let mut b = bench();
    b.granted(11, Read, 0, 0);
    b.granted(12, Write, 5, 5);
    b.waits(FILE, 21, lock(21, Write, 0, 0));
    let reader = b.waits(FILE, 12, lock(12, Read, 0, 0));
    // The writer waits for 11, which now waits for 12. Behind the writer, 12 would wait for itself.
    b.waits(FILE, 11, lock(11, Read, 5, 5));
    assert_eq!(b.woken(), [reader]);
}

#[test]
fn waiting_for_oneself_is_a_deadlock_also_over_files() {
    let mut b = bench();
    b.granted(11, Write, 0, 0);
    assert_eq!(b.set(OTHER_FILE, 21, lock(21, Write, 0, 0), false), Outcome::Granted);
    b.granted(31, Write, 9, 9);
    b.waits(FILE, 21, lock(21, Write, 0, 0));
    assert_eq!(b.set(OTHER_FILE, 31, lock(31, Write, 7, 7), false), Outcome::Granted);
    b.waits(OTHER_FILE, 31, lock(31, Read, 0, 0));
    assert_eq!(b.set(FILE, 11, lock(11, Read, 9, 9), true), Outcome::Deadlock);
    assert_eq!(b.held(11), [(Write, 0, 0)]);
    b.granted(11, Unlock, 0, 0);
    assert_eq!(b.woken().len(), 1);
}

#[test]
fn two_upgrades_are_a_deadlock() {
    let mut b = bench();
    b.granted(11, Read, 0, 0);
    b.granted(21, Read, 0, 0);
    let first = b.waits(FILE, 11, lock(11, Write, 0, 0));
    assert_eq!(b.set(FILE, 21, lock(21, Write, 0, 0), true), Outcome::Deadlock);
    b.granted(21, Unlock, 0, 0);
    assert_eq!(b.woken(), [first]);
}

#[test]
fn a_cancelled_wait_is_interrupted_and_lets_those_behind_it_in() {
    let mut b = bench();
    b.granted(11, Read, 0, 9);
    let writer = b.waits(FILE, 21, lock(21, Write, 0, 9));
    let reader = b.waits(FILE, 31, lock(31, Read, 0, 9));
    assert!(b.table.cancel(writer));
    let ended_waits = b.table.take_ended_waits();
    assert_eq!(ended_waits[0], EndedWait { ticket: writer, answer: Err(Error::Interrupted) });
    assert_eq!(ended_waits[1], EndedWait { ticket: reader, answer: Ok(Reply::Done) });
    // The lock was granted before it was cancelled.
    assert!(!b.table.cancel(reader));
    assert_eq!(b.held(31), [(Read, 0, 9)]);
}

/// The session records what it holds in the order of its answers, and reports that to the next leader.
#[test]
fn a_grant_comes_after_the_ops_of_its_owner_that_end_before_its_session_asks_for_the_answer() {
    let mut b = bench();
    b.granted(11, Write, 5, 9);
    let op = ticket(21, 0x101);
    let set = LockOp::Set { inode: ROOT, lock: lock(21, Write, 0, 9), wait: true };
    assert_eq!(b.table.execute(op, FILE.volume, &set), None);
    let step = |b: &mut Bench, who, number, lock| {
        let set = LockOp::Set { inode: ROOT, lock, wait: false };
        assert_eq!(b.table.execute(ticket(who, number), FILE.volume, &set), Some(Ok(Reply::Done)));
    };
    step(&mut b, 11, 0x202, lock(11, Unlock, 0, 9));
    assert_eq!(b.held(21), [(Write, 0, 9)]);
    step(&mut b, 21, 0x203, lock(21, Unlock, 0, 4));
    assert_eq!(b.held(21), [(Write, 0, 9)], "the unlock came before the lock");
    let release = LockOp::Release { inode: ROOT, owner: LockOwner(1) };
    assert_eq!(b.table.execute(ticket(21, 0x304), FILE.volume, &release), Some(Ok(Reply::Done)));
    assert_eq!(b.held(21), [(Write, 0, 9)]);
    assert_eq!(b.table.execute(op, FILE.volume, &set), Some(Ok(Reply::Done)));
    step(&mut b, 21, 0x205, lock(21, Unlock, 0, 4));
    assert_eq!(b.held(21), [(Write, 5, 9)]);
}

/// A conversion lets go of what the session knows to hold. What it does not know yet comes after the conversion.
#[test]
fn a_flock_conversion_does_not_let_go_of_a_grant_that_its_session_has_not_seen() {
    let mut b = bench();
    assert_eq!(b.set(FILE, 21, flock(21, Write), false), Outcome::Granted);
    let op = ticket(11, 0x101);
    let set = LockOp::Set { inode: ROOT, lock: flock(11, Read), wait: true };
    assert_eq!(b.table.execute(op, FILE.volume, &set), None);
    b.table.release(SessionId(2), LockOwner(1), FILE);
    assert_eq!(b.held(11), [(Read, 0, LOCK_END)]);
    assert_eq!(b.set(FILE, 12, flock(12, Read), false), Outcome::Granted);
    b.waits(FILE, 31, flock(31, Write));
    assert!(matches!(b.set(FILE, 11, flock(11, Write), false), Outcome::Conflict(_)));
    assert_eq!(b.held(11), [(Read, 0, LOCK_END)]);
    b.table.release(SessionId(1), LockOwner(2), FILE);
    assert_eq!(b.held(31), [], "the session will be told that it has the shared lock");
    b.granted(11, Unlock, 0, 9);
    assert_eq!(b.table.execute(op, FILE.volume, &set), Some(Ok(Reply::Done)));
    assert_eq!(b.set(FILE, 11, flock(11, Unlock), false), Outcome::Granted);
    assert_eq!((b.held(11), b.held(31)), (vec![], vec![(Write, 0, LOCK_END)]));
}

#[test]
fn of_two_grants_that_a_session_has_not_seen_the_later_one_counts() {
    let ranged = |who, kind| lock(who, kind, 0, 9);
    let locks: [&dyn Fn(Who, LockKind) -> Lock; 2] = [&flock, &ranged];
    for lock_of in locks {
        let mut b = bench();
        assert_eq!(b.set(FILE, 31, lock_of(31, Write), false), Outcome::Granted);
        b.waits(FILE, 11, lock_of(11, Write));
        b.waits(FILE, 11, lock_of(11, Read));
        b.waits(FILE, 21, lock_of(21, Read));
        b.table.release(SessionId(3), LockOwner(1), FILE);
        assert_eq!((b.held(11).len(), b.held(21).len()), (1, 1));
        // Any later op of the owner takes the unseen locks again.
        b.granted(11, Unlock, 20, 29);
        assert_eq!(b.held(11)[0].0, Read);
    }
}

#[test]
fn a_cancel_that_overtakes_its_op_counts() {
    let mut b = bench();
    let (op, cancel) = (ticket(11, 0x101), ticket(11, 0x102));
    let set = LockOp::Set { inode: ROOT, lock: lock(11, Write, 0, 0), wait: true };
    let cancelled = b.table.execute(cancel, FILE.volume, &LockOp::Cancel { inode: ROOT, op_id: op.op_id });
    assert_eq!(cancelled, Some(Ok(Reply::Cancelled { ended: true })));
    assert_eq!(b.table.execute(op, FILE.volume, &set), Some(Err(Error::Interrupted)));
    assert_eq!(b.held(11), []);
}

#[test]
fn an_op_sent_again_is_answered_and_not_repeated() {
    let mut b = bench();
    let set = |who, kind| LockOp::Set { inode: ROOT, lock: lock(who, kind, 0, 0), wait: true };
    let mut run = |who, op, lock_op: &LockOp| b.table.execute(ticket(who, op), FILE.volume, lock_op);
    assert_eq!(run(11, 0x101, &set(11, Write)), Some(Ok(Reply::Done)));
    assert_eq!(run(21, 0x101, &set(21, Write)), None);
    assert_eq!(run(21, 0x101, &set(21, Write)), None, "it waits on in its place");
    assert!(run(21, 0x201, &set(21, Read)).unwrap().is_err(), "its slot is taken");
    assert_eq!(run(11, 0x102, &set(11, Unlock)), Some(Ok(Reply::Done)));
    assert_eq!(run(11, 0x101, &set(11, Write)), Some(Ok(Reply::Done)));
    assert_eq!(run(11, 0x201, &LockOp::Release { inode: ROOT, owner: LockOwner(1) }), Some(Ok(Reply::Done)));
    assert!(run(11, 0x101, &set(11, Write)).unwrap().is_err(), "it comes after a later op of its slot");
    assert_eq!(run(21, 0x101, &set(21, Write)), Some(Ok(Reply::Done)), "it was granted meanwhile");
    assert_eq!((b.held(11), b.held(21)), (vec![], vec![(Write, 0, 0)]));
    assert_eq!(b.woken(), [ticket(21, 0x101)]);
}

/// Otherwise a lock would be granted to a session that has ended.
#[test]
fn the_end_of_a_session_takes_no_answers_of_others_away() {
    let mut b = bench();
    let set = LockOp::Set { inode: ROOT, lock: lock(11, Write, 0, 0), wait: true };
    let release = LockOp::Release { inode: ROOT, owner: LockOwner(1) };
    let (first, next) = (ticket(11, 0x101), ticket(11, 0x201));
    assert_eq!(b.table.execute(first, FILE.volume, &set), Some(Ok(Reply::Done)));
    assert_eq!(b.table.execute(next, FILE.volume, &release), Some(Ok(Reply::Done)));
    b.table.end_session(SessionId(2));
    assert!(b.table.execute(first, FILE.volume, &set).unwrap().is_err(), "it comes late");
    assert_eq!(b.held(11), []);
    assert_eq!(b.table.execute(next, FILE.volume, &release), Some(Ok(Reply::Done)));
}

#[test]
fn the_end_of_a_session_releases_what_it_held_and_ends_its_waits() {
    let mut b = bench();
    b.granted(11, Write, 0, 0);
    b.granted(21, Write, 9, 9);
    let ended = b.waits(FILE, 12, lock(12, Write, 9, 9));
    let waiting = b.waits(FILE, 22, lock(22, Read, 0, 0));
    let behind = b.waits(FILE, 31, lock(31, Write, 9, 9));
    b.table.end_session(SessionId(1));
    let ended_waits = b.table.take_ended_waits();
    assert_eq!(ended_waits[0], EndedWait { ticket: ended, answer: Err(Error::SessionEnded) });
    assert_eq!(ended_waits[1], EndedWait { ticket: waiting, answer: Ok(Reply::Done) });
    b.table.end_session(SessionId(2));
    assert_eq!(b.woken(), [behind]);
}

#[test]
fn a_new_leader_grants_nothing_until_all_sessions_have_restored_their_locks_or_ended() {
    let sessions = [SessionId(1), SessionId(2), SessionId(3)];
    let mut b = Bench { table: LockTable::recovering(LockSettings::default(), sessions), op: 0 };
    let lost = b.table.restore(SessionId(1), FILE.volume, &[(ROOT, lock(11, Write, 0, 9))], true).unwrap();
    assert_eq!(lost, []);
    let wait = b.waits(FILE, 12, lock(12, Read, 20, 29));
    let blocked = b.waits(FILE, 13, lock(13, Read, 9, 9));
    let now = b.table.set(ticket(12, 1), FILE, &lock(12, Read, 30, 30), false);
    assert!(matches!(now, Err(Error::Unavailable { .. })));
    assert!(b.table.get(SessionId(1), FILE, &lock(12, Read, 30, 30)).is_err());
    // Locks that conflict with restored ones are lost, and the others are restored.
    let restored = [(ROOT, lock(21, Read, 5, 5)), (ROOT, lock(21, Read, 10, 10))];
    assert_eq!(b.table.restore(SessionId(2), FILE.volume, &restored, true).unwrap(), [restored[0]]);
    assert_eq!(b.woken(), []);
    b.table.end_session(SessionId(3));
    assert_eq!(b.woken(), [wait]);
    b.granted(11, Unlock, 0, 9);
    assert_eq!(b.woken(), [blocked]);
    // Restored too late: others may have held it since.
    let late = [(ROOT, lock(21, Read, 50, 50))];
    assert_eq!(b.table.restore(SessionId(2), FILE.volume, &late, true).unwrap(), late);
}

/// What a session that may be dead held is unknown. Requests that wait continue to wait, and others are refused as if
/// the session held the lock.
#[test]
fn while_a_session_may_be_gone_who_does_not_wait_is_refused_and_stays_so() {
    let mut b = Bench { table: LockTable::recovering(LockSettings::default(), [SessionId(1)]), op: 0 };
    let (file, wanted) = (FILE, lock(21, Write, 0, 9));
    let set = LockOp::Set { inode: ROOT, lock: wanted, wait: false };
    let first = ticket(21, 900);
    assert!(matches!(b.table.execute(first, FILE.volume, &set), Some(Err(Error::Unavailable { .. }))));
    b.table.refuse_meanwhile();
    assert_eq!(b.table.execute(first, FILE.volume, &set), Some(Err(Error::WouldBlock)));
    let wait = b.waits(file, 22, lock(22, Write, 50, 59));
    b.table.end_session(SessionId(1));
    assert_eq!(b.woken(), [wait]);
    assert_eq!(b.table.execute(first, FILE.volume, &set), Some(Err(Error::WouldBlock)), "a copy that comes late");
    assert_eq!(b.table.execute(ticket(21, 901), FILE.volume, &set), Some(Ok(Reply::Done)));
}

/// Its client counts on the weaker lock, and other sessions may take long to restore theirs.
#[test]
fn a_downgrade_is_granted_before_all_sessions_have_restored_their_locks() {
    let sessions = [SessionId(1), SessionId(2)];
    let flock = |owner, kind| Lock { style: LockStyle::Flock, ..lock(owner, kind, 0, LOCK_END) };
    for wait in [false, true] {
        let mut b = Bench { table: LockTable::recovering(LockSettings::default(), sessions), op: 0 };
        let held = [(ROOT, lock(11, Write, 0, 9)), (ROOT, flock(12, Write))];
        assert_eq!(b.table.restore(SessionId(1), FILE.volume, &held, true), Ok(vec![]));
        let mut set = |number, wanted| b.table.set(ticket(11, number), FILE, &wanted, wait);
        assert_eq!(set(1, lock(11, Read, 2, 5)), Ok(Outcome::Granted), "{wait}");
        assert_eq!(set(2, flock(12, Read)), Ok(Outcome::Granted), "{wait}");
        // More than is held.
        assert_ne!(set(3, lock(11, Write, 2, 5)), Ok(Outcome::Granted), "{wait}");
        assert_ne!(set(4, lock(11, Read, 5, 10)), Ok(Outcome::Granted), "{wait}");
        assert_eq!(b.held(11), [(Write, 0, 1), (Read, 2, 5), (Write, 6, 9)]);
    }
}

/// A restore that names a stronger lock than the one that is held is answered as lost.
#[test]
fn a_lock_of_another_kind_is_not_the_one_that_is_restored() {
    let mut b = Bench { table: LockTable::recovering(LockSettings::default(), [SessionId(1)]), op: 0 };
    let restored = |kind| [(ROOT, lock(11, kind, 0, 9))];
    assert_eq!(b.table.restore(SessionId(1), FILE.volume, &restored(Read), true), Ok(vec![]));
    assert_eq!(b.table.restore(SessionId(1), FILE.volume, &restored(Write), true), Ok(restored(Write).to_vec()));
    assert_eq!(b.table.restore(SessionId(1), FILE.volume, &restored(Read), true), Ok(vec![]), "as it is held");
}

#[test]
fn a_deadlock_that_the_restored_locks_make_is_answered_once_they_are_known() {
    let mut b = Bench { table: LockTable::recovering(LockSettings::default(), [SessionId(1), SessionId(2)]), op: 0 };
    let first = b.waits(FILE, 11, lock(11, Write, 9, 9));
    let second = b.waits(FILE, 21, lock(21, Write, 0, 0));
    b.table.restore(SessionId(1), FILE.volume, &[(ROOT, lock(11, Write, 0, 0))], true).unwrap();
    b.table.restore(SessionId(2), FILE.volume, &[(ROOT, lock(21, Write, 9, 9))], true).unwrap();
    assert_eq!(b.table.take_ended_waits(), [EndedWait { ticket: first, answer: Err(Error::Deadlock) }]);
    b.granted(11, Unlock, 0, 0);
    assert_eq!(b.woken(), [second]);
}

#[test]
fn more_locks_than_the_limit_are_refused_and_letting_go_is_not() {
    let settings = LockSettings { locks_per_file_max: 2, locks_per_session_max: 3 };
    let mut b = Bench { table: LockTable::new(settings), op: 0 };
    b.granted(11, Write, 0, 0);
    b.granted(11, Write, 10, 19);
    let mut set = |file, lock| b.table.set(ticket(11, 1), file, &lock, true).map_err(|error| error.errno());
    assert_eq!(set(FILE, lock(11, Write, 30, 30)), Err(37));
    assert_eq!(set(FILE, lock(11, Unlock, 15, 15)), Err(37), "it splits");
    assert_eq!(set(OTHER_FILE, lock(12, Write, 0, 0)), Ok(Outcome::Granted));
    assert_eq!(set(OTHER_FILE, lock(12, Write, 5, 5)), Err(37));
    assert_eq!(set(FILE, lock(11, Unlock, 0, 17)), Ok(Outcome::Granted));
    assert_eq!(b.held(11), [(Write, 18, 19)]);
    b.granted(21, Write, 0, 0);
}

#[test]
fn who_holds_and_who_waits_is_listed() {
    let mut b = bench();
    b.granted(11, Write, 0, 0);
    let waiting = b.waits(FILE, 21, lock(21, Write, 0, 0));
    let (file, locks) = b.table.list().next().unwrap();
    assert_eq!((*file, locks.held.len(), locks.waiting[0].ticket), (FILE, 1, waiting));
}
