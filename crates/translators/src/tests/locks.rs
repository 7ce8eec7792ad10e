//! `locks`: locks that do not wait, releases that are owed, and reports to a new leader.

use super::scripted_servers::{Fate, ScriptedServers, Sent};
use super::support::*;
use super::virtual_time::in_virtual_time;
use hekate_graph::{Context, Translator};
use hekate_proto::*;
use hekate_threads::now;
use std::sync::Arc;

const FILE: InodeId = inode(0, 1);
const OWNER: u64 = 5;

fn answer(request: &Request) -> Result<Reply> {
    match &request.op {
        Op::Lock { op: LockOp::Restore { .. } } => Ok(Reply::Restored { lost: Vec::new() }),
        Op::Lock { op: LockOp::Get { .. } } => Ok(Reply::Lock { conflict: None }),
        Op::Volume { .. } => Ok(Reply::Orphans { inodes: Vec::new(), unrestored: Vec::new(), graph: 0 }),
        _ => Ok(Reply::Done),
    }
}

fn client() -> Client {
    Client::new(map(), |_, _, request| answer(request))
}

fn write_lock() -> Lock {
    lock(LockKind::Write, OWNER, 0, 9)
}

fn release(inode: InodeId, owner: u64) -> LockOp {
    LockOp::Release { inode, owner: LockOwner(owner) }
}

/// The leader has no report of the session's locks until it gets one.
fn ask_for_report(servers: &ScriptedServers) {
    servers.execute_with(|servers, _, request| match &request.op {
        Op::Lock { op: LockOp::Restore { .. } } => {
            servers.execute_with(|_, _, request| answer(request));
            answer(request)
        }
        Op::Lock { .. } => Err(Error::LocksNotRestored),
        _ => answer(request),
    });
}

/// The locks in each report.
fn reports(sent: &[Sent]) -> Vec<Vec<(InodeId, Lock)>> {
    let locks = |sent: &Sent| match &sent.request.op {
        Op::Lock { op: LockOp::Restore { locks, done: true } } => Some(locks.clone()),
        _ => None,
    };
    sent.iter().filter_map(locks).collect()
}

#[test]
fn a_lock_is_requested_again_under_its_id_until_it_has_a_reply() {
    in_virtual_time(|| {
        let client = client();
        client.servers.next_fates([Fate::RepliesLost, Fate::NotReached]);
        assert_eq!(client.set_lock(FILE, write_lock()), Ok(Reply::Done));
        let sent = client.servers.take_sent();
        assert_eq!(sent.len(), 3);
        assert!(sent.iter().all(|again| again.request.op_id == sent[0].request.op_id));
        assert_ne!(sent[0].request.op_id, OpId(0));
    });
}

#[test]
fn the_answer_of_the_leader_is_passed_on() {
    in_virtual_time(|| {
        let client = client();
        let get = LockOp::Get { inode: FILE, lock: write_lock() };
        assert_eq!(client.lock(get), Ok(Reply::Lock { conflict: None }));
        client.servers.execute_with(|_, _, _| Err(Error::WouldBlock));
        assert_eq!(client.set_lock(FILE, write_lock()), Err(Error::WouldBlock));
        client.servers.execute_with(|_, _, request| answer(request));
        assert_eq!(client.report(0), [], "it was not granted");
    });
}

#[test]
fn ops_on_one_inode_run_one_after_the_other() {
    let client = Arc::new(client());
    let gate = Arc::new(Gate::default());
    let closed = gate.clone();
    client.servers.execute_with(move |_, _, request| {
        if matches!(&request.op, Op::Lock { op: LockOp::Set { inode, .. } } if *inode == FILE) {
            closed.pass();
        }
        answer(request)
    });
    let set = |inode, owner| {
        let client = client.clone();
        start(move || client.set_lock(inode, lock(LockKind::Read, owner, 0, 9)))
    };
    let first = set(FILE, 1);
    client.servers.wait_until(|sent| sent.len() == 1);
    let second = set(FILE, 2);
    assert!(second.is_waiting());
    assert_eq!(set(inode(0, 2), 3).join(), Ok(Reply::Done), "another inode");
    assert_eq!(client.servers.count("set-lock"), 2);
    gate.open();
    assert_eq!((first.join(), second.join()), (Ok(Reply::Done), Ok(Reply::Done)));
}

