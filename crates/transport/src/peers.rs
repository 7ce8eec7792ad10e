//! Messages between server processes, over the sockets that clients use too: one [`Link`](crate::link) for each peer,
//! and one connection that carries it.
//!
//! The server with the higher number connects, and reconnects without limit. A message needs no threads beside those
//! that make and handle it: [`PeerLinks::send`] writes on the calling thread while the socket has room, and the
//! connection's writer thread writes the rest; the connection's reader thread calls the handler. Messages that a
//! thread sends while it holds a [`Cork`] are written together. A reader thread holds one while it handles the
//! messages of one read.

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

/// Receives the messages of peers. For one peer, calls come one at a time and in order, on threads of [`Peers`]; a
/// call must not wait for a message of the same peer. It may send: its messages are written when everything that one
/// read brought is handled, or at [`Peers::flush`]. A panic ends the generation, and another one begins.
pub trait PeerHandler: Send + Sync {
    /// A generation begins. Messages sent from now on arrive in order and once, unless `down` is called.
    fn up(&self, from: ServerId, boot: Boot);
    /// The next message of the generation.
    fn message(&self, from: ServerId, message: Bytes);
    /// The generation has ended. The peer received a prefix of the messages that were sent in it.
    fn down(&self, from: ServerId);
}

/// Links of a server to others, as its replicas need them. [`Peers`] has them over sockets; the simulator has an
/// implementation of its own.
pub trait PeerLinks: Send + Sync {
    /// Sets the address of a server.
    ///
    /// # Errors
    /// `Invalid` if the server is this one. A thread cannot be started.
    fn set_address(&self, server: ServerId, endpoint: Endpoint) -> Result<()>;

    /// Sends a message without waiting for the peer. Returns false if no generation is up; the caller then waits for
    /// `up`.
    fn send(&self, to: ServerId, message: Bytes) -> bool;

    /// Ends all connections. Once the handlers that run have returned, no message is sent and no handler is called.
    fn stop(&self);
}

/// Links of this process to other servers. Clones share them.
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
    /// Starts without peers. `boot` is a random number that this process drew.
    ///
    /// # Errors
    /// The timer thread cannot be started.
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

    /// Delays the writes of this thread until the guard is dropped; then they are done together for each peer.
    pub fn cork(&self) -> Cork {
        Cork::new()
    }

    /// Writes the messages that a [`Cork`] of this thread delays.
    pub fn flush(&self) {
        cork::flush();
    }

    /// Ends the generation with a server, if one is up. Both handlers are called, and another generation begins.
    pub fn reset(&self, server: ServerId) {
        if let Some(peer) = self.shared.known(server) {
            peer.reset(&self.shared);
        }
    }

    /// Checks that a connection from `server` to `to` belongs to this process.
    pub(crate) fn expects(&self, server: ServerId, to: ServerId) -> Result<()> {
        let own = self.shared.own;
        if to != own {
            let what =
                format!("server {to} was expected here, but this is server {own}; correct the address of server {to}");
            return Err(Error::invalid(what));
        }
        if server <= own {
            return Err(Error::Protocol {
                what: format!(
                    "server {server} connected to server {own}; only the one with the higher number connects"
                ),
            });
        }
        Ok(())
    }

    /// Receives and handles packets on a connection that the other server has made, until the connection ends.
    pub(crate) fn converse(&self, server: ServerId, channel: Channel) -> std::io::Result<()> {
        connection::converse(&self.shared, &self.shared.peer(server), channel)
    }

    #[cfg(test)]
    fn cut(&self, server: ServerId) {
        self.shared.peer(server).disconnect();
    }
}

impl PeerLinks for Peers {
    /// If the server's number is lower than this server's, this server connects to it from now on; otherwise the peer
    /// connects.
    fn set_address(&self, server: ServerId, endpoint: Endpoint) -> Result<()> {
        if server == self.shared.own {
            return Err(Error::invalid(format!("server {server} is this one; it has no link to itself")));
        }
        let peer = self.shared.peer(server);
        let first = peer.set_endpoint(endpoint);
        if first && server < self.shared.own {
            let shared = self.shared.clone();
            spawn("hekate-peer", move || connection::keep_connected(&shared, &peer))?;
        }
        Ok(())
    }

    fn send(&self, to: ServerId, message: Bytes) -> bool {
        let Some(peer) = self.shared.known(to) else { return false };
        peer.send(&self.shared, message)
    }

    fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.peers.read().values().for_each(|peer| peer.disconnect());
        self.shared.alarm.fire_now();
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
