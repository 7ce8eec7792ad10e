//! `locks`: locks that wait.

use super::scripted_servers::Fate;
use super::support::*;
use super::virtual_time::in_virtual_time;
use hekate_graph::{Context, Translator};
use hekate_proto::*;
use hekate_threads::{Condvar, Mutex, elapsed, now};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FILE: InodeId = inode(0, 1);
const SERVER: ServerId = ServerId(1);
/// Waits that a session registers at leaders.
const REGISTERED_MAX: u64 = 128;

/// What a leader knows of waiting ops.
#[derive(Default)]
struct Table {
    /// Replies that waiting ops have by now.
    replies: BTreeMap<OpId, Result<Reply>>,
    /// How often each waiting op was requested.
    requests: BTreeMap<OpId, usize>,
    /// The lock is free for ops that do not wait.
    free: bool,
    /// Waits of which the leader has not heard since it began.
    unheard: BTreeSet<OpId>,
}

impl Table {
    fn execute(&mut self, request: &Request) -> Result<Reply> {
        let Op::Lock { op } = &request.op else { return Ok(Reply::Done) };
        let op_id = request.op_id;
        match op {
            LockOp::Set { lock, .. } if lock.kind == LockKind::Unlock => Ok(Reply::Done),
            LockOp::Set { wait: true, .. } => {
                *self.requests.entry(op_id).or_default() += 1;
                self.unheard.remove(&op_id);
                self.replies.get(&op_id).cloned().unwrap_or(Ok(Reply::Waiting { op_id }))
            }
            LockOp::Set { .. } if self.free => Ok(Reply::Done),
            LockOp::Set { .. } => Err(Error::WouldBlock),
            LockOp::Cancel { op_id, .. } if self.unheard.contains(op_id) => Ok(Reply::Cancelled { ended: false }),
            LockOp::Cancel { op_id, .. } => {
                let ended = !self.replies.contains_key(op_id);
                self.replies.entry(*op_id).or_insert(Err(Error::Interrupted));
                Ok(Reply::Cancelled { ended })
            }
            LockOp::Restore { .. } => Ok(Reply::Restored { lost: Vec::new() }),
            _ => Ok(Reply::Done),
        }
    }
}

struct WaitingClient {
    client: Client,
    table: Arc<Mutex<Table>>,
}

impl Deref for WaitingClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// The outcome of a wait.
#[derive(Clone, Default)]
struct Outcome(Arc<(Mutex<Option<Result<()>>>, Condvar)>);

impl Outcome {
    fn now(&self) -> Option<Result<()>> {
        self.0.0.lock().clone()
    }

    fn get(&self) -> Result<()> {
        let begun = now();
        let mut outcome = self.0.0.lock();
        while outcome.is_none() {
            assert!(elapsed(begun) < Duration::from_secs(30), "the wait has no outcome");
            self.0.1.wait_for(&mut outcome, Duration::from_millis(100));
        }
        outcome.clone().unwrap()
    }
}

fn write_lock(owner: u64) -> Lock {
    lock(LockKind::Write, owner, 0, 9)
}

impl WaitingClient {
    fn new() -> Self {
        let table: Arc<Mutex<Table>> = Arc::default();
        let held = table.clone();
        Self { client: Client::new(map(), move |_, _, request| held.lock().execute(request)), table }
    }

    fn request(&self, inode: InodeId, owner: u64) -> Result<Reply> {
        self.lock(LockOp::Set { inode, lock: write_lock(owner), wait: true })
    }

    /// Begins a wait that is not granted at once.
    fn wait(&self, inode: InodeId, owner: u64) -> (OpId, Outcome) {
        let Ok(Reply::Waiting { op_id }) = self.request(inode, owner) else { panic!("the lock does not wait") };
        let outcome = Outcome::default();
        let given = outcome.0.clone();
        self.top.locks().when_answered(op_id, move |answer| {
            *given.0.lock() = Some(answer);
            given.1.notify_all();
        });
        (op_id, outcome)
    }

    /// As `wait`, once the session listens and has requested the reply again.
    fn wait_and_listen(&self) -> (OpId, Outcome) {
        let (op_id, outcome) = self.wait(FILE, 1);
        self.servers.wait_until(|_| self.table.lock().requests.get(&op_id).is_some_and(|count| *count >= 2));
        self.servers.take_sent();
        (op_id, outcome)
    }

    /// Waits for requests that are on their way.
    fn settle(&self) {
        hekate_threads::sleep(Duration::from_millis(30));
    }

    fn answer(&self, op_id: OpId, reply: Result<Reply>) {
        self.table.lock().replies.insert(op_id, reply);
    }

