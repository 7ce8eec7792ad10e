//! Links to the cluster's other servers: messages between their replicas and the replicas here.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::hosting::surroundings;
use crate::request::syncer::Need;
use crate::request::turn::Turn;
use bytes::Bytes;
use hekate_proto::*;
use hekate_replica::{Address, Envelope, Event, SyncJob};
use hekate_threads::{Mutex, MutexGuard};
use hekate_transport::link::Boot;
use hekate_transport::{Endpoint, PeerHandler, PeerLinks, Peers};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};

/// The links to other servers.
#[derive(Default)]
pub struct Links {
    /// Set when the server starts its links; until then another server's connection is refused.
    started: OnceLock<surroundings::Links>,
    /// Servers whose link is up.
    up: Mutex<BTreeSet<ServerId>>,
}

impl Links {
    /// The links, once they are started.
    pub fn started(&self) -> Option<&dyn PeerLinks> {
        self.started.get().map(|started| &*started.links)
    }

    /// The sockets that other servers connect to.
    pub fn peers(&self) -> Option<&Peers> {
        self.started.get()?.peers.as_ref()
    }

    /// The servers whose link is up, under the lock: none goes up or down until the guard is dropped.
    pub fn up(&self) -> MutexGuard<'_, BTreeSet<ServerId>> {
        self.up.lock()
    }
}

/// Handles what arrives over the links.
struct Inbox(Weak<Node>);

impl PeerHandler for Inbox {
    fn up(&self, from: ServerId, _: Boot) {
        let Some(node) = self.0.upgrade() else { return };
        // The server may have a new incarnation, and so be in new views.
        if let Err(error) = node.renew_views() {
            log::warn!("cannot read the views after server {from} connected: {error}");
        }
        node.links.up.lock().insert(from);
        node.deliver_about(from, |bricks| Event::Up { bricks });
    }

    fn message(&self, from: ServerId, message: Bytes) {
        let Some(node) = self.0.upgrade() else { return };
        let Ok(envelope) = Envelope::from_bytes(message) else {
            return log::warn!("a message of server {from} cannot be decoded and is dropped");
        };
        let Ok(ring) = node.ring(envelope.ring) else { return };
        // A message in the name of another server's brick is dropped.
        if ring.server_of(envelope.from.brick) != Some(from) {
            return;
        }
        // The sender is in a newer view than is known here. The replica may drop the message: the sender resends what
        // is still needed.
        if ring.view(envelope.from.partition).is_ok_and(|view| view.epoch < envelope.epoch) {
            node.wake_views();
        }
        let mut turn = Turn::new(&node, &ring);
        turn.deliver(envelope.to, Event::Message(envelope));
        turn.run_without_syncs();
    }

    fn down(&self, from: ServerId) {
        let Some(node) = self.0.upgrade() else { return };
        node.links.up.lock().remove(&from);
        node.deliver_about(from, |bricks| Event::Down { bricks });
        node.views.expect_changes();
        node.wake_views();
    }
}

impl Node {
    /// Starts the links to the servers whose addresses are known.
    ///
    /// # Errors
    ///
    /// `Io` if the machine gives no thread or no random bytes; those of the coordinator.
    pub(crate) fn begin_links(&self) -> Result<()> {
        let own = self.cluster.server();
        let boot = hekate_threads::random().map_err(|e| Error::Io { what: format!("random bytes: {e}") })?;
        let inbox = Arc::new(Inbox(self.own.clone()));
        let started = self.surroundings.start_links(own, Boot(boot), inbox)?;
        let _ = self.links.started.set(started);
        self.read_addresses()
    }

    /// Reads the addresses of the other servers.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub(crate) fn read_addresses(&self) -> Result<()> {
        let Some(links) = self.links.started() else { return Ok(()) };
        for info in self.cluster.registry().servers()? {
            if info.server != self.cluster.server()
                && let Some(endpoint) = Endpoint::any_of(self.cluster.endpoints_of(&info))
            {
                links.set_address(info.server, endpoint)?;
            }
        }
        Ok(())
    }

    /// Sends a message to a replica of another server. Without a link it is dropped: the sending replica resends what
    /// is still needed when the link is up.
    pub(crate) fn send_to_brick(&self, ring: &HostedRing, envelope: &Envelope) {
        if let (Some(links), Some(server)) = (self.links.started(), ring.server_of(envelope.to.brick)) {
            links.send(server, envelope.to_bytes());
        }
    }

    /// Queues a sync for the brick's thread, which delivers the outcome to the replica.
    pub(crate) fn sync_later(&self, ring: &Arc<HostedRing>, job: SyncJob) {
        let Some(hosted) = ring.replica(job.replica) else { return };
        let need = Need { upto: hosted.brick.end(), shards: job.shards };
        let (own, ring, replica, ticket) = (self.own.clone(), ring.clone(), job.replica, job.ticket);
        let then = move |outcome| {
            let Some(node) = own.upgrade() else { return };
            let mut turn = Turn::new(&node, &ring);
            turn.deliver(replica, Event::Synced { ticket, outcome });
            turn.run_without_syncs();
        };
        self.syncers.later(&hosted.brick, need, Box::new(then));
    }

    /// Delivers an event about a server's bricks to all replicas here.
    fn deliver_about(&self, server: ServerId, event: impl Fn(Vec<BrickId>) -> Event) {
        for ring in self.rings.all() {
            let bricks = ring.bricks_of(server);
            let addresses: Vec<Address> = ring.replicas().map(|(address, _)| *address).collect();
            let mut turn = Turn::new(self, &ring);
            addresses.into_iter().for_each(|address| turn.deliver(address, event(bricks.clone())));
            turn.run_without_syncs();
        }
    }

    /// Reads the views from the coordinator and takes them over. No lock is held meanwhile: links to several servers come
    /// up at once, and a slow coordinator is not to hold up the readers of the records.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub(crate) fn renew_views(&self) -> Result<()> {
        self.take_views(&self.cluster.registry().rings()?);
        Ok(())
    }
}
