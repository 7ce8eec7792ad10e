//! The fast path: a write goes from the client to all members of its partition's view at once, and is
//! acknowledged when all have replied.
//!
//! A leader allows it in its reply to a write of the same shard. From then on each write names the stamp that it
//! follows, and only one write of a shard is in flight. A write that not all members accept is sent to the leader
//! under the same op id, and the leader determines its outcome; an op uses the fast path once (rules F3 to F5 of
//! `docs/fast-lane.md`).

use super::{OpTicket, Recipient, Replicate, servers_of};
use bytes::Bytes;
use hekate_graph::Context;
use hekate_proto::map::Mode;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_threads::{Condvar, HashMap, Mutex};
use hekate_transport::PendingBatch;

/// Longest fast write, in bytes. Longer ones gain nothing: the transfer dominates the round trip.
const FAST_BYTES_MAX: usize = 64 << 10;
/// Shards remembered. A leader closes shards that no client writes.
const SHARDS_MAX: usize = 4096;

/// What a leader has allowed for a shard.
#[derive(Debug, Clone, Copy)]
struct Allowed {
    epoch: Epoch,
    term: u64,
    stamp: Stamp,
    /// True if all members are known to have the write of `stamp`.
    settled: bool,
}

#[derive(Debug)]
enum Lane {
    Free(Allowed),
    /// A write is in flight.
    Busy,
}

/// Shards that the session may write on the fast path.
#[derive(Debug, Default)]
pub(super) struct FastShards {
    lanes: Mutex<HashMap<ShardId, Lane>>,
    freed: Condvar,
}

impl FastShards {
    /// Takes the shard. Waits while a write is in flight, since the next one must follow it.
    fn take(&self, shard: ShardId) -> Option<Allowed> {
        let mut lanes = self.lanes.lock();
        loop {
            let lane = lanes.get_mut(&shard)?;
            if let Lane::Free(allowed) = *lane {
                *lane = Lane::Busy;
                return Some(allowed);
            }
            self.freed.wait(&mut lanes);
        }
    }

    fn release(&self, shard: ShardId, allowed: Option<Allowed>) {
        let mut lanes = self.lanes.lock();
        lanes.remove(&shard);
        if let Some(allowed) = allowed {
            lanes.insert(shard, Lane::Free(allowed));
        }
        drop(lanes);
        self.freed.notify_all();
    }

    /// Stores what a leader replied. `None`: the leader has closed the shard.
    fn allow(&self, shard: ShardId, allowed: Option<Allowed>) {
        let mut lanes = self.lanes.lock();
        if matches!(lanes.get(&shard), Some(Lane::Busy)) {
            return;
        }
        let Some(allowed) = allowed else {
            lanes.remove(&shard);
            return;
        };
        if lanes.len() >= SHARDS_MAX {
            lanes.retain(|_, lane| matches!(lane, Lane::Busy));
        }
        lanes.insert(shard, Lane::Free(allowed));
    }
}

/// A fast write in flight.
pub(crate) struct Flight<'a> {
    replicate: &'a Replicate,
    shard: ShardId,
    /// The permission for the next write, if this one succeeds.
    after: Allowed,
    ticket: OpTicket,
    /// Op id and slot of the change that is sent beside the write. Both slots are taken at once: flights that each hold
    /// one slot and wait for a second one would deadlock.
    beside: OpTicket,
    sent: Vec<Box<dyn PendingBatch>>,
    /// True if the write could not be sent to some member.
    failed: bool,
    ended: bool,
}

impl Replicate {
    /// True if a write is eligible for the fast path: the volume's mode has it, the write is short, and several
    /// servers have members.
    pub(crate) fn may_be_fast(&self, shard: ShardId, bytes: usize) -> bool {
        let map = self.map();
        let is_wanted = bytes <= FAST_BYTES_MAX && map.mode == Mode::Hsr;
        is_wanted && servers_of(&map, map.partition_of(shard.position())).is_some()
    }

