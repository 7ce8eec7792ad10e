//! A batch of one session's requests: done in order, made durable together, answered together.

use crate::housekeeping::free_space;
use crate::locked::Locked;
use crate::node::Node;
use crate::partition::HostedRing;
use crate::repair::mend_range;
use crate::sessions::Session;
use crate::syncer::Needs;
use hekate_proto::*;
use hekate_replica::{Ask, Stop, answer, execute};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a batch's answers: a frame, with room.
const ANSWER_BYTES_MAX: usize = 14 << 20;
/// How often a name may lead to an inode that is gone by then; more often is damage.
const STALE_MAX: usize = 16;

impl Node {
    /// See the module. After a request that fails, the rest is `Skipped`.
    pub(crate) fn batch(&self, session: SessionId, requests: &[Request]) -> Vec<Result<Reply>> {
        let session = match self.sessions.get(session) {
            Ok(session) => session,
            Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
        };
        // What a retry repeats may still be on its way here, on a connection that was given up.
        if requests.iter().any(|request| request.retry) {
            drop(session.gate.write());
        }
        let _at_work = session.gate.read();
        let mut needs = Needs::default();
        let mut replies: Vec<Result<Reply>> = Vec::with_capacity(requests.len());
        let mut answer_bytes = 0;
        for request in requests {
            answer_bytes += answer_bytes_max(&request.op);
            let reply = match replies.last() {
                Some(Err(_)) => Err(Error::Skipped),
                _ if answer_bytes > ANSWER_BYTES_MAX => Err(Error::invalid("a batch whose answers do not fit a frame")),
                _ => self.request(&session, request, &mut needs),
            };
            replies.push(reply);
        }
        if !needs.is_empty()
            && let Err(error) = self.syncers.sync(needs)
        {
            for (request, reply) in requests.iter().zip(&mut replies) {
                if reply.is_ok() && (request.durable || matches!(request.target, Target::Brick { .. })) {
                    *reply = Err(error.clone());
                }
            }
        }
        replies
    }

    fn request(&self, session: &Arc<Session>, request: &Request, needs: &mut Needs) -> Result<Reply> {
        let begun = Instant::now();
        let reply = match request.target {
            Target::Partition { ring, partition, epoch } => {
                self.partition_op(session, request, (ring, partition, epoch), needs)
            }
            Target::Brick { brick } => self.brick_op(session, brick, &request.op, needs),
            Target::Server => self.volume_op(session, &request.op),
        };
        self.counters.count(request.op.label(), begun.elapsed(), reply.is_ok());
        reply
    }

    fn partition_op(
        &self,
        session: &Session,
        request: &Request,
        (ring_id, partition, epoch): (RingId, PartitionNumber, Epoch),
        needs: &mut Needs,
    ) -> Result<Reply> {
        let volume = self.volume(session.volume)?;
        if volume.ring != ring_id {
            return Err(Error::Denied { what: "the volume is not on that ring".into() });
        }
        let ring = self.ring(ring_id)?;
        let ask = Ask {
            ring: ring_id,
            count: ring.count(),
            volume: session.volume,
            session: session.id,
            op_id: request.op_id,
            now: Self::clock(),
            alone: false,
        };
        if request.op.is_read() {
            return self.read_op(&ring, &ask, request, partition, epoch);
        }
        let mut numbers = BTreeSet::from([partition]);
        let mut may_free = true;
        loop {
            let mut locked = Locked::lock(&ring, &ask, &numbers, &self.chores, &self.syncers)?;
            check_epoch(locked.hosted(partition).map_err(stopped)?.epoch, epoch)?;
            if request.retry
                && let Some(reply) = remembered(&locked, &ask, partition)?
            {
                self.need_everything(&ring, partition, request, needs)?;
                return Ok(reply);
            }
            // Counted under the locks: a session that saw the name before them counts, a later one finds it gone. One that
            // is not known here may have seen it on another server.
            let alone = ring.is_whole() && self.sessions.count(session.volume) == 1;
            let ask = Ask { alone, ..ask };
            match execute(&mut locked, &ask, &request.op) {
                Ok(reply) => {
                    if request.durable {
                        locked.add_needs(needs);
                    }
                    return Ok(reply);
                }
                Err(Stop::Lock(number)) => {
                    ring.may_go_on_in(number)?;
                    numbers.insert(number);
                }
                // What was deleted may still have its space.
                Err(Stop::Error(Error::NoSpace { .. })) if may_free && self.could_free_space() => {
                    may_free = false;
                    drop(locked);
                    free_space(self)?;
                }
                Err(Stop::Error(error)) => return Err(error),
            }
        }
    }

    /// A retry whose first attempt was done but perhaps not synced.
    fn need_everything(
        &self,
        ring: &HostedRing,
        partition: PartitionNumber,
        request: &Request,
        needs: &mut Needs,
    ) -> Result<()> {
        if request.durable {
            for member in &ring.read(partition)?.members {
                needs.journal(member, member.end());
                if let Op::Data { op: DataOp::WriteShard { data, index, .. } } = &request.op {
                    needs.shards(member, &[ShardId { volume: request.volume, data: *data, index: *index }]);
                }
            }
        }
        Ok(())
    }

