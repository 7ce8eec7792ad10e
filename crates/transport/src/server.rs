//! The server's side: listeners, handshakes, and a thread a connection that hands batches to the [`Service`].

use crate::authentication::{Handshake, Side};
use crate::connection_limits::Places;
use crate::credentials::{Peer, local_peer};
use crate::endpoint::{Endpoint, Secret, Stream};
use crate::frame::*;
use crate::link::Boot;
use crate::local::Local;
use crate::lock_notifications::Listener;
use crate::peers::Peers;
use bytes::Bytes;
use hekate_proto::{Error, Input, Op, Reply, Request, Result, ServerId, SessionId, VolumeId, Wire};
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a client may take until it has said who it is, and in how many bytes.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
const HELLO_BYTES_MAX: usize = 4096;
/// What a user that may only look asks has so many bytes at most, and comes so soon after the last answer.
const STRANGER_BYTES_MAX: usize = 64 << 10;
const STRANGER_PAUSE: Duration = Duration::from_secs(60);
/// After an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// How long who stops waits for what is being answered, and between two looks.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const FINISH_PAUSE: Duration = Duration::from_millis(5);

/// What a server does with connections.
pub trait Service: Send + Sync {
    /// May this peer use the volume? -> its id, the session (the given one, if it still lives) and the map as JSON.
    fn open(&self, peer: Peer, volume: &str, resume: Option<SessionId>) -> Result<(VolumeId, SessionId, String)>;
    /// Takes the requests in order; after one that fails the rest is `Skipped`.
    fn call(&self, session: SessionId, requests: Vec<Request>) -> Vec<Result<Reply>>;
    /// The session has a connection on which it is told of ops that waited.
    fn listening(&self, _session: SessionId, _listener: Arc<Listener>) {}
    /// That connection is about to go.
    fn deaf(&self, _session: SessionId, _listener: &Arc<Listener>) {}
    /// A connection of the session has gone.
    fn disconnected(&self, session: SessionId);
    /// A request to the control interface, JSON to JSON.
    fn control(&self, peer: Peer, request: &str) -> String;
    /// Where connections of this process of that server belong. Whether it is one of ours has been proved.
    fn peers(&self, server: ServerId, _boot: Boot) -> Result<Peers> {
        Err(Error::NotSupported { what: format!("this server takes no connections of servers, as that of {server}") })
    }
}

/// Listeners and their connections; ends with `stop`.
pub struct Server {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) service: Arc<dyn Service>,
    listeners: Mutex<Vec<OwnedFd>>,
    streams: Mutex<std::collections::HashMap<u64, OwnedFd>>,
    next_stream: AtomicU64,
    places: Arc<Places>,
    /// Batches at work.
    calls: AtomicU64,
    stopping: AtomicBool,
}

/// A batch is counted as long as it lives.
pub(crate) struct AtWork<'a>(&'a Shared);

