//! Servers that reply what a test says, and record what they were sent.

use hekate_proto::map::VolumeMap;
use hekate_proto::{Error, Notification, OpId, Reply, Request, Result, ServerId};
use hekate_threads::{Condvar, Mutex, elapsed, now};
use hekate_transport::{Notifications, PendingBatch, Replies, Servers};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which a wait for a silent server checks whether its caller gave up.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time after which a wait fails its test.
const TEST_LIMIT: Duration = Duration::from_secs(30);
/// Batches after which a test fails.
const BATCHES_MAX: usize = 200_000;

/// What becomes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// The batch is not sent, so no server executes it.
    NotReached,
    /// The server executes the batch, and its replies are lost.
    RepliesLost,
    /// The server does not execute the batch, and the connection stays open.
    Silent,
}

/// A request that was sent.
#[derive(Debug, Clone)]
pub struct Sent {
    pub server: ServerId,
    /// Number of its batch, from 0.
    pub batch: usize,
    /// Time limit of the attempt.
    pub limit: Option<Duration>,
    pub request: Request,
}

impl Sent {
    pub fn label(&self) -> &'static str {
        self.request.op.label()
    }
}

/// Executes one request at a server.
pub type Execute = dyn Fn(&ScriptedServers, ServerId, &Request) -> Result<Reply> + Send + Sync;

pub struct ScriptedServers {
    execute: Mutex<Arc<Execute>>,
    state: Mutex<State>,
    changed: Condvar,
    listeners: Arc<Listeners>,
    closed: AtomicBool,
}

struct State {
    map: VolumeMap,
    maps_fetched: usize,
    /// Fates of the next batches, whatever their server.
    fates: VecDeque<Fate>,
    /// Fates of all other batches to a server.
    server_fates: BTreeMap<ServerId, Fate>,
    batches: usize,
    sent: Vec<Sent>,
}

