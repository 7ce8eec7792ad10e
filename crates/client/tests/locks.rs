//! Locks between sessions against a real server in this process: waits, interrupts, deadlocks, a server that restarts
//! while locks are held and waited for, and connections that break between an op and its reply.

#![allow(clippy::unwrap_used, reason = "tests")]

include!("support/scratch.rs");
include!("support/cutter.rs");

use hekate_client::proto::*;
use hekate_client::{Context, New, OpenOptions, Volume};
use hekate_transport::Remote;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Limit for events that must happen.
const SOON: Duration = Duration::from_secs(15);
/// Time after which an event counts as not happening.
const NOT_SOON: Duration = Duration::from_millis(300);

fn open(scratch: &Scratch) -> Arc<Volume> {
    open_at(scratch.endpoint())
}

fn open_at(endpoint: Endpoint) -> Arc<Volume> {
    Arc::new(Volume::open(endpoint, "v1", &OpenOptions::default()).unwrap())
}

fn make(volume: &Volume, name: &str) -> InodeId {
    let new = New { node: NewNode::File, mode: 0o644, uid: 0, gid: 0, umask: 0, exclusive: false };
    volume.create(&Context::default(), ROOT, Name::try_from(name).unwrap(), new).unwrap().0.id
}

fn range(kind: LockKind, owner: u64, start: u64, end: u64) -> Lock {
    Lock { kind, style: LockStyle::Posix, start, end, owner: LockOwner(owner), pid: 7 }
}

fn write_lock(owner: u64) -> Lock {
    range(LockKind::Write, owner, 0, LOCK_END)
}

fn unlock(owner: u64) -> Lock {
    range(LockKind::Unlock, owner, 0, LOCK_END)
}

fn flock(kind: LockKind, owner: u64) -> Lock {
    Lock { style: LockStyle::Flock, ..range(kind, owner, 0, LOCK_END) }
}

fn try_lock(volume: &Volume, inode: InodeId, lock: Lock) -> Result<()> {
    volume.lock(&Context::default(), inode, lock, false)
}

/// Waits for a lock on a thread of its own.
fn wait_for(volume: &Arc<Volume>, inode: InodeId, lock: Lock) -> Receiver<Result<()>> {
    let (sender, answer) = channel();
    let volume = volume.clone();
    std::thread::spawn(move || sender.send(volume.lock(&Context::default(), inode, lock, true)));
    answer
}

fn waits(answer: &Receiver<Result<()>>) -> bool {
    answer.recv_timeout(NOT_SOON).is_err()
}

#[test]
fn a_lock_excludes_other_sessions_until_it_is_released() {
    let scratch = Scratch::new("locks-two");
    let (one, two) = (open(&scratch), open(&scratch));
    let file = make(&one, "f");
    try_lock(&one, file, range(LockKind::Write, 1, 10, 19)).unwrap();
    assert_eq!(try_lock(&two, file, range(LockKind::Read, 1, 15, 30)), Err(Error::WouldBlock));
    try_lock(&two, file, range(LockKind::Read, 1, 20, 30)).unwrap();
    let found = two.test_lock(&Context::default(), file, write_lock(1)).unwrap().unwrap();
    assert_eq!((found.session, found.lock), (one.session(), range(LockKind::Write, 1, 10, 19)));
    try_lock(&two, file, flock(LockKind::Write, 1)).unwrap();
    assert_eq!(try_lock(&one, file, flock(LockKind::Read, 1)), Err(Error::WouldBlock));
    try_lock(&one, file, unlock(1)).unwrap();
    assert_eq!(two.test_lock(&Context::default(), file, write_lock(1)).unwrap(), None);
    let gone = InodeId::new(file.position().0, 9, 99);
    assert_eq!(try_lock(&one, gone, write_lock(1)), Err(Error::Stale));
}

