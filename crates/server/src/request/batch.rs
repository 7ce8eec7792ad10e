//! A batch of one session's requests: carried out in order, made durable together, answered together.
//!
//! `docs/format/wire.md` (*Batches and retries*) is the contract. A request for the leader of a partition is in
//! `partition_op.rs`, one for a member of a view in `member_writes.rs`.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::reports::mapping;
use crate::reports::op_statistics::AnsweredOp;
use crate::request::member_writes::MemberTarget;
use crate::request::partition_op::LeaderTarget;
use crate::request::sessions::Session;
use crate::request::syncer::Needs;
use crate::request::turn::{ANSWER_LIMIT, Turn};
use hekate_proto::*;
use hekate_replica::{Address, Event};
use hekate_threads::{elapsed, now};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of a batch's answers, as counted before they are made: 2 MiB less than a frame, for headers.
const ANSWER_BYTES_MAX: usize = 14 << 20;

/// What must be on stable storage before a batch is answered, collected while its requests are carried out.
pub struct Durability {
    /// The batch has one change, which its partition makes durable with its own record. Reads may come with it.
    is_single: bool,
    /// Journals and data files of single bricks, for requests that name a brick or a member.
    pub needs: Needs,
    changed: Changed,
}

/// The partitions of the volume's ring that requests have changed.
#[derive(Default)]
struct Changed {
    ring: Option<Arc<HostedRing>>,
    /// The volume's mode lets a leader answer once its own journal is synced.
    early: bool,
    /// With the shards whose data files have to be synced as well.
    partitions: BTreeMap<PartitionNumber, Vec<ShardId>>,
}

impl Durability {
    fn new(requests: &[Request]) -> Self {
        let changes = requests.iter().filter(|request| !request.op.is_read()).count();
        Self { is_single: changes == 1, needs: Needs::default(), changed: Changed::default() }
    }

    /// True if the leader makes the request durable before it answers; otherwise the end of the batch does.
    pub fn is_with_record(&self, request: &Request) -> bool {
        request.durable && self.is_single
    }

