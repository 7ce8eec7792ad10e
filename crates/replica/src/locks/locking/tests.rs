//! A partition of one replica whose process dies, and sessions that hold locks in it.

use crate::*;
use hekate_brick::storage::MemoryStorage;
use hekate_brick::{Brick, BrickSettings, Identity};
use hekate_proto::map::{Member, View};
use hekate_proto::*;
use std::sync::Arc;

const RING: RingId = RingId(1);
const VOLUME: VolumeId = VolumeId(1);
const OWN: Address = Address { partition: PartitionNumber(0), brick: BrickId(1) };
const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const SILENT: SessionId = SessionId(3);

/// The replica, which is given `sessions` when it begins.
struct Bench {
    storage: MemoryStorage,
    brick: Brick,
    views: Vec<View>,
    partition: Partition,
    last: u64,
    /// Ops that waited and have their answers.
    ended_waits: Vec<(SessionId, OpId)>,
}

fn identity() -> Identity {
    let settings =
        BrickSettings { journal_segments: 4, segment_bytes: 256 << 10, index_cache_bytes: 1 << 20, reserve_bytes: 0 };
    Identity::new(OWN.brick, "c", settings)
}

fn open(storage: &MemoryStorage) -> Brick {
    Brick::open_on(Arc::new(storage.clone()), &identity(), Incarnation(1), false).unwrap().0
}

fn begin(brick: &Brick, views: &[View]) -> Partition {
    Partition::new(RING, OWN, &Around { brick, views, now: Time(0), elapsed: std::time::Duration::ZERO }, Vec::new())
        .unwrap()
}

fn bench() -> Bench {
    let storage = MemoryStorage::new();
    Brick::create_on(&storage, &identity()).unwrap();
    let brick = open(&storage);
    let members = vec![Member { brick: OWN.brick, incarnation: Incarnation(1) }];
    let views = vec![View::new(Epoch(1), OWN.brick, members)];
    let partition = begin(&brick, &views);
    let mut bench = Bench { storage, brick, views, partition, last: 0, ended_waits: Vec::new() };
    bench.tell(Event::Start);
    let commit = Commit { changes: root_directory(&bench.ask(A, 0), 0, 0), ..Commit::default() };
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: Vec::new() });
    bench.tell(Event::Change { token: Token(0), commit: Box::new(commit) });
    bench.partition = begin(&bench.brick, &bench.views);
    bench.tell(Event::Start);
    bench
}

impl Bench {
    fn tell(&mut self, event: Event) -> Vec<(Token, Result<Reply>)> {
        let mut out = Out::default();
        self.partition.handle(
            event,
            &Around { brick: &self.brick, views: &self.views, now: Time(0), elapsed: std::time::Duration::ZERO },
            &mut out,
        );
        self.ended_waits.extend(out.ended_waits.iter().map(|ticket| (ticket.session, ticket.op_id)));
        for job in out.syncs {
            let outcome = self.brick.sync(self.brick.end());
            out.answers.extend(self.tell(Event::Synced { ticket: job.ticket, outcome }));
        }
        out.answers
    }

    /// The process dies, and the next one is given these sessions.
    fn restart(&mut self, sessions: &[SessionId]) {
        self.brick = open(&self.storage);
        self.partition = begin(&self.brick, &self.views);
        self.tell(Event::Start);
        self.tell(Event::Sessions { epoch: Epoch(1), sessions: sessions.to_vec() });
    }

    /// The view of this epoch, which has the same member.
    fn see(&mut self, epoch: Epoch, opened: bool) {
        (self.views[0].epoch, self.views[0].opened) = (epoch, opened);
        self.tell(Event::View);
    }

    fn ask(&self, session: SessionId, op: u64) -> Ask {
        Ask::new(RING, 1, VOLUME, (session, OpId(op << 8 | op & 0xff)), Time(0))
    }

