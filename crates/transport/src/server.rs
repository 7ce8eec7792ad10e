//! The server's side of a connection: listeners, handshakes, and one thread for each connection, which passes batches
//! to the [`Service`].

use crate::authentication::{Handshake, Side};
use crate::connection_limits::ConnectionLimits;
use crate::credentials::{Peer, local_peer};
use crate::endpoint::{Endpoint, Secret, Stream};
use crate::frame::*;
use crate::link::Boot;
use crate::local::Local;
use crate::lock_notifications::{Listener, NotificationSink};
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

/// Limits for a client's hello: time until it has arrived, and length in bytes.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
const HELLO_BYTES_MAX: usize = 4096;
/// Limits for control requests of a user who is neither root nor the server's own: length in bytes, and time until the
/// next request has arrived.
const UNPRIVILEGED_REQUEST_BYTES_MAX: usize = 64 << 10;
const UNPRIVILEGED_IDLE_LIMIT: Duration = Duration::from_secs(60);
/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// How long [`Server::stop`] waits for connections and batches to end.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which a stop checks whether they have ended.
const FINISH_PAUSE: Duration = Duration::from_millis(5);

/// What a server does with its connections.
pub trait Service: Send + Sync {
    /// Checks that the peer may use the volume, and opens a session, or finds the session `resume`. Returns the
    /// volume's id, the session and the map as JSON.
    ///
    /// # Errors
    /// `Denied` if the peer may not use the volume or the session; `SessionEnded` if the session `resume` has ended.
    fn open(&self, peer: Peer, volume: &str, resume: Option<SessionId>) -> Result<(VolumeId, SessionId, String)>;
    /// Executes requests in order and returns a reply for each. After one that fails the rest is `Skipped`.
    fn call(&self, session: SessionId, requests: Vec<Request>) -> Vec<Result<Reply>>;
    /// The session has a new connection on which it is notified of waiting ops that have their replies.
    fn listening(&self, _session: SessionId, _listener: Arc<dyn NotificationSink>) {}
    /// A connection that [`Service::listening`] reported is about to close.
    fn deaf(&self, _session: SessionId, _listener: &Arc<dyn NotificationSink>) {}
    /// A connection of the session has closed.
    fn disconnected(&self, session: SessionId);
    /// Executes a request to the control interface, JSON to JSON.
    fn control(&self, peer: Peer, request: &str) -> String;
    /// The links for a connection from the process `boot` of another server. The peer has already proved that it is a
    /// server of the cluster.
    ///
    /// # Errors
    /// `NotSupported` if this process takes no connections from servers; `Unavailable` before its links are started.
    fn peers(&self, server: ServerId, _boot: Boot) -> Result<Peers> {
        let what = format!("server {server} connected as a peer, but this server takes no connections of servers");
        Err(Error::NotSupported { what })
    }
}

/// Listeners and their connections, until [`Server::stop`].
pub struct Server {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) service: Arc<dyn Service>,
    listeners: Mutex<Vec<OwnedFd>>,
    streams: Mutex<std::collections::HashMap<u64, OwnedFd>>,
    next_stream: AtomicU64,
    limits: Arc<ConnectionLimits>,
    /// Batches being executed.
    calls: AtomicU64,
    stopping: AtomicBool,
}

/// Counts a batch in [`Shared::calls`] while it is executed.
pub(crate) struct CallGuard<'a>(&'a Shared);

impl<'a> CallGuard<'a> {
    /// `None` if the server accepts no more batches.
    pub fn begin(shared: &'a Shared) -> Option<Self> {
        shared.calls.fetch_add(1, Ordering::SeqCst);
        let guard = Self(shared);
        (!shared.stopping.load(Ordering::SeqCst)).then_some(guard)
    }
}

