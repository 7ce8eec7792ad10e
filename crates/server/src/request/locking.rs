//! POSIX locks, on the server's side: a leader learns which sessions may hold locks, a session is notified when a lock
//! that it waits for is granted, and a session that has ended releases its locks. The locks themselves are the leader's
//! (`replica/locks.rs`).

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::request::sessions::Session;
use crate::request::turn::Turn;
use hekate_cluster::SessionInfo;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_replica::{Address, Ask, Event, Ticket};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Op ids in one notification.
const NOTIFIED_AT_ONCE: usize = 1024;

impl Node {
    /// Brings a lock op to the leader. A lock that has to wait is answered `Waiting` at once, so that it holds up
    /// neither its connection nor its session.
    ///
    /// # Errors
    ///
    /// `SessionEnded` if the session ended meanwhile; those of the leader.
    pub(crate) fn lock_op(&self, ring: &Arc<HostedRing>, ask: &Ask, op: &Op, to: Address) -> Result<Reply> {
        let answer = self.ask_replica(ring, to, ask, op);
        // The leader may have handled the end of the session before this op: then the lock is released here.
        if self.sessions.get(ask.session).is_err() {
            self.end_locks(ring, to, ask.session);
            return Err(Error::SessionEnded);
        }
        answer
    }

    /// Sends each new leader whose view has begun the sessions that may hold locks of its partition: all that have not
    /// ended. The leader grants no lock before each of them has restored its own.
    ///
    /// The records are read for this: until the view has begun, an earlier leader grants locks to sessions that other
    /// servers open, and this server may know none of these.
    ///
    /// # Errors
    ///
    /// Those of the coordinator; the leaders then wait for the next call.
    pub(crate) fn send_sessions(&self) -> Result<()> {
        let wanting: Vec<(Arc<HostedRing>, Address, Epoch)> =
            self.rings.all().into_iter().flat_map(|ring| leaders_without_sessions(&ring)).collect();
        if wanting.is_empty() {
            return Ok(());
        }
        let recorded = match is_planted(Bug::SessionsNotRead) {
            true => self.sessions.known(),
            false => self.sessions.read(self.cluster.registry())?,
        };
        // Read after the sessions: a volume that is not among them has no session.
        let ring_of: BTreeMap<VolumeId, RingId> =
            self.cluster.registry().volumes()?.into_iter().map(|volume| (volume.volume, volume.ring)).collect();
        for (ring, to, epoch) in wanting {
            let is_here = |info: &&SessionInfo| ring_of.get(&info.volume) == Some(&ring.ring);
            let sessions: Vec<SessionId> = recorded.iter().filter(is_here).map(|info| info.session).collect();
            let mut turn = Turn::new(self, &ring);
            turn.deliver(to, Event::Sessions { epoch, sessions: sessions.clone() });
            turn.run();
            // A session that ended meanwhile may have ended for the leader before the leader had it in its list.
            let ended = sessions.into_iter().filter(|session| self.sessions.get(*session).is_err());
            ended.for_each(|session| self.end_locks(&ring, to, session));
        }
        Ok(())
    }

    /// Informs each leader here whether all sessions that it waits for have been silent for 3 s. Such a leader refuses
    /// lock ops that must not block: their sessions may take up to 60 s to expire.
    pub(crate) fn send_doubts(&self, ring: &Arc<HostedRing>) {
        for to in ring.leaders() {
            let unrestored =
                ring.replica(to).map(|hosted| hosted.partition.read().unrestored_sessions()).unwrap_or_default();
            if !unrestored.is_empty() && self.sessions.are_doubtful(&unrestored) {
                let mut turn = Turn::new(self, ring);
                turn.deliver(to, Event::SessionsDoubtful);
                turn.run();
            }
        }
    }

    /// Releases all locks of a session that has ended, at every leader here.
    pub(crate) fn session_ended(&self, ring: &Arc<HostedRing>, session: SessionId) {
        self.raw_locks.end_session(session);
        ring.leaders().into_iter().for_each(|to| self.end_locks(ring, to, session));
    }

    fn end_locks(&self, ring: &Arc<HostedRing>, to: Address, session: SessionId) {
        let mut turn = Turn::new(self, ring);
        turn.deliver(to, Event::SessionEnded { session });
        turn.run();
    }

    /// Partitions led here that wait for the session to restore its locks.
    ///
    /// # Errors
    ///
    /// `SessionEnded` if the session's volume is gone.
    pub(crate) fn awaiting_restore(&self, session: &Session) -> Result<Vec<PartitionNumber>> {
        let ring = self.ring(self.volume(session.volume)?.ring)?;
        let awaits = |to: &Address| ring.replica(*to).is_some_and(|hosted| hosted.partition.read().awaits(session.id));
        Ok(ring.leaders().into_iter().filter(awaits).map(|to| to.partition).collect())
    }

    /// Notifies sessions that ops of theirs which waited have answers.
    pub(crate) fn notify_waiters(&self, ended_waits: Vec<Ticket>) {
        let mut by_session: BTreeMap<SessionId, Vec<OpId>> = BTreeMap::new();
        ended_waits.into_iter().for_each(|ticket| by_session.entry(ticket.session).or_default().push(ticket.op_id));
        for (session, op_ids) in by_session {
            if let Ok(session) = self.sessions.get(session) {
                for some in op_ids.chunks(NOTIFIED_AT_ONCE) {
                    session.notify(&Notification::Answered { op_ids: some.to_vec() });
                }
            }
        }
    }
}

/// The leaders here to which the sessions have to be sent, each with the epoch of its view.
fn leaders_without_sessions(ring: &Arc<HostedRing>) -> Vec<(Arc<HostedRing>, Address, Epoch)> {
    let wants = |to: Address| {
        let epoch = ring.replica(to)?.partition.read().wants_sessions()?;
        Some((ring.clone(), to, epoch))
    };
    ring.leaders().into_iter().filter_map(wants).collect()
}
