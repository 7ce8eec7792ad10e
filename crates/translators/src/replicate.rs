//! `replicate`: which replica executes a request, which server has it, and by which path the request goes: to the
//! leader, or to all members at once (`fast.rs`).
//!
//! A batch is cut into runs of requests for the same server, which are sent one after the other. So the order of a
//! batch holds across servers.

mod fast;
#[cfg(feature = "measuring")]
mod raw;
#[cfg(not(feature = "measuring"))]
#[path = "replicate/raw_absent.rs"]
mod raw;

use crate::pledges::{ContentUse, Pledges, Reading};
use fast::FastShards;
pub(crate) use fast::Flight;
use hekate_graph::Context;
use hekate_proto::map::{View, VolumeMap};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{
    BrickId, Epoch, Error, Op, OpId, PartitionNumber, Reply, Request, Result, SESSION_SLOTS, ServerId, SessionId,
    Target, VolumeOp,
};
use hekate_threads::{Condvar, Mutex, RwLock, elapsed, now};
use hekate_transport::{Replies, Servers};
use raw::RawLanes;
pub use raw::check_mode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pause before the next request to an unavailable server, or the next fetch of a map that has not changed yet.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which the map is fetched while a server is unavailable, since its bricks may have moved.
const MAP_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which the map is fetched while a server has not replied, once for all waiting threads.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// An op that waits longer than this is logged, with the reason.
const LOG_AFTER: Duration = Duration::from_secs(10);
/// Limit for each server's reply to an op that goes to all servers; a server that hangs must not delay the others.
const QUERY_ALL_LIMIT: Duration = Duration::from_secs(2);

/// The replica or server that executes a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Recipient {
    Leader(PartitionNumber),
    Brick(BrickId),
    /// The server where the session was opened.
    Server,
}

/// Sends batches for one session.
pub struct Replicate {
    servers: Arc<dyn Servers>,
    session: SessionId,
    map: RwLock<Arc<VolumeMap>>,
    /// When a thread that waits for a reply last fetched the map.
    map_fetched: Mutex<Instant>,
    slots: Arc<Slots>,
    op_count: AtomicU64,
    fast: FastShards,
    raw: RawLanes,
    pledges: Arc<Pledges>,
}

/// Ops with their replies.
type Answered = Vec<(Op, Result<Reply>)>;

impl Replicate {
    /// For a session on a volume, which asks for no pledges.
    pub fn new(servers: Arc<dyn Servers>, session: SessionId, map: VolumeMap) -> Self {
        let map = RwLock::new(Arc::new(map));
        Self {
            servers,
            session,
            map,
            map_fetched: Mutex::new(now()),
            slots: Arc::new(Slots::new()),
            op_count: AtomicU64::new(1),
            fast: FastShards::default(),
            raw: RawLanes::default(),
            pledges: Pledges::new(false, ContentUse::None),
        }
    }

    /// For a session that asks for pledges.
    pub fn with_pledges(servers: Arc<dyn Servers>, session: SessionId, map: VolumeMap, contents: ContentUse) -> Self {
        // Writes of raw modes change shards without their leader.
        let contents = if map.mode.is_raw() { ContentUse::None } else { contents };
        Self { pledges: Pledges::new(true, contents), ..Self::new(servers, session, map) }
    }

    pub(crate) fn pledges(&self) -> Arc<Pledges> {
        self.pledges.clone()
    }

    /// The latest map that this client has.
    pub(crate) fn map(&self) -> Arc<VolumeMap> {
        self.map.read().clone()
    }

    /// Sends one op and waits for its reply.
    pub(crate) fn send(&self, context: &Context, recipient: Recipient, op: Op) -> Result<Reply> {
        let mut replies = self.send_all(context, vec![(recipient, op)])?;
        replies.pop().unwrap_or(Err(Error::bug("a batch has no reply")))
    }

    /// Sends ops that are to be executed in this order. The first that fails ends the batch, and the rest is
    /// `Skipped`. If a view changes meanwhile, the map is fetched and the rest of the batch sent again; an op that
    /// was executed before is answered, not repeated.
    pub(crate) fn send_all(&self, context: &Context, ops: Vec<(Recipient, Op)>) -> Result<Replies> {
        self.send_reading(context, ops, None)
    }