    /// Sends a write to all members, if the leader of its shard has allowed that.
    /// `offset` is in the shard.
    pub(crate) fn begin_fast(
        &self,
        context: &Context,
        shard: ShardId,
        offset: u32,
        bytes: &Bytes,
    ) -> Option<Flight<'_>> {
        let map = self.map();
        let partition = map.partition_of(shard.position());
        let servers = servers_of(&map, partition)?;
        let allowed = self.fast.take(shard)?;
        let epoch = map.view(partition).map(|view| view.epoch);
        if epoch != Some(allowed.epoch) {
            self.fast.release(shard, None);
            return None;
        }
        let Allowed { term, stamp: follow, settled, .. } = allowed;
        let [ticket, beside] = self.tickets();
        let op = DataOp::FastWrite {
            data: shard.data,
            index: shard.index,
            offset,
            bytes: bytes.clone(),
            follow,
            settled,
            term,
        };
        let request = |brick: BrickId| {
            let target = Target::Replica { ring: map.ring, partition, epoch: allowed.epoch, brick };
            let (volume, session, op_id) = (map.volume, self.session, ticket.op_id);
            let (durable, op) = (context.durable, Op::Data { op: op.clone() });
            Request { volume, target, session, op_id, durable, retry: false, pledge: false, op }
        };
        let gave_up = || self.gave_up(context);
        let (mut sent, mut failed) = (Vec::with_capacity(servers.len()), false);
        for (server, bricks) in servers {
            let requests: Vec<Request> = bricks.into_iter().map(&request).collect();
            match self.servers.begin(server, &requests, &gave_up) {
                Ok(batch) => sent.push(batch),
                Err(_) => failed = true,
            }
        }
        let stamp = Stamp { count: follow.count + 1, session: self.session, op: ticket.op_id };
        let after = Allowed { stamp, settled: true, ..allowed };
        Some(Flight { replicate: self, shard, after, ticket, beside, sent, failed, ended: false })
    }

    /// Stores what the reply to a write on the leader's path allows.
    pub(crate) fn note_allowed(&self, shard: ShardId, reply: &Reply) {
        let Reply::Written { stamp, fast } = *reply else { return };
        let map = self.map();
        let Some(view) = map.view(map.partition_of(shard.position())) else { return };
        // A leader replies when all members have the write.
        let allowed = fast.map(|term| Allowed { epoch: view.epoch, term, stamp, settled: true });
        self.fast.allow(shard, allowed);
    }
}

impl Flight<'_> {
    /// Sends one other change while the write is in flight, and waits for its reply.
    pub(crate) fn send_beside(&self, context: &Context, recipient: Recipient, op: Op) -> Result<Reply> {
        self.replicate.send_asking_grant(context, self.beside.op_id, recipient, op)
    }

    /// Waits for all members. If one has not accepted the write, the leader determines its outcome. True if all
    /// members accepted it, false if the leader executed it.
    pub(crate) fn finish(mut self, context: &Context, offset: u32, bytes: &Bytes) -> Result<bool> {
        let replicate = self.replicate;
        let partition = replicate.map().partition_of(self.shard.position());
        let is_another_view = || {
            replicate.fetch_map_if_due();
            replicate.map().view(partition).is_none_or(|view| view.epoch != self.after.epoch)
        };
        let gave_up = || replicate.gave_up(context) || is_another_view();
        let mut is_done = !self.failed;
        for batch in std::mem::take(&mut self.sent) {
            let taken = |reply: &Result<Reply>| {
                matches!(reply, Ok(Reply::Written { stamp, .. }) if *stamp == self.after.stamp)
                    || is_planted(Bug::RefusedFastWriteDone)
            };
            is_done &= batch.finish(&gave_up).is_ok_and(|replies| replies.iter().all(taken));
        }
        self.ended = true;
        replicate.fast.release(self.shard, is_done.then_some(self.after));
        if is_done {
            return Ok(true);
        }
        let ShardId { data, index, .. } = self.shard;
        let op = DataOp::WriteShard { data, index, offset, bytes: bytes.clone(), follow: None, fast: true };
        let (op_id, leader) = (self.ticket.op_id, Recipient::Leader(partition));
        let op_id = if is_planted(Bug::FastWriteRepeatedUnderNewId) { replicate.renewed(op_id) } else { op_id };
        let reply = replicate.send_change(context, op_id, true, leader, Op::Data { op })?;
        replicate.note_allowed(self.shard, &reply);
        Ok(false)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.replicate.fast.release(self.shard, None);
        }
    }
}