    /// Sends an op with this number. `None`: it is not answered yet.
    fn send(&mut self, session: SessionId, number: u64, op: LockOp) -> Option<Result<Reply>> {
        let (token, ask) = (Token(number), self.ask(session, number));
        let answers = self.tell(Event::Request { token, ask, op: Op::Lock { op } });
        answers.into_iter().find_map(|(to, answer)| (to == token).then_some(answer))
    }

    fn op(&mut self, session: SessionId, op: LockOp) -> Result<Reply> {
        self.last += 1;
        // Each op has a slot of its own here.
        let number = self.last;
        self.send(session, number, op).unwrap()
    }

    fn restore(&mut self, session: SessionId, locks: &[Lock]) -> Result<Reply> {
        let locks = locks.iter().map(|lock| (ROOT, *lock)).collect();
        self.op(session, LockOp::Restore { locks, done: true })
    }
}

fn range(kind: LockKind, start: u64, end: u64) -> Lock {
    Lock { kind, style: LockStyle::Posix, start, end, owner: LockOwner(1), pid: 1 }
}

fn set(kind: LockKind, start: u64, end: u64, wait: bool) -> LockOp {
    LockOp::Set { inode: ROOT, lock: range(kind, start, end), wait }
}

fn get(start: u64, end: u64) -> LockOp {
    LockOp::Get { inode: ROOT, lock: range(LockKind::Write, start, end) }
}

use LockKind::{Read, Unlock, Write};

fn is_waiting(reply: Result<Reply>) -> OpId {
    match reply {
        Ok(Reply::Waiting { op_id }) => op_id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_granted_before_the_sessions_are_known() {
    let mut bench = bench();
    assert_eq!(bench.partition.wants_sessions(), Some(Epoch(1)));
    assert!(matches!(bench.op(A, set(Write, 0, 9, false)), Err(Error::Unavailable { .. })));
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: Vec::new() });
    assert_eq!(bench.partition.wants_sessions(), None);
    assert_eq!(bench.op(A, set(Write, 0, 9, false)), Ok(Reply::Done));
    // Only the first list of sessions counts.
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: vec![A] });
    assert_eq!(bench.op(B, set(Write, 0, 9, false)), Err(Error::WouldBlock));
}

/// R19.
#[test]
fn sessions_that_were_read_before_the_view_began_do_not_count() {
    let mut bench = bench();
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: Vec::new() });
    bench.see(Epoch(3), false);
    assert_eq!(bench.partition.wants_sessions(), None);
    bench.see(Epoch(3), true);
    bench.tell(Event::Sessions { epoch: Epoch(2), sessions: Vec::new() });
    assert_eq!(bench.partition.wants_sessions(), Some(Epoch(3)));
    bench.see(Epoch(4), false);
    bench.tell(Event::Sessions { epoch: Epoch(4), sessions: Vec::new() });
    let Some(Error::Bug { what, .. }) = bench.partition.failure() else { panic!("the rule is asserted") };
    assert!(what.contains("R19"), "{what}");
}

/// R19.
#[test]
fn a_leader_keeps_its_locks_in_the_next_view_and_drops_them_if_another_may_have_led_since() {
    let mut bench = bench();
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: Vec::new() });
    assert_eq!(bench.op(A, set(Write, 0, 9, false)), Ok(Reply::Done));
    bench.see(Epoch(2), true);
    assert_eq!(bench.partition.wants_sessions(), None);
    assert_eq!(bench.op(B, set(Write, 5, 5, false)), Err(Error::WouldBlock));
    // The leader of view 3 has granted the other bytes to session B.
    bench.see(Epoch(4), true);
    assert!(matches!(bench.op(A, set(Write, 20, 20, false)), Err(Error::Unavailable { .. })));
    bench.tell(Event::Sessions { epoch: Epoch(4), sessions: vec![A, B] });
    assert_eq!(bench.restore(A, &[range(Write, 0, 9)]), Ok(Reply::Restored { lost: Vec::new() }));
    assert!(matches!(bench.op(A, set(Write, 20, 20, false)), Err(Error::Unavailable { .. })));
    assert_eq!(bench.restore(B, &[range(Write, 20, 29)]), Ok(Reply::Restored { lost: Vec::new() }));
    assert_eq!(bench.op(A, set(Write, 20, 20, false)), Err(Error::WouldBlock));
}