#[test]
fn no_op_runs_while_the_locks_of_its_partition_are_reported() {
    let client = Arc::new(client());
    let gate = Arc::new(Gate::default());
    let closed = gate.clone();
    client.servers.execute_with(move |_, _, request| {
        if matches!(request.op, Op::Lock { op: LockOp::Restore { .. } }) {
            closed.pass();
        }
        answer(request)
    });
    let reporter = client.clone();
    let report = start(move || reporter.top.locks().on_heartbeat(&[PartitionNumber(0)]));
    client.servers.wait_until(|sent| sent.len() == 1);
    let setter = client.clone();
    let set = start(move || setter.set_lock(FILE, write_lock()));
    assert!(set.is_waiting());
    assert_eq!(client.set_lock(inode(1, 2), write_lock()), Ok(Reply::Done), "another partition");
    assert_eq!(client.servers.labels(), ["restore-locks", "set-lock"]);
    gate.open();
    report.join();
    assert_eq!(set.join(), Ok(Reply::Done));
}

#[test]
fn a_leader_without_a_report_gets_it_before_the_op() {
    in_virtual_time(|| {
        let client = client();
        for at in [FILE, inode(0, 2), inode(1, 3)] {
            client.set_lock(at, write_lock()).unwrap();
        }
        client.servers.take_sent();
        ask_for_report(&client.servers);
        assert_eq!(client.set_lock(FILE, lock(LockKind::Read, OWNER, 20, 29)), Ok(Reply::Done));
        assert_eq!(client.servers.labels(), ["set-lock", "restore-locks", "set-lock"]);
        let sent = client.servers.take_sent();
        let mut report = reports(&sent).remove(0);
        report.sort_by_key(|(inode, _)| *inode);
        assert_eq!(report, [(FILE, write_lock()), (inode(0, 2), write_lock())], "the locks of this partition");
        assert!(sent[1].request.retry, "an older report that is on its way must not replace it");
        assert_eq!(sent[0].request.op_id, sent[2].request.op_id);
    });
}

#[test]
fn a_report_that_is_lost_is_repeated() {
    in_virtual_time(|| {
        let client = client();
        client.set_lock(FILE, write_lock()).unwrap();
        ask_for_report(&client.servers);
        client.servers.take_sent();
        client.servers.next_fates([Fate::Answered, Fate::NotReached]);
        let get = LockOp::Get { inode: FILE, lock: write_lock() };
        assert_eq!(client.lock(get), Ok(Reply::Lock { conflict: None }));
        let labels = ["get-lock", "restore-locks", "get-lock", "restore-locks", "get-lock"];
        assert_eq!(client.servers.labels(), labels);
    });
}

#[test]
fn a_lock_is_not_reported_before_its_reply_has_arrived() {
    in_virtual_time(|| {
        let client = client();
        client.servers.next_fates([Fate::RepliesLost]);
        ask_for_report(&client.servers);
        client.set_lock(FILE, write_lock()).unwrap();
        assert_eq!(reports(&client.servers.take_sent()), [vec![]]);
        assert_eq!(client.report(0), [(FILE, write_lock())]);
    });
}

#[test]
fn a_lock_is_not_reported_once_its_release_may_have_been_executed() {
    in_virtual_time(|| {
        let client = client();
        client.set_lock(FILE, write_lock()).unwrap();
        let context = Context { deadline: Some(now()), ..Context::default() };
        client.servers.next_fates([Fate::RepliesLost]);
        let unlock = LockOp::Set { inode: FILE, lock: lock(LockKind::Unlock, OWNER, 4, 5), wait: false };
        assert!(is_unavailable(&client.top.handle(&context, Op::Lock { op: unlock })));
        let left = [(0, 3), (6, 9)].map(|(start, end)| (FILE, lock(LockKind::Write, OWNER, start, end)));
        assert_eq!(client.report(0), left);
    });
}

