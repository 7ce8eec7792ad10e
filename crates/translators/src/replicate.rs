//! `replicate`: which replica answers a request, where it is, and by which lane: the leader's, or the fast one (`fast.rs`).
//!
//! A batch is cut into runs of requests for the same server, which are sent one after the other: what is to be done in
//! order is done in order, wherever it is done.

mod fast;
mod raw;

use fast::FastShards;
pub(crate) use fast::Flight;
use hekate_graph::Context;
use hekate_proto::map::{View, VolumeMap};
use hekate_proto::{
    BrickId, Epoch, Error, Op, OpId, PartitionNumber, Reply, Request, Result, SESSION_SLOTS, ServerId, SessionId,
    Target, VolumeOp,
};
use hekate_transport::Servers;
use parking_lot::{Condvar, Mutex, RwLock};
use raw::RawLanes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Before a server that is away, or a map that has not changed yet, is tried again.
const AGAIN_PAUSE: Duration = Duration::from_millis(50);
/// A server that is away may be somewhere else: the map is asked for so often meanwhile.
const MAP_PAUSE: Duration = Duration::from_millis(250);
/// While a server keeps somebody waiting the map is asked for so often, once for all who wait.
const WATCH_PAUSE: Duration = Duration::from_millis(500);
/// An op that waits for longer is told of in the log, with what is in its way.
const TOLD_AFTER: Duration = Duration::from_secs(10);
/// How long each server may take for what all are asked for; one that hangs must not make the others wait.
const ASK_ALL_LIMIT: Duration = Duration::from_secs(2);

/// Who is to answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Whom {
    Leader(PartitionNumber),
    Brick(BrickId),
    /// The server where the session was opened.
    Server,
}

/// Sends batches for one session.
pub struct Replicate {
    servers: Arc<Servers>,
    session: SessionId,
    map: RwLock<Arc<VolumeMap>>,
    /// When the map was asked for last by one who waits for an answer.
    watched: Mutex<Instant>,
    slots: Arc<Slots>,
    op_count: AtomicU64,
    fast: FastShards,
    raw: RawLanes,
}

impl Replicate {
    /// For a session on a volume.
    pub fn new(servers: Arc<Servers>, session: SessionId, map: VolumeMap) -> Self {
        let map = RwLock::new(Arc::new(map));
        Self {
            servers,
            session,
            map,
            watched: Mutex::new(Instant::now()),
            slots: Arc::new(Slots::new()),
            op_count: AtomicU64::new(1),
            fast: FastShards::default(),
            raw: RawLanes::default(),
        }
    }

    /// The map as last handed out.
    pub(crate) fn map(&self) -> Arc<VolumeMap> {
        self.map.read().clone()
    }

    /// Sends one op.
    pub(crate) fn send(&self, context: &Context, whom: Whom, op: Op) -> Result<Reply> {
        let mut replies = self.send_all(context, vec![(whom, op)])?;
        replies.pop().unwrap_or(Err(Error::bug("a batch without a reply")))
    }

    /// Sends ops that are to be done in this order; the first that fails ends the batch, the rest is `Skipped`. If a view
    /// changed meanwhile the map is asked for anew and what is left of the batch sent again: what of it was done is
    /// answered, not repeated.
    pub(crate) fn send_all(&self, context: &Context, ops: Vec<(Whom, Op)>) -> Result<Vec<Result<Reply>>> {
        if ops.len() > SESSION_SLOTS && ops.iter().any(|(_, op)| !op.is_read()) {
            return Err(Error::invalid("more changes in a batch than a session has slots"));
        }
        let map = self.map();
        let (session, volume, durable) = (self.session, map.volume, context.durable);
        let mut whoms = Vec::with_capacity(ops.len());
        let mut requests = Vec::with_capacity(ops.len());
        for (whom, op) in ops {
            let (_, target) = self.aim(&map, whom)?;
            whoms.push(whom);
            requests.push(Request { volume, target, session, op_id: OpId(0), durable, retry: false, op });
        }
        let changes = requests.iter().filter(|request| !request.op.is_read()).count();
        let slots = self.slots.take(changes);
        for (request, slot) in requests.iter_mut().filter(|request| !request.op.is_read()).zip(&slots) {
            request.op_id = self.op_id(*slot);
        }
        let replies = self.send_runs(context, &whoms, &mut requests);
        self.slots.give_back(slots);
        replies
    }

