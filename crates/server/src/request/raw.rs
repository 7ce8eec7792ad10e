//! Raw writes, the steps of the modes `afr` and `fast-path`, at one member. Locks (mode `afr`) are in this server's
//! memory, as AFR's are in its bricks' memory, and end with their session. Only with the cargo feature `measuring`;
//! without it `raw_absent.rs` is in the place of this file.

use crate::hosting::node::Node;
use crate::request::member_writes::MemberTarget;
use crate::request::sessions::Session;
use crate::request::syncer::Needs;
use hekate_cluster::VolumeInfo;
use hekate_proto::*;
use hekate_replica::Address;
use hekate_threads::{HashMap, Mutex};

/// Locks of one shard at one replica.
const LOCKS_MAX: usize = 256;
/// Locks of one session at this server.
const LOCKS_OF_SESSION_MAX: usize = 65_536;

/// A shard at one replica: each member of a view has locks of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ReplicaShard {
    replica: Address,
    shard: ShardId,
}

/// The raw write that holds a lock, or asks for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Claim {
    session: SessionId,
    op_id: OpId,
}

/// A lock on the bytes of a shard from `from` to before `to`.
#[derive(Debug)]
struct Held {
    claim: Claim,
    from: u64,
    to: u64,
    /// Another session was refused because of this lock.
    wanted: bool,
}

/// The locks of all replicas of this server.
#[derive(Debug, Default)]
pub struct RawLocks {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    held: HashMap<ReplicaShard, Vec<Held>>,
    /// Locks of each session, over all shards.
    counts: HashMap<SessionId, usize>,
}

impl Table {
    fn release(&mut self, at: ReplicaShard, claim: Claim) {
        let Some(here) = self.held.get_mut(&at) else { return };
        let before = here.len();
        here.retain(|known| known.claim != claim);
        let released = before - here.len();
        if here.is_empty() {
            self.held.remove(&at);
        }
        self.count_down(claim.session, released);
    }

    fn count_down(&mut self, session: SessionId, released: usize) {
        let Some(count) = self.counts.get_mut(&session) else {
            assert_eq!(released, 0, "each lock of a raw write is counted for its session");
            return;
        };
        assert!(*count >= released, "each lock of a raw write is counted for its session");
        *count -= released;
        if *count == 0 {
            self.counts.remove(&session);
        }
    }
}

/// What became of a step of a raw write.
enum Handled {
    /// The step takes or releases a lock, and this is its answer.
    Here(Result<Reply>),
    /// The step is the replica's.
    ByReplica,
}

impl RawLocks {
    /// Carries out a step if it takes or releases a lock.
    ///
    /// # Errors
    ///
    /// The answer is `WouldBlock` if another raw write holds a part of the range, `Invalid` if the shard or the session
    /// has too many locks.
    fn step(&self, at: ReplicaShard, claim: Claim, step: &RawStep) -> Handled {
        match step {
            RawStep::Lock { offset, length } => {
                let from = u64::from(*offset);
                Handled::Here(self.lock(at, Held { claim, from, to: from + u64::from(*length), wanted: false }))
            }
            RawStep::Unlock => {
                self.table.lock().release(at, claim);
                Handled::Here(Ok(Reply::Done))
            }
            RawStep::Mark { .. } | RawStep::Write { .. } | RawStep::Clear => Handled::ByReplica,
        }
    }

    fn lock(&self, at: ReplicaShard, wanted: Held) -> Result<Reply> {
        let mut table = self.table.lock();
        let Table { held, counts } = &mut *table;
        let meets = |known: &&mut Held| known.claim != wanted.claim && known.from < wanted.to && wanted.from < known.to;
        let here = held.entry(at).or_default();
        if let Some(other) = here.iter_mut().find(meets) {
            other.wanted |= other.claim.session != wanted.claim.session;
            return Err(Error::WouldBlock);
        }
        if here.iter().any(|known| known.claim == wanted.claim) {
            return Ok(Reply::Done);
        }
        let count = counts.entry(wanted.claim.session).or_default();
        if *count >= LOCKS_OF_SESSION_MAX || here.len() >= LOCKS_MAX {
            if here.is_empty() {
                held.remove(&at);
            }
            return Err(Error::invalid("too many locks of raw writes: at most 256 on a shard and 65,536 of a session"));
        }
        *count += 1;
        here.push(wanted);
        Ok(Reply::Done)
    }

    /// True if another session was refused because of one of this session's locks.
    fn is_wanted(&self, at: ReplicaShard, session: SessionId) -> bool {
        let table = self.table.lock();
        table.held.get(&at).is_some_and(|here| here.iter().any(|known| known.claim.session == session && known.wanted))
    }

    /// Releases all locks of a session.
    pub fn end_session(&self, session: SessionId) {
        let mut table = self.table.lock();
        if table.counts.remove(&session).is_some() {
            table.held.retain(|_, here| {
                here.retain(|known| known.claim.session != session);
                !here.is_empty()
            });
        }
    }
}