    /// As `send_all`. Reads of shards ask for pledges, which are taken for this file.
    pub(crate) fn send_reading(
        &self,
        context: &Context,
        ops: Vec<(Recipient, Op)>,
        mut reading: Option<&mut Reading>,
    ) -> Result<Replies> {
        if ops.iter().filter(|(_, op)| !op.is_read()).count() > SESSION_SLOTS {
            return Err(Error::invalid("a batch has more changes than its session has slots"));
        }
        let is_single = ops.len() == 1;
        let ask = |(_, op): &(Recipient, Op)| {
            // A missing name, which ends a batch, is no error in a reply with pledges.
            let may_ask = is_single || !matches!(op, Op::Name { .. });
            may_ask.then(|| self.pledges.ask(op, reading.as_deref())).flatten()
        };
        let asked: Vec<_> = ops.iter().map(ask).collect();
        let behind = reading.as_deref().and_then(|reading| Some((ops.len().checked_sub(1)?, reading.behind?)));
        let asks =
            asked.iter().enumerate().map(|(i, asked)| asked.is_some() || behind.is_some_and(|(last, _)| i == last));
        let mut answered = self.send_asking(context, ops.into_iter().zip(asks))?;
        if let Some((last, after)) = behind {
            *after.lock() = answered.split_off(last.min(answered.len()));
        }
        let answered = answered.into_iter().zip(asked);
        let volume = self.map().volume;
        let take = |((op, reply), asked): ((Op, _), _)| match reading.as_deref_mut() {
            Some(reading) => self.pledges.take_shard(asked, &op, reply, (reading, volume)),
            None => self.pledges.take(asked, &op, reply, context.durable),
        };
        Ok(answered.map(take).collect())
    }

    /// Sends a change, and behind it reads that ask for pledges. The replies to these are returned as they come.
    pub(crate) fn send_with_reads(
        &self,
        context: &Context,
        recipient: Recipient,
        op: Op,
        reads: Vec<Op>,
    ) -> Result<(Reply, Answered)> {
        let reads = reads.into_iter().map(|read| ((recipient, read), true));
        let mut answered = self.send_asking(context, [((recipient, op), false)].into_iter().chain(reads))?.into_iter();
        let (_, reply) = answered.next().ok_or_else(|| Error::bug("a batch has no reply"))?;
        Ok((reply?, answered.collect()))
    }

    /// Sends ops, each with whether it asks for pledges. Returns them with their replies.
    fn send_asking(&self, context: &Context, ops: impl Iterator<Item = ((Recipient, Op), bool)>) -> Result<Answered> {
        let map = self.map();
        let (session, volume, durable) = (self.session, map.volume, context.durable);
        let (mut recipients, mut requests) = (Vec::new(), Vec::new());
        for ((recipient, op), pledge) in ops {
            let (_, target) = self.resolve(&map, recipient)?;
            recipients.push(recipient);
            requests.push(Request { volume, target, session, op_id: OpId(0), durable, retry: false, pledge, op });
        }
        let changes = requests.iter().filter(|request| !request.op.is_read()).count();
        let slots = self.slots.take(changes);
        for (request, slot) in requests.iter_mut().filter(|request| !request.op.is_read()).zip(&slots) {
            request.op_id = self.op_id(*slot);
        }
        let replies = self.send_runs(context, &recipients, &mut requests);
        self.slots.release(slots);
        Ok(requests.into_iter().map(|request| request.op).zip(replies?).collect())
    }

    /// An op id with its slot, for an op that may be sent several times.
    pub(crate) fn ticket(&self) -> OpTicket {
        let [ticket] = self.tickets();
        ticket
    }

    /// Op ids with their slots, all taken at once.
    fn tickets<const COUNT: usize>(&self) -> [OpTicket; COUNT] {
        let mut slots = self.slots.take(COUNT).into_iter();
        std::array::from_fn(|_| {
            let slot: Vec<u8> = slots.next().into_iter().collect();
            let op_id = self.op_id(slot.first().copied().unwrap_or_default());
            OpTicket { op_id, slot, slots: self.slots.clone() }
        })
    }

    /// An id that no other op has.
    pub(crate) fn unused_id(&self) -> OpId {
        self.op_id(0)
    }

    /// Another id with the same slot, for a planted bug.
    fn renewed(&self, op_id: OpId) -> OpId {
        self.op_id(op_id.0 as u8)
    }

    fn op_id(&self, slot: u8) -> OpId {
        let slot = if is_planted(Bug::SlotShared) { 0 } else { slot };
        OpId((self.op_count.fetch_add(1, Ordering::Relaxed) << 8) | u64::from(slot))
    }