impl Drop for CallGuard<'_> {
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
                limits: Arc::default(),
                calls: AtomicU64::new(0),
                stopping: AtomicBool::new(false),
            }),
        }
    }

    /// Handle for clients in this process.
    pub fn local(&self) -> Local {
        Local(self.shared.clone())
    }

    /// Listens at an endpoint from now on. A unix socket file that no process answers is replaced.
    ///
    /// # Errors
    /// `Unavailable` if the address is in use, `Invalid` if the path of the socket is too long.
    pub fn listen(&self, endpoint: &Endpoint) -> Result<()> {
        let failed = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::AddrInUse => Error::Unavailable {
                what: format!("{endpoint} is in use; is another `hekate serve` running? `hekate status` shows it"),
            },
            std::io::ErrorKind::InvalidInput => Error::invalid(format!(
                "{endpoint}: the path of a socket has at most 107 bytes; name a shorter directory with --state"
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
                // Any user may connect: peer credentials decide what a user may do.
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
                    let expected = ExpectedProof { secret: secret.clone(), address: stream.local_addr()? };
                    Ok((Stream(stream.into()), Some(expected)))
                };
                spawn("hekate-accept", move || shared.accept_all(accept))
            }
        }
    }

    fn keep_listener(&self, listener: &impl AsFd) -> std::io::Result<()> {
        self.shared.listeners.lock().push(listener.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Accepts no more connections and no more batches of clients. Batches being executed and the links between
    /// servers go on.
    pub fn close(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for listener in self.shared.listeners.lock().drain(..) {
            // Wakes the thread that accepts.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
    }

    /// Waits until all batches are executed, at most `patience`.
    pub fn finish(&self, patience: Duration) {
        let begun = Instant::now();
        while self.shared.calls.load(Ordering::SeqCst) > 0 && begun.elapsed() < patience {
            std::thread::sleep(FINISH_PAUSE);
        }
    }

    /// Ends all connections. Batches being executed are finished and answered, as far as that takes less than 10 s.
    pub fn stop(&self) {
        self.close();
        for stream in self.shared.streams.lock().values() {
            let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Read);
        }
        let begun = Instant::now();
        while self.shared.limits.count() > 0 && begun.elapsed() < STOP_PATIENCE {
            std::thread::sleep(FINISH_PAUSE);
        }
        self.finish(STOP_PATIENCE.saturating_sub(begun.elapsed()));
    }
}

/// What a TCP client must prove: that it knows the secret, and that it connected to the address where it was
/// accepted.
pub(crate) struct ExpectedProof {
    pub secret: Secret,
    pub address: SocketAddr,
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(|e| Error::io("start a thread", e))?;
    Ok(())
}

impl Shared {
    fn accept_all(self: &Arc<Self>, accept: impl Fn() -> std::io::Result<(Stream, Option<ExpectedProof>)>) {
        while !self.stopping.load(Ordering::SeqCst) {
            match accept() {
                Ok((stream, expected)) => self.accept(stream, expected),
                // Out of descriptors, or the client has closed the connection: others can still connect.
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn accept(self: &Arc<Self>, stream: Stream, expected: Option<ExpectedProof>) {
        let local = match expected {
            None => local_peer(&stream).map(Some),
            Some(_) => Ok(None),
        };
        let permit = local.ok().and_then(|local| self.limits.take(local));
        let Some(mut permit) = permit.filter(|_| !self.stopping.load(Ordering::SeqCst)) else {
            return stream.shutdown();
        };
        let Ok(copy) = stream.0.try_clone() else { return };
        let id = self.next_stream.fetch_add(1, Ordering::Relaxed);
        self.streams.lock().insert(id, copy);
        let shared = self.clone();
        let run = move || {
            // A misbehaving client, or a panic in the code that serves it, ends its own connection only.
            let mut welcome = || permit.mark_proved();
            let converse = AssertUnwindSafe(|| shared.converse(Channel::new(stream), expected, &mut welcome));
            let _ = std::panic::catch_unwind(converse);
            shared.streams.lock().remove(&id);
        };
        if spawn("hekate-conn", run).is_err() {
            self.streams.lock().remove(&id);
        }
    }

    /// Serves one connection until it ends. `welcome` is called once the handshake has succeeded.
    pub(crate) fn converse(
        &self,
        mut channel: Channel,
        expected: Option<ExpectedProof>,
        welcome: &mut dyn FnMut(),
    ) -> std::io::Result<()> {
        // A connection whose hello is late or too long is closed.
        channel.set_deadline(Some(HELLO_LIMIT))?;
        channel.limit(HELLO_BYTES_MAX);
        let peer = match &expected {
            Some(_) => Peer::Secret,
            None => local_peer(&channel.stream)?,
        };
        let Some((purpose, proof)) = greet(&mut channel, expected.as_ref())? else { return Ok(()) };
        welcome();
        channel.set_deadline(None)?;
        channel.limit(FRAME_BYTES_MAX);
        let listens = matches!(purpose, Purpose::Listen { .. });
        let (volume, resume) = match purpose {
            Purpose::Control => {
                let accepted = Accepted { proof, session: SessionId(0), map: String::new() };
                channel.send(FrameKind::Welcome, 0, |out| Result::Ok(accepted).put(out))?;
                return self.converse_control(channel, peer);
            }
            Purpose::Peer { server, boot, to } => {
                let origin = PeerOrigin { server, boot };
                return self.converse_peer(channel, peer, origin, to, proof);
            }
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
                ended.unwrap_or_else(|_| {
                    Err(std::io::Error::other("a panic ended the connection; see the server's log"))
                })
            }
        }
    }

    /// Executes batches until the client closes the connection.
    fn converse_ops(&self, mut channel: Channel, volume: VolumeId, session: SessionId) -> std::io::Result<()> {
        loop {
            let (kind, id, body) = channel.receive()?;
            if kind != FrameKind::Requests {
                return Err(malformed("a connection for requests has a frame of another kind"));
            }
            let Some(_guard) = CallGuard::begin(self) else { return Ok(()) };
            let requests = take_requests(body).map_err(|e| malformed(e.0))?;
            // The requests of a connection must name the session and volume of its handshake. Legs are refused: only
            // leaders send them, to each other.
            let foreign = |r: &Request| r.session != session || r.volume != volume || matches!(r.op, Op::Leg { .. });
            let replies = if requests.iter().any(foreign) {
                let denied =
                    Error::Denied { what: "a request is for another session or volume than its connection".into() };
                requests.iter().map(|_| Err(denied.clone())).collect()
            } else {
                self.service.call(session, requests)
            };
            channel.send(FrameKind::Replies, id, |out| replies.put(out))?;
        }
    }

    /// Keeps a connection for notifications until the client closes it. The client sends nothing on it.
    fn converse_listening(&self, mut channel: Channel, session: SessionId) -> std::io::Result<()> {
        let listener = Arc::new(Listener::new(&channel)?);
        let sink: Arc<dyn NotificationSink> = listener.clone();
        self.service.listening(session, sink.clone());
        // A waiting op that the client asks about after it has received this first frame is notified on this
        // connection.
        listener.begin();
        let heard = channel.receive();
        self.service.deaf(session, &sink);
        heard.and(Err(malformed("the client sent a frame on a connection for notifications")))
    }

    /// Serves a connection that another server has made.
    fn converse_peer(
        &self,
        mut channel: Channel,
        peer: Peer,
        from: PeerOrigin,
        to: ServerId,
        proof: Bytes,
    ) -> std::io::Result<()> {
        let ours = peer.may_be_server().and_then(|()| self.service.peers(from.server, from.boot));
        match ours.and_then(|peers| peers.expects(from.server, to).map(|()| peers)) {
            Err(error) => channel.send(FrameKind::Welcome, 0, |out| Result::<Accepted>::Err(error).put(out)),
            Ok(peers) => {
                let accepted = Accepted { proof, session: SessionId(0), map: String::new() };
                channel.send(FrameKind::Welcome, 0, |out| Result::Ok(accepted).put(out))?;
                peers.converse(from.server, channel)
            }
        }
    }

    /// Answers control requests until the client closes the connection.
    fn converse_control(&self, mut channel: Channel, peer: Peer) -> std::io::Result<()> {
        let is_unprivileged = peer.unprivileged_uid().is_some();
        if is_unprivileged {
            channel.limit(UNPRIVILEGED_REQUEST_BYTES_MAX);
        }
        loop {
            channel.set_deadline(is_unprivileged.then_some(UNPRIVILEGED_IDLE_LIMIT))?;
            let (kind, id, body) = channel.receive()?;
            if kind != FrameKind::Control {
                return Err(malformed("a connection for control has a frame of another kind"));
            }
            let request = String::from_bytes(body).map_err(|e| malformed(e.0))?;
            let reply = self.service.control(peer, &request);
            channel.send(FrameKind::ControlReply, id, |out| reply.put(out))?;
        }
    }
}

/// Server process that a connection between servers comes from.
struct PeerOrigin {
    server: ServerId,
    boot: Boot,
}

/// Sends the challenge, receives and checks the hello. Returns the purpose and the server's proof, or `None` if the
/// client was refused with the reason.
fn greet(channel: &mut Channel, expected: Option<&ExpectedProof>) -> std::io::Result<Option<(Purpose, Bytes)>> {
    let broken = |e: Error| std::io::Error::other(e);
    let nonce = random_nonce().map_err(broken)?;
    let proof_needed = expected.is_some();
    let challenge = Challenge { version: PROTOCOL_VERSION, nonce: nonce.clone(), proof_needed };
    channel.send(FrameKind::Challenge, 0, |out| challenge.put(out))?;
    let (kind, _, body) = channel.receive()?;
    if kind != FrameKind::Hello {
        return Err(malformed("the client's first frame is not a hello"));
    }
    // The version is decoded first, so that the hello of a later version is not reported as malformed.
    let version = u32::take(&mut Input::new(body.clone())).map_err(|e| malformed(e.0))?;
    if version != PROTOCOL_VERSION {
        let text = format!(
            "the client speaks version {version} of the protocol, the server {PROTOCOL_VERSION}; \
             use the same release on both"
        );
        let refused = Error::NotSupported { what: text };
        channel.send(FrameKind::Welcome, 0, |out| Result::<Accepted>::Err(refused).put(out))?;
        return Ok(None);
    }
    let hello = Hello::from_bytes(body).map_err(|e| malformed(e.0))?;
    let Some(ExpectedProof { secret, address }) = expected else { return Ok(Some((hello.purpose, Bytes::new()))) };
    let handshake = Handshake { address: *address, purpose: &hello.purpose, challenge: &nonce, hello: &hello.nonce };
    if !handshake.is_proof(secret, Side::Client, &hello.proof).map_err(broken)? {
        let denied = Error::Denied { what: "the client does not know the cluster's secret".into() };
        channel.send(FrameKind::Welcome, 0, |out| Result::<Accepted>::Err(denied).put(out))?;
        return Ok(None);
    }
    let ours = handshake.prove(secret, Side::Server).map_err(broken)?;
    Ok(Some((hello.purpose, ours)))
}