impl Node {
    /// Carries out a step of a raw write at a member. `Waiting` instead of `Done` says that another session was
    /// refused because of a lock of this one.
    ///
    /// # Errors
    ///
    /// `Denied` if the bytes need not be durable; those of [`Node::member`], of [`RawLocks::step`] and of the replica.
    pub(crate) fn raw_step(
        &self,
        session: &Session,
        request: &Request,
        target: MemberTarget,
        needs: &mut Needs,
    ) -> Result<Reply> {
        let Op::Data { op: DataOp::RawWrite { data, index, step } } = &request.op else {
            return Err(Error::bug("an op that is no raw write was passed on as one"));
        };
        let is_write = matches!(step, RawStep::Write { .. });
        if is_write && !request.durable {
            return Err(Error::Denied { what: "a raw write is durable".into() });
        }
        let member = self.member(session, target)?;
        let shard = ShardId { volume: session.volume, data: *data, index: *index };
        let at = ReplicaShard { replica: member.address, shard };
        let claim = Claim { session: session.id, op_id: request.op_id };
        if let Handled::Here(answer) = self.raw_locks.step(at, claim, step) {
            return answer;
        }
        let reply = self.ask_member(session, request, &member)?;
        // The steps that mark and clear a raw write are not synced: AFR does not sync its changelog either.
        if is_write {
            member.sync(shard, needs);
        }
        Ok(match reply {
            Reply::Done if is_write && self.raw_locks.is_wanted(at, session.id) => {
                Reply::Waiting { op_id: request.op_id }
            }
            reply => reply,
        })
    }
}

/// This program serves volumes of every mode.
pub(crate) fn check_mode(_: &VolumeInfo) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> ReplicaShard {
        let shard = ShardId { volume: VolumeId(1), data: DataId(7), index: 0 };
        ReplicaShard { replica: Address { partition: PartitionNumber(3), brick: BrickId(9) }, shard }
    }

    fn claim(session: u64, op: u64) -> Claim {
        Claim { session: SessionId(session), op_id: OpId(op) }
    }

    fn step(locks: &RawLocks, at: ReplicaShard, claim: Claim, step: RawStep) -> Result<Reply> {
        match locks.step(at, claim, &step) {
            Handled::Here(answer) => answer,
            Handled::ByReplica => panic!("{step:?} is about locks"),
        }
    }

    #[test]
    fn ranges_that_meet_exclude_each_other_until_they_are_let_go() {
        let locks = RawLocks::default();
        let range = |offset, length| RawStep::Lock { offset, length };
        let try_step = |session, op, wanted| step(&locks, place(), claim(session, op), wanted);
        assert_eq!(try_step(1, 1, range(0, 4096)), Ok(Reply::Done));
        assert_eq!(try_step(1, 1, range(0, 4096)), Ok(Reply::Done), "the same again");
        assert_eq!(try_step(1, 2, range(4096, 4096)), Ok(Reply::Done), "beside it");
        assert_eq!(try_step(1, 3, range(4095, 2)), Err(Error::WouldBlock));
        assert!(!locks.is_wanted(place(), SessionId(1)), "nobody else");
        assert_eq!(try_step(2, 1, range(0, 1)), Err(Error::WouldBlock));
        assert!(locks.is_wanted(place(), SessionId(1)));
        assert_eq!(try_step(1, 1, RawStep::Unlock), Ok(Reply::Done));
        assert_eq!(try_step(2, 1, range(0, 1)), Ok(Reply::Done));
        locks.end_session(SessionId(1));
        assert_eq!(try_step(2, 2, range(4096, 4096)), Ok(Reply::Done), "its session has ended");
        assert!(matches!(locks.step(place(), claim(1, 1), &RawStep::Clear), Handled::ByReplica));
    }

    #[test]
    fn a_session_has_so_many_locks_and_others_do_not_suffer() {
        let locks = RawLocks::default();
        let at = |session, index: usize, wanted| {
            let place = place();
            let place = ReplicaShard { shard: ShardId { index: index as u64, ..place.shard }, ..place };
            step(&locks, place, claim(session, 1), wanted)
        };
        let lock = || RawStep::Lock { offset: 0, length: 1 };
        let most = LOCKS_OF_SESSION_MAX;
        (0..most).for_each(|index| assert_eq!(at(1, index, lock()), Ok(Reply::Done)));
        assert!(matches!(at(1, most, lock()), Err(Error::Invalid { .. })));
        assert_eq!(at(1, 0, lock()), Ok(Reply::Done), "one that it has");
        assert_eq!(at(2, most, lock()), Ok(Reply::Done));
        assert_eq!(at(1, 0, RawStep::Unlock), Ok(Reply::Done));
        assert_eq!(at(1, most + 1, lock()), Ok(Reply::Done));
        locks.end_session(SessionId(1));
        locks.end_session(SessionId(2));
        let table = locks.table.lock();
        assert!(table.held.is_empty() && table.counts.is_empty());
    }
}
