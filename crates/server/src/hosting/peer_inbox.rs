//! Links to the cluster's other servers: what their replicas and those here say to each other.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::request::syncer::Need;
use crate::request::turn::Turn;
use bytes::Bytes;
use hekate_cluster::ServerInfo;
use hekate_proto::*;
use hekate_replica::{Address, Envelope, Event, SyncJob};
use hekate_transport::link::{Boot, LinkSettings};
use hekate_transport::{Endpoint, PeerHandler, Peers};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};

/// The links to the cluster's other servers.
#[derive(Default)]
pub struct Links {
    /// Set once the server has read its rings; until then no other server is answered.
    peers: OnceLock<Peers>,
    /// Servers whose link is up.
    up: Mutex<BTreeSet<ServerId>>,
}

impl Links {
    pub fn peers(&self) -> Option<&Peers> {
        self.peers.get()
    }

    /// The servers whose link is up, under the lock: none goes up or down until the guard is dropped.
    pub fn up(&self) -> MutexGuard<'_, BTreeSet<ServerId>> {
        self.up.lock()
    }
}

/// What arrives from other servers.
struct Inbox(Weak<Node>);

impl PeerHandler for Inbox {
    fn up(&self, from: ServerId, _: Boot) {
        let Some(node) = self.0.upgrade() else { return };
        // It may be in a new life, and so in new views.
        if let Err(error) = node.renew_views() {
            log::warn!("the views of server {from}: {error}");
        }
        node.links.up.lock().insert(from);
        node.tell_of(from, |bricks| Event::Up { bricks });
    }

    fn message(&self, from: ServerId, message: Bytes) {
        let Some(node) = self.0.upgrade() else { return };
        let Ok(envelope) = Envelope::from_bytes(message) else {
            return log::warn!("server {from} sent a message that cannot be read");
        };
        let Ok(ring) = node.ring(envelope.ring) else { return };
        // A server speaks for its own bricks only.
        if ring.server_of(envelope.from.brick) != Some(from) {
            return;
        }
        // It speaks in a view that is not known here yet; what it says it will say again.
        if ring.view(envelope.from.partition).is_ok_and(|view| view.epoch < envelope.epoch) {
            node.look_at_views();
        }
        let mut turn = Turn::new(&node, &ring);
        turn.tell(envelope.to, Event::Message(envelope));
        turn.run_without_syncs();
    }

    fn down(&self, from: ServerId) {
        let Some(node) = self.0.upgrade() else { return };
        node.links.up.lock().remove(&from);
        node.tell_of(from, |bricks| Event::Down { bricks });
        node.views.expect_changes();
        node.look_at_views();
    }
}

impl Node {
    /// Gets in touch with the other servers, as far as it is known where they listen.
    pub(crate) fn begin_links(&self) -> Result<()> {
        let own = self.registry.server();
        let mut boot = [0; 8];
        getrandom::fill(&mut boot).map_err(|e| Error::Io { what: format!("random bytes: {e}") })?;
        let inbox = Arc::new(Inbox(self.own.clone()));
        let peers = Peers::start(own, Boot(u64::from_le_bytes(boot)), LinkSettings::default(), inbox)?;
        let _ = self.links.peers.set(peers);
        self.learn_servers()
    }

    /// Where the others listen by now.
    pub(crate) fn learn_servers(&self) -> Result<()> {
        let Some(peers) = self.links.peers() else { return Ok(()) };
        for info in self.registry.servers()? {
            if info.server != self.registry.server()
                && let Some(endpoint) = self.endpoint_of(&info)
            {
                peers.set_address(info.server, endpoint)?;
            }
        }
        Ok(())
    }

    /// A unix socket of another machine leads nowhere: one counts if its directory is here.
    fn endpoint_of(&self, info: &ServerInfo) -> Option<Endpoint> {
        let is_here = |endpoint: &Endpoint| match endpoint {
            Endpoint::Unix(path) => path.parent().is_some_and(std::path::Path::exists),
            Endpoint::Tcp(..) => true,
        };
        let mut known = info.endpoints.iter().filter_map(|text| Endpoint::parse(text, self.secret.as_ref()).ok());
        known.find(is_here)
    }

    /// A message for a replica of another server. If there is no link nobody waits for it: what still counts is said again
    /// when there is one.
    pub(crate) fn send_to_brick(&self, ring: &HostedRing, envelope: &Envelope) {
        if let (Some(peers), Some(server)) = (self.links.peers(), ring.server_of(envelope.to.brick)) {
            peers.send(server, envelope.to_bytes());
        }
    }

    /// Leaves a sync to the brick's thread, which goes on with what follows it.
    pub(crate) fn sync_later(&self, ring: &Arc<HostedRing>, job: SyncJob) {
        let Some(hosted) = ring.replica(job.replica) else { return };
        let need = Need { upto: hosted.brick.end(), shards: job.shards };
        let (own, ring, replica, ticket) = (self.own.clone(), ring.clone(), job.replica, job.ticket);
        let then = move |outcome| {
            let Some(node) = own.upgrade() else { return };
            let mut turn = Turn::new(&node, &ring);
            turn.tell(replica, Event::Synced { ticket, outcome });
            turn.run_without_syncs();
        };
        self.syncers.later(&hosted.brick, need, Box::new(then));
    }

    /// Tells all replicas here of the bricks of a server.
    fn tell_of(&self, server: ServerId, event: impl Fn(Vec<BrickId>) -> Event) {
        for ring in self.rings.all() {
            let bricks = ring.bricks_of(server);
            let addresses: Vec<Address> = ring.replicas().map(|(address, _)| *address).collect();
            let mut turn = Turn::new(self, &ring);
            addresses.into_iter().for_each(|address| turn.tell(address, event(bricks.clone())));
            turn.run_without_syncs();
        }
    }

    /// Takes over what the coordinator says of the views.
    pub(crate) fn renew_views(&self) -> Result<()> {
        self.take_views(&self.registry.rings()?);
        Ok(())
    }
}