    /// As `send_change`, for a change that asks for a grant.
    fn send_asking_grant(&self, context: &Context, op_id: OpId, recipient: Recipient, op: Op) -> Result<Reply> {
        let asked = self.pledges.ask(&op, None);
        let request = self.request(recipient, op_id, op)?;
        let mut request = [Request { durable: context.durable, pledge: asked.is_some(), ..request }];
        let mut replies = self.send_runs(context, &[recipient], &mut request)?;
        let reply = replies.pop().unwrap_or(Err(Error::bug("a batch has no reply")));
        self.pledges.take(asked, &request[0].op, reply, context.durable)
    }

    /// As `send`, under this op id.
    pub(crate) fn send_as(&self, context: &Context, op_id: OpId, recipient: Recipient, op: Op) -> Result<Reply> {
        let request = self.request(recipient, op_id, op)?;
        let mut replies = self.send_runs(context, &[recipient], &mut [request])?;
        replies.pop().unwrap_or(Err(Error::bug("a batch has no reply")))
    }

    /// Sends a change under this op id. `retry`: it may have been executed, or begun, under this op id.
    fn send_change(&self, context: &Context, op_id: OpId, retry: bool, recipient: Recipient, op: Op) -> Result<Reply> {
        let request = Request { durable: context.durable, retry, ..self.request(recipient, op_id, op)? };
        let mut replies = self.send_runs(context, &[recipient], &mut [request])?;
        replies.pop().unwrap_or(Err(Error::bug("a batch has no reply")))
    }

    /// Makes one attempt, which the caller repeats later. With `retry`, the server first completes all ops of the
    /// session that it has received.
    pub(crate) fn attempt(
        &self,
        op_id: OpId,
        retry: bool,
        recipient: Recipient,
        op: Op,
        limit: Duration,
    ) -> Result<Reply> {
        let mut request = self.request(recipient, op_id, op)?;
        request.retry = retry;
        let (server, _) = self.resolve(&self.map(), recipient)?;
        let replies = self.servers.attempt(server, &mut [request], Some(limit), &|| self.servers.is_closed())?;
        let reply = replies.into_iter().next().unwrap_or(Err(Error::bug("a batch has no reply")));
        if let Err(Error::StaleView { .. } | Error::OtherServer { .. }) = reply {
            *self.map.write() = Arc::new(self.servers.map()?);
            return Err(Error::Unavailable { what: "the partition has a new view; the request is sent again".into() });
        }
        reply
    }

    fn request(&self, recipient: Recipient, op_id: OpId, op: Op) -> Result<Request> {
        let map = self.map();
        let (_, target) = self.resolve(&map, recipient)?;
        let (volume, session) = (map.volume, self.session);
        Ok(Request { volume, target, session, op_id, durable: false, retry: false, pledge: false, op })
    }

    /// The server of a recipient, by the latest map.
    pub(crate) fn server_of(&self, recipient: Recipient) -> Result<ServerId> {
        self.resolve(&self.map(), recipient).map(|(server, _)| server)
    }

