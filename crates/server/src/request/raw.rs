//! Locks of raw writes (mode `afr`): in this server's memory, as AFR's are in its bricks' memory. They end with their session.

use hekate_proto::*;
use hekate_replica::Address;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Locks that one shard has at one replica.
const LOCKS_MAX: usize = 256;
/// Locks of one session, wherever they are.
const LOCKS_OF_SESSION_MAX: usize = 65_536;

type ReplicaShard = (Address, ShardId);

#[derive(Debug)]
struct Held {
    session: SessionId,
    op: OpId,
    from: u64,
    to: u64,
    /// Another session was refused because of it.
    wanted: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RawLocks {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    held: HashMap<ReplicaShard, Vec<Held>>,
    /// How many a session has.
    counts: HashMap<SessionId, usize>,
}

impl Table {
    fn let_go(&mut self, place: ReplicaShard, (session, op): (SessionId, OpId)) {
        let Some(here) = self.held.get_mut(&place) else { return };
        let before = here.len();
        here.retain(|known| (known.session, known.op) != (session, op));
        let gone = before - here.len();
        if here.is_empty() {
            self.held.remove(&place);
        }
        let Some(count) = self.counts.get_mut(&session) else { return };
        *count -= gone;
        if *count == 0 {
            self.counts.remove(&session);
        }
    }
}

/// Whether a step was one about locks.
pub(crate) enum Locked {
    Here(Result<Reply>),
    No,
}

impl RawLocks {
    pub fn step(&self, place: ReplicaShard, (session, op): (SessionId, OpId), step: &RawStep) -> Locked {
        match step {
            RawStep::Lock { offset, length } => {
                let from = u64::from(*offset);
                Locked::Here(self.lock(place, Held { session, op, from, to: from + u64::from(*length), wanted: false }))
            }
            RawStep::Unlock => {
                self.table.lock().let_go(place, (session, op));
                Locked::Here(Ok(Reply::Done))
            }
            RawStep::Mark { .. } | RawStep::Write { .. } | RawStep::Clear => Locked::No,
        }
    }

    fn lock(&self, place: ReplicaShard, wanted: Held) -> Result<Reply> {
        let mut table = self.table.lock();
        let Table { held, counts } = &mut *table;
        let is_same = |known: &Held| (known.session, known.op) == (wanted.session, wanted.op);
        let meets = |known: &&mut Held| !is_same(known) && known.from < wanted.to && wanted.from < known.to;
        let here = held.entry(place).or_default();
        if let Some(other) = here.iter_mut().find(meets) {
            other.wanted |= other.session != wanted.session;
            return Err(Error::WouldBlock);
        }
        if here.iter().any(is_same) {
            return Ok(Reply::Done);
        }
        let count = counts.entry(wanted.session).or_default();
        if *count >= LOCKS_OF_SESSION_MAX || here.len() >= LOCKS_MAX {
            if here.is_empty() {
                held.remove(&place);
            }
            return Err(Error::invalid("too many locks of raw writes: at most 256 on a shard and 65,536 of a session"));
        }
        *count += 1;
        here.push(wanted);
        Ok(Reply::Done)
    }

    /// Whether another session waits for one of this session's locks.
    pub fn is_wanted(&self, place: ReplicaShard, session: SessionId) -> bool {
        let table = self.table.lock();
        table.held.get(&place).is_some_and(|here| here.iter().any(|known| known.session == session && known.wanted))
    }

    pub fn end_session(&self, session: SessionId) {
        let mut table = self.table.lock();
        if table.counts.remove(&session).is_some() {
            table.held.retain(|_, here| {
                here.retain(|known| known.session != session);
                !here.is_empty()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> ReplicaShard {
        let shard = ShardId { volume: VolumeId(1), data: DataId(7), index: 0 };
        (Address { partition: PartitionNumber(3), brick: BrickId(9) }, shard)
    }

    fn step(locks: &RawLocks, session: u64, op: u64, step: RawStep) -> Result<Reply> {
        match locks.step(place(), (SessionId(session), OpId(op)), &step) {
            Locked::Here(answer) => answer,
            Locked::No => panic!("{step:?} is about locks"),
        }
    }

    #[test]
    fn ranges_that_meet_exclude_each_other_until_they_are_let_go() {
        let locks = RawLocks::default();
        let range = |offset, length| RawStep::Lock { offset, length };
        assert_eq!(step(&locks, 1, 1, range(0, 4096)), Ok(Reply::Done));
        assert_eq!(step(&locks, 1, 1, range(0, 4096)), Ok(Reply::Done), "the same again");
        assert_eq!(step(&locks, 1, 2, range(4096, 4096)), Ok(Reply::Done), "beside it");
        assert_eq!(step(&locks, 1, 3, range(4095, 2)), Err(Error::WouldBlock));
        assert!(!locks.is_wanted(place(), SessionId(1)), "nobody else");
        assert_eq!(step(&locks, 2, 1, range(0, 1)), Err(Error::WouldBlock));
        assert!(locks.is_wanted(place(), SessionId(1)));
        assert_eq!(step(&locks, 1, 1, RawStep::Unlock), Ok(Reply::Done));
        assert_eq!(step(&locks, 2, 1, range(0, 1)), Ok(Reply::Done));
        locks.end_session(SessionId(1));
        assert_eq!(step(&locks, 2, 2, range(4096, 4096)), Ok(Reply::Done), "its session has ended");
        assert!(matches!(locks.step(place(), (SessionId(1), OpId(1)), &RawStep::Clear), Locked::No));
    }

    #[test]
    fn a_session_has_so_many_locks_and_others_do_not_suffer() {
        let locks = RawLocks::default();
        let at = |session, index: usize, step| {
            let (address, shard) = place();
            let place = (address, ShardId { index: index as u64, ..shard });
            match locks.step(place, (SessionId(session), OpId(1)), &step) {
                Locked::Here(answer) => answer,
                Locked::No => panic!("it is about locks"),
            }
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