#[test]
fn a_waiting_lock_is_granted_when_it_is_free_and_blocks_no_other_op() {
    let scratch = Scratch::new("locks-wait");
    let (one, two) = (open(&scratch), open(&scratch));
    let (file, other) = (make(&one, "f"), make(&one, "g"));
    try_lock(&one, file, write_lock(1)).unwrap();
    let waiting: Vec<_> = (0..150).map(|owner| wait_for(&two, file, write_lock(owner))).collect();
    std::thread::sleep(NOT_SOON);
    // Half of the session's slots are registered waits; the other ops of the session continue.
    for round in 0..300 {
        two.write(&Context::default(), other, 0, vec![round as u8; 100].into(), false).unwrap();
    }
    assert!(waiting.iter().all(|answer| answer.try_recv().is_err()));
    try_lock(&one, file, unlock(1)).unwrap();
    for _ in 0..150 {
        let begun = Instant::now();
        let granted = loop {
            let found =
                waiting.iter().enumerate().find_map(|(owner, answer)| answer.try_recv().ok().map(|got| (owner, got)));
            match found {
                Some((owner, outcome)) => break outcome.map(|()| owner).unwrap(),
                None => assert!(begun.elapsed() < SOON, "nobody is granted the lock"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(try_lock(&one, file, write_lock(1)), Err(Error::WouldBlock));
        two.release_locks(&Context::default(), file, LockOwner(granted as u64)).unwrap();
    }
    try_lock(&one, file, write_lock(1)).unwrap();
}

#[test]
fn an_interrupted_wait_holds_nothing() {
    let scratch = Scratch::new("locks-interrupt");
    let (one, two) = (open(&scratch), open(&scratch));
    let file = make(&one, "f");
    try_lock(&one, file, flock(LockKind::Write, 1)).unwrap();
    let gave_up = AtomicBool::new(false);
    let context = Context { interrupt: Some(&gave_up), ..Context::default() };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| two.lock(&context, file, flock(LockKind::Write, 2), true));
        std::thread::sleep(NOT_SOON);
        assert!(!waiting.is_finished());
        gave_up.store(true, Ordering::SeqCst);
        assert_eq!(waiting.join().unwrap(), Err(Error::Interrupted));
    });
    try_lock(&one, file, flock(LockKind::Unlock, 1)).unwrap();
    try_lock(&one, file, flock(LockKind::Write, 3)).unwrap();
}

#[test]
fn waiting_for_each_other_is_a_deadlock_for_one() {
    let scratch = Scratch::new("locks-deadlock");
    let (one, two) = (open(&scratch), open(&scratch));
    let file = make(&one, "f");
    try_lock(&one, file, range(LockKind::Write, 1, 0, 0)).unwrap();
    try_lock(&two, file, range(LockKind::Write, 1, 1, 1)).unwrap();
    let waiting = wait_for(&one, file, range(LockKind::Write, 1, 1, 1));
    assert!(waits(&waiting));
    let second = wait_for(&two, file, range(LockKind::Write, 1, 0, 0));
    assert_eq!(second.recv_timeout(SOON).unwrap(), Err(Error::Deadlock));
    try_lock(&two, file, unlock(1)).unwrap();
    assert_eq!(waiting.recv_timeout(SOON).unwrap(), Ok(()));
}

#[test]
fn the_end_of_a_session_releases_its_locks() {
    let scratch = Scratch::new("locks-end");
    let (one, two, three) = (open(&scratch), open(&scratch), open(&scratch));
    let file = make(&one, "f");
    try_lock(&one, file, write_lock(1)).unwrap();
    let (second, third) = (wait_for(&two, file, write_lock(1)), wait_for(&three, file, write_lock(1)));
    assert!(waits(&second) && waits(&third));
    two.end();
    assert_eq!(second.recv_timeout(SOON).unwrap(), Err(Error::SessionEnded));
    assert!(waits(&third));
    one.end();
    assert_eq!(third.recv_timeout(SOON).unwrap(), Ok(()));
}

