//! The client's side of a connection: a pool of connections to one server, and attempts that can be repeated safely.

use crate::endpoint::Endpoint;
use crate::frame::*;
use crate::local::Local;
use crate::stream::Stream;
use bytes::Bytes;
use hekate_proto::map::VolumeMap;
use hekate_proto::{Error, Input, Reply, Request, Result, SessionId, Wire};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval at which a thread that waits for replies checks whether its caller gave up.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Pause between two attempts to reach a server.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Limit for a handshake. Ops themselves have no time limit.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Limit for a new connection of an attempt without a limit of its own. No signal ends the wait for a handshake, so
/// it is shorter than [`HANDSHAKE_LIMIT`].
const RESUME_LIMIT: Duration = Duration::from_secs(4);

/// Result of opening a session.
#[derive(Debug, Clone)]
pub struct Welcome {
    pub session: SessionId,
    pub map: VolumeMap,
}

/// Why an exchange of a batch for its replies failed.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// The connection failed. The server may or may not have executed the batch.
    Connection(std::io::Error),
    /// The server's replies do not fit the batch. A retry would not help.
    Replies(Error),
}

impl From<std::io::Error> for ExchangeError {
    fn from(error: std::io::Error) -> Self {
        ExchangeError::Connection(error)
    }
}

/// One reply for each request of a batch, in order.
pub type Replies = Vec<Result<Reply>>;

/// One server, as one session's client sees it.
#[derive(Debug)]
pub struct Remote {
    pub(crate) endpoint: Endpoint,
    pub(crate) volume: String,
    pub(crate) session: SessionId,
    /// Set if the server runs in this process: batches are function calls.
    pub(crate) local: Option<Local>,
    pub(crate) idle: Mutex<Vec<Channel>>,
    pub(crate) frame_id: AtomicU64,
    pub(crate) closed: AtomicBool,
}

impl Remote {
    /// Connects to a server and opens a session on a volume.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached in 10 s; retry or try another server. `NotFound` and `Denied` as
    /// the server says; `Denied` also if one end refuses the other's certificate. `NotSupported` if it speaks another
    /// version of the protocol.
    pub fn open(endpoint: Endpoint, volume: &str) -> Result<(Self, Welcome)> {
        let (channel, accepted) = handshake(&endpoint, Purpose::Open { volume: volume.into() }, HANDSHAKE_LIMIT)?;
        polled(&channel, &endpoint)?;
        let map = read_map(&accepted)?;
        let session = accepted.session;
        let remote = Self::new(endpoint, volume, session);
        remote.idle.lock().push(channel);
        Ok((remote, Welcome { session, map }))
    }

    /// A further server of a session that was opened elsewhere. It is connected to when it is first needed.
    pub fn new(endpoint: Endpoint, volume: &str, session: SessionId) -> Self {
        Self {
            endpoint,
            volume: volume.into(),
            session,
            local: None,
            idle: Mutex::default(),
            frame_id: AtomicU64::new(1),
            closed: AtomicBool::new(false),
        }
    }

    /// Sends batches to this server, which runs in this process, by function calls.
    pub fn with_local(self, local: Local) -> Self {
        Self { local: Some(local), ..self }
    }