impl ScriptedServers {
    pub fn new(
        map: VolumeMap,
        execute: impl Fn(&ScriptedServers, ServerId, &Request) -> Result<Reply> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (fates, server_fates, sent) = Default::default();
        let state = State { map, maps_fetched: 0, fates, server_fates, batches: 0, sent };
        Arc::new(Self {
            execute: Mutex::new(Arc::new(execute)),
            state: Mutex::new(state),
            changed: Condvar::new(),
            listeners: Arc::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// Replies as this function says from now on.
    pub fn execute_with(
        &self,
        execute: impl Fn(&ScriptedServers, ServerId, &Request) -> Result<Reply> + Send + Sync + 'static,
    ) {
        *self.execute.lock() = Arc::new(execute);
    }

    /// Decides the fates of the next batches; all others are answered.
    pub fn next_fates(&self, fates: impl IntoIterator<Item = Fate>) {
        self.state.lock().fates.extend(fates);
    }

    /// Decides the fates of all batches to a server.
    pub fn set_fate(&self, server: ServerId, fate: Fate) {
        self.state.lock().server_fates.insert(server, fate);
    }

    /// Changes the map that the servers have.
    pub fn change_map(&self, change: impl FnOnce(&mut VolumeMap)) {
        change(&mut self.state.lock().map);
    }

    pub fn maps_fetched(&self) -> usize {
        self.state.lock().maps_fetched
    }

    /// The requests that were sent since the last call, in order.
    pub fn take_sent(&self) -> Vec<Sent> {
        std::mem::take(&mut self.state.lock().sent)
    }

    /// The labels of the requests that were sent since the last call of `take_sent`, in order.
    pub fn labels(&self) -> Vec<&'static str> {
        self.state.lock().sent.iter().map(Sent::label).collect()
    }

    /// Number of requests with this label since the last call of `take_sent`.
    pub fn count(&self, label: &str) -> usize {
        self.labels().into_iter().filter(|sent| *sent == label).count()
    }

    /// Waits until the requests that were sent since the last call of `take_sent` are as `enough` says.
    pub fn wait_until(&self, enough: impl Fn(&[Sent]) -> bool) {
        let begun = now();
        let mut state = self.state.lock();
        while !enough(&state.sent) {
            assert!(elapsed(begun) < TEST_LIMIT, "the requests are not sent; there are {:#?}", state.sent);
            self.changed.wait_for(&mut state, POLL_INTERVAL);
        }
    }

    /// Notifies the sessions that listen to this server.
    pub fn notify(&self, server: ServerId, op_ids: &[OpId]) {
        self.notify_of(server, &Notification::Answered { op_ids: op_ids.to_vec() });
    }

    pub fn notify_of(&self, server: ServerId, notification: &Notification) {
        let mut connections = self.listeners.connections.lock();
        let open = connections.iter_mut().filter(|connection| connection.server == server && !connection.ended);
        open.for_each(|connection| connection.pending.push_back(notification.clone()));
        self.listeners.changed.notify_all();
    }

    /// Ends the connections on which sessions listen to this server.
    pub fn end_listeners(&self, server: ServerId) {
        let mut connections = self.listeners.connections.lock();
        let open = connections.iter_mut().filter(|connection| connection.server == server);
        open.for_each(|connection| connection.ended = true);
        self.listeners.changed.notify_all();
    }

    /// Number of connections that have been opened on which sessions listen to this server.
    pub fn listeners(&self, server: ServerId) -> usize {
        self.listeners.connections.lock().iter().filter(|connection| connection.server == server).count()
    }

    /// Refuses the next connections that listen.
    pub fn refuse_listeners(&self, errors: impl IntoIterator<Item = Error>) {
        self.listeners.refused.lock().extend(errors);
    }

    /// Records a batch, and returns its fate.
    fn record(&self, server: ServerId, limit: Option<Duration>, requests: &[Request]) -> Fate {
        let mut state = self.state.lock();
        let batch = state.batches;
        assert!(batch < BATCHES_MAX, "the client sends without an end");
        state.batches += 1;
        state.sent.extend(requests.iter().map(|request| Sent { server, batch, limit, request: request.clone() }));
        let fate = state.fates.pop_front().or(state.server_fates.get(&server).copied());
        self.changed.notify_all();
        fate.unwrap_or(Fate::Answered)
    }

    /// Executes a batch as a server does: the first error ends it.
    fn execute(&self, server: ServerId, requests: &[Request]) -> Replies {
        let execute = self.execute.lock().clone();
        let mut failed = false;
        let reply = |request: &Request| {
            let reply = if failed { Err(Error::Skipped) } else { execute(self, server, request) };
            failed |= reply.is_err();
            reply
        };
        requests.iter().map(reply).collect()
    }
}

fn lost() -> Error {
    Error::Unavailable { what: "scripted".into() }
}

/// Waits until the caller gives up.
fn wait_in_vain(limit: Option<Duration>, gave_up: &dyn Fn() -> bool) {
    let begun = now();
    while !gave_up() && limit.is_none_or(|limit| elapsed(begun) < limit) {
        assert!(elapsed(begun) < TEST_LIMIT, "the client waits for a silent server without an end");
        hekate_threads::sleep(POLL_INTERVAL);
    }
}

impl Servers for ScriptedServers {
    fn first(&self) -> ServerId {
        self.state.lock().map.server
    }

    fn attempt(
        &self,
        server: ServerId,
        requests: &mut [Request],
        limit: Option<Duration>,
        gave_up: &dyn Fn() -> bool,
    ) -> Result<Replies> {
        match self.record(server, limit, requests) {
            Fate::Answered => return Ok(self.execute(server, requests)),
            Fate::NotReached => return Err(lost()),
            Fate::RepliesLost => _ = self.execute(server, requests),
            Fate::Silent => wait_in_vain(limit, gave_up),
        }
        requests.iter_mut().for_each(|request| request.retry = true);
        Err(lost())
    }

    fn begin(&self, server: ServerId, requests: &[Request], _: &dyn Fn() -> bool) -> Result<Box<dyn PendingBatch>> {
        Ok(Box::new(match self.record(server, None, requests) {
            Fate::Answered => Batch::Replies(self.execute(server, requests)),
            Fate::NotReached => return Err(lost()),
            Fate::RepliesLost => {
                self.execute(server, requests);
                Batch::Lost
            }
            Fate::Silent => Batch::Silent,
        }))
    }

    fn listen(&self, server: ServerId) -> Result<Box<dyn Notifications>> {
        if self.is_closed() {
            return Err(Error::SessionEnded);
        }
        if let Some(error) = self.listeners.refused.lock().pop_front() {
            return Err(error);
        }
        let mut connections = self.listeners.connections.lock();
        connections.push(Connection { server, pending: VecDeque::new(), ended: false });
        self.listeners.changed.notify_all();
        Ok(Box::new(Listening { listeners: self.listeners.clone(), number: connections.len() - 1 }))
    }

    fn map(&self) -> Result<VolumeMap> {
        let mut state = self.state.lock();
        state.maps_fetched += 1;
        Ok(state.map.clone())
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

enum Batch {
    Replies(Replies),
    Lost,
    Silent,
}

impl PendingBatch for Batch {
    fn finish(self: Box<Self>, gave_up: &dyn Fn() -> bool) -> Result<Replies> {
        match *self {
            Batch::Replies(replies) => return Ok(replies),
            Batch::Lost => {}
            Batch::Silent => wait_in_vain(None, gave_up),
        }
        Err(lost())
    }
}

/// The connections on which sessions listen.
#[derive(Default)]
struct Listeners {
    connections: Mutex<Vec<Connection>>,
    refused: Mutex<VecDeque<Error>>,
    changed: Condvar,
}

struct Connection {
    server: ServerId,
    pending: VecDeque<Notification>,
    ended: bool,
}

struct Listening {
    listeners: Arc<Listeners>,
    number: usize,
}

impl Notifications for Listening {
    fn next(&mut self, limit: Duration) -> std::io::Result<Option<Notification>> {
        let begun = now();
        let mut connections = self.listeners.connections.lock();
        loop {
            let connection = &mut connections[self.number];
            if connection.ended {
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            if let Some(next) = connection.pending.pop_front() {
                return Ok(Some(next));
            }
            let left = limit.saturating_sub(elapsed(begun));
            if left.is_zero() {
                return Ok(None);
            }
            self.listeners.changed.wait_for(&mut connections, left);
        }
    }
}