    fn grant(&self, op_id: OpId) {
        self.answer(op_id, Ok(Reply::Done));
    }

    fn cancel(&self, op_id: OpId) -> bool {
        match self.lock(LockOp::Cancel { inode: FILE, op_id }) {
            Ok(Reply::Cancelled { ended }) => ended,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_lock_that_is_granted_at_once_does_not_wait() {
    in_virtual_time(|| {
        let client = WaitingClient::new();
        client.servers.execute_with(|_, _, request| match &request.op {
            Op::Lock { op: LockOp::Restore { .. } } => Ok(Reply::Restored { lost: Vec::new() }),
            _ => Ok(Reply::Done),
        });
        assert_eq!(client.request(FILE, 1), Ok(Reply::Done));
        assert_eq!(client.report(0), [(FILE, write_lock(1))]);
        client.servers.execute_with(|_, _, _| Err(Error::Deadlock));
        assert_eq!(client.request(FILE, 2), Err(Error::Deadlock));
    });
}

#[test]
fn a_lock_that_waits_is_granted_by_a_notification() {
    let client = WaitingClient::new();
    let (op_id, outcome) = client.wait_and_listen();
    let (other, ungranted) = client.wait(FILE, 2);
    client.settle();
    client.servers.take_sent();
    client.grant(op_id);
    client.settle();
    assert_eq!((outcome.now(), client.servers.labels().len()), (None, 0), "nothing is requested without a reason");
    client.servers.notify(SERVER, &[op_id]);
    assert_eq!(outcome.get(), Ok(()));
    let sent = client.servers.take_sent();
    let set = LockOp::Set { inode: FILE, lock: write_lock(1), wait: true };
    assert_eq!((sent[0].request.op_id, &sent[0].request.op), (op_id, &Op::Lock { op: set }));
    assert!(sent.iter().all(|sent| sent.request.op_id != other) && ungranted.now().is_none());
    assert_eq!(client.report(0), [(FILE, write_lock(1))]);
}

#[test]
fn a_wait_may_end_with_an_error() {
    let client = WaitingClient::new();
    let (op_id, outcome) = client.wait_and_listen();
    client.answer(op_id, Err(Error::Deadlock));
    client.servers.notify(SERVER, &[op_id]);
    assert_eq!(outcome.get(), Err(Error::Deadlock));
    assert_eq!(client.report(0), []);
}

#[test]
fn after_a_lost_connection_the_replies_of_all_waits_are_requested() {
    let client = WaitingClient::new();
    let waits = [client.wait(FILE, 1), client.wait(inode(0, 2), 2), client.wait(inode(3, 3), 3)];
    client.servers.wait_until(|_| client.servers.listeners(SERVER) == 1);
    waits.iter().for_each(|(op_id, _)| client.grant(*op_id));
    client.servers.refuse_listeners([unavailable()]);
    client.servers.end_listeners(SERVER);
    assert!(waits.iter().all(|(_, outcome)| outcome.get() == Ok(())));
}

#[test]
fn the_end_of_the_session_ends_all_waits() {
    let client = WaitingClient::new();
    let (_, first) = client.wait_and_listen();
    let (op_id, second) = client.wait(inode(0, 2), 2);
    client.servers.refuse_listeners([Error::SessionEnded]);
    client.servers.end_listeners(SERVER);
    assert_eq!((first.get(), second.get()), (Err(Error::SessionEnded), Err(Error::SessionEnded)));
    assert_eq!(client.request(FILE, 3), Err(Error::SessionEnded));
    assert_eq!(client.top.locks().await_lock(&Context::default(), FILE, op_id), Err(Error::SessionEnded));
}

#[test]
fn a_wait_is_cancelled_before_the_grant() {
    let client = WaitingClient::new();
    let (op_id, outcome) = client.wait_and_listen();
    assert!(client.cancel(op_id));
    assert_eq!(outcome.get(), Err(Error::Interrupted));
    assert_eq!(client.servers.labels(), ["cancel-lock"]);
    assert_eq!(client.report(0), []);
}

#[test]
fn a_wait_that_was_granted_before_its_cancellation_has_the_lock() {
    let client = WaitingClient::new();
    let (op_id, outcome) = client.wait_and_listen();
    client.grant(op_id);
    assert!(!client.cancel(op_id));
    assert_eq!(outcome.get(), Ok(()));
    assert_eq!(client.report(0), [(FILE, write_lock(1))]);
}

#[test]
fn a_wait_of_which_a_new_leader_has_not_heard_is_cancelled_there() {
    let client = WaitingClient::new();
    let (op_id, outcome) = client.wait_and_listen();
    client.table.lock().unheard.insert(op_id);
    assert!(client.cancel(op_id));
    assert_eq!(outcome.get(), Err(Error::Interrupted));
}

#[test]
fn a_leader_without_a_report_gets_it_before_the_cancellation() {
    let client = WaitingClient::new();
    let (op_id, outcome) = client.wait_and_listen();
    let (table, untold) = (client.table.clone(), AtomicBool::new(true));
    client.servers.execute_with(move |_, _, request| match &request.op {
        Op::Lock { op: LockOp::Restore { .. } } => {
            untold.store(false, Ordering::Relaxed);
            Ok(Reply::Restored { lost: Vec::new() })
        }
        _ if untold.load(Ordering::Relaxed) => Err(Error::LocksNotRestored),
        _ => table.lock().execute(request),
    });
    assert!(client.cancel(op_id));
    assert_eq!(outcome.get(), Err(Error::Interrupted));
}

/// A wait whose caller was told that it is interrupted while the server was not reached.
fn abandoned() -> (WaitingClient, OpId) {
    let client = WaitingClient::new();
    let (op_id, outcome) = client.wait_and_listen();
    client.servers.set_fate(SERVER, Fate::NotReached);
    assert!(client.cancel(op_id));
    assert_eq!(outcome.get(), Err(Error::Interrupted));
    (client, op_id)
}

#[test]
fn an_abandoned_wait_is_cancelled_once_its_server_is_reached() {
    let (client, op_id) = abandoned();
    client.servers.set_fate(SERVER, Fate::Answered);
    client.servers.wait_until(|_| client.table.lock().replies.contains_key(&op_id));
    client.settle();
    client.servers.take_sent();
    hekate_threads::sleep(Duration::from_millis(150));
    assert!(client.servers.labels().is_empty(), "once");
    assert_eq!(client.report(0), []);
}

#[test]
fn an_abandoned_wait_that_was_granted_is_held_until_its_owner_closes_the_file() {
    let (client, op_id) = abandoned();
    client.grant(op_id);
    client.servers.take_sent();
    client.servers.set_fate(SERVER, Fate::Answered);
    client.servers.wait_until(|sent| sent.last().is_some_and(|sent| sent.label() == "set-lock"));
    client.settle();
    assert_eq!(client.report(0), [(FILE, write_lock(1))]);
    client.lock(LockOp::Release { inode: FILE, owner: LockOwner(1) }).unwrap();
    assert_eq!(client.servers.labels(), ["release-locks"]);
    assert_eq!(client.report(0), []);
}

#[test]
fn a_wait_whose_caller_gave_up_before_the_first_reply_is_cancelled_later() {
    let client = WaitingClient::new();
    let context = Context { deadline: Some(now()), ..Context::default() };
    client.servers.next_fates([Fate::RepliesLost]);
    let set = LockOp::Set { inode: FILE, lock: write_lock(1), wait: true };
    assert!(is_unavailable(&client.top.handle(&context, Op::Lock { op: set })));
    client.servers.wait_until(|sent| sent.iter().any(|sent| sent.label() == "cancel-lock"));
}

#[test]
fn an_owed_release_that_fails_is_the_answer_of_the_wait_behind_it() {
    let client = WaitingClient::new();
    client.table.lock().free = true;
    client.set_lock(FILE, write_lock(1)).unwrap();
    let context = Context { deadline: Some(now()), ..Context::default() };
    client.servers.next_fates([Fate::NotReached]);
    let release = LockOp::Release { inode: FILE, owner: LockOwner(1) };
    assert!(is_unavailable(&client.top.handle(&context, Op::Lock { op: release })));
    client.servers.execute_with(|_, _, _| Err(Error::SessionEnded));
    assert_eq!(client.request(FILE, 1), Err(Error::SessionEnded));
}

#[test]
fn waits_are_requested_again_after_a_report_to_a_new_leader() {
    let client = WaitingClient::new();
    let (op_id, _) = client.wait_and_listen();
    client.top.locks().on_heartbeat(&[PartitionNumber(0)]);
    client.servers.wait_until(|sent| sent.iter().any(|sent| sent.request.op_id == op_id));
    assert_eq!(client.servers.labels(), ["restore-locks", "set-lock"]);
}

#[test]
fn a_wait_whose_reply_needs_a_report_gets_it() {
    let client = WaitingClient::new();
    let (op_id, outcome) = client.wait_and_listen();
    client.grant(op_id);
    let (table, untold) = (client.table.clone(), AtomicBool::new(true));
    client.servers.execute_with(move |_, _, request| match &request.op {
        Op::Lock { op: LockOp::Set { .. } } if untold.swap(false, Ordering::Relaxed) => Err(Error::LocksNotRestored),
        _ => table.lock().execute(request),
    });
    client.servers.notify(SERVER, &[op_id]);
    assert_eq!(outcome.get(), Ok(()));
    assert_eq!(client.servers.labels()[..3], ["set-lock", "restore-locks", "set-lock"]);
}

#[test]
fn a_wait_follows_its_leader_to_another_server() {
    let client = WaitingClient::new();
    let (op_id, outcome) = client.wait_and_listen();
    let table = client.table.clone();
    client.servers.execute_with(move |_, server, request| match server {
        SERVER => Err(Error::OtherServer { server: ServerId(2) }),
        _ => table.lock().execute(request),
    });
    client.servers.change_map(|map| lead(map, 0, 2));
    client.servers.notify(SERVER, &[op_id]);
    // A heartbeat starts the thread that listens to the other server, once the client has the new map.
    while client.servers.listeners(ServerId(2)) == 0 {
        client.top.locks().on_heartbeat(&[]);
        client.settle();
    }
    client.grant(op_id);
    client.servers.notify(ServerId(2), &[op_id]);
    assert_eq!(outcome.get(), Ok(()));
}

#[test]
fn beyond_the_limit_waits_are_polled_and_hold_no_slot() {
    let client = WaitingClient::new();
    let waits: Vec<_> = (0..REGISTERED_MAX).map(|owner| client.wait(inode(0, 10 + owner), owner)).collect();
    client.servers.take_sent();
    let (polled, outcome) = client.wait(FILE, 1000);
    let is_poll = |request: &Request| matches!(&request.op, Op::Lock { op: LockOp::Set { wait: false, inode, .. } } if *inode == FILE);
    client.servers.wait_until(|sent| sent.iter().filter(|sent| is_poll(&sent.request)).count() >= 2);
    let sent = client.servers.take_sent();
    assert!(sent.iter().filter(|sent| is_poll(&sent.request)).all(|sent| sent.request.op_id != polled));
    let (cancelled, interrupted) = client.wait(FILE, 1001);
    assert!(client.cancel(cancelled));
    assert_eq!(interrupted.get(), Err(Error::Interrupted));
    assert_eq!(client.servers.count("cancel-lock"), 0, "no leader knows it");
    client.table.lock().free = true;
    assert_eq!(outcome.get(), Ok(()));
    assert!(client.report(0).contains(&(FILE, write_lock(1000))));
    // A wait that ends lets another one be registered.
    assert!(client.cancel(waits[0].0));
    let (op_id, _) = client.wait(FILE, 1002);
    assert!(client.servers.take_sent().iter().any(|sent| sent.request.op_id == op_id));
}

#[test]
fn too_many_waits_are_refused() {
    let client = WaitingClient::new();
    let held: Vec<_> = (0..4096).map(|owner| client.wait(FILE, owner)).collect();
    assert!(matches!(client.request(FILE, 5000), Err(Error::TooManyLocks { .. })));
    assert!(client.cancel(held[0].0));
    client.wait(FILE, 5000);
}

#[test]
fn a_thread_waits_for_its_lock_and_gives_up_at_an_interrupt() {
    let client = Arc::new(WaitingClient::new());
    let acquire = |owner: u64, interrupt: Arc<AtomicBool>| {
        let client = client.clone();
        start(move || {
            let context = Context { interrupt: Some(&interrupt), ..Context::default() };
            client.top.locks().acquire(&context, FILE, write_lock(owner))
        })
    };
    let interrupt = Arc::new(AtomicBool::new(false));
    let granted = acquire(1, Arc::default());
    let interrupted = acquire(2, interrupt.clone());
    let is_of = |request: &Request, wanted: u64| match &request.op {
        Op::Lock { op: LockOp::Set { lock, .. } } => lock.owner == LockOwner(wanted),
        _ => false,
    };
    client.servers.wait_until(|sent| [1, 2].iter().all(|owner| sent.iter().any(|s| is_of(&s.request, *owner))));
    assert!(granted.is_waiting() && interrupted.is_waiting());
    interrupt.store(true, Ordering::Relaxed);
    assert_eq!(interrupted.join(), Err(Error::Interrupted));
    let sent = client.servers.take_sent();
    let op_id = sent.iter().find(|sent| is_of(&sent.request, 1)).unwrap().request.op_id;
    client.grant(op_id);
    client.servers.notify(SERVER, &[op_id]);
    assert_eq!(granted.join(), Ok(()));
    assert_eq!(client.report(0), [(FILE, write_lock(1))]);
}