    /// Address of the server.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a batch and waits for its replies. If the connection is lost, it connects again and resends the batch;
    /// each request names its session and op, so the server returns the recorded reply of an op that it has executed.
    ///
    /// # Errors
    /// `Unavailable` only if `interrupted` returned true or the session was closed.
    pub fn call(&self, requests: &mut [Request], interrupted: &dyn Fn() -> bool) -> Result<Replies> {
        loop {
            match self.attempt(requests, None, interrupted) {
                Err(error @ Error::Unavailable { .. }) => {
                    if interrupted() || self.closed.load(Ordering::Relaxed) {
                        return Err(error);
                    }
                    std::thread::sleep(RECONNECT_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    /// Makes one attempt to execute a batch. Requests that the server may have executed are marked as retries.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached, the connection breaks, the replies take longer than `limit`, or
    /// `gave_up` returned true. The server may or may not have executed the batch; the caller may resend it.
    pub fn attempt(
        &self,
        requests: &mut [Request],
        limit: Option<Duration>,
        gave_up: &dyn Fn() -> bool,
    ) -> Result<Replies> {
        if let Some(local) = &self.local {
            return local.call(self.session, requests.to_vec());
        }
        // A pooled connection may belong to an earlier process of the server: then one attempt on a new connection
        // follows.
        if let Some(channel) = self.pooled() {
            match self.exchange(channel, requests, limit, gave_up) {
                Ok(replies) => return Ok(replies),
                Err(ExchangeError::Replies(error)) => return Err(error),
                Err(ExchangeError::Connection(error)) => {
                    requests.iter_mut().for_each(|request| request.retry = true);
                    if is_late(&error) {
                        return Err(self.unavailable(&error));
                    }
                }
            }
        }
        let (channel, _) = self.resume(limit.unwrap_or(RESUME_LIMIT))?;
        self.exchange(channel, requests, limit, gave_up).map_err(|error| match error {
            ExchangeError::Replies(error) => error,
            ExchangeError::Connection(error) => {
                requests.iter_mut().for_each(|request| request.retry = true);
                self.unavailable(&error)
            }
        })
    }

    /// Fetches the volume's current map from this server.
    ///
    /// # Errors
    /// `Unavailable` if the server does not answer within `limit`; ask another one.
    pub fn map(&self, limit: Duration) -> Result<VolumeMap> {
        let (channel, accepted) = self.resume(limit)?;
        // A client that waits for a server fetches the map again and again. Only one of those connections is kept.
        let mut idle = self.idle.lock();
        if idle.is_empty() {
            idle.push(channel);
        }
        drop(idle);
        read_map(&accepted)
    }

    /// Opens a new connection of the session. A server whose certificate is refused is `Unavailable`: another one may
    /// serve the session.
    pub(crate) fn resume(&self, limit: Duration) -> Result<(Channel, Accepted)> {
        let mut channel = connect(&self.endpoint, limit).map_err(|e| self.unavailable(&e))?;
        let purpose = Purpose::Resume { volume: self.volume.clone(), session: self.session };
        let accepted = introduce(&mut channel, &self.endpoint, purpose, limit)?;
        polled(&channel, &self.endpoint)?;
        Ok((channel, accepted))
    }

    /// The most recently used idle connection, whose buffers are in the CPU's caches.
    pub(crate) fn pooled(&self) -> Option<Channel> {
        self.idle.lock().pop()
    }

    /// Makes waits for an absent server fail from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.idle.lock().clear();
    }

    pub(crate) fn unavailable(&self, error: &std::io::Error) -> Error {
        unavailable(&self.endpoint, error)
    }

    /// Sends a batch on a connection and waits for its replies.
    pub(crate) fn exchange(
        &self,
        mut channel: Channel,
        requests: &[Request],
        limit: Option<Duration>,
        gave_up: &dyn Fn() -> bool,
    ) -> std::result::Result<Replies, ExchangeError> {
        let end = limit.map(|limit| Instant::now() + limit);
        let keep_waiting = || !gave_up() && end.is_none_or(|end| Instant::now() < end);
        let id = self.send_requests(&mut channel, requests, &keep_waiting)?;
        self.receive_replies(channel, id, requests.len(), &keep_waiting)
    }

    /// Sends a batch and returns the id of its frame.
    pub(crate) fn send_requests(
        &self,
        channel: &mut Channel,
        requests: &[Request],
        keep_waiting: &dyn Fn() -> bool,
    ) -> std::io::Result<u64> {
        let id = self.frame_id.fetch_add(1, Ordering::Relaxed);
        let write = |out: &mut Vec<u8>| {
            (requests.len() as u32).put(out);
            requests.iter().for_each(|request| request.put(out));
        };
        channel.send_while(FrameKind::Requests, id, write, keep_waiting)?;
        Ok(id)
    }

    /// Waits for the replies to frame `id`, which held this number of requests, and returns the connection to the
    /// pool.
    pub(crate) fn receive_replies(
        &self,
        mut channel: Channel,
        id: u64,
        requests: usize,
        keep_waiting: &dyn Fn() -> bool,
    ) -> std::result::Result<Replies, ExchangeError> {
        let (kind, answered, body) = channel.receive_while(keep_waiting)?;
        if kind != FrameKind::Replies || answered != id {
            return Err(malformed("the server replied to another frame").into());
        }
        self.idle.lock().push(channel);
        let replies = take_replies(body).map_err(|error| ExchangeError::Replies(error.into()))?;
        if replies.len() != requests {
            let what = format!("the server sent {} replies to {requests} requests", replies.len());
            return Err(ExchangeError::Replies(Error::Protocol { what }));
        }
        Ok(replies)
    }
}

/// Decodes and checks the map of a `Welcome`.
pub(crate) fn read_map(accepted: &Accepted) -> Result<VolumeMap> {
    let map: VolumeMap = serde_json::from_str(&accepted.map)
        .map_err(|e| Error::Protocol { what: format!("the map from the server cannot be decoded: {e}") })?;
    map.check()?;
    Ok(map)
}

fn expect(channel: &mut Channel, kind: FrameKind) -> std::io::Result<Bytes> {
    match channel.receive()? {
        (found, _, body) if found == kind => Ok(body),
        _ => Err(malformed("the handshake has a frame of an unexpected kind")),
    }
}

/// True if the error is a timeout of the socket.
fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// An error that names the server and says why the exchange with it failed.
pub(crate) fn unavailable(endpoint: &Endpoint, error: &std::io::Error) -> Error {
    let what = match error.kind() {
        std::io::ErrorKind::InvalidData => format!("no Hekate server answers at {endpoint}: {error}"),
        _ if is_late(error) => format!("the server at {endpoint} does not answer in time; is it a Hekate server?"),
        _ => format!("the server at {endpoint}: {error}"),
    };
    Error::Unavailable { what }
}

/// Lets the waits of a connection for requests poll `keep_waiting`.
fn polled(channel: &Channel, endpoint: &Endpoint) -> Result<()> {
    channel.set_poll_interval(POLL_INTERVAL).map_err(|e| unavailable(endpoint, &e))
}

/// True if one end has refused the other's certificate. A refusal by the system (a socket that this user may not
/// connect to) has an error number.
fn is_refusal(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

fn connect(endpoint: &Endpoint, limit: Duration) -> std::io::Result<Channel> {
    let (stream, inbox) = Stream::connect(endpoint, limit)?;
    Ok(Channel::new(stream, inbox))
}

/// Opens a connection and performs the handshake.
///
/// # Errors
/// `Denied` if one end refuses the other's certificate; those of [`introduce`].
pub(crate) fn handshake(endpoint: &Endpoint, purpose: Purpose, limit: Duration) -> Result<(Channel, Accepted)> {
    let denied = |error: std::io::Error| match is_refusal(&error) {
        true => Error::Denied { what: format!("the server at {endpoint}: {error}") },
        false => unavailable(endpoint, &error),
    };
    let mut channel = connect(endpoint, limit).map_err(denied)?;
    let accepted = introduce(&mut channel, endpoint, purpose, limit)?;
    Ok((channel, accepted))
}

/// Performs the client's part of the handshake on a new connection.
///
/// # Errors
/// `Unavailable` if the server does not answer in time; `NotSupported` if it speaks another version of the protocol;
/// `Denied` if it refuses this end's certificate; what it answers to the purpose.
pub(crate) fn introduce(
    channel: &mut Channel,
    endpoint: &Endpoint,
    purpose: Purpose,
    limit: Duration,
) -> Result<Accepted> {
    // A client in TLS 1.3 learns that it was refused when it reads for the first time.
    let failed = |error: std::io::Error| match is_refusal(&error) {
        true => Error::Denied { what: format!("the server at {endpoint}: {error}") },
        false => unavailable(endpoint, &error),
    };
    channel.set_receive_timeout(Some(limit)).map_err(failed)?;
    let body = expect(channel, FrameKind::Challenge).map_err(failed)?;
    // The version is decoded first, so that the challenge of a later version is not reported as malformed.
    let version = u32::take(&mut Input::new(body.clone()))?;
    if version != PROTOCOL_VERSION {
        return Err(Error::NotSupported {
            what: format!(
                "the server at {endpoint} speaks version {} of the protocol, this program {PROTOCOL_VERSION}; \
                 use the same release on both",
                version
            ),
        });
    }
    Challenge::from_bytes(body)?;
    let hello = Hello { version: PROTOCOL_VERSION, purpose };
    channel.send(FrameKind::Hello, 0, |out| hello.put(out)).map_err(failed)?;
    let body = expect(channel, FrameKind::Welcome).map_err(failed)?;
    let accepted = Result::<Accepted>::from_bytes(body)??;
    channel.set_receive_timeout(None).map_err(failed)?;
    Ok(accepted)
}
