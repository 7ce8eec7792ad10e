//! Locks of raw writes (mode `afr`): in this server's memory, as AFR's are in its bricks' memory. They end with their session.

use hekate_proto::*;
use hekate_replica::Address;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Locks that one shard has at one replica.
const LOCKS_MAX: usize = 256;

type Place = (Address, ShardId);

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
    held: Mutex<HashMap<Place, Vec<Held>>>,
}

/// Whether a step was one about locks.
pub(crate) enum Locked {
    Here(Result<Reply>),
    No,
}

impl RawLocks {
    pub fn step(&self, place: Place, (session, op): (SessionId, OpId), step: &RawStep) -> Locked {
        match step {
            RawStep::Lock { offset, length } => {
                let from = u64::from(*offset);
                Locked::Here(self.lock(place, Held { session, op, from, to: from + u64::from(*length), wanted: false }))
            }
            RawStep::Unlock => {
                let mut held = self.held.lock();
                if let Some(here) = held.get_mut(&place) {
                    here.retain(|known| (known.session, known.op) != (session, op));
                    if here.is_empty() {
                        held.remove(&place);
                    }
                }
                Locked::Here(Ok(Reply::Done))
            }
            RawStep::Mark { .. } | RawStep::Write { .. } | RawStep::Clear => Locked::No,
        }
    }

    fn lock(&self, place: Place, wanted: Held) -> Result<Reply> {
        let mut held = self.held.lock();
        let here = held.entry(place).or_default();
        let meets = |known: &&mut Held| {
            (known.session, known.op) != (wanted.session, wanted.op) && known.from < wanted.to && wanted.from < known.to
        };
        if let Some(other) = here.iter_mut().find(meets) {
            other.wanted |= other.session != wanted.session;
            return Err(Error::WouldBlock);
        }
        if here.len() >= LOCKS_MAX {
            return Err(Error::invalid("too many locks of raw writes on one shard"));
        }
        if !here.iter().any(|known| (known.session, known.op) == (wanted.session, wanted.op)) {
            here.push(wanted);
        }
        Ok(Reply::Done)
    }

    /// Whether another session waits for one of this session's locks.
    pub fn is_wanted(&self, place: Place, session: SessionId) -> bool {
        let held = self.held.lock();
        held.get(&place).is_some_and(|here| here.iter().any(|known| known.session == session && known.wanted))
    }

    pub fn end_session(&self, session: SessionId) {
        self.held.lock().retain(|_, here| {
            here.retain(|known| known.session != session);
            !here.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
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
}