impl<'a> AtWork<'a> {
    /// None: the server takes nothing any more.
    pub fn begin(shared: &'a Shared) -> Option<Self> {
        shared.calls.fetch_add(1, Ordering::SeqCst);
        let at_work = Self(shared);
        (!shared.stopping.load(Ordering::SeqCst)).then_some(at_work)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    /// A server without listeners.
    pub fn new(service: Arc<dyn Service>) -> Self {
        Self {
            shared: Arc::new(Shared {
                service,
                listeners: Mutex::default(),
                streams: Mutex::default(),
                next_stream: AtomicU64::new(0),
                places: Arc::default(),
                calls: AtomicU64::new(0),
                stopping: AtomicBool::new(false),
            }),
        }
    }

    /// For clients in this process.
    pub fn local(&self) -> Local {
        Local(self.shared.clone())
    }

    /// Listens there from now on. A unix socket file that nobody answers on any more is replaced.
    pub fn listen(&self, endpoint: &Endpoint) -> Result<()> {
        let failed = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::AddrInUse => Error::Unavailable {
                what: format!("{endpoint} is in use; is another `hekate serve` running? `hekate status` tells"),
            },
            std::io::ErrorKind::InvalidInput => Error::invalid(format!(
                "{endpoint}: a socket's path may have 107 bytes; name a shorter place with --state"
            )),
            _ => Error::io(format!("listen on {endpoint}"), e),
        };
        let shared = self.shared.clone();
        match endpoint {
            Endpoint::Unix(path) => {
                if path.exists() && std::os::unix::net::UnixStream::connect(path).is_err() {
                    std::fs::remove_file(path).map_err(failed)?;
                }
                let listener = UnixListener::bind(path).map_err(failed)?;
                use std::os::unix::fs::PermissionsExt;
                // Anyone may connect: who may do what is decided by peer credentials.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
                self.keep_listener(&listener).map_err(failed)?;
                let accept = move || listener.accept().map(|(stream, _)| (Stream(stream.into()), None));
                spawn("hekate-accept", move || shared.accept_all(accept))
            }
            Endpoint::Tcp(address, secret) => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                self.keep_listener(&listener).map_err(failed)?;
                let secret = secret.clone();
                let accept = move || {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    let lock = Lock { secret: secret.clone(), address: stream.local_addr()? };
                    Ok((Stream(stream.into()), Some(lock)))
                };
                spawn("hekate-accept", move || shared.accept_all(accept))
            }
        }
    }

    fn keep_listener(&self, listener: &impl AsFd) -> std::io::Result<()> {
        self.shared.listeners.lock().push(listener.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Takes nothing new from clients. What is being answered goes on, and what servers say to each other.
    pub fn close(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for listener in self.shared.listeners.lock().drain(..) {
            // Wakes the thread that accepts.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
    }

    /// Waits for what is being answered, but no longer than that.
    pub fn finish(&self, patience: Duration) {
        let begun = Instant::now();
        while self.shared.calls.load(Ordering::SeqCst) > 0 && begun.elapsed() < patience {
            std::thread::sleep(FINISH_PAUSE);
        }
    }

    /// Ends all connections: what is being answered is finished, nothing new is taken.
    pub fn stop(&self) {
        self.close();
        for stream in self.shared.streams.lock().values() {
            let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Read);
        }
        let begun = Instant::now();
        while self.shared.places.count() > 0 && begun.elapsed() < STOP_PATIENCE {
            std::thread::sleep(FINISH_PAUSE);
        }
        self.finish(STOP_PATIENCE.saturating_sub(begun.elapsed()));
    }
}

/// What a client must prove: that it knows the secret, and looks for a server at the address where it was accepted.
pub(crate) struct Lock {
    pub secret: Secret,
    pub address: SocketAddr,
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(|e| Error::io("start a thread", e))?;
    Ok(())
}

impl Shared {
    fn accept_all(self: &Arc<Self>, accept: impl Fn() -> std::io::Result<(Stream, Option<Lock>)>) {
        while !self.stopping.load(Ordering::SeqCst) {
            match accept() {
                Ok((stream, lock)) => self.accept(stream, lock),
                // Out of descriptors, or a client that left at once: others still get in.
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn accept(self: &Arc<Self>, stream: Stream, lock: Option<Lock>) {
        let local = match lock {
            None => local_peer(&stream).map(Some),
            Some(_) => Ok(None),
        };
        let place = local.ok().and_then(|local| self.places.take(local));
        let Some(mut place) = place.filter(|_| !self.stopping.load(Ordering::SeqCst)) else {
            return stream.shutdown();
        };
        let Ok(copy) = stream.0.try_clone() else { return };
        let id = self.next_stream.fetch_add(1, Ordering::Relaxed);
        self.streams.lock().insert(id, copy);
        let shared = self.clone();
        let run = move || {
            // A client that misbehaves, or a bug that it meets, costs its connection and nothing else.
            let mut welcome = || place.is_proved();
            let converse = AssertUnwindSafe(|| shared.converse(Channel::new(stream), lock, &mut welcome));
            let _ = std::panic::catch_unwind(converse);
            shared.streams.lock().remove(&id);
        };
        if spawn("hekate-conn", run).is_err() {
            self.streams.lock().remove(&id);
        }
    }

    /// `welcome`: the client has said hello as it should.
    pub(crate) fn converse(
        &self,
        mut channel: Channel,
        lock: Option<Lock>,
        welcome: &mut dyn FnMut(),
    ) -> std::io::Result<()> {
        // Who does not say hello in time, or says too much, is not kept.
        channel.all_within(Some(HELLO_LIMIT))?;
        channel.limit(HELLO_BYTES_MAX);
        let peer = match &lock {
            Some(_) => Peer::Secret,
            None => local_peer(&channel.stream)?,
        };
        let Some((purpose, proof)) = greet(&mut channel, lock.as_ref())? else { return Ok(()) };
        welcome();
        channel.all_within(None)?;
        channel.limit(FRAME_BYTES_MAX);
        let listens = matches!(purpose, Purpose::Listen { .. });
        let (volume, resume) = match purpose {
            Purpose::Control => {
                let accepted = Accepted { proof, session: SessionId(0), map: String::new() };
                channel.send(FrameKind::Welcome, 0, |out| Result::Ok(accepted).put(out))?;
                return self.converse_control(channel, peer);
            }
            Purpose::Peer { server, boot, to } => return self.converse_peer(channel, peer, (server, boot), to, proof),
            Purpose::Open { volume } => (volume, None),
            Purpose::Resume { volume, session } | Purpose::Listen { volume, session } => (volume, Some(session)),
        };
        match self.service.open(peer, &volume, resume) {
            Err(error) => channel.send(FrameKind::Welcome, 0, |out| Result::<Accepted>::Err(error).put(out)),
            Ok((volume, session, map)) => {
                let accepted = Accepted { proof, session, map };
                let ended = std::panic::catch_unwind(AssertUnwindSafe(|| {
                    channel.send(FrameKind::Welcome, 0, |out| Result::Ok(accepted).put(out))?;
                    match listens {
                        true => self.converse_listening(channel, session),
                        false => self.converse_ops(channel, volume, session),
                    }
                }));
                self.service.disconnected(session);
                ended.unwrap_or_else(|_| Err(std::io::Error::other("a bug that the connection met")))
            }
        }
    }

    fn converse_ops(&self, mut channel: Channel, volume: VolumeId, session: SessionId) -> std::io::Result<()> {
        loop {
            let (kind, id, body) = channel.receive()?;
            if kind != FrameKind::Requests {
                return Err(malformed("not a frame of requests"));
            }
            let Some(_at_work) = AtWork::begin(self) else { return Ok(()) };
            let requests = take_requests(body).map_err(|e| malformed(e.0))?;
            // A connection speaks for its own session and volume only, and never for a driver.
            let foreign = |r: &Request| r.session != session || r.volume != volume || matches!(r.op, Op::Leg { .. });
            let replies = if requests.iter().any(foreign) {
                let denied = Error::Denied { what: "the connection is for another session or volume".into() };
                requests.iter().map(|_| Err(denied.clone())).collect()
            } else {
                self.service.call(session, requests)
            };
            channel.send(FrameKind::Replies, id, |out| replies.put(out))?;
        }
    }

    /// Until the client goes: it says nothing.
    fn converse_listening(&self, mut channel: Channel, session: SessionId) -> std::io::Result<()> {
        let listener = Arc::new(Listener::new(&channel)?);
        self.service.listening(session, listener.clone());
        // From here on nothing is missed: what the client asks for after it has heard this is told.
        listener.begin();
        let heard = channel.receive();
        self.service.deaf(session, &listener);
        heard.and(Err(malformed("a frame on a connection for listening")))
    }

    /// A connection that another server has made.
    fn converse_peer(
        &self,
        mut channel: Channel,
        peer: Peer,
        (server, boot): (ServerId, Boot),
        to: ServerId,
        proof: Bytes,
    ) -> std::io::Result<()> {
        let ours = peer.may_be_server().and_then(|()| self.service.peers(server, boot));
        match ours.and_then(|peers| peers.expects(server, to).map(|()| peers)) {
            Err(error) => channel.send(FrameKind::Welcome, 0, |out| Result::<Accepted>::Err(error).put(out)),
            Ok(peers) => {
                let accepted = Accepted { proof, session: SessionId(0), map: String::new() };
                channel.send(FrameKind::Welcome, 0, |out| Result::Ok(accepted).put(out))?;
                peers.converse(server, channel)
            }
        }
    }

    fn converse_control(&self, mut channel: Channel, peer: Peer) -> std::io::Result<()> {
        let is_stranger = peer.stranger().is_some();
        if is_stranger {
            channel.limit(STRANGER_BYTES_MAX);
        }
        loop {
            channel.all_within(is_stranger.then_some(STRANGER_PAUSE))?;
            let (kind, id, body) = channel.receive()?;
            if kind != FrameKind::Control {
                return Err(malformed("not a control frame"));
            }
            let request = String::from_bytes(body).map_err(|e| malformed(e.0))?;
            let reply = self.service.control(peer, &request);
            channel.send(FrameKind::ControlReply, id, |out| reply.put(out))?;
        }
    }
}

/// Challenge and hello. `None`: the client was refused and told so.
fn greet(channel: &mut Channel, lock: Option<&Lock>) -> std::io::Result<Option<(Purpose, Bytes)>> {
    let broken = |e: Error| std::io::Error::other(e);
    let nonce = random_nonce().map_err(broken)?;
    let challenge = Challenge { version: PROTOCOL_VERSION, nonce: nonce.clone(), proof_needed: lock.is_some() };
    channel.send(FrameKind::Challenge, 0, |out| challenge.put(out))?;
    let (kind, _, body) = channel.receive()?;
    if kind != FrameKind::Hello {
        return Err(malformed("not a hello"));
    }
    // The version comes first, so that a future hello is told apart from a malformed one.
    let version = u32::take(&mut Input::new(body.clone())).map_err(|e| malformed(e.0))?;
    if version != PROTOCOL_VERSION {
        let text = format!("the client speaks version {version} of the protocol, the server {PROTOCOL_VERSION}");
        let refused = Error::NotSupported { what: text };
        channel.send(FrameKind::Welcome, 0, |out| Result::<Accepted>::Err(refused).put(out))?;
        return Ok(None);
    }
    let hello = Hello::from_bytes(body).map_err(|e| malformed(e.0))?;
    let Some(Lock { secret, address }) = lock else { return Ok(Some((hello.purpose, Bytes::new()))) };
    let shaken = Handshake { address: *address, purpose: &hello.purpose, challenge: &nonce, hello: &hello.nonce };
    if !shaken.is_proof(secret, Side::Client, &hello.proof).map_err(broken)? {
        let denied = Error::Denied { what: "the client does not know the cluster's secret".into() };
        channel.send(FrameKind::Welcome, 0, |out| Result::<Accepted>::Err(denied).put(out))?;
        return Ok(None);
    }
    let ours = shaken.prove(secret, Side::Server).map_err(broken)?;
    Ok(Some((hello.purpose, ours)))
}