    /// An op id, with its slot, for an op that is sent more than once by its own will.
    pub(crate) fn ticket(&self) -> OpTicket {
        let slot = self.slots.take(1);
        let op_id = self.op_id(slot.first().copied().unwrap_or_default());
        OpTicket { op_id, slot, slots: self.slots.clone() }
    }

    /// An id that no op has.
    pub(crate) fn unused_id(&self) -> OpId {
        self.op_id(0)
    }

    fn op_id(&self, slot: u8) -> OpId {
        OpId((self.op_count.fetch_add(1, Ordering::Relaxed) << 8) | u64::from(slot))
    }

    /// As `send`, under this id.
    pub(crate) fn send_as(&self, context: &Context, op_id: OpId, whom: Whom, op: Op) -> Result<Reply> {
        let request = self.request(whom, op_id, op)?;
        let mut replies = self.send_runs(context, &[whom], &mut [request])?;
        replies.pop().unwrap_or(Err(Error::bug("a batch without a reply")))
    }

    /// A durable change that may have been done under this id, or begun.
    fn send_again(&self, context: &Context, op_id: OpId, whom: Whom, op: Op) -> Result<Reply> {
        let request = Request { durable: context.durable, retry: true, ..self.request(whom, op_id, op)? };
        let mut replies = self.send_runs(context, &[whom], &mut [request])?;
        replies.pop().unwrap_or(Err(Error::bug("a batch without a reply")))
    }

    /// One attempt, which whoever asks makes again later. `retry`: it waits for all that the session has on its way there.
    pub(crate) fn attempt(&self, op_id: OpId, retry: bool, whom: Whom, op: Op, limit: Duration) -> Result<Reply> {
        let mut request = self.request(whom, op_id, op)?;
        request.retry = retry;
        let (server, _) = self.aim(&self.map(), whom)?;
        let replies = self.servers.attempt(server, &mut [request], Some(limit), &|| self.servers.is_closed())?;
        let reply = replies.into_iter().next().unwrap_or(Err(Error::bug("a batch without a reply")));
        if let Err(Error::StaleView { .. } | Error::OtherServer { .. }) = reply {
            *self.map.write() = Arc::new(self.servers.map()?);
            return Err(Error::Unavailable { what: "the partition has another view".into() });
        }
        reply
    }

    fn request(&self, whom: Whom, op_id: OpId, op: Op) -> Result<Request> {
        let map = self.map();
        let (_, target) = self.aim(&map, whom)?;
        let (volume, session) = (map.volume, self.session);
        Ok(Request { volume, target, session, op_id, durable: false, retry: false, op })
    }

    /// Where one who answers is, by the map as last handed out.
    pub(crate) fn server_of(&self, whom: Whom) -> Result<ServerId> {
        self.aim(&self.map(), whom).map(|(server, _)| server)
    }

    /// The volume's servers.
    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Whose.
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    fn send_runs(&self, context: &Context, whoms: &[Whom], requests: &mut [Request]) -> Result<Vec<Result<Reply>>> {
        let mut replies: Vec<Result<Reply>> = Vec::with_capacity(requests.len());
        let (begun, mut asked, mut is_told) = (Instant::now(), Instant::now(), false);
        let planned = self.map();
        while replies.len() < requests.len() {
            let (done, map) = (replies.len(), self.map());
            let left = &mut requests[done..];
            let (server, count) = self.next_run(&map, &whoms[done..], left)?;
            let targets: Vec<Target> = left[..count].iter().map(|request| request.target).collect();
            let gave_up = || self.gave_up(context) || self.is_superseded(&map, server, &targets);
            let outcome = self.servers.attempt(server, &mut left[..count], None, &gave_up);
            match first_failure(outcome, &mut replies)? {
                None => {}
                Some(failure) if !is_passing(&failure) || self.gave_up(context) => match failure {
                    Failure::Away(error) => return Err(error),
                    Failure::Answer(error) => {
                        replies.push(Err(error));
                        replies.resize(requests.len(), Err(Error::Skipped));
                    }
                },
                Some(failure) => {
                    if !is_told && begun.elapsed() >= TOLD_AFTER {
                        is_told = true;
                        log::warn!("an op waits for {} s by now: {}", TOLD_AFTER.as_secs(), failure.error());
                    }
                    requests[replies.len()..].iter_mut().for_each(|request| request.retry = true);
                    self.wait_for_another_map(&failure, &map, &mut asked);
                    if let Some(Whom::Brick(brick)) = whoms.get(replies.len())
                        && self.is_replanned(&planned, *brick)
                    {
                        return Err(Error::StaleView { epoch: Epoch(0) });
                    }
                }
            }
        }
        Ok(replies)
    }