#[test]
fn a_refused_unlock_leaves_the_lock_in_the_report() {
    in_virtual_time(|| {
        let client = client();
        client.set_lock(FILE, write_lock()).unwrap();
        client.servers.execute_with(|_, _, _| Err(Error::TooManyLocks { what: "scripted".into() }));
        assert!(client.set_lock(FILE, lock(LockKind::Unlock, OWNER, 4, 5)).is_err());
        client.servers.execute_with(|_, _, request| answer(request));
        assert_eq!(client.report(0), [(FILE, write_lock())]);
    });
}

#[test]
fn a_lock_that_the_leader_gave_to_another_session_is_not_reported_again() {
    in_virtual_time(|| {
        let client = client();
        client.set_lock(FILE, write_lock()).unwrap();
        let lost = lock(LockKind::Write, OWNER, 3, 9);
        client.servers.execute_with(move |_, _, _| Ok(Reply::Restored { lost: vec![(FILE, lost)] }));
        assert_eq!(client.report(0), [(FILE, write_lock())]);
        assert_eq!(client.report(0), [(FILE, lock(LockKind::Write, OWNER, 0, 2))]);
    });
}

#[test]
fn a_heartbeat_reports_to_the_leaders_that_ask() {
    in_virtual_time(|| {
        let client = client();
        client.set_lock(FILE, write_lock()).unwrap();
        client.servers.take_sent();
        client.servers.execute_with(|_, server, request| match (server, &request.op) {
            (ServerId(2), Op::Volume { .. }) => Ok(Reply::Orphans {
                inodes: Vec::new(),
                unrestored: vec![PartitionNumber(0), PartitionNumber(1)],
                graph: 0,
            }),
            _ => answer(request),
        });
        let beat =
            || client.call(Op::Volume { op: VolumeOp::Heartbeat { unused: Vec::new(), mapped: Vec::new(), graph: 0 } });
        beat().unwrap();
        assert_eq!(reports(&client.servers.take_sent()), [vec![(FILE, write_lock())], vec![]]);
        client.servers.next_fates([Fate::Answered, Fate::Answered, Fate::Answered, Fate::NotReached]);
        beat().unwrap();
        assert_eq!(reports(&client.servers.take_sent()).len(), 1, "a failed report waits for the next heartbeat");
    });
}

#[test]
fn the_close_of_a_file_without_locks_sends_nothing() {
    in_virtual_time(|| {
        let client = client();
        assert_eq!(client.lock(release(FILE, OWNER)), Ok(Reply::Done));
        client.set_lock(FILE, write_lock()).unwrap();
        client.servers.take_sent();
        for (at, owner) in [(FILE, OWNER + 1), (inode(0, 2), OWNER)] {
            client.lock(release(at, owner)).unwrap();
        }
        assert!(client.servers.labels().is_empty());
        client.lock(release(FILE, OWNER)).unwrap();
        client.lock(release(FILE, OWNER)).unwrap();
        assert_eq!(client.servers.labels(), ["release-locks"]);
        assert_eq!(client.report(0), []);
    });
}

#[test]
fn an_owner_whose_lock_has_no_reply_has_its_locks_released() {
    in_virtual_time(|| {
        let client = client();
        let context = Context { deadline: Some(now()), ..Context::default() };
        client.servers.next_fates([Fate::RepliesLost]);
        let set = LockOp::Set { inode: FILE, lock: write_lock(), wait: false };
        assert!(is_unavailable(&client.top.handle(&context, Op::Lock { op: set })));
        client.servers.take_sent();
        client.lock(release(FILE, OWNER)).unwrap();
        assert_eq!(client.servers.labels(), ["release-locks"]);
    });
}

