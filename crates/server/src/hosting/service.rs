//! Requests of connections other than batches: opening a volume, registering for lock notifications, links of other
//! servers.

use crate::control;
use crate::hosting::node::Node;
use crate::maintenance::housekeeping::forget_session;
use crate::request::raw;
use crate::request::sessions::Session;
use hekate_cluster::{SessionOwner, VolumeInfo};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_transport::link::Boot;
use hekate_transport::{NotificationSink, Peer, Peers, Service};
use std::sync::Arc;

impl Service for Node {
    fn open(&self, peer: &Peer, name: &str, resume: Option<SessionId>) -> Result<(VolumeId, SessionId, String)> {
        let volume = &self.volume_called(name)?;
        self.cluster.meet(peer);
        let owner = self.cluster.access.may_use(peer, volume)?;
        raw::check_mode(volume)?;
        let session = match resume {
            Some(id) => self.sessions.find(self.cluster.registry(), id)?,
            None => self.sessions.begin(self.cluster.registry(), volume.volume, owner.clone())?,
        };
        self.cluster.access.logged(peer, may_resume(&session, &owner, volume.volume))?;
        let map = self.map_for(peer, volume)?;
        let map = serde_json::to_string(&map).map_err(|e| Error::bug(e.to_string()))?;
        session.connected();
        Ok((volume.volume, session.id, map))
    }

    fn call(&self, session: SessionId, requests: Vec<Request>) -> Vec<Result<Reply>> {
        self.batch(session, &requests)
    }

    fn listening(&self, session: SessionId, listener: Arc<dyn NotificationSink>) {
        if let Ok(session) = self.sessions.get(session) {
            session.add_listener(listener);
        }
    }

    fn deaf(&self, session: SessionId, listener: &Arc<dyn NotificationSink>) {
        if let Ok(session) = self.sessions.get(session) {
            session.remove_listener(listener);
        }
    }

    fn disconnected(&self, session: SessionId) {
        if let Ok(session) = self.sessions.get(session) {
            session.disconnected();
            if is_planted(Bug::SlotsForgotten) {
                self.rings.all().iter().for_each(|ring| _ = forget_session(self, ring, session.id));
            }
        }
    }

    fn peers(&self, peer: &Peer, from: ServerId, _: Boot) -> Result<Peers> {
        self.cluster.access.may_link(peer)?;
        let unknown = || Error::Unavailable { what: format!("this server is not ready for server {from}") };
        self.links.peers().cloned().ok_or_else(unknown)
    }

    fn control(&self, peer: &Peer, request: &str) -> String {
        control::answer(self, peer, request)
    }
}

impl Node {
    /// A volume that clients may use. The records are read again if it is not known: another server may have made it a
    /// moment ago.
    fn volume_called(&self, name: &str) -> Result<Arc<VolumeInfo>> {
        if let Some(volume) = self.volumes.called(name) {
            return Ok(volume);
        }
        self.read_records()?;
        self.volumes.called(name).ok_or_else(|| self.no_volume(name))
    }
}

/// Checks that a session is one of this owner and volume. The server where a user's session was opened vouches for it:
/// its credential is what the user's process shows to servers on other machines.
fn may_resume(session: &Session, owner: &SessionOwner, volume: VolumeId) -> Result<()> {
    let is_vouched_for = matches!(session.owner, SessionOwner::Uid(_)) && *owner == SessionOwner::Server(session.home);
    let what = if session.owner != *owner && !is_vouched_for {
        "the session belongs to another user or client; open a new one"
    } else if session.volume != volume {
        "the session is one of another volume; open a new one"
    } else {
        return Ok(());
    };
    Err(Error::Denied { what: what.into() })
}