    /// Whether other bricks are to be asked by now than when it was planned to ask this one. The plan may be older than
    /// `planned`: of a brick that no view has any more nothing is wanted, whenever that came.
    fn is_replanned(&self, planned: &VolumeMap, brick: BrickId) -> bool {
        let now = self.map();
        now.views != planned.views || !now.views.iter().any(|view| view.has_member(brick))
    }

    /// Aims what is left by the map. -> the server of the first request, and how many in a row are for it.
    fn next_run(&self, map: &VolumeMap, whoms: &[Whom], requests: &mut [Request]) -> Result<(ServerId, usize)> {
        let mut run = None;
        for (count, (request, whom)) in requests.iter_mut().zip(whoms).enumerate() {
            let (server, target) = self.aim(map, *whom)?;
            match run {
                Some(first) if first != server => return Ok((first, count)),
                _ => run = Some(server),
            }
            request.target = target;
        }
        Ok((run.unwrap_or(map.server), requests.len()))
    }

    fn aim(&self, map: &VolumeMap, whom: Whom) -> Result<(ServerId, Target)> {
        let place = |brick| map.server_of(brick).ok_or_else(|| Error::bug("a brick that the map lacks"));
        Ok(match whom {
            // Which bricks are to be asked was planned with an earlier map.
            Whom::Brick(brick) => {
                let server = map.server_of(brick).ok_or(Error::StaleView { epoch: Epoch(0) })?;
                (server, Target::Brick { brick })
            }
            Whom::Server => (self.servers.first(), Target::Server),
            Whom::Leader(partition) => {
                let view = map.view(partition).ok_or_else(|| Error::bug("a partition that the map lacks"))?;
                (place(view.leader)?, Target::Partition { ring: map.ring, partition, epoch: view.epoch })
            }
        })
    }

    fn gave_up(&self, context: &Context) -> bool {
        context.interrupted() || self.servers.is_closed()
    }

    /// Whether others than this server are to be asked by now. One that hangs, or that the network cut off, ends no
    /// connection: who waits for it has to look whether a view was formed without it.
    fn is_superseded(&self, used: &VolumeMap, server: ServerId, targets: &[Target]) -> bool {
        self.watch();
        let now = self.map();
        targets.iter().any(|target| match *target {
            Target::Partition { partition, .. } => {
                self.aim(&now, Whom::Leader(partition)).is_ok_and(|(leader, _)| leader != server)
            }
            Target::Brick { brick } => {
                let was_left_out = |(old, new): (&View, &View)| old.has_member(brick) && !new.has_member(brick);
                used.views.iter().zip(&now.views).any(was_left_out)
            }
            Target::Replica { .. } | Target::Server => false,
        })
    }

    /// Asks for the map now and then; one of those who wait does so for all.
    fn watch(&self) {
        let Some(mut last) = self.watched.try_lock() else { return };
        if last.elapsed() >= WATCH_PAUSE {
            if let Ok(map) = self.servers.map() {
                *self.map.write() = Arc::new(map);
            }
            *last = Instant::now();
        }
    }