#[test]
fn a_lock_that_waits_is_answered_at_once_and_its_session_notified_when_it_is_granted() {
    let mut bench = bench();
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: Vec::new() });
    assert_eq!(bench.op(A, set(Write, 0, 9, false)), Ok(Reply::Done));
    let waiting = is_waiting(bench.op(B, set(Write, 5, 5, true)));
    let number = bench.last;
    // A retry keeps the op's place in the queue, whatever happens to its connection.
    is_waiting(bench.send(B, number, set(Write, 5, 5, true)).unwrap());
    bench.tell(Event::Abandon { token: Token(number) });
    assert_eq!(bench.ended_waits, []);
    assert_eq!(bench.op(A, set(Unlock, 0, 9, false)), Ok(Reply::Done));
    assert_eq!(bench.ended_waits, [(B, waiting)]);
    assert_eq!(bench.send(B, number, set(Write, 5, 5, true)), Some(Ok(Reply::Done)));
    assert_eq!(bench.op(A, set(Read, 5, 5, false)), Err(Error::WouldBlock));
    let Ok(Reply::Lock { conflict: Some(found) }) = bench.op(A, get(0, 100)) else { panic!("a lock") };
    assert_eq!((found.session, found.lock), (B, range(Write, 5, 5)));
}

#[test]
fn a_deadlock_is_refused_and_a_cancelled_wait_is_answered() {
    let mut bench = bench();
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: Vec::new() });
    assert_eq!(bench.op(A, set(Write, 0, 0, false)), Ok(Reply::Done));
    assert_eq!(bench.op(B, set(Write, 1, 1, false)), Ok(Reply::Done));
    let op_id = is_waiting(bench.op(A, set(Write, 1, 1, true)));
    let number = bench.last;
    assert_eq!(bench.op(B, set(Write, 0, 0, true)), Err(Error::Deadlock));
    assert_eq!(bench.op(A, LockOp::Cancel { inode: ROOT, op_id }), Ok(Reply::Cancelled { ended: true }));
    assert_eq!(bench.ended_waits, [(A, op_id)]);
    assert_eq!(bench.send(A, number, set(Write, 1, 1, true)), Some(Err(Error::Interrupted)));
}

#[test]
fn the_end_of_a_session_lets_others_in() {
    let mut bench = bench();
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: Vec::new() });
    assert_eq!(bench.op(A, set(Write, 0, 9, false)), Ok(Reply::Done));
    let waiting = is_waiting(bench.op(B, set(Write, 0, 9, true)));
    bench.tell(Event::SessionEnded { session: A });
    assert_eq!(bench.ended_waits, [(B, waiting)]);
    bench.tell(Event::SessionEnded { session: B });
    assert_eq!(bench.op(SILENT, set(Write, 0, 9, false)), Ok(Reply::Done));
}

#[test]
fn a_new_leader_hears_what_was_held_before_it_grants_anything() {
    let mut bench = bench();
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: Vec::new() });
    assert_eq!(bench.op(A, set(Write, 0, 9, false)), Ok(Reply::Done));
    bench.restart(&[A, B, SILENT]);
    assert!(bench.partition.awaits(A) && bench.partition.awaits(B));
    // Not even an unlock is permitted: a lock that is restored later would undo it.
    for op in [set(Write, 0, 0, true), set(Unlock, 0, 9, false), get(0, 0)] {
        assert_eq!(bench.op(A, op), Err(Error::LocksNotRestored));
    }
    assert_eq!(bench.restore(B, &[]), Ok(Reply::Restored { lost: Vec::new() }));
    let waiting = is_waiting(bench.op(B, set(Write, 5, 20, true)));
    let number = bench.last;
    assert!(matches!(bench.op(B, set(Write, 50, 60, false)), Err(Error::Unavailable { .. })));
    assert_eq!(bench.restore(A, &[range(Write, 0, 9)]), Ok(Reply::Restored { lost: Vec::new() }));
    // The locks are restored twice, since the first answer was lost.
    assert_eq!(bench.restore(A, &[range(Write, 0, 9)]), Ok(Reply::Restored { lost: Vec::new() }));
    assert!(matches!(bench.op(A, set(Write, 50, 60, false)), Err(Error::Unavailable { .. })));
    bench.tell(Event::SessionEnded { session: SILENT });
    assert_eq!(bench.op(A, set(Write, 50, 60, false)), Ok(Reply::Done));
    assert_eq!(bench.ended_waits, []);
    assert_eq!(bench.op(A, set(Unlock, 0, 9, false)), Ok(Reply::Done));
    assert_eq!(bench.ended_waits, [(B, waiting)]);
    assert_eq!(bench.send(B, number, set(Write, 5, 20, true)), Some(Ok(Reply::Done)));
}

