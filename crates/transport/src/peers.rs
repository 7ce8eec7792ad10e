//! Messages between server processes, over the sockets that clients use too: a [`Link`](crate::link) for each peer, and
//! one connection that carries it.
//!
//! The server with the higher number connects, and does so again for ever. A message costs no thread but those that make
//! and handle it: [`Peers::send`] writes on the calling thread as long as the socket takes it, else the connection's
//! writer thread does; the connection's reader thread calls the handler. What is sent while a [`Cork`] lives on the
//! sending thread is written in one go; a reader corks itself while it handles what one read has brought.

mod connection;
mod cork;
mod outbox;
mod peer;
#[cfg(test)]
mod tests;
mod timer;

pub use cork::Cork;

use crate::endpoint::Endpoint;
use crate::frame::Channel;
use crate::link::{Boot, Link, LinkSettings};
use crate::server::spawn;
use bytes::Bytes;
use hekate_proto::{Error, Result, ServerId};
use parking_lot::RwLock;
use peer::Peer;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use timer::Alarm;

/// Takes what peers send. For one peer, calls come one at a time and in order, on threads of [`Peers`]: what a call waits
/// for must not be a message of the same peer. It may send; what it sends is written once everything is handled that one
/// read has brought, or at [`Peers::flush`]. After a panic the generation begins anew.
pub trait PeerHandler: Send + Sync {
    /// A generation begins: what is sent now arrives, in order and once, unless `down` is said.
    fn up(&self, from: ServerId, boot: Boot);
    /// The next message.
    fn message(&self, from: ServerId, message: Bytes);
    /// The generation has ended; of what was sent in it and not answered, the peer has had a beginning.
    fn down(&self, from: ServerId);
}

/// This process's links to other servers. Clones are the same.
#[derive(Clone)]
pub struct Peers {
    shared: Arc<Shared>,
}

struct Shared {
    own: ServerId,
    boot: Boot,
    settings: LinkSettings,
    handler: Arc<dyn PeerHandler>,
    begun: Instant,
    peers: RwLock<HashMap<ServerId, Arc<Peer>>>,
    alarm: Alarm,
    stopping: AtomicBool,
}

impl Peers {
    /// Knows nobody yet. `boot` is drawn at random by the process.
    pub fn start(own: ServerId, boot: Boot, settings: LinkSettings, handler: Arc<dyn PeerHandler>) -> Result<Self> {
        let shared = Arc::new(Shared {
            own,
            boot,
            settings,
            handler,
            begun: Instant::now(),
            peers: RwLock::default(),
            alarm: Alarm::default(),
            stopping: AtomicBool::new(false),
        });
        let timed = shared.clone();
        spawn("hekate-peers", move || timer::run(&timed))?;
        Ok(Self { shared })
    }

    /// Where a server listens. If its number is the lower one it is connected to from now on; else it will connect.
    pub fn set_address(&self, server: ServerId, endpoint: Endpoint) -> Result<()> {
        if server == self.shared.own {
            return Err(Error::invalid(format!("server {server} is this one; it has no link to itself")));
        }
        let peer = self.shared.peer(server);
        let first = peer.set_endpoint(endpoint);
        if first && server < self.shared.own {
            let shared = self.shared.clone();
            spawn("hekate-peer", move || connection::connect_for_ever(&shared, &peer))?;
        }
        Ok(())
    }

    /// Takes a message, unless no generation is up (then the caller waits for `up`). Never waits for the peer.
    pub fn send(&self, to: ServerId, message: Bytes) -> bool {
        let Some(peer) = self.shared.known(to) else { return false };
        peer.send(&self.shared, message)
    }

    /// What this thread sends while the guard lives is written when it ends, in one go for each peer.
    pub fn cork(&self) -> Cork {
        Cork::new()
    }

    /// Writes what this thread has corked.
    pub fn flush(&self) {
        cork::flush();
    }

    /// Ends the generation with that server, if there is one: both ends are told, and another begins.
    pub fn reset(&self, server: ServerId) {
        if let Some(peer) = self.shared.known(server) {
            peer.reset(&self.shared);
        }
    }

    /// Ends all connections. Nothing is sent and no handler is called any more once those that run have returned.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.peers.read().values().for_each(|peer| peer.disconnect());
        self.shared.alarm.ring();
    }

    /// Whether a connection of `server` to `to` belongs here.
    pub(crate) fn expects(&self, server: ServerId, to: ServerId) -> Result<()> {
        let own = self.shared.own;
        if to != own {
            return Err(Error::invalid(format!("server {to} is not here, this is server {own}; correct its address")));
        }
        if server <= own {
            return Err(Error::Protocol {
                what: format!("server {server} connected to {own}; the higher one connects"),
            });
        }
        Ok(())
    }

    /// Reads and handles what the server sends on a connection that it has made, until it ends.
    pub(crate) fn converse(&self, server: ServerId, channel: Channel) -> std::io::Result<()> {
        connection::converse(&self.shared, &self.shared.peer(server), channel)
    }

    #[cfg(test)]
    fn cut(&self, server: ServerId) {
        self.shared.peer(server).disconnect();
    }
}

impl Shared {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn known(&self, server: ServerId) -> Option<Arc<Peer>> {
        self.peers.read().get(&server).cloned()
    }

    fn peer(&self, server: ServerId) -> Arc<Peer> {
        match self.peers.write().entry(server) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(free) => {
                let link = Link::new((self.own, self.boot), server, self.settings.clone());
                free.insert(Arc::new(Peer::new(server, link))).clone()
            }
        }
    }
}