/// A client whose owner closed the file while the server was not reached.
fn owes_a_release() -> Client {
    let client = client();
    client.set_lock(FILE, write_lock()).unwrap();
    client.set_lock(FILE, lock(LockKind::Write, OWNER + 1, 50, 59)).unwrap();
    client.servers.next_fates([Fate::NotReached]);
    let context = Context { deadline: Some(now()), ..Context::default() };
    client.servers.take_sent();
    let released = client.top.handle(&context, Op::Lock { op: release(FILE, OWNER) });
    assert!(is_unavailable(&released));
    assert_eq!(client.servers.take_sent().len(), 1, "one attempt");
    client
}

#[test]
fn an_owed_release_is_sent_before_any_other_op_of_its_owner() {
    in_virtual_time(|| {
        let client = owes_a_release();
        client.set_lock(FILE, lock(LockKind::Read, OWNER + 1, 70, 79)).unwrap();
        assert_eq!(client.servers.labels(), ["set-lock"], "another owner");
        client.servers.take_sent();
        client.set_lock(FILE, lock(LockKind::Read, OWNER, 20, 29)).unwrap();
        client.set_lock(FILE, lock(LockKind::Read, OWNER, 30, 39)).unwrap();
        assert_eq!(client.servers.labels(), ["release-locks", "set-lock", "set-lock"]);
        let mut ranges: Vec<_> = client.report(0).iter().map(|(_, lock)| (lock.start, lock.end)).collect();
        ranges.sort();
        assert_eq!(ranges, [(20, 39), (50, 59), (70, 79)]);
        let client = owes_a_release();
        let wait = LockOp::Set { inode: FILE, lock: lock(LockKind::Read, OWNER, 20, 29), wait: true };
        assert_eq!(client.lock(wait), Ok(Reply::Done));
        assert_eq!(client.servers.labels(), ["release-locks", "set-lock"]);
    });
}

#[test]
fn an_owed_release_is_sent_with_a_heartbeat() {
    in_virtual_time(|| {
        let client = owes_a_release();
        client.servers.next_fates([Fate::NotReached]);
        for _ in 0..3 {
            client.top.locks().on_heartbeat(&[]);
        }
        assert_eq!(client.servers.labels(), ["release-locks"; 2], "until one has its reply");
    });
}

#[test]
fn the_locks_of_an_owed_release_are_not_reported() {
    in_virtual_time(|| {
        let client = owes_a_release();
        assert_eq!(client.report(0), [(FILE, lock(LockKind::Write, OWNER + 1, 50, 59))]);
    });
}

#[test]
fn a_release_waits_for_its_server() {
    in_virtual_time(|| {
        let client = client();
        client.set_lock(FILE, write_lock()).unwrap();
        client.servers.take_sent();
        ask_for_report(&client.servers);
        client.servers.next_fates([Fate::NotReached]);
        assert_eq!(client.lock(release(FILE, OWNER)), Ok(Reply::Done));
        let labels = ["release-locks", "release-locks", "restore-locks", "release-locks"];
        assert_eq!(client.servers.labels(), labels);
        assert_eq!(reports(&client.servers.take_sent()), [vec![]]);
    });
}

#[test]
fn an_interrupt_ends_a_lock_that_has_no_reply() {
    in_virtual_time(|| {
        let client = client();
        client.servers.set_fate(ServerId(1), Fate::Silent);
        let context = Context { deadline: Some(now()), ..Context::default() };
        let set = LockOp::Set { inode: FILE, lock: write_lock(), wait: false };
        assert!(is_unavailable(&client.top.handle(&context, Op::Lock { op: set })));
        client.servers.set_fate(ServerId(1), Fate::Answered);
        client.servers.execute_with(|_, _, _| Err(Error::LocksNotRestored));
        let set = LockOp::Set { inode: FILE, lock: write_lock(), wait: false };
        assert!(is_unavailable(&client.top.handle(&context, Op::Lock { op: set })));
    });
}
