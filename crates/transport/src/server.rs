//! The server's side of a connection: listeners, handshakes, and one thread for each connection, which passes batches
//! to the [`Service`].

use crate::accept::{Connected, Door};
use crate::connection_limits::ConnectionLimits;
use crate::credentials::Peer;
use crate::endpoint::Endpoint;
use crate::frame::*;
use crate::link::Boot;
use crate::local::Local;
use crate::notifications::{Listener, NotificationSink};
use crate::peers::Peers;
use crate::refusal_log::RefusalLog;
use crate::traffic::{Networks, Traffic};
use hekate_proto::{Error, Input, Op, Reply, Request, Result, ServerId, SessionId, VolumeId, Wire};
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Limits for a client's hello: time until it has arrived, and length in bytes.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(10);
const HELLO_BYTES_MAX: usize = 4096;
/// Limits for control requests of a peer that is neither a server nor a process of root or of the server's own user:
/// length in bytes, and time until the next request has arrived.
const UNPRIVILEGED_REQUEST_BYTES_MAX: usize = 64 << 10;
const UNPRIVILEGED_IDLE_LIMIT: Duration = Duration::from_secs(60);
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
    fn open(&self, peer: &Peer, volume: &str, resume: Option<SessionId>) -> Result<(VolumeId, SessionId, String)>;
    /// Executes requests in order and returns a reply for each. After one that fails the rest is `Skipped`.
    fn call(&self, session: SessionId, requests: Vec<Request>) -> Vec<Result<Reply>>;
    /// The session has a new connection on which it is notified of waiting ops that have their replies.
    fn listening(&self, _session: SessionId, _listener: Arc<dyn NotificationSink>) {}
    /// A connection that [`Service::listening`] reported is about to close.
    fn deaf(&self, _session: SessionId, _listener: &Arc<dyn NotificationSink>) {}
    /// A connection of the session has closed.
    fn disconnected(&self, session: SessionId);
    /// Executes a request to the control interface, JSON to JSON.
    fn control(&self, peer: &Peer, request: &str) -> String;
    /// The links for a connection from the process `boot` of another server. The peer has already proved that it is that
    /// server of the cluster.
    ///
    /// # Errors
    /// `NotSupported` if this process takes no connections from servers; `Unavailable` before its links are started;
    /// `Denied` if servers do not connect at this network.
    fn peers(&self, _peer: &Peer, server: ServerId, _boot: Boot) -> Result<Peers> {
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
    pub(crate) listeners: Mutex<Vec<OwnedFd>>,
    pub(crate) connections: Mutex<HashMap<u64, Connected>>,
    pub(crate) next_connection: AtomicU64,
    /// Connections of which it is not known yet who connected, the oldest first.
    pub(crate) unproved: Mutex<VecDeque<u64>>,
    pub(crate) refusals: RefusalLog,
    pub(crate) networks: Networks,
    pub(crate) limits: Arc<ConnectionLimits>,
    /// Batches being executed.
    calls: AtomicU64,
    pub(crate) stopping: AtomicBool,
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
                connections: Mutex::default(),
                next_connection: AtomicU64::new(0),
                unproved: Mutex::default(),
                refusals: RefusalLog::default(),
                networks: Networks::default(),
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

    /// Listens at an endpoint from now on. A unix socket file that no process answers is replaced. Over TCP the address
    /// is one of this network.
    ///
    /// # Errors
    /// `Unavailable` if the address is in use, `Invalid` if the path of the socket is too long.
    pub fn listen(&self, endpoint: &Endpoint, network: &str) -> Result<()> {
        let failed = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::AddrInUse => Error::Unavailable {
                what: format!("{endpoint} is in use; is another `hekate serve` running? `hekate status` shows it"),
            },
            std::io::ErrorKind::AddrNotAvailable => Error::invalid(format!(
                "{endpoint} is no address of this machine; `ip address` lists them, and 0.0.0.0 stands for all"
            )),
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
                let accept = move || listener.accept().map(|(stream, _)| (OwnedFd::from(stream), None));
                spawn("hekate-accept", move || shared.accept_all(accept))
            }
            Endpoint::Tcp(address, context) => {
                context.server_checked()?;
                let listener = TcpListener::bind(address).map_err(failed)?;
                self.shared.networks.of(network);
                self.keep_listener(&listener).map_err(failed)?;
                let door = Arc::new(Door { network: network.into(), context: context.clone() });
                let accept = move || {
                    let (stream, from) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    Ok((stream.into(), Some((door.clone(), from))))
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

    /// Returns, whenever it is called, what the connections of each network have carried.
    pub fn traffic(&self) -> impl Fn() -> Vec<Traffic> + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.networks.traffic()
    }

    /// Ends the connections of these peers. Returns their number.
    pub fn end_connections(&self, is_over: &dyn Fn(&Peer) -> bool) -> usize {
        let all = self.shared.connections.lock();
        let over = all.values().filter(|connected| connected.peer.as_ref().is_some_and(is_over));
        over.map(|connected| _ = rustix::net::shutdown(&*connected.socket, rustix::net::Shutdown::Both)).count()
    }

    /// Ends all connections. Batches being executed are finished and answered, as far as that takes less than 10 s.
    pub fn stop(&self) {
        self.close();
        for connected in self.shared.connections.lock().values() {
            let _ = rustix::net::shutdown(&*connected.socket, rustix::net::Shutdown::Read);
        }
        let begun = Instant::now();
        while self.shared.limits.count() > 0 && begun.elapsed() < STOP_PATIENCE {
            std::thread::sleep(FINISH_PAUSE);
        }
        self.finish(STOP_PATIENCE.saturating_sub(begun.elapsed()));
    }
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(|e| Error::io("start a thread", e))?;
    Ok(())
}

impl Shared {
    /// Serves the connection of a peer until it ends.
    pub(crate) fn converse(&self, mut channel: Channel, peer: Peer) -> std::io::Result<()> {
        // A connection whose hello is late or too long is closed.
        channel.set_deadline(Some(HELLO_LIMIT))?;
        channel.limit(HELLO_BYTES_MAX);
        let Some(purpose) = greet(&mut channel)? else { return Ok(()) };
        channel.set_deadline(None)?;
        channel.limit(FRAME_BYTES_MAX);
        let listens = matches!(purpose, Purpose::Listen { .. });
        let (volume, resume) = match purpose {
            Purpose::Control => {
                let accepted = Accepted { session: SessionId(0), map: String::new() };
                channel.send(FrameKind::Welcome, 0, |out| Result::Ok(accepted).put(out))?;
                return self.converse_control(channel, peer);
            }
            Purpose::Peer { server, boot, to } => {
                let origin = PeerOrigin { server, boot };
                return self.converse_peer(channel, peer, origin, to);
            }
            Purpose::Open { volume } => (volume, None),
            Purpose::Resume { volume, session } | Purpose::Listen { volume, session } => (volume, Some(session)),
        };
        match self.service.open(&peer, &volume, resume) {
            Err(error) => channel.send(FrameKind::Welcome, 0, |out| Result::<Accepted>::Err(error).put(out)),
            Ok((volume, session, map)) => {
                let accepted = Accepted { session, map };
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
        let listener = Arc::new(Listener::new(&channel));
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
    fn converse_peer(&self, mut channel: Channel, peer: Peer, from: PeerOrigin, to: ServerId) -> std::io::Result<()> {
        let may = peer.may_be_server(from.server);
        let may = may.inspect_err(|error| self.refusals.add(|| format!("{peer} was refused: {error}")));
        let ours = may.and_then(|()| self.service.peers(&peer, from.server, from.boot));
        match ours.and_then(|peers| peers.expects(from.server, to).map(|()| peers)) {
            Err(error) => channel.send(FrameKind::Welcome, 0, |out| Result::<Accepted>::Err(error).put(out)),
            Ok(peers) => {
                let accepted = Accepted { session: SessionId(0), map: String::new() };
                channel.send(FrameKind::Welcome, 0, |out| Result::Ok(accepted).put(out))?;
                peers.converse(from.server, channel)
            }
        }
    }

    /// Answers control requests until the client closes the connection.
    fn converse_control(&self, mut channel: Channel, peer: Peer) -> std::io::Result<()> {
        let is_limited = peer.is_limited();
        if is_limited {
            channel.limit(UNPRIVILEGED_REQUEST_BYTES_MAX);
        }
        loop {
            channel.set_deadline(is_limited.then_some(UNPRIVILEGED_IDLE_LIMIT))?;
            let (kind, id, body) = channel.receive()?;
            if kind != FrameKind::Control {
                return Err(malformed("a connection for control has a frame of another kind"));
            }
            let request = String::from_bytes(body).map_err(|e| malformed(e.0))?;
            let reply = self.service.control(&peer, &request);
            channel.send(FrameKind::ControlReply, id, |out| reply.put(out))?;
        }
    }
}

/// Server process that a connection between servers comes from.
struct PeerOrigin {
    server: ServerId,
    boot: Boot,
}

/// Sends the challenge, receives the hello. Returns the purpose, or `None` if the client was refused with the reason.
fn greet(channel: &mut Channel) -> std::io::Result<Option<Purpose>> {
    let challenge = Challenge { version: PROTOCOL_VERSION };
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
    Hello::from_bytes(body).map(|hello| Some(hello.purpose)).map_err(|e| malformed(e.0))
}
