//! New connections of a server: who has connected, and the thread that serves them.

use crate::connection_limits::ConnectionPermit;
use crate::credentials::{Peer, peer_of};
use crate::frame::Channel;
use crate::server::{HELLO_LIMIT, Shared, spawn};
use crate::stream::Stream;
use crate::traffic::Counted;
use hekate_tls::{Context, Inbox, Side};
use rustix::fd::OwnedFd;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// An address for TCP: the network that it is of, and how both ends of a connection check each other.
#[derive(Debug)]
pub struct Door {
    pub network: String,
    pub context: Arc<Context>,
}

/// A connection, to end it by.
pub(crate) struct Connected {
    pub socket: Arc<OwnedFd>,
    /// `None` before the handshake of TLS is over.
    pub peer: Option<Peer>,
}

/// A connection in [`Shared`], until this is dropped.
struct Registered {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.connections.lock().remove(&self.id);
        self.shared.unproved.lock().retain(|unproved| *unproved != self.id);
    }
}

/// A connection of which it is known who has connected.
struct Greeted {
    registered: Registered,
    channel: Channel,
    peer: Peer,
    _permit: ConnectionPermit,
    /// Counts the connection at its network.
    _counted: Option<Counted>,
}

impl Shared {
    /// Accepts connections until the server stops. Of one over TCP `accept` returns the door too, and where it comes
    /// from.
    pub(crate) fn accept_all(
        self: &Arc<Self>,
        accept: impl Fn() -> std::io::Result<(OwnedFd, Option<(Arc<Door>, SocketAddr)>)>,
    ) {
        while !self.stopping.load(Ordering::SeqCst) {
            match accept() {
                Ok((socket, None)) => self.accept_local(Arc::new(socket)),
                Ok((socket, Some((door, from)))) => self.accept_remote(Arc::new(socket), door, from),
                Err(error) if is_shortage(&error) => std::thread::sleep(ACCEPT_PAUSE),
                // The client has closed the connection: a client that does so again and again keeps nobody out.
                Err(_) => {}
            }
        }
    }

    fn accept_local(self: &Arc<Self>, socket: Arc<OwnedFd>) {
        let stream = Stream::plain_of(socket.clone());
        let peer = peer_of(&stream, None).ok();
        let permit = peer.as_ref().and_then(|peer| self.limits.take(Some(peer)));
        let (Some(peer), Some(permit)) = (peer, permit.filter(|_| !self.stopping.load(Ordering::SeqCst))) else {
            return stream.shutdown();
        };
        let registered = self.register(socket, Some(peer.clone()));
        let channel = Channel::new(stream, Inbox::default());
        serve(Greeted { registered, channel, peer, _permit: permit, _counted: None });
    }

    fn accept_remote(self: &Arc<Self>, socket: Arc<OwnedFd>, door: Arc<Door>, from: SocketAddr) {
        if self.limits.is_full_of_unproved() {
            // The oldest makes room: an honest client's handshake takes milliseconds.
            let oldest = self.unproved.lock().pop_front();
            oldest.into_iter().for_each(|id| self.end(id));
        }
        let permit = self.limits.take(None).filter(|_| !self.stopping.load(Ordering::SeqCst));
        let Some(permit) = permit else { return Stream::plain_of(socket).shutdown() };
        let registered = self.register(socket.clone(), None);
        self.unproved.lock().push_back(registered.id);
        // On a thread of its own, whose stack is given back: a handshake takes more of it than all that follows.
        let shake = move || {
            let greeted = AssertUnwindSafe(|| greet(registered, permit, socket, (&door, from)));
            if let Ok(Ok(Some(greeted))) = catch_unwind(greeted) {
                serve(greeted);
            }
        };
        // Without a thread the connection is dropped.
        let _ = spawn("hekate-hello", shake);
    }

    fn register(self: &Arc<Self>, socket: Arc<OwnedFd>, peer: Option<Peer>) -> Registered {
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        self.connections.lock().insert(id, Connected { socket, peer });
        Registered { shared: self.clone(), id }
    }

    /// Ends a connection.
    fn end(&self, id: u64) {
        if let Some(connected) = self.connections.lock().get(&id) {
            let _ = rustix::net::shutdown(&*connected.socket, rustix::net::Shutdown::Both);
        }
    }
}

/// True if the process or the machine lacks descriptors or memory: the same error would come at once again.
fn is_shortage(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error.raw_os_error().is_some_and(|number| shortages.iter().any(|errno| errno.raw_os_error() == number))
}

/// Performs the handshake of TLS. Returns `None` if the peer has too many connections.
fn greet(
    registered: Registered,
    mut permit: ConnectionPermit,
    socket: Arc<OwnedFd>,
    (door, from): (&Door, SocketAddr),
) -> std::io::Result<Option<Greeted>> {
    let shared = registered.shared.clone();
    let secured = Stream::secured(socket, &door.context, Side::Server, HELLO_LIMIT);
    let (mut stream, inbox) = secured.inspect_err(|error| {
        let line = || format!("a connection from {from} at network {} was refused: {error}", door.network);
        shared.refusals.add(line);
    })?;
    let peer = peer_of(&stream, Some((&door.network, from)))?;
    if !permit.prove(&peer) {
        shared.refusals.add(|| format!("{peer} was refused: it has too many connections"));
        return Ok(None);
    }
    // Who has shown no certificate still makes room for others.
    if peer.holder().is_some() {
        shared.unproved.lock().retain(|unproved| *unproved != registered.id);
    }
    if let Some(connected) = shared.connections.lock().get_mut(&registered.id) {
        connected.peer = Some(peer.clone());
    }
    stream.count_in(shared.networks.of(&door.network));
    let counted = shared.networks.connected(&door.network);
    let channel = Channel::new(stream, inbox);
    Ok(Some(Greeted { registered, channel, peer, _permit: permit, _counted: Some(counted) }))
}

/// Serves a connection on a thread of its own until it ends. Without a thread the connection is dropped.
fn serve(greeted: Greeted) {
    let _ = spawn("hekate-conn", move || {
        let Greeted { registered, channel, peer, _permit, _counted } = greeted;
        // A misbehaving client, or a panic in the code that serves it, ends its own connection only.
        let converse = AssertUnwindSafe(|| registered.shared.converse(channel, peer));
        let _ = catch_unwind(converse);
    });
}
