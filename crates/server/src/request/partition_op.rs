//! One request for the leader of a partition: checked, read at once or brought to the replica, repaired and tried
//! again.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::maintenance::housekeeping::free_space;
use crate::maintenance::repair::{repair_entries, repair_range};
use crate::request::batch::Durability;
use crate::request::sessions::Session;
use crate::request::turn::{ANSWER_LIMIT, Turn};
use hekate_cluster::VolumeInfo;
use hekate_proto::map::View;
use hekate_proto::*;
use hekate_replica::{Address, Ask, Event};
use std::sync::Arc;

/// How often one look-up follows a name to an inode that has been removed meanwhile. A name that leads to a missing
/// inode more often is damaged.
const STALE_MAX: usize = 16;

/// The leader of a partition, in the view that the client knows.
#[derive(Debug, Clone, Copy)]
pub struct LeaderTarget {
    pub ring: RingId,
    pub partition: PartitionNumber,
    pub epoch: Epoch,
    /// A read is answered only if that needs no waiting.
    pub at_once: bool,
    /// It comes behind a rename.
    pub moved: bool,
}

impl Node {
    /// Asks the leader, under a lease. If the lease that the answer was found under has expired, another leader may
    /// have changed the data by then, and the answer is dropped.
    ///
    /// # Errors
    ///
    /// `Unavailable` without a lease, or while the partition gets another leader; `OtherServer` or `StaleView` if the
    /// client's view is old; those of the op.
    pub(crate) fn partition_op(
        &self,
        session: &Session,
        request: &Request,
        target: LeaderTarget,
        durability: &mut Durability,
    ) -> Result<Reply> {
        let until = self.views.lease().check()?;
        let reply = self.leased_op(session, request, target, durability);
        self.views.lease().holds(until)?;
        reply.map_err(|error| self.passing_if_others_lead(error, target.ring, target.partition))
    }

    fn leased_op(
        &self,
        session: &Session,
        request: &Request,
        target: LeaderTarget,
        durability: &mut Durability,
    ) -> Result<Reply> {
        let volume = self.volume(session.volume)?;
        if volume.ring != target.ring {
            return Err(Error::Denied { what: "the request names another ring than the volume's".into() });
        }
        let ring = self.ring(target.ring)?;
        let (to, _) = ring.leader(target.partition)?;
        check_epoch(ring.view(target.partition)?.epoch, target.epoch)?;
        let ask = Ask {
            durable: durability.is_with_record(request),
            loose: !request.durable,
            early: volume.mode.answers_early(),
            // On a ring with other servers, a session that is unknown here may have seen the name.
            alone: ring.is_whole() && self.sessions.count(session.volume) == 1,
            spread: spread_of(&volume, &request.op),
            // A recall would not reach it.
            pledge: request.pledge && session.is_listening(),
            moved: target.moved,
            ..Ask::new(ring.ring, ring.count(), session.volume, (session.id, request.op_id), Self::clock())
        };
        match &request.op {
            op @ Op::Lock { .. } => self.lock_op(&ring, &ask, op, to),
            op if op.is_read() && target.at_once => ring.read(&ask, to.partition, op).unwrap_or(Err(Error::Skipped)),
            op if op.is_read() => self.read_and_note(&ring, &ask, request, to),
            _ => {
                let reply = self.change_op(&ring, &ask, request, to)?;
                if request.durable && !ask.durable {
                    // What legs changed elsewhere is on stable storage already, or in the journals of the same bricks.
                    durability.note(&ring, target.partition, request, ask.early);
                }
                Ok(reply)
            }
        }
    }

    /// Tries a change once more after space was freed, and once more after damage was repaired.
    fn change_op(&self, ring: &Arc<HostedRing>, ask: &Ask, request: &Request, to: Address) -> Result<Reply> {
        let (mut may_free, mut may_repair) = (true, true);
        loop {
            match self.ask_replica(ring, to, ask, &request.op) {
                Err(Error::NoSpace { .. }) if may_free => {
                    may_free = false;
                    free_space(self)?;
                }
                // The leader made no record: it could not read what the op changes.
                Err(Error::Damaged { .. } | Error::Io { .. })
                    if may_repair && self.repair_for(request, ring, to.partition) =>
                {
                    may_repair = false;
                }
                settled => return settled,
            }
        }
    }

