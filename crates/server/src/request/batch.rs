//! A batch of one session's requests: done in order, made durable together, answered together.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::maintenance::housekeeping::free_space;
use crate::maintenance::repair::{mend_entries, mend_range};
use crate::reports::mapping;
use crate::reports::op_statistics::{SlowOp, about};
use crate::request::sessions::Session;
use crate::request::syncer::Needs;
use crate::request::turn::Turn;
use hekate_cluster::VolumeInfo;
use hekate_proto::map::View;
use hekate_proto::*;
use hekate_replica::{Address, Ask, Event, is_access_due};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Bytes of a batch's answers: a frame, with room.
const ANSWER_BYTES_MAX: usize = 14 << 20;
/// How often a name may lead to an inode that is gone by then; more often is damage.
const STALE_MAX: usize = 16;

/// What a batch has changed that must be durable before it is answered: partitions of its volume's ring, with the shards
/// that it wrote.
#[derive(Default)]
struct Changed {
    ring: Option<Arc<HostedRing>>,
    /// The volume takes what its leaders have for enough.
    early: bool,
    partitions: BTreeMap<PartitionNumber, Vec<ShardId>>,
}

impl Changed {
    fn note(&mut self, ring: &Arc<HostedRing>, partition: PartitionNumber, request: &Request) {
        self.ring.get_or_insert_with(|| ring.clone());
        let shards = self.partitions.entry(partition).or_default();
        // Earlier bytes of the shard that only a sync of its data file covers are not to be lost below later ones.
        if let Op::Data {
            op:
                DataOp::WriteShard { data, index, .. }
                | DataOp::AllocateShard { data, index, .. }
                | DataOp::CopyShard { data, index, .. },
        } = &request.op
        {
            shards.push(ShardId { volume: request.volume, data: *data, index: *index });
        }
    }
}

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
        let (mut needs, mut changed) = (Needs::default(), Changed::default());
        let mut replies: Vec<Result<Reply>> = Vec::with_capacity(requests.len());
        let mut answer_bytes = 0;
        let (busy, mut took) = (self.at_work.busy(), Vec::with_capacity(requests.len()));
        for request in requests {
            let begun = Instant::now();
            busy.with(&request.op, session.id);
            answer_bytes += answer_bytes_max(&request.op);
            let reply = match replies.last() {
                Some(Err(_)) => Err(Error::Skipped),
                _ if answer_bytes > ANSWER_BYTES_MAX => Err(Error::invalid("a batch whose answers do not fit a frame")),
                _ => self.request(&session, request, (requests.len() == 1, &mut needs), &mut changed),
            };
            replies.push(reply);
            took.push(begun.elapsed());
        }
        let begun = Instant::now();
        let synced = self
            .syncers
            .sync(needs)
            .into_iter()
            .map(|(brick, outcome)| outcome.map_err(|error| self.left_to_next_views(error, session.volume, brick)));
        let synced = synced.chain([self.make_durable(changed)]);
        if let Err(error) = synced.collect::<Result<()>>() {
            for (request, reply) in requests.iter().zip(&mut replies) {
                if reply.is_ok() && (request.durable || matches!(request.target, Target::Brick { .. })) {
                    *reply = Err(error.clone());
                }
            }
        }
        let syncing = begun.elapsed();
        for ((request, reply), took) in requests.iter().zip(&replies).zip(took) {
            self.note(&session, request, reply, took, syncing);
        }
        replies
    }

    /// Counts what was done, and keeps what was slow.
    fn note(&self, session: &Session, request: &Request, reply: &Result<Reply>, took: Duration, syncing: Duration) {
        if matches!(reply, Err(Error::Skipped)) {
            return;
        }
        let is_synced = request.durable || matches!(request.target, Target::Brick { .. });
        let syncing = if is_synced { syncing } else { Duration::ZERO };
        let (op, took) = (request.op.label(), took + syncing);
        self.counters.count(op, took, reply.is_ok());
        if self.slow_ops.is_slow(took) {
            let (at, about) = (SystemTime::now(), about(&request.op));
            let error = reply.as_ref().err().map(Error::to_string);
            let (session, volume) = (session.id, session.volume);
            let line = self.slow_ops.keep(SlowOp { at, op, about, session, volume, took, syncing, error });
            line.iter().for_each(|line| log::warn!("{line}"));
        }
    }

    /// One sync for all, on every member of the partitions.
    fn make_durable(&self, changed: Changed) -> Result<()> {
        let Some(ring) = changed.ring else { return Ok(()) };
        let mut turn = Turn::new(self, &ring);
        let mut open = Vec::new();
        for (partition, shards) in changed.partitions {
            let (to, token) = (ring.leader(partition)?.0, self.tickets.token());
            turn.request(to, token, Event::Sync { token, shards, own: changed.early });
            open.push((to, token));
        }
        turn.run();
        for (to, token) in open {
            let answer = turn.take(token).or_else(|| self.patiently(&ring, to, token));
            let answer = answer.unwrap_or_else(|| Err(self.what_it_waits_for(&ring, to)));
            answer.map_err(|error| self.left_to_others(error, ring.ring, to.partition))?;
        }
        Ok(())
    }

    fn request(
        &self,
        session: &Arc<Session>,
        request: &Request,
        (is_all, needs): (bool, &mut Needs),
        changed: &mut Changed,
    ) -> Result<Reply> {
        match request.target {
            Target::Partition { ring, partition, epoch } => {
                self.partition_op(session, request, (ring, partition, epoch), (is_all, changed))
            }
            Target::Replica { ring, partition, epoch, brick } => {
                self.member_op(session, request, (ring, Address { partition, brick }, epoch), needs)
            }
            Target::Brick { brick } => self.brick_op(session, brick, &request.op, needs),
            Target::Server => self.volume_op(session, &request.op),
        }
    }

    /// Nothing is told that was found under a lease which is over by then: another may lead.
    fn partition_op(
        &self,
        session: &Session,
        request: &Request,
        place: (RingId, PartitionNumber, Epoch),
        changed: (bool, &mut Changed),
    ) -> Result<Reply> {
        let until = self.views.check()?;
        let reply = self.leased_op(session, request, place, changed);
        self.views.holds(until)?;
        let (ring, partition, _) = place;
        reply.map_err(|error| self.left_to_others(error, ring, partition))
    }

    /// A brick that has stopped is nothing that a client must know of while other members have what it had: whoever leads next answers.
    fn left_to_others(&self, error: Error, ring: RingId, partition: PartitionNumber) -> Error {
        // Who met the damage that has stopped it has another error.
        let has_stopped = || {
            let leader = self.ring(ring).and_then(|ring| ring.leader(partition).map(|(to, _)| to.brick));
            leader.is_ok_and(|brick| self.bricks.has_stopped(brick))
        };
        let what = match &error {
            Error::Poisoned { what } => what,
            Error::Damaged { what } if has_stopped() => what,
            _ => return error,
        };
        let Ok(view) = self.ring(ring).and_then(|ring| ring.view(partition)) else { return error };
        if !self.goes_on(&view) {
            return error;
        }
        self.look_at_views();
        Error::Unavailable { what: format!("partition {partition} of ring {ring} gets another leader: {what}") }
    }

    /// A failed sync of a brick is the client's to know only if no other member has what it had. Else the error is a passing one: the
    /// client asks again, of the members of the views that are formed without the brick.
    fn left_to_next_views(&self, error: Error, volume: VolumeId, brick: BrickId) -> Error {
        let Error::Poisoned { what } = &error else { return error };
        let Ok(ring) = self.volume(volume).and_then(|volume| self.ring(volume.ring)) else { return error };
        let views = ring.views();
        let mut its_views = views.iter().filter(|view| view.has_member(brick)).peekable();
        if its_views.peek().is_some() && !its_views.any(|view| self.goes_on(view)) {
            return error;
        }
        self.look_at_views();
        Error::Unavailable { what: format!("brick {} has stopped, and others go on without it: {what}", brick.text()) }
    }

    /// True if a member of the view may go on: one of another server, or a brick here that has not stopped.
    fn goes_on(&self, view: &View) -> bool {
        view.members.iter().any(|member| !self.bricks.has_stopped(member.brick))
    }

    fn leased_op(
        &self,
        session: &Session,
        request: &Request,
        (ring_id, partition, epoch): (RingId, PartitionNumber, Epoch),
        (is_all, changed): (bool, &mut Changed),
    ) -> Result<Reply> {
        let volume = self.volume(session.volume)?;
        if volume.ring != ring_id {
            return Err(Error::Denied { what: "the volume is not on that ring".into() });
        }
        let ring = self.ring(ring_id)?;
        let (to, _) = ring.leader(partition)?;
        check_epoch(ring.view(partition)?.epoch, epoch)?;
        let ask = Ask {
            // Of several they are made durable together, at the end.
            durable: request.durable && is_all,
            loose: !request.durable,
            early: volume.mode.answers_early(),
            // A session that is not known here may have seen the name on another server.
            alone: ring.is_whole() && self.sessions.count(session.volume) == 1,
            spread: spread_of(&volume, &request.op),
            ..Ask::new(ring_id, ring.count(), session.volume, (session.id, request.op_id), Self::clock())
        };
        if matches!(request.op, Op::Lock { .. }) {
            return self.lock_op(&ring, &ask, &request.op, to);
        }
        if request.op.is_read() {
            let reply = self.read_op(&ring, &ask, request, to)?;
            if let Some(inode) = self.accessed(&ring, &ask, &request.op, &reply, to) {
                let mut turn = Turn::new(self, &ring);
                turn.tell(to, Event::Accessed { volume: ask.volume, inode });
                turn.run_without_syncs();
            }
            return Ok(reply);
        }
        let (mut may_free, mut may_mend) = (true, true);
        loop {
            match self.ask_replica(&ring, to, &ask, &request.op) {
                Err(Error::NoSpace { .. }) if may_free => {
                    may_free = false;
                    free_space(self)?;
                }
                // Its record was not made, since what it changes cannot be read.
                Err(Error::Damaged { .. } | Error::Io { .. })
                    if may_mend && self.mend_for(request, &ring, partition) =>
                {
                    may_mend = false;
                }
                Ok(reply) => {
                    if request.durable && !ask.durable {
                        // What legs changed elsewhere is on stable storage, or in the journals of the same bricks.
                        changed.note(&ring, partition, request);
                        changed.early = volume.mode.answers_early();
                    }
                    return Ok(reply);
                }
                failed => return failed,
            }
        }
    }

    pub(crate) fn ask_replica(&self, ring: &Arc<HostedRing>, to: Address, ask: &Ask, op: &Op) -> Result<Reply> {
        let event = |token| Event::Request { token, ask: *ask, op: op.clone() };
        self.ask(ring, to, event).unwrap_or_else(|| Err(self.what_it_waits_for(ring, to)))
    }

    /// Why a partition has not answered.
    fn what_it_waits_for(&self, ring: &HostedRing, to: Address) -> Error {
        let waits = ring.replica(to).map(|hosted| hosted.partition.read().waits_for()).unwrap_or_default();
        let bricks: Vec<String> = waits.into_iter().map(BrickId::text).collect();
        let what = match bricks.is_empty() {
            true => format!("partition {} of ring {} is busy", to.partition, ring.ring),
            false => format!("partition {} of ring {} waits for brick {}", to.partition, ring.ring, bricks.join(", ")),
        };
        Error::Unavailable { what }
    }

    fn read_op(&self, ring: &Arc<HostedRing>, ask: &Ask, request: &Request, to: Address) -> Result<Reply> {
        for attempt in 0..STALE_MAX {
            let found = self.read(ring, ask, &request.op, to);
            // A bad copy is answered from a good one, and mended.
            if attempt == 0
                && matches!(found, Err(Error::Damaged { .. } | Error::Io { .. }))
                && self.mend_for(request, ring, to.partition)
            {
                continue;
            }
            let found = found?;
            let Reply::Elsewhere { inode, .. } = found else { return Ok(found) };
            // If the inode's leader is here as well, that saves the client the way. Gone by now: the name has changed.
            let Ok((there, _)) = ring.leader(ask.partition(inode.position())) else { return Ok(found) };
            let getattr = Op::Inode { op: InodeOp::GetAttr { inode } };
            match self.read(ring, ask, &getattr, there) {
                Err(Error::Stale) => {}
                settled => return settled,
            }
        }
        Err(Error::Stale)
    }

    /// The inode whose time of access has to move. Whoever reads often asks often: the partition's lock for writers is
    /// worth taking only if it is due.
    fn accessed(&self, ring: &HostedRing, ask: &Ask, op: &Op, reply: &Reply, to: Address) -> Option<InodeId> {
        let inode = match (op, reply) {
            (Op::Data { op: DataOp::Read { inode, touch: true, .. } }, Reply::FileData { attr, .. })
            | (Op::Inode { op: InodeOp::Accessed { inode } }, Reply::Node { attr, .. }) => {
                return is_access_due(attr, ask.now).then_some(*inode);
            }
            (Op::Inode { op: InodeOp::ReadLink { inode, touch: true } }, _) => *inode,
            (Op::Name { op: NameOp::List { dir, after: None, touch: true, .. } }, _) => *dir,
            _ => return None,
        };
        let getattr = Op::Inode { op: InodeOp::GetAttr { inode } };
        match ring.read(ask, to.partition, &getattr) {
            Ok(Some(Ok(Reply::Node { attr, .. }))) => is_access_due(&attr, ask.now).then_some(inode),
            // It can't be said without waiting; who moves it looks again.
            _ => Some(inode),
        }
    }

    /// At once, if that can be; else when what is in its way is gone.
    fn read(&self, ring: &Arc<HostedRing>, ask: &Ask, op: &Op, to: Address) -> Result<Reply> {
        match ring.read(ask, to.partition, op)? {
            Some(answer) => answer,
            None => self.ask_replica(ring, to, ask, op),
        }
    }

    /// Whether something was mended; if not, who asked is told of the damage, not of why it stays.
    fn mend_for(&self, request: &Request, ring: &Arc<HostedRing>, partition: PartitionNumber) -> bool {
        let (data, index, offset, length) = match &request.op {
            Op::Data { op: DataOp::ReadShard { data, index, offset, length } } => (data, index, *offset, *length),
            // Its first and last block are completed with what they had.
            Op::Data { op: DataOp::WriteShard { data, index, offset, bytes, .. } } => {
                (data, index, *offset, bytes.len() as u32)
            }
            _ => {
                return self.scrubs.may_look_through(ring.ring, partition, || mend_entries(self, ring.ring, partition));
            }
        };
        let shard = ShardId { volume: request.volume, data: *data, index: *index };
        mend_range(self, ring.ring, shard, offset, length).unwrap_or(false)
    }

    fn brick_op(&self, session: &Session, brick: BrickId, op: &Op, needs: &mut Needs) -> Result<Reply> {
        let Op::Data { op: DataOp::Sync { incarnation, shards, all } } = op else {
            return Err(Error::Protocol { what: "a brick is asked for syncs only".into() });
        };
        if shards.iter().any(|shard| shard.volume != session.volume) {
            return Err(Error::Denied { what: "a shard of another volume".into() });
        }
        let brick = self
            .bricks
            .get(&brick)
            .ok_or_else(|| Error::Unavailable { what: format!("brick {} is not here", brick.text()) })?;
        // What another life acknowledged may be gone: who asks looks whether it is.
        if brick.incarnation() != *incarnation {
            return Err(Error::StaleView { epoch: Epoch(0) });
        }
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
            VolumeOp::Heartbeat { unused, mapped } => {
                mapping::note(self, session, mapped);
                // Before the orphans: whoever has a partition's lock may wait for theirs.
                let untold = self.untold(session)?;
                let inodes = self.orphans.of_volume(session.volume, |orphans| session.heartbeat(unused, orphans));
                Ok(Reply::Orphans { inodes, untold })
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
    /// A lock and its inode.
    const LOCK: usize = 46;
    match op {
        Op::Lock { op: LockOp::Restore { locks, .. } } => locks.len() * LOCK + ENTRY,
        Op::Data { op: DataOp::Read { length, .. } | DataOp::ReadShard { length, .. } } => *length as usize + ENTRY,
        Op::Name { op: NameOp::List { limit, .. } | NameOp::ListPart { limit, .. } } => {
            (*limit as usize).min(4096) * ENTRY
        }
        Op::Inode { op: InodeOp::GetXattr { .. } } => 65 << 10,
        Op::Inode { op: InodeOp::ListXattr { .. } } => 33 << 10,
        Op::Volume { .. } => 32 << 10,
        _ => ENTRY,
    }
}

/// A directory in the root begins wide, if its volume says so.
fn spread_of(volume: &VolumeInfo, op: &Op) -> u32 {
    match op {
        Op::Name { op: NameOp::Create { dir: ROOT, node: NewNode::Directory, .. } } => volume.spread,
        _ => 1,
    }
}

pub(crate) fn check_epoch(now: Epoch, asked: Epoch) -> Result<()> {
    if now == asked { Ok(()) } else { Err(Error::StaleView { epoch: now }) }
}