    fn read_op(
        &self,
        ring: &HostedRing,
        ask: &Ask,
        request: &Request,
        partition: PartitionNumber,
        epoch: Epoch,
    ) -> Result<Reply> {
        for attempt in 0..STALE_MAX {
            let found = {
                let hosted = ring.read(partition)?;
                check_epoch(hosted.epoch, epoch)?;
                answer(hosted.brick(), ask, &request.op).map_err(stopped)
            };
            // A bad copy is answered from a good one, and mended.
            if attempt == 0
                && matches!(found, Err(Error::Damaged { .. } | Error::Io { .. }))
                && self.mend_read(request, ring)
            {
                continue;
            }
            let found = found?;
            let Reply::Elsewhere { inode, .. } = found else { return Ok(found) };
            // If the inode's leader is here as well, that saves the client the way. Gone by now: the name has changed.
            let Ok(hosted) = ring.read(ask.partition(inode.position())) else { return Ok(found) };
            let getattr = Op::Inode { op: InodeOp::GetAttr { inode } };
            match answer(hosted.brick(), ask, &getattr) {
                Err(Stop::Error(Error::Stale)) => {}
                settled => return settled.map_err(stopped),
            }
        }
        Err(Error::Stale)
    }

    /// Whether something was mended; if not, the reader is told of the damage, not of why it stays.
    fn mend_read(&self, request: &Request, ring: &HostedRing) -> bool {
        let Op::Data { op: DataOp::ReadShard { data, index, offset, length } } = &request.op else { return false };
        let shard = ShardId { volume: request.volume, data: *data, index: *index };
        mend_range(self, ring.ring, shard, *offset, *length).unwrap_or(false)
    }

    fn brick_op(&self, session: &Session, brick: BrickId, op: &Op, needs: &mut Needs) -> Result<Reply> {
        let Op::Data { op: DataOp::Sync { shards, all } } = op else {
            return Err(Error::Protocol { what: "a brick is asked for syncs only".into() });
        };
        if shards.iter().any(|shard| shard.volume != session.volume) {
            return Err(Error::Denied { what: "a shard of another volume".into() });
        }
        let brick = self
            .bricks
            .get(&brick)
            .ok_or_else(|| Error::Unavailable { what: format!("brick {} is not here", brick.text()) })?;
        needs.journal(brick, brick.end());
        needs.shards(brick, shards);
        if *all {
            needs.shards(brick, &brick.unsynced_shards());
        }
        Ok(Reply::Done)
    }

    fn volume_op(&self, session: &Session, op: &Op) -> Result<Reply> {
        let Op::Volume { op } = op else {
            return Err(Error::Protocol { what: "a server is asked for volume ops only".into() });
        };
        match op {
            VolumeOp::StatFs => Ok(Reply::Space { space: self.volume_space(session.volume)? }),
            VolumeOp::Heartbeat { unused } => {
                let chores = self.chores.lock();
                let orphans = chores.orphans.iter().filter(|(_, volume, _)| *volume == session.volume);
                let inodes = session.heartbeat(unused, orphans.map(|(_, _, inode)| *inode));
                Ok(Reply::Orphans { inodes })
            }
            VolumeOp::EndSession => {
                self.end_session(session.id)?;
                Ok(Reply::Done)
            }
        }
    }
}

/// Most bytes that an op is answered with.
fn answer_bytes_max(op: &Op) -> usize {
    /// An entry with its attributes.
    const ENTRY: usize = 512;
    match op {
        Op::Data { op: DataOp::Read { length, .. } | DataOp::ReadShard { length, .. } } => *length as usize + ENTRY,
        Op::Name { op: NameOp::List { limit, .. } } => (*limit as usize).min(4096) * ENTRY,
        Op::Inode { op: InodeOp::GetXattr { .. } } => 65 << 10,
        Op::Inode { op: InodeOp::ListXattr { .. } } => 33 << 10,
        Op::Volume { .. } => 32 << 10,
        _ => ENTRY,
    }
}

pub(crate) fn stopped(stop: Stop) -> Error {
    match stop {
        Stop::Error(error) => error,
        Stop::Lock(number) => Error::bug(format!("a read that needs partition {number} as well")),
    }
}

fn check_epoch(now: Epoch, asked: Epoch) -> Result<()> {
    if now == asked { Ok(()) } else { Err(Error::StaleView { epoch: now }) }
}

/// The answer that the op got when it was done before.
fn remembered(locked: &Locked, ask: &Ask, partition: PartitionNumber) -> Result<Option<Reply>> {
    let brick = locked.hosted(partition).map_err(stopped)?.brick();
    let slot = (ask.op_id.0 % SESSION_SLOTS as u64) as u16;
    let key = Key::session(ask.ring, partition.first_position(ask.count), ask.session, slot);
    let Some(value) = brick.get(&key)? else { return Ok(None) };
    let record = SessionRecord::from_bytes(value)?;
    if record.op_id != ask.op_id {
        return Ok(None);
    }
    Ok(Some(Reply::from_bytes(record.reply)?))
}
