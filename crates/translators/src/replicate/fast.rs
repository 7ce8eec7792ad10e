//! The fast lane (High Speed Replication): an overwrite goes from here to all members of its partition's view at once, and is
//! done when all have answered.
//!
//! A leader allows it with its answer to a write of the same shard: from then on each write names the stamp that it
//! follows. Only one is on its way for a shard. Whatever does not end well goes to the leader under the same id, which
//! finds out what became of it; an op goes on the fast lane once (rules 3 to 5 of `docs/fast-lane.md`).

use super::{OpTicket, Replicate, Whom, servers_of};
use bytes::Bytes;
use hekate_graph::Context;
use hekate_proto::map::Mode;
use hekate_proto::*;
use hekate_transport::Sent;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;

/// Bytes of the greatest fast write.
const FAST_BYTES_MAX: usize = 64 << 10;
/// Shards that are remembered; a leader closes what nobody uses.
const SHARDS_MAX: usize = 4096;

/// What a leader has allowed.
#[derive(Debug, Clone, Copy)]
struct Allowed {
    epoch: Epoch,
    term: u64,
    stamp: Stamp,
    /// All members are known to have that write.
    settled: bool,
}

#[derive(Debug)]
enum Lane {
    Free(Allowed),
    /// A write is on its way.
    Busy,
}

/// Shards that the session may write on the fast lane.
#[derive(Debug, Default)]
pub(super) struct FastShards {
    lanes: Mutex<HashMap<ShardId, Lane>>,
    freed: Condvar,
}

impl FastShards {
    /// Waits while another write is on its way: it would have to be followed.
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

    fn give_back(&self, shard: ShardId, allowed: Option<Allowed>) {
        let mut lanes = self.lanes.lock();
        lanes.remove(&shard);
        if let Some(allowed) = allowed {
            lanes.insert(shard, Lane::Free(allowed));
        }
        drop(lanes);
        self.freed.notify_all();
    }

    /// None: the leader has closed the shard.
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

/// A fast write on its way.
pub(crate) struct Flight<'a> {
    replicate: &'a Replicate,
    shard: ShardId,
    /// What the next write may follow.
    after: Allowed,
    ticket: OpTicket,
    sent: Vec<Sent>,
    /// Some member was not reached.
    failed: bool,
    ended: bool,
}

impl Replicate {
    /// Whether a write may end up on the fast lane: the volume wants it, and it is worth it.
    pub(crate) fn may_be_fast(&self, shard: ShardId, bytes: usize) -> bool {
        let map = self.map();
        let is_wanted = bytes <= FAST_BYTES_MAX && map.mode == Mode::Hsr;
        is_wanted && servers_of(&map, map.partition_of(shard.position())).is_some()
    }

    /// Sends a write to all members, if the leader of its shard has allowed that.
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
            self.fast.give_back(shard, None);
            return None;
        }
        let Allowed { term, stamp: follow, settled, .. } = allowed;
        let ticket = self.ticket();
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
            Request { volume, target, session, op_id, durable, retry: false, op }
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
        Some(Flight { replicate: self, shard, after, ticket, sent, failed, ended: false })
    }

    /// What the answer to a write on the leader's lane allows.
    pub(crate) fn note_allowed(&self, shard: ShardId, reply: &Reply) {
        let Reply::Written { stamp, fast } = *reply else { return };
        let map = self.map();
        let Some(view) = map.view(map.partition_of(shard.position())) else { return };
        // The answer came when all members had it.
        let allowed = fast.map(|term| Allowed { epoch: view.epoch, term, stamp, settled: true });
        self.fast.allow(shard, allowed);
    }
}

impl Flight<'_> {
    /// Waits for all members. If one of them has not taken the write, the leader finds out what became of it. -> whether it was
    /// done by all at once.
    pub(crate) fn finish(mut self, context: &Context, offset: u32, bytes: &Bytes) -> Result<bool> {
        let replicate = self.replicate;
        let partition = replicate.map().partition_of(self.shard.position());
        let is_another_view = || {
            replicate.watch();
            replicate.map().view(partition).is_none_or(|view| view.epoch != self.after.epoch)
        };
        let gave_up = || replicate.gave_up(context) || is_another_view();
        let mut is_done = !self.failed;
        for batch in std::mem::take(&mut self.sent) {
            let taken =
                |reply: &Result<Reply>| matches!(reply, Ok(Reply::Written { stamp, .. }) if *stamp == self.after.stamp);
            is_done &= batch.finish(&gave_up).is_ok_and(|replies| replies.iter().all(taken));
        }
        self.ended = true;
        replicate.fast.give_back(self.shard, is_done.then_some(self.after));
        if is_done {
            return Ok(true);
        }
        let ShardId { data, index, .. } = self.shard;
        let op = DataOp::WriteShard { data, index, offset, bytes: bytes.clone(), follow: None, fast: true };
        let reply = replicate.send_again(context, self.ticket.op_id, Whom::Leader(partition), Op::Data { op })?;
        replicate.note_allowed(self.shard, &reply);
        Ok(false)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.replicate.fast.give_back(self.shard, None);
        }
    }
}