    /// What is away may come back where it was, so the map is only asked for now and then. A view that has changed is in
    /// the next map, or soon will be.
    fn wait_for_another_map(&self, failure: &Failure, used: &VolumeMap, asked: &mut Instant) {
        let is_away = matches!(failure, Failure::Away(_) | Failure::Answer(Error::Unavailable { .. }));
        if is_away {
            std::thread::sleep(AGAIN_PAUSE);
            if asked.elapsed() < MAP_PAUSE {
                return;
            }
        }
        *asked = Instant::now();
        // Without one the next attempt fails as this one did.
        let Ok(map) = self.servers.map() else { return std::thread::sleep(AGAIN_PAUSE) };
        if !is_away && map.views == used.views {
            std::thread::sleep(AGAIN_PAUSE);
        }
        *self.map.write() = Arc::new(map);
    }

    /// Asks each server that has bricks of the volume, once: what a volume op says or asks is theirs together. Those
    /// that are away are left out.
    pub(crate) fn ask_all(&self, op: &VolumeOp) -> Vec<Result<Reply>> {
        let map = self.map();
        let ask = |server: ServerId| {
            let (volume, session) = (map.volume, self.session);
            let op = Op::Volume { op: op.clone() };
            let target = Target::Server;
            let request = Request { volume, target, session, op_id: OpId(0), durable: false, retry: false, op };
            let replies =
                self.servers.attempt(server, &mut [request], Some(ASK_ALL_LIMIT), &|| self.servers.is_closed())?;
            replies.into_iter().next().unwrap_or(Err(Error::bug("a batch without a reply")))
        };
        map.holders().into_iter().map(ask).collect()
    }
}

/// Why a run did not end well.
enum Failure {
    /// Its server could not be reached: nothing is known of what was sent.
    Away(Error),
    /// The first request that is not done was answered so.
    Answer(Error),
}

impl Failure {
    fn error(&self) -> &Error {
        match self {
            Failure::Away(error) | Failure::Answer(error) => error,
        }
    }
}

/// Takes the replies up to the first that is an error.
fn first_failure(outcome: Result<Vec<Result<Reply>>>, replies: &mut Vec<Result<Reply>>) -> Result<Option<Failure>> {
    let found = match outcome {
        Err(error @ Error::Unavailable { .. }) => return Ok(Some(Failure::Away(error))),
        settled => settled?,
    };
    for reply in found {
        match reply {
            Err(error) => return Ok(Some(Failure::Answer(error))),
            done => replies.push(done),
        }
    }
    Ok(None)
}

/// Whether the same request may succeed elsewhere or later. A leader that waits for a member says so after a while, for
/// those who have to give up; all others go on waiting.
fn is_passing(failure: &Failure) -> bool {
    match failure {
        Failure::Away(_) => true,
        Failure::Answer(error) => error.is_passing(),
    }
}

/// The servers of a partition's members, with the bricks of each; none if there is nothing to gain: one server has all, or
/// there is one member only.
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

/// An op's id, and its slot until it is dropped.
pub(crate) struct OpTicket {
    pub op_id: OpId,
    slot: Vec<u8>,
    slots: Arc<Slots>,
}

impl Drop for OpTicket {
    fn drop(&mut self) {
        self.slots.give_back(std::mem::take(&mut self.slot));
    }
}

/// Slots of unanswered changes: no two of them share one, so a server need only remember the last result of each.
struct Slots {
    free: Mutex<Vec<u8>>,
    returned: Condvar,
}

impl Slots {
    fn new() -> Self {
        Self { free: Mutex::new((0..SESSION_SLOTS).map(|slot| slot as u8).collect()), returned: Condvar::new() }
    }

    /// All at once: who held some and waited for more could wait for another who does the same.
    fn take(&self, count: usize) -> Vec<u8> {
        let mut free = self.free.lock();
        while free.len() < count.min(SESSION_SLOTS) {
            self.returned.wait(&mut free);
        }
        let rest = free.len() - count.min(SESSION_SLOTS);
        free.split_off(rest)
    }

    fn give_back(&self, slots: Vec<u8>) {
        if !slots.is_empty() {
            self.free.lock().extend(slots);
            self.returned.notify_all();
        }
    }
}
