//! Pledges, on the server's side: sessions renew and return them. Leaders give and recall them
//! (`replica/pledges.rs`).

use crate::hosting::node::Node;
use crate::request::sessions::Session;
use crate::request::turn::Turn;
use hekate_proto::*;
use hekate_replica::Event;
use std::time::Duration;

impl Node {
    /// A clock that is never set, for the expiry of pledges.
    pub(crate) fn elapsed() -> Duration {
        hekate_threads::boot_time()
    }

    /// Takes the session's word for what it has forgotten, and returns the partitions led here whose pledges to the
    /// session are renewed, each with its leader's term.
    ///
    /// Without a lease nothing is renewed: another server may lead.
    ///
    /// # Errors
    ///
    /// `SessionEnded` if the session's volume is gone.
    pub(crate) fn renew_pledges(
        &self,
        session: &Session,
        forgot: &[(PartitionNumber, u64)],
        mapped: &[KeptRight],
    ) -> Result<Vec<(PartitionNumber, u64)>> {
        let Ok(until) = self.views.lease().check() else { return Ok(Vec::new()) };
        let ring = self.ring(self.volume(session.volume)?.ring)?;
        let mut terms = Vec::new();
        for to in ring.leaders() {
            let Some(hosted) = ring.replica(to) else { continue };
            let (term, awaits) = {
                let partition = hosted.partition.read();
                (partition.pledge_term(session.id, Self::elapsed()), partition.awaits_forgetting(session.id))
            };
            if let Some((_, term)) = forgot.iter().find(|(partition, _)| awaits && *partition == to.partition) {
                let mut turn = Turn::new(self, &ring);
                let mapped = mapped.iter().filter(|kept| kept.partition == to.partition).copied().collect();
                let (session, volume) = (session.id, session.volume);
                turn.deliver(to, Event::Forgot { session, volume, term: *term, mapped });
                turn.run();
            }
            terms.extend(term.map(|term| (to.partition, term)));
        }
        Ok(if self.views.lease().holds(until).is_ok() { terms } else { Vec::new() })
    }

    /// Brings returned pledges to their leader, if it is here. Another leader does not know them.
    ///
    /// # Errors
    ///
    /// `SessionEnded` if the session's volume is gone; with reports, an error if the leader is not here.
    pub(crate) fn take_back_pledges(
        &self,
        session: &Session,
        partition: PartitionNumber,
        term: u64,
        (pledges, reports): (Vec<Pledge>, Vec<Report>),
    ) -> Result<()> {
        let ring = self.ring(self.volume(session.volume)?.ring)?;
        let to = match ring.leader(partition) {
            Ok((to, _)) => to,
            // It may lead again. The session keeps its report until a leader has it.
            Err(error) if !reports.is_empty() => return Err(error),
            Err(_) => return Ok(()),
        };
        let (session, volume) = (session.id, session.volume);
        let mut turn = Turn::new(self, &ring);
        turn.deliver(to, Event::Returned { session, volume, term, pledges, reports });
        turn.run();
        Ok(())
    }
}