    /// The volume's servers.
    pub(crate) fn servers(&self) -> &dyn Servers {
        &*self.servers
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// Sends requests until all have a reply, run by run.
    fn send_runs(&self, context: &Context, recipients: &[Recipient], requests: &mut [Request]) -> Result<Replies> {
        let mut replies: Replies = Vec::with_capacity(requests.len());
        let (begun, mut asked, mut is_logged) = (now(), now(), false);
        let planned = self.map();
        while replies.len() < requests.len() {
            let (done, map) = (replies.len(), self.map());
            let left = &mut requests[done..];
            let (server, count) = self.next_run(&map, &recipients[done..], left)?;
            let targets: Vec<Target> = left[..count].iter().map(|request| request.target).collect();
            let gave_up = || self.gave_up(context) || self.is_superseded(&map, server, &targets);
            let outcome = self.servers.attempt(server, &mut left[..count], None, &gave_up);
            match first_failure(outcome, &mut replies)? {
                None => {}
                Some(failure) if !is_passing(&failure) || self.gave_up(context) => match failure {
                    Failure::Unavailable(error) => return Err(error),
                    Failure::Reply(error) => {
                        replies.push(Err(error));
                        replies.resize(requests.len(), Err(Error::Skipped));
                    }
                },
                Some(failure) => {
                    if !is_logged && elapsed(begun) >= LOG_AFTER {
                        is_logged = true;
                        log::warn!("an op has been waiting for {} s: {}", LOG_AFTER.as_secs(), failure.error());
                    }
                    requests[replies.len()..].iter_mut().for_each(|request| request.retry = true);
                    if is_planted(Bug::RetryUnderNewId) {
                        requests.iter_mut().for_each(|request| request.op_id = self.renewed(request.op_id));
                    }
                    if is_planted(Bug::RepliesShifted) {
                        replies.extend(replies.last().cloned());
                    }
                    self.fetch_newer_map(&failure, &map, &mut asked);
                    if let Some(Recipient::Brick(brick)) = recipients.get(replies.len())
                        && self.is_replanned(&planned, *brick)
                    {
                        return Err(Error::StaleView { epoch: Epoch(0) });
                    }
                }
            }
        }
        Ok(replies)
    }

    /// True if a sync no longer needs this brick, or needs others as well, because the views changed since it was
    /// planned. The plan may be older than `planned`: a brick that no view has is never needed.
    fn is_replanned(&self, planned: &VolumeMap, brick: BrickId) -> bool {
        let now = self.map();
        now.views != planned.views || !now.views.iter().any(|view| view.has_member(brick))
    }

    /// Sets the targets of the remaining requests by the map. Returns the server of the first one, and how many in a
    /// row it serves.
    fn next_run(
        &self,
        map: &VolumeMap,
        recipients: &[Recipient],
        requests: &mut [Request],
    ) -> Result<(ServerId, usize)> {
        let mut run = None;
        for (count, (request, recipient)) in requests.iter_mut().zip(recipients).enumerate() {
            let (server, target) = self.resolve(map, *recipient)?;
            match run {
                Some(first) if first != server => return Ok((first, count)),
                _ => run = Some(server),
            }
            request.target = target;
        }
        Ok((run.unwrap_or(map.server), requests.len()))
    }

    /// The server of a recipient, and the target that a request to it names.
    fn resolve(&self, map: &VolumeMap, recipient: Recipient) -> Result<(ServerId, Target)> {
        let place = |brick| map.server_of(brick).ok_or_else(|| Error::bug("the map lacks a brick of one of its views"));
        Ok(match recipient {
            // The bricks of a sync were planned with an earlier map.
            Recipient::Brick(brick) => {
                let server = map.server_of(brick).ok_or(Error::StaleView { epoch: Epoch(0) })?;
                (server, Target::Brick { brick })
            }
            Recipient::Server => (self.servers.first(), Target::Server),
            Recipient::Leader(partition) => {
                let view = map.view(partition).ok_or_else(|| Error::bug("the map lacks a partition"))?;
                (place(view.leader)?, Target::Partition { ring: map.ring, partition, epoch: view.epoch })
            }
        })
    }

    fn gave_up(&self, context: &Context) -> bool {
        context.interrupted() || self.servers.is_closed()
    }

    /// True if requests to this server must now go to another one. A server that hangs or is cut off by the network
    /// does not close its connections, so a thread that waits for it has to check for a view without it.
    fn is_superseded(&self, used: &VolumeMap, server: ServerId, targets: &[Target]) -> bool {
        self.fetch_map_if_due();
        let now = self.map();
        targets.iter().any(|target| match *target {
            Target::Partition { partition, .. } => {
                self.resolve(&now, Recipient::Leader(partition)).is_ok_and(|(leader, _)| leader != server)
            }
            Target::Brick { brick } => {
                let was_left_out = |(old, new): (&View, &View)| old.has_member(brick) && !new.has_member(brick);
                used.views.iter().zip(&now.views).any(was_left_out)
            }
            Target::Replica { .. } | Target::Server => false,
        })
    }

    /// Fetches the map if that is due; one of the waiting threads does so for all.
    fn fetch_map_if_due(&self) {
        if is_planted(Bug::MapNotFetchedAgain) {
            return;
        }
        let Some(mut last) = self.map_fetched.try_lock() else { return };
        if elapsed(*last) >= WATCH_INTERVAL {
            if let Ok(map) = self.servers.map() {
                *self.map.write() = Arc::new(map);
            }
            *last = now();
        }
    }

    /// Waits a while and fetches the map. An unavailable server may come back, so the map is fetched only at intervals;
    /// a view that changed is in the next map, or soon will be.
    fn fetch_newer_map(&self, failure: &Failure, used: &VolumeMap, asked: &mut Instant) {
        let is_away = matches!(failure, Failure::Unavailable(_) | Failure::Reply(Error::Unavailable { .. }));
        if is_away {
            hekate_threads::sleep(RETRY_PAUSE);
            if elapsed(*asked) < MAP_INTERVAL {
                return;
            }
        }
        *asked = now();
        if !is_away && is_planted(Bug::MapNotFetchedAgain) {
            return hekate_threads::sleep(RETRY_PAUSE);
        }
        // Without a newer map the next attempt fails as this one did.
        let Ok(map) = self.servers.map() else { return hekate_threads::sleep(RETRY_PAUSE) };
        if !is_away && map.views == used.views {
            hekate_threads::sleep(RETRY_PAUSE);
        }
        *self.map.write() = Arc::new(map);
    }

    /// Makes one attempt to send an op to a server.
    pub(crate) fn tell(&self, server: ServerId, op: VolumeOp) -> Result<Reply> {
        let (volume, session) = (self.map().volume, self.session);
        let (op, target) = (Op::Volume { op }, Target::Server);
        let request =
            Request { volume, target, session, op_id: OpId(0), durable: false, retry: false, pledge: false, op };
        let replies =
            self.servers.attempt(server, &mut [request], Some(QUERY_ALL_LIMIT), &|| self.servers.is_closed())?;
        replies.into_iter().next().unwrap_or(Err(Error::bug("a batch has no reply")))
    }

    /// Sends an op to each server that has bricks of the volume, once; a heartbeat also to the server that opened the
    /// session, which ends it if it hears nothing. Servers that do not reply in 2 s are reported as unavailable.
    pub(crate) fn query_all(&self, op: &VolumeOp) -> Replies {
        let (mut servers, home) = (self.map().holders(), self.servers.first());
        if matches!(op, VolumeOp::Heartbeat { .. }) && !servers.contains(&home) {
            servers.push(home);
        }
        servers.into_iter().map(|server| self.tell(server, op.clone())).collect()
    }
}

/// Why a run was not completed.
enum Failure {
    /// The server is unavailable. It may or may not have executed the requests.
    Unavailable(Error),
    /// Reply to the first request that was not executed.
    Reply(Error),
}

impl Failure {
    fn error(&self) -> &Error {
        match self {
            Failure::Unavailable(error) | Failure::Reply(error) => error,
        }
    }
}

/// Appends the replies up to the first error, and returns that error.
fn first_failure(outcome: Result<Replies>, replies: &mut Replies) -> Result<Option<Failure>> {
    let found = match outcome {
        Err(error @ Error::Unavailable { .. }) => return Ok(Some(Failure::Unavailable(error))),
        other => other?,
    };
    for reply in found {
        match reply {
            Err(error) => return Ok(Some(Failure::Reply(error))),
            done => replies.push(done),
        }
    }
    Ok(None)
}

/// True if the request may succeed later or at another server. A leader that waits for a member replies `Unavailable`
/// after 2 s, so that a caller with a time limit can give up; any other caller sends the request again.
fn is_passing(failure: &Failure) -> bool {
    match failure {
        Failure::Unavailable(_) => true,
        Failure::Reply(error) => error.is_passing(),
    }
}

/// The servers of a partition's members, with the bricks of each. `None` if sending to all members has no advantage:
/// the view is not whole, or one server has all members.
fn servers_of(map: &VolumeMap, partition: PartitionNumber) -> Option<Vec<(ServerId, Vec<BrickId>)>> {
    let view = map.view(partition).filter(|view| view.whole)?;
    let mut servers: Vec<(ServerId, Vec<BrickId>)> = Vec::new();
    for member in &view.members {
        let server = map.server_of(member.brick)?;
        match servers.iter_mut().find(|(known, _)| *known == server) {
            Some((_, bricks)) => bricks.push(member.brick),
            None => servers.push((server, vec![member.brick])),
        }
    }
    (servers.len() > 1).then_some(servers)
}

/// An op id with its slot, until it is dropped.
pub(crate) struct OpTicket {
    pub op_id: OpId,
    slot: Vec<u8>,
    slots: Arc<Slots>,
}

impl Drop for OpTicket {
    fn drop(&mut self) {
        self.slots.release(std::mem::take(&mut self.slot));
    }
}

/// Slots of changes without a reply. No two of them share a slot, so a server remembers only the last result of each
/// slot.
struct Slots {
    free: Mutex<Vec<u8>>,
    returned: Condvar,
}

impl Slots {
    fn new() -> Self {
        Self { free: Mutex::new((0..SESSION_SLOTS).map(|slot| slot as u8).collect()), returned: Condvar::new() }
    }

    /// Takes all slots at once: two threads that each held some and waited for more would wait for each other.
    fn take(&self, count: usize) -> Vec<u8> {
        let mut free = self.free.lock();
        while free.len() < count.min(SESSION_SLOTS) {
            self.returned.wait(&mut free);
        }
        let rest = free.len() - count.min(SESSION_SLOTS);
        free.split_off(rest)
    }

    fn release(&self, slots: Vec<u8>) {
        if !slots.is_empty() {
            self.free.lock().extend(slots);
            self.returned.notify_all();
        }
    }
}
