//! `replicate`: which replica answers a request, and by which lane. Today there is one lane, the leader's.

use hekate_graph::Context;
use hekate_proto::map::VolumeMap;
use hekate_proto::{
    BrickId, Error, Op, OpId, PartitionNumber, Reply, Request, Result, SESSION_SLOTS, SessionId, Target,
};
use hekate_transport::Remote;
use parking_lot::{Condvar, Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who is to answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Whom {
    Leader(PartitionNumber),
    Brick(BrickId),
    Server,
}

/// Sends batches for one session.
pub struct Replicate {
    remote: Arc<Remote>,
    session: SessionId,
    map: RwLock<Arc<VolumeMap>>,
    slots: Slots,
    op_count: AtomicU64,
}

impl Replicate {
    /// For a session on a volume.
    pub fn new(remote: Arc<Remote>, session: SessionId, map: VolumeMap) -> Self {
        let map = RwLock::new(Arc::new(map));
        Self { remote, session, map, slots: Slots::new(), op_count: AtomicU64::new(1) }
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

    /// Sends ops that are to be done in this order; the first that fails ends the batch. A view that changed meanwhile
    /// is asked for and the batch sent again: what of it was done is answered, not repeated.
    pub(crate) fn send_all(&self, context: &Context, ops: Vec<(Whom, Op)>) -> Result<Vec<Result<Reply>>> {
        if ops.len() > SESSION_SLOTS && ops.iter().any(|(_, op)| !op.is_read()) {
            return Err(Error::invalid("more changes in a batch than a session has slots"));
        }
        let map = self.map();
        let (session, volume, durable) = (self.session, map.volume, context.durable);
        let mut whoms = Vec::with_capacity(ops.len());
        let mut requests = Vec::with_capacity(ops.len());
        for (whom, op) in ops {
            let target = target(&map, whom)?;
            whoms.push(whom);
            requests.push(Request { volume, target, session, op_id: OpId(0), durable, retry: false, op });
        }
        let changes = requests.iter().filter(|request| !request.op.is_read()).count();
        let slots = self.slots.take(changes);
        for (request, slot) in requests.iter_mut().filter(|request| !request.op.is_read()).zip(&slots) {
            request.op_id = OpId((self.op_count.fetch_add(1, Ordering::Relaxed) << 8) | u64::from(*slot));
        }
        let replies = self.send_in_view(context, &whoms, &mut requests);
        self.slots.give_back(slots);
        replies
    }

    fn send_in_view(&self, context: &Context, whoms: &[Whom], requests: &mut [Request]) -> Result<Vec<Result<Reply>>> {
        loop {
            let replies = self.remote.call(requests, &|| context.interrupted())?;
            if !replies.iter().any(|reply| matches!(reply, Err(Error::StaleView { .. }))) || context.interrupted() {
                return Ok(replies);
            }
            let map = Arc::new(self.remote.map()?);
            for (request, whom) in requests.iter_mut().zip(whoms) {
                request.target = target(&map, *whom)?;
                request.retry = true;
            }
            *self.map.write() = map;
        }
    }
}

fn target(map: &VolumeMap, whom: Whom) -> Result<Target> {
    Ok(match whom {
        Whom::Brick(brick) => Target::Brick { brick },
        Whom::Server => Target::Server,
        Whom::Leader(partition) => {
            let view = map.view(partition).ok_or_else(|| Error::bug("a partition that the map lacks"))?;
            Target::Partition { ring: map.ring, partition, epoch: view.epoch }
        }
    })
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
