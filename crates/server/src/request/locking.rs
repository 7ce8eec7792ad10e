//! What the server does for locks: leaders learn which sessions may hold some, sessions learn that theirs have been
//! granted, and what an ended session held is let go.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::request::sessions::Session;
use crate::request::turn::Turn;
use hekate_proto::*;
use hekate_replica::{Address, Ask, Event, Ticket};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Node {
    /// A lock op. One that waits is answered so at once, and holds up neither its connection nor its session.
    pub(crate) fn lock_op(&self, ring: &Arc<HostedRing>, ask: &Ask, op: &Op, to: Address) -> Result<Reply> {
        let answer = self.ask_replica(ring, to, ask, op);
        // Its end may have come to the leader before the op did: then what the op took is let go here.
        if self.sessions.get(ask.session).is_err() {
            self.end_locks(ring, to, ask.session);
            return Err(Error::SessionEnded);
        }
        answer
    }

    /// Leaders that begin anew learn which sessions may hold locks of theirs: all that had not ended by then.
    pub(crate) fn tell_sessions(&self, ring: &Arc<HostedRing>) {
        for to in ring.leaders() {
            if !ring.replica(to).is_some_and(|hosted| hosted.partition.read().wants_sessions()) {
                continue;
            }
            let sessions = self.sessions.on(|volume| self.volume(volume).is_ok_and(|volume| volume.ring == ring.ring));
            let mut turn = Turn::new(self, ring);
            turn.tell(to, Event::Sessions { sessions: sessions.clone() });
            turn.run();
            // One that ended meanwhile may have ended for the leader before it was told of it.
            let ended = sessions.into_iter().filter(|session| self.sessions.get(*session).is_err());
            ended.for_each(|session| self.end_locks(ring, to, session));
        }
    }

    /// Leaders that wait for locks of sessions which may be gone refuse who does not wait for a lock: it would be long.
    pub(crate) fn tell_doubts(&self, ring: &Arc<HostedRing>) {
        for to in ring.leaders() {
            let untold = ring.replica(to).map(|hosted| hosted.partition.read().untold()).unwrap_or_default();
            if !untold.is_empty() && self.sessions.are_doubtful(&untold) {
                let mut turn = Turn::new(self, ring);
                turn.tell(to, Event::SessionsDoubtful);
                turn.run();
            }
        }
    }

    /// All leaders here let go of what it held.
    pub(crate) fn session_ended(&self, ring: &Arc<HostedRing>, session: SessionId) {
        self.raw_locks.end_session(session);
        ring.leaders().into_iter().for_each(|to| self.end_locks(ring, to, session));
    }

    fn end_locks(&self, ring: &Arc<HostedRing>, to: Address, session: SessionId) {
        let mut turn = Turn::new(self, ring);
        turn.tell(to, Event::SessionEnded { session });
        turn.run();
    }

    /// Partitions led here that wait for what the session held.
    pub(crate) fn untold(&self, session: &Session) -> Result<Vec<PartitionNumber>> {
        let ring = self.ring(self.volume(session.volume)?.ring)?;
        let awaits = |to: &Address| ring.replica(*to).is_some_and(|hosted| hosted.partition.read().awaits(session.id));
        Ok(ring.leaders().into_iter().filter(awaits).map(|to| to.partition).collect())
    }

    /// Ops that waited have their answers.
    pub(crate) fn tell_waiters(&self, told: Vec<Ticket>) {
        let mut by_session: BTreeMap<SessionId, Vec<OpId>> = BTreeMap::new();
        told.into_iter().for_each(|ticket| by_session.entry(ticket.session).or_default().push(ticket.op_id));
        for (session, op_ids) in by_session {
            if let Ok(session) = self.sessions.get(session) {
                session.tell(&op_ids);
            }
        }
    }
}