#[test]
fn locks_and_waits_outlive_the_server() {
    let mut scratch = Scratch::new("locks-restart");
    let (one, two, three) = (open(&scratch), open(&scratch), open(&scratch));
    let files: Vec<InodeId> = (0..20).map(|number| make(&one, &format!("f{number}"))).collect();
    for (number, file) in files.iter().enumerate() {
        try_lock(&one, *file, range(LockKind::Write, 1, 0, 99)).unwrap();
        try_lock(&one, *file, range(LockKind::Unlock, 1, 40, 49)).unwrap();
        try_lock(&two, *file, flock(LockKind::Read, number as u64)).unwrap();
    }
    let waiting: Vec<_> = files.iter().map(|file| wait_for(&two, *file, range(LockKind::Write, 1, 20, 45))).collect();
    std::thread::sleep(NOT_SOON);
    for round in 0..3 {
        scratch.stop();
        scratch.start();
        for file in &files {
            assert_eq!(
                try_lock(&three, *file, range(LockKind::Read, 1, 0, 0)),
                Err(Error::WouldBlock),
                "round {round}"
            );
            assert_eq!(try_lock(&three, *file, flock(LockKind::Write, 1)), Err(Error::WouldBlock));
            try_lock(&three, *file, flock(LockKind::Read, 1)).unwrap();
            try_lock(&three, *file, range(LockKind::Write, 1, 100, 109)).unwrap();
        }
    }
    assert!(waiting.iter().all(|answer| answer.try_recv().is_err()), "granted what another holds");
    for (file, answer) in files.iter().zip(waiting) {
        try_lock(&one, *file, unlock(1)).unwrap();
        assert_eq!(answer.recv_timeout(SOON).unwrap(), Ok(()));
        assert_eq!(try_lock(&three, *file, range(LockKind::Read, 1, 45, 45)), Err(Error::WouldBlock));
        try_lock(&three, *file, range(LockKind::Read, 1, 46, 46)).unwrap();
    }
}

#[test]
fn a_restarted_server_grants_no_lock_until_all_sessions_have_reported_or_ended() {
    let mut scratch = Scratch::new("locks-unrestored");
    let one = open(&scratch);
    let file = make(&one, "f");
    // A session that lives and does not report its locks.
    let (_silent, welcome) = Remote::open(scratch.endpoint(), "v1").unwrap();
    scratch.stop();
    scratch.start();
    let answer = {
        let (sender, answer) = channel();
        let one = one.clone();
        std::thread::spawn(move || sender.send(try_lock(&one, file, write_lock(1))));
        answer
    };
    let waiting = wait_for(&one, file, flock(LockKind::Write, 2));
    std::thread::sleep(Duration::from_secs(2));
    assert!(waits(&answer) && waits(&waiting), "granted while a session may hold it");
    let (volume, target) = (one.map().volume, Target::Server);
    let op = Op::Volume { op: VolumeOp::EndSession };
    let end = Request {
        volume,
        target,
        session: welcome.session,
        op_id: OpId(0),
        durable: false,
        retry: false,
        pledge: false,
        op,
    };
    let again = Remote::new(scratch.endpoint(), "v1", welcome.session);
    again.call(&mut [end], &|| false).unwrap();
    assert_eq!(answer.recv_timeout(SOON).unwrap(), Ok(()));
    assert_eq!(waiting.recv_timeout(SOON).unwrap(), Ok(()));
}