    /// Brings an op to a replica and waits for the answer.
    ///
    /// # Errors
    ///
    /// `Unavailable`, with the bricks that the partition waits for, if the answer does not come in time.
    pub(crate) fn ask_replica(&self, ring: &Arc<HostedRing>, to: Address, ask: &Ask, op: &Op) -> Result<Reply> {
        let event = |token| Event::Request { token, ask: *ask, op: op.clone() };
        self.ask(ring, to, event).unwrap_or_else(|| Err(self.unanswered(ring, to)))
    }

    /// The error for a replica that has not answered in time.
    pub(crate) fn unanswered(&self, ring: &HostedRing, to: Address) -> Error {
        let waits = ring.replica(to).map(|hosted| hosted.partition.read().waits_for()).unwrap_or_default();
        let bricks: Vec<String> = waits.into_iter().map(BrickId::text).collect();
        let what = match bricks.is_empty() {
            true => format!("partition {} of ring {} is busy", to.partition, ring.ring),
            false => format!("partition {} of ring {} waits for brick {}", to.partition, ring.ring, bricks.join(", ")),
        };
        Error::Unavailable { what }
    }

    /// Reads, and moves the inode's time of access if it is due.
    fn read_and_note(&self, ring: &Arc<HostedRing>, ask: &Ask, request: &Request, to: Address) -> Result<Reply> {
        let reply = self.read_op(ring, ask, request, to)?;
        if let Some(inode) = self.inode_to_touch(ring, ask, &request.op, &reply, to) {
            let (token, mut turn) = (self.tickets.token(), Turn::new(self, ring));
            let (volume, session) = (ask.volume, ask.session);
            turn.request(to, token, Event::Accessed { token, volume, inode, session });
            turn.run_without_syncs();
            // Other sessions may have to forget the time first.
            if turn.take(token).is_none() {
                self.wait_for_answer(ring, to, token, ANSWER_LIMIT);
            }
        }
        Ok(reply)
    }

    /// Reads. A damaged copy is repaired from another member and read again. A name whose inode is led here as well is
    /// answered with the inode's attributes, which saves the client a request.
    fn read_op(&self, ring: &Arc<HostedRing>, ask: &Ask, request: &Request, to: Address) -> Result<Reply> {
        for attempt in 0..STALE_MAX {
            let found = self.read(ring, ask, &request.op, to);
            if attempt == 0
                && matches!(found, Err(Error::Damaged { .. } | Error::Io { .. }))
                && self.repair_for(request, ring, to.partition)
            {
                continue;
            }
            let found = found?;
            let (inode, of_name) = match &found {
                Reply::Elsewhere { inode, .. } => (*inode, Vec::new()),
                Reply::Pledged { found: Found::Elsewhere { inode, .. }, pledges } => (*inode, pledges.clone()),
                _ => return Ok(found),
            };
            let Ok((there, _)) = ring.leader(ask.partition(inode.position())) else { return Ok(found) };
            match self.read(ring, ask, &of_inode(&request.op, inode), there) {
                // The name has changed since it was read.
                Err(Error::Stale) => {}
                Ok(Reply::Node { attr, created: false }) if !of_name.is_empty() => {
                    return Ok(Reply::Pledged { found: Found::Node { attr: Box::new(attr) }, pledges: of_name });
                }
                Ok(Reply::Pledged { found, mut pledges }) => {
                    pledges.splice(0..0, of_name);
                    return Ok(Reply::Pledged { found, pledges });
                }
                settled => return settled,
            }
        }
        Err(Error::Stale)
    }

    /// The inode whose time of access has to move after this read. It is looked up under the partition's shared lock:
    /// reads are frequent, and the exclusive lock is worth taking only if the time is due.
    fn inode_to_touch(&self, ring: &HostedRing, ask: &Ask, op: &Op, reply: &Reply, to: Address) -> Option<InodeId> {
        let inode = match (op, reply) {
            (Op::Data { op: DataOp::Read { inode, touch: true, .. } }, Reply::FileData { attr, .. })
            | (Op::Inode { op: InodeOp::Accessed { inode } }, Reply::Node { attr, .. }) => {
                return attr.is_access_due(ask.now).then_some(*inode);
            }
            (Op::Inode { op: InodeOp::ReadLink { inode, touch: true } }, _) => *inode,
            (Op::Name { op: NameOp::List { dir, after: None, touch: true, .. } }, _) => *dir,
            _ => return None,
        };
        let getattr = Op::Inode { op: InodeOp::GetAttr { inode } };
        match ring.read(ask, to.partition, &getattr) {
            Some(Ok(Reply::Node { attr, .. })) => attr.is_access_due(ask.now).then_some(inode),
            // The leader checks again, under its exclusive lock.
            _ => Some(inode),
        }
    }