    /// Notes a durable request that the leader of a partition has answered and not yet synced.
    pub fn note(&mut self, ring: &Arc<HostedRing>, partition: PartitionNumber, request: &Request, early: bool) {
        let known = self.changed.ring.get_or_insert_with(|| ring.clone());
        assert_eq!(known.ring, ring.ring, "a batch changes partitions of its volume's ring only");
        self.changed.early = early;
        let shards = self.changed.partitions.entry(partition).or_default();
        // Earlier writes of the shard may be in its data file, which a sync of the journal does not cover.
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
    /// Carries out the requests in order and returns one answer for each. After a request that fails the others are
    /// `Skipped`. If what they need cannot be made durable, each durable request and each sync is answered with that
    /// error.
    pub(crate) fn batch(&self, session: SessionId, requests: &[Request]) -> Vec<Result<Reply>> {
        let session = match self.sessions.get(session) {
            Ok(session) => session,
            Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
        };
        self.sessions.note_request(&session);
        // The first attempt of a retried op may still run here, for a connection that the client has closed.
        if requests.iter().any(|request| request.retry) {
            drop(session.gate.write());
        }
        let _in_progress = session.gate.read();
        let mut durability = Durability::new(requests);
        let (mut replies, took) = self.carry_out(&session, requests, &mut durability);
        let begun = now();
        if let Err(error) = self.make_all_durable(&session, durability) {
            for (request, reply) in requests.iter().zip(&mut replies) {
                if reply.is_ok() && is_synced(request) {
                    *reply = Err(error.clone());
                }
            }
        }
        let syncing = elapsed(begun);
        for ((request, reply), took) in requests.iter().zip(&replies).zip(took) {
            self.count_op(&session, request, reply, OpTimes { took, syncing });
        }
        assert_eq!(replies.len(), requests.len(), "each request of a batch has one answer");
        replies
    }

    /// The answers, and the time that each request took without the syncs at the end of the batch.
    fn carry_out(
        &self,
        session: &Arc<Session>,
        requests: &[Request],
        durability: &mut Durability,
    ) -> (Vec<Result<Reply>>, Vec<Duration>) {
        let (mut replies, mut took) = (Vec::with_capacity(requests.len()), Vec::with_capacity(requests.len()));
        let mut answer_bytes = 0;
        let mut change = None;
        let busy = self.statistics.ops().busy();
        for request in requests {
            let begun = now();
            busy.with(&request.op, session.id);
            answer_bytes += answer_bytes_max(&request.op);
            let reply = match replies.last() {
                Some(Err(_)) => Err(Error::Skipped),
                _ if answer_bytes > ANSWER_BYTES_MAX => {
                    Err(Error::invalid("the replies of the batch may exceed a frame; send the rest in another batch"))
                }
                _ => self.request(session, request, change, durability),
            };
            if !request.op.is_read() {
                change = Some(&request.op);
            }
            replies.push(reply);
            took.push(elapsed(begun));
        }
        (replies, took)
    }

    /// `change`: the last change before it in its batch.
    fn request(
        &self,
        session: &Arc<Session>,
        request: &Request,
        change: Option<&Op>,
        durability: &mut Durability,
    ) -> Result<Reply> {
        if !request.op.is_read() && self.cluster.access.is_read_only(&session.owner) {
            return Err(Error::ReadOnly);
        }
        if changes(&request.op) && self.volumes.is_read_only(session.volume) {
            return Err(Error::ReadOnly);
        }
        match request.target {
            Target::Partition { ring, partition, epoch } => {
                // The reply to the change does not wait for what is read behind it.
                let at_once = change.is_some() && request.pledge;
                let moved = matches!(change, Some(Op::Name { op: NameOp::Rename { .. } }));
                let target = LeaderTarget { ring, partition, epoch, at_once, moved };
                self.partition_op(session, request, target, durability)
            }
            Target::Replica { ring, partition, epoch, brick } => {
                let target = MemberTarget { ring, address: Address { partition, brick }, epoch };
                self.member_op(session, request, target, &mut durability.needs)
            }
            Target::Brick { brick } => self.brick_op(session, brick, &request.op, &mut durability.needs),
            Target::Server => self.volume_op(session, &request.op),
        }
    }

    /// Returns once everything is on stable storage, or with the first error.
    fn make_all_durable(&self, session: &Session, Durability { needs, changed, .. }: Durability) -> Result<()> {
        let synced = self.syncers.sync(needs).into_iter().map(|(brick, outcome)| {
            outcome.map_err(|error| self.passing_if_others_go_on(error, session.volume, brick))
        });
        synced.chain([self.make_durable(changed)]).collect()
    }

    /// Syncs each changed partition once, on every member that the volume's mode waits for. Returns the first error;
    /// the other partitions are synced nevertheless, and no request stays open.
    fn make_durable(&self, changed: Changed) -> Result<()> {
        let Some(ring) = changed.ring else { return Ok(()) };
        let mut turn = Turn::new(self, &ring);
        let (mut open, mut outcome) = (Vec::new(), Ok(()));
        for (partition, shards) in changed.partitions {
            match ring.leader(partition) {
                Ok((to, _)) => {
                    let token = self.tickets.token();
                    turn.request(to, token, Event::Sync { token, shards, own: changed.early });
                    open.push((to, token));
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        turn.run();
        for (to, token) in open {
            // After an error the batch does not wait for the other answers.
            let limit = if outcome.is_ok() { ANSWER_LIMIT } else { Duration::ZERO };
            let answer = turn.take(token).or_else(|| self.wait_for_answer(&ring, to, token, limit));
            let answer = answer.unwrap_or_else(|| Err(self.unanswered(&ring, to)));
            let answer = answer.map_err(|error| self.passing_if_others_lead(error, ring.ring, to.partition));
            outcome = outcome.and(answer.map(|_| ()));
        }
        outcome
    }

    /// Counts an op, and keeps it among the slow ones if it was slow.
    fn count_op(&self, session: &Session, request: &Request, reply: &Result<Reply>, times: OpTimes) {
        if matches!(reply, Err(Error::Skipped)) {
            return;
        }
        let syncing = if is_synced(request) { times.syncing } else { Duration::ZERO };
        self.statistics.ops().count(&AnsweredOp {
            op: &request.op,
            session: session.id,
            volume: session.volume,
            took: times.took + syncing,
            syncing,
            error: reply.as_ref().err(),
        });
    }

    fn brick_op(&self, session: &Session, brick: BrickId, op: &Op, needs: &mut Needs) -> Result<Reply> {
        let Op::Data { op: DataOp::Sync { incarnation, shards, all } } = op else {
            return Err(Error::Protocol { what: "a request to a brick is no sync, the only op of bricks".into() });
        };
        if shards.iter().any(|shard| shard.volume != session.volume) {
            return Err(Error::Denied { what: "a sync names a shard of another volume than the session's".into() });
        }
        let brick = self
            .bricks
            .get(&brick)
            .ok_or_else(|| Error::Unavailable { what: format!("brick {} is not open at this server", brick.text()) })?;
        // What the brick acknowledged in an earlier incarnation may be lost; the client checks whether it is.
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
            return Err(Error::Protocol { what: "a request to a server is no volume op".into() });
        };
        match op {
            VolumeOp::StatFs => Ok(Reply::Space { space: self.volume_space(session.volume)? }),
            VolumeOp::Heartbeat { unused, mapped, graph } => {
                session.graph.store(*graph, Ordering::Relaxed);
                let graph = self.volumes.get(session.volume)?.graph.change;
                mapping::note(self, session, mapped);
                // Before the orphans are locked: a thread that holds a partition's lock may wait for the lock of the
                // orphans.
                let unrestored = self.awaiting_restore(session)?;
                let inodes = self.orphans.of_volume(session.volume, |orphans| session.heartbeat(unused, orphans));
                Ok(Reply::Orphans { inodes, unrestored, graph })
            }
            VolumeOp::Renew { forgot, mapped } => {
                Ok(Reply::Terms { terms: self.renew_pledges(session, forgot, mapped)? })
            }
            VolumeOp::Return { partition, term, pledges, reports } => {
                self.take_back_pledges(session, *partition, *term, (pledges.clone(), reports.clone()))?;
                Ok(Reply::Done)
            }
            VolumeOp::EndSession => {
                self.end_session(session.id)?;
                Ok(Reply::Done)
            }
        }
    }
}

/// How long a request took, and how long the syncs at the end of its batch.
struct OpTimes {
    took: Duration,
    syncing: Duration,
}

/// True if the op changes what a volume has: neither reads, nor locks and syncs, which a read-only file system takes.
fn changes(op: &Op) -> bool {
    !op.is_read() && !matches!(op, Op::Lock { .. } | Op::Data { op: DataOp::Sync { .. } | DataOp::Fsync { .. } })
}

/// True if the request is answered only after the syncs at the end of its batch.
fn is_synced(request: &Request) -> bool {
    request.durable || matches!(request.target, Target::Brick { .. })
}

/// The most bytes that an op is answered with.
fn answer_bytes_max(op: &Op) -> usize {
    /// A directory entry with its attributes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Served;
    use hekate_replica::Commit;

    #[test]
    fn a_partition_without_a_leader_here_does_not_keep_the_others_from_being_synced() {
        let served = Served::new("one-leader-away");
        served.node.stop_housekeeping();
        let volume = served.node.cluster.registry().volume("v").unwrap().unwrap();
        let ring = served.node.ring(volume.ring).unwrap();
        let at = PartitionNumber(0);
        let place = KeyPrefix { ring: ring.ring, position: at.first_position(ring.count()), volume: volume.volume };
        let mut commit = Commit::default();
        commit.delete(Key::name(place, ROOT, b"absent"));
        served.node.change(&ring, at, commit).unwrap();
        let unstable = || {
            let progress = ring.leader(at).unwrap().1.partition.read().progress().unwrap();
            progress.last.0 - progress.stable.0
        };
        assert_eq!(unstable(), 1, "nothing has synced the change yet");
        let nowhere = PartitionNumber(ring.count());
        let partitions = [at, nowhere].map(|number| (number, Vec::new())).into();
        let outcome = served.node.make_durable(Changed { ring: Some(ring.clone()), early: false, partitions });
        assert!(matches!(outcome, Err(Error::Protocol { .. })), "{outcome:?}");
        assert_eq!(unstable(), 0);
    }
}