#[test]
fn an_op_whose_answer_is_lost_is_done_once() {
    let mut scratch = Scratch::new("locks-cut");
    let Endpoint::Unix(server) = scratch.endpoint() else { panic!("a unix socket") };
    let cutter = Cutter::new(&server, server.with_file_name("cut.sock"));
    let (one, two) = (open_at(cutter.endpoint()), open(&scratch));
    let file = make(&one, "f");
    let was_cut = |what: &str| assert!(cutter.has_cut(), "{what} was not cut");

    cutter.cut_next(|op| matches!(op, Op::Lock { op: LockOp::Set { .. } }));
    try_lock(&one, file, write_lock(1)).unwrap();
    was_cut("a lock");
    cutter.cut_next(|op| matches!(op, Op::Lock { op: LockOp::Get { .. } }));
    assert_eq!(one.test_lock(&Context::default(), file, write_lock(2)).unwrap().unwrap().lock, write_lock(1));
    was_cut("a look");
    cutter.cut_next(|op| matches!(op, Op::Lock { op: LockOp::Set { .. } }));
    assert_eq!(try_lock(&one, file, write_lock(2)), Err(Error::WouldBlock));
    was_cut("a lock that is refused");
    cutter.cut_next(|op| matches!(op, Op::Lock { op: LockOp::Set { .. } }));
    try_lock(&one, file, unlock(1)).unwrap();
    was_cut("an unlock");
    try_lock(&two, file, write_lock(1)).unwrap();

    cutter.cut_next(|op| matches!(op, Op::Lock { op: LockOp::Set { wait: true, .. } }));
    let waiting = wait_for(&one, file, write_lock(1));
    assert!(waits(&waiting));
    was_cut("a lock that waits");
    // The reply with the outcome of the wait is lost as well.
    cutter.cut_next(|op| matches!(op, Op::Lock { op: LockOp::Set { wait: true, .. } }));
    try_lock(&two, file, unlock(1)).unwrap();
    assert_eq!(waiting.recv_timeout(SOON).unwrap(), Ok(()));
    was_cut("the answer of a lock that waited");
    assert_eq!(try_lock(&two, file, write_lock(1)), Err(Error::WouldBlock));

    cutter.cut_next(|op| matches!(op, Op::Lock { op: LockOp::Release { .. } }));
    one.release_locks(&Context::default(), file, LockOwner(1)).unwrap();
    was_cut("a release");
    try_lock(&two, file, write_lock(1)).unwrap();
    interrupt_with_a_cut(&one, file, &cutter);
    try_lock(&two, file, unlock(1)).unwrap();

    try_lock(&one, file, write_lock(1)).unwrap();
    cutter.cut_next(|op| matches!(op, Op::Lock { op: LockOp::Restore { .. } }));
    scratch.stop();
    scratch.start();
    assert_eq!(try_lock(&two, file, write_lock(1)), Err(Error::WouldBlock));
    was_cut("what was held");
    one.release_locks(&Context::default(), file, LockOwner(1)).unwrap();
    try_lock(&two, file, write_lock(1)).unwrap();
}

fn interrupt_with_a_cut(volume: &Volume, file: InodeId, cutter: &Cutter) {
    let gave_up = AtomicBool::new(false);
    let context = Context { interrupt: Some(&gave_up), ..Context::default() };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| volume.lock(&context, file, write_lock(1), true));
        std::thread::sleep(NOT_SOON);
        cutter.cut_next(|op| matches!(op, Op::Lock { op: LockOp::Cancel { .. } }));
        gave_up.store(true, Ordering::SeqCst);
        assert_eq!(waiting.join().unwrap(), Err(Error::Interrupted));
        assert!(cutter.has_cut(), "a cancel was not cut");
    });
}

#[test]
fn giving_up_while_the_server_is_unavailable_releases_locks_and_cancels_waits() {
    let mut scratch = Scratch::new("locks-away");
    let (one, two) = (open(&scratch), open(&scratch));
    let file = make(&one, "f");
    try_lock(&one, file, write_lock(1)).unwrap();
    let gave_up = AtomicBool::new(false);
    let context = Context { interrupt: Some(&gave_up), ..Context::default() };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| two.lock(&context, file, write_lock(1), true));
        std::thread::sleep(NOT_SOON);
        scratch.stop();
        let release = scope.spawn(|| {
            let context = Context { interrupt: Some(&gave_up), ..Context::default() };
            one.release_locks(&context, file, LockOwner(1))
        });
        std::thread::sleep(NOT_SOON);
        gave_up.store(true, Ordering::SeqCst);
        assert_eq!(waiting.join().unwrap(), Err(Error::Interrupted));
        assert!(matches!(release.join().unwrap(), Err(Error::Unavailable { .. })));
    });
    scratch.start();
    // The release and the cancel are effective although no server received them at the time.
    let third = open(&scratch);
    let answer = wait_for(&third, file, write_lock(1));
    assert_eq!(answer.recv_timeout(SOON).unwrap(), Ok(()));
}