#[test]
fn a_downgrade_is_granted_though_others_have_not_restored_their_locks() {
    let mut bench = bench();
    bench.restart(&[A, SILENT]);
    // A session reports the weaker lock before it has an answer.
    let restored = bench.restore(A, &[range(Write, 0, 4), range(Read, 5, 9), range(Read, 20, 20)]);
    assert_eq!(restored, Ok(Reply::Restored { lost: Vec::new() }));
    bench.tell(Event::SessionsDoubtful);
    for more in [set(Read, 0, 10, false), set(Write, 4, 5, false), set(Read, 9, 20, false)] {
        assert_eq!(bench.op(A, more), Err(Error::WouldBlock));
    }
    assert_eq!(bench.op(A, set(Write, 0, 0, false)), Ok(Reply::Done));
    assert_eq!(bench.op(A, set(Read, 2, 9, false)), Ok(Reply::Done));
    bench.tell(Event::SessionEnded { session: SILENT });
    assert_eq!(bench.op(B, set(Read, 2, 30, false)), Ok(Reply::Done));
    assert_eq!(bench.op(B, set(Read, 1, 1, false)), Err(Error::WouldBlock));
}

#[test]
fn locks_are_taken_on_inodes_that_are_there() {
    let mut bench = bench();
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: Vec::new() });
    let gone = InodeId::new(0, 7, 77);
    let lock = range(Write, 0, 9);
    assert_eq!(bench.op(A, LockOp::Set { inode: gone, lock, wait: true }), Err(Error::Stale));
    assert_eq!(bench.op(A, LockOp::Get { inode: gone, lock }), Err(Error::Stale));
    let unlock = range(Unlock, 0, 9);
    assert_eq!(bench.op(A, LockOp::Set { inode: gone, lock: unlock, wait: false }), Ok(Reply::Done));
    bench.restart(&[A]);
    let restore = LockOp::Restore { locks: vec![(gone, lock), (ROOT, lock)], done: true };
    assert_eq!(bench.op(A, restore), Ok(Reply::Restored { lost: vec![(gone, lock)] }));
    assert_eq!(bench.op(B, set(Write, 0, 0, false)), Err(Error::WouldBlock));
}

#[test]
fn a_wait_ends_when_its_session_learns_that_the_file_is_gone() {
    let mut bench = bench();
    bench.tell(Event::Sessions { epoch: Epoch(1), sessions: Vec::new() });
    assert_eq!(bench.op(A, set(Write, 0, 9, false)), Ok(Reply::Done));
    let number = 7;
    is_waiting(bench.send(B, number, set(Write, 0, 0, true)).unwrap());
    let mut commit = Commit::default();
    commit.delete(Key::inode(RING, VOLUME, ROOT, Kind::Inode));
    bench.tell(Event::Change { token: Token(0), commit: Box::new(commit) });
    assert_eq!(bench.send(B, number, set(Write, 0, 0, true)), Some(Err(Error::Stale)));
    let next_of_slot = number + SESSION_SLOTS as u64;
    let release = LockOp::Release { inode: ROOT, owner: LockOwner(1) };
    assert_eq!(bench.send(B, next_of_slot, release), Some(Ok(Reply::Done)));
}