    /// Reads at once if nothing that is in progress holds the inode; otherwise waits for the leader.
    fn read(&self, ring: &Arc<HostedRing>, ask: &Ask, op: &Op, to: Address) -> Result<Reply> {
        ring.read(ask, to.partition, op).unwrap_or_else(|| self.ask_replica(ring, to, ask, op))
    }

    /// Repairs the blocks or entries that a request could not read. True if one was repaired: the request is then tried
    /// again.
    fn repair_for(&self, request: &Request, ring: &Arc<HostedRing>, partition: PartitionNumber) -> bool {
        let (data, index, offset, length) = match &request.op {
            Op::Data { op: DataOp::ReadShard { data, index, offset, length } } => (data, index, *offset, *length),
            // A write reads its first and its last block to complete them.
            Op::Data { op: DataOp::WriteShard { data, index, offset, bytes, .. } } => {
                (data, index, *offset, bytes.len() as u32)
            }
            _ => {
                return self
                    .maintenance
                    .scrubs()
                    .try_repairing_entries(ring.ring, partition, || repair_entries(self, ring.ring, partition));
            }
        };
        let shard = ShardId { volume: request.volume, data: *data, index: *index };
        // The client gets the error of its read, not that of the repair.
        repair_range(self, ring.ring, shard, offset, length).unwrap_or(false)
    }

    /// Replaces the error of a stopped brick by `Unavailable` while another member can lead the partition: the client
    /// sends the request again, and the next leader executes it.
    pub(crate) fn passing_if_others_lead(&self, error: Error, ring: RingId, partition: PartitionNumber) -> Error {
        let has_stopped = || {
            let leader = self.ring(ring).and_then(|ring| ring.leader(partition).map(|(to, _)| to.brick));
            leader.is_ok_and(|brick| self.bricks.has_stopped(brick))
        };
        let what = match &error {
            Error::Poisoned { what } => what,
            // The request that met the damage which stopped the brick has this error.
            Error::Damaged { what } if has_stopped() => what,
            _ => return error,
        };
        let Ok(view) = self.ring(ring).and_then(|ring| ring.view(partition)) else { return error };
        if !self.can_go_on(&view) {
            return error;
        }
        self.wake_views();
        Error::Unavailable { what: format!("partition {partition} of ring {ring} gets another leader: {what}") }
    }

    /// Replaces the error of a failed sync by `Unavailable` while every view of the brick has another member in
    /// service: the client sends the sync again, to the members of the next views.
    pub(crate) fn passing_if_others_go_on(&self, error: Error, volume: VolumeId, brick: BrickId) -> Error {
        let Error::Poisoned { what } = &error else { return error };
        let Ok(ring) = self.volume(volume).and_then(|volume| self.ring(volume.ring)) else { return error };
        let views = ring.views();
        let mut its_views = views.iter().filter(|view| view.has_member(brick)).peekable();
        if its_views.peek().is_some() && !its_views.any(|view| self.can_go_on(view)) {
            return error;
        }
        self.wake_views();
        Error::Unavailable {
            what: format!("brick {} has stopped, and other replicas serve its partitions: {what}", brick.text()),
        }
    }

    /// True if some member of the view may still serve: one of another server, or a brick here that has not stopped.
    fn can_go_on(&self, view: &View) -> bool {
        view.members.iter().any(|member| !self.bricks.has_stopped(member.brick))
    }
}

/// The number of partitions that share a new directory's names: the volume's for a directory in the root, otherwise 1.
fn spread_of(volume: &VolumeInfo, op: &Op) -> u32 {
    match op {
        Op::Name { op: NameOp::Create { dir: ROOT, node: NewNode::Directory, .. } } => volume.spread,
        _ => 1,
    }
}

/// The read that gives of an inode what a read of its name asks for.
fn of_inode(op: &Op, inode: InodeId) -> Op {
    let op = match op {
        Op::Name { op: NameOp::Fetch { attribute, content, .. } } => {
            InodeOp::Fetch { inode, attribute: attribute.clone(), content: *content }
        }
        _ => InodeOp::GetAttr { inode },
    };
    Op::Inode { op }
}

/// Compares the epoch of this server's view with the client's.
///
/// # Errors
///
/// `StaleView`, with this server's epoch, if they differ.
pub(crate) fn check_epoch(now: Epoch, asked: Epoch) -> Result<()> {
    if now == asked { Ok(()) } else { Err(Error::StaleView { epoch: now }) }
}
