//! The client's side: a pool of connections to one server, and retries that do nothing twice.

use crate::authentication::{Handshake, Side};
use crate::endpoint::Endpoint;
use crate::frame::*;
use crate::local::Local;
use bytes::Bytes;
use hekate_proto::map::VolumeMap;
use hekate_proto::{Error, Input, Reply, Request, Result, SessionId, Wire};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often who waits for an answer looks whether its caller gave up.
const LOOK_UP: Duration = Duration::from_millis(250);
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// A handshake that takes longer than this is given up; ops themselves have no time limit.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// The same for who tries again: no signal ends the wait.
const RESUME_LIMIT: Duration = Duration::from_secs(4);

/// What a server granted.
#[derive(Debug, Clone)]
pub struct Welcome {
    /// The session.
    pub session: SessionId,
    /// The volume's map.
    pub map: VolumeMap,
}

/// A server, as one session's client sees it.
#[derive(Debug)]
pub struct Remote {
    pub(crate) endpoint: Endpoint,
    pub(crate) volume: String,
    pub(crate) session: SessionId,
    /// The server is of this process: batches are calls.
    pub(crate) local: Option<Local>,
    pub(crate) idle: Mutex<Vec<Channel>>,
    pub(crate) frame_id: AtomicU64,
    pub(crate) closed: AtomicBool,
}

impl Remote {
    /// Connects and opens a session on a volume.
    pub fn open(endpoint: Endpoint, volume: &str) -> Result<(Self, Welcome)> {
        let (channel, accepted) = pooled(&endpoint, Purpose::Open { volume: volume.into() }, HANDSHAKE_LIMIT)?;
        let map = read_map(&accepted)?;
        let session = accepted.session;
        let remote = Self::new(endpoint, volume, session);
        remote.idle.lock().push(channel);
        Ok((remote, Welcome { session, map }))
    }

    /// A server that a session which was opened elsewhere uses as well; connected to when it is first needed.
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

    /// It is a server of this process.
    pub fn is_here(self, local: Local) -> Self {
        Self { local: Some(local), ..self }
    }

    /// Where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a batch and waits for its replies. A lost connection is made anew and the batch sent again: each request
    /// names its session and op, so the server answers what it has done already. Ends early only if `interrupted`.
    pub fn call(&self, requests: &mut [Request], interrupted: &dyn Fn() -> bool) -> Result<Vec<Result<Reply>>> {
        loop {
            match self.attempt(requests, None, interrupted) {
                Err(error @ Error::Unavailable { .. }) => {
                    if interrupted() || self.closed.load(Ordering::Relaxed) {
                        return Err(error);
                    }
                    std::thread::sleep(RECONNECT_PAUSE);
                }
                settled => return settled,
            }
        }
    }

    /// One attempt; `Unavailable` if the server cannot be reached, goes away meanwhile, takes longer than the limit to
    /// answer, or the caller gave up. What may have been done by then is marked as a retry.
    pub fn attempt(
        &self,
        requests: &mut [Request],
        limit: Option<Duration>,
        gave_up: &dyn Fn() -> bool,
    ) -> Result<Vec<Result<Reply>>> {
        if let Some(local) = &self.local {
            return local.call(self.session, requests.to_vec());
        }
        // A pooled connection may have died with an earlier server process: then a new one gets its chance at once.
        if let Some(channel) = self.pooled() {
            match self.exchange(channel, requests, limit, gave_up) {
                Ok(replies) => return replies,
                Err(error) => {
                    requests.iter_mut().for_each(|request| request.retry = true);
                    if is_late(&error) {
                        return Err(self.away(&error));
                    }
                }
            }
        }
        let (channel, _) = self.resume(limit.unwrap_or(RESUME_LIMIT))?;
        match self.exchange(channel, requests, limit, gave_up) {
            Ok(replies) => replies,
            Err(error) => {
                requests.iter_mut().for_each(|request| request.retry = true);
                Err(self.away(&error))
            }
        }
    }

    /// The map as it is now, if the server gives it within this time.
    pub fn map(&self, limit: Duration) -> Result<VolumeMap> {
        let (channel, accepted) = self.resume(limit)?;
        // Who waits for a server asks for the map again and again: its connections are not all kept.
        let mut idle = self.idle.lock();
        if idle.is_empty() {
            idle.push(channel);
        }
        drop(idle);
        read_map(&accepted)
    }

    pub(crate) fn resume(&self, limit: Duration) -> Result<(Channel, Accepted)> {
        pooled(&self.endpoint, Purpose::Resume { volume: self.volume.clone(), session: self.session }, limit)
    }

    /// The most recently used one, whose buffers are warm.
    pub(crate) fn pooled(&self) -> Option<Channel> {
        self.idle.lock().pop()
    }

    /// From now on nothing waits for an absent server.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.idle.lock().clear();
    }

    pub(crate) fn away(&self, error: &std::io::Error) -> Error {
        away(&self.endpoint, error)
    }

    pub(crate) fn exchange(
        &self,
        mut channel: Channel,
        requests: &[Request],
        limit: Option<Duration>,
        gave_up: &dyn Fn() -> bool,
    ) -> std::io::Result<Result<Vec<Result<Reply>>>> {
        let end = limit.map(|limit| Instant::now() + limit);
        let goes_on = || !gave_up() && end.is_none_or(|end| Instant::now() < end);
        let id = self.put(&mut channel, requests, &goes_on)?;
        self.get(channel, id, requests.len(), &goes_on)
    }

    /// -> the frame's id.
    pub(crate) fn put(
        &self,
        channel: &mut Channel,
        requests: &[Request],
        goes_on: &dyn Fn() -> bool,
    ) -> std::io::Result<u64> {
        let id = self.frame_id.fetch_add(1, Ordering::Relaxed);
        let write = |out: &mut Vec<u8>| {
            (requests.len() as u32).put(out);
            requests.iter().for_each(|request| request.put(out));
        };
        channel.send_while(FrameKind::Requests, id, write, goes_on)?;
        Ok(id)
    }

    pub(crate) fn get(
        &self,
        mut channel: Channel,
        id: u64,
        requests: usize,
        goes_on: &dyn Fn() -> bool,
    ) -> std::io::Result<Result<Vec<Result<Reply>>>> {
        let (kind, answered, body) = channel.receive_while(goes_on)?;
        if kind != FrameKind::Replies || answered != id {
            return Err(malformed("an answer to another frame"));
        }
        let replies = take_replies(body).map_err(Error::from);
        self.idle.lock().push(channel);
        Ok(replies.and_then(|replies| match replies.len() == requests {
            true => Ok(replies),
            false => Err(Error::Protocol { what: format!("{} replies to {requests} requests", replies.len()) }),
        }))
    }
}

pub(crate) fn read_map(accepted: &Accepted) -> Result<VolumeMap> {
    let map: VolumeMap = serde_json::from_str(&accepted.map)
        .map_err(|e| Error::Protocol { what: format!("the map cannot be read: {e}") })?;
    map.check()?;
    Ok(map)
}

fn expect(channel: &mut Channel, kind: FrameKind) -> std::io::Result<Bytes> {
    match channel.receive()? {
        (found, _, body) if found == kind => Ok(body),
        _ => Err(malformed("another kind of frame than the handshake has")),
    }
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// Why an exchange with a server failed, as one error that names it.
pub(crate) fn away(endpoint: &Endpoint, error: &std::io::Error) -> Error {
    let what = match error.kind() {
        std::io::ErrorKind::InvalidData => format!("what answers at {endpoint} is no Hekate server: {error}"),
        _ if is_late(error) => format!("the server at {endpoint} does not answer in time; is it a Hekate server?"),
        _ => format!("the server at {endpoint}: {error}"),
    };
    Error::Unavailable { what }
}

/// A new connection for requests, whose waits are not for ever.
fn pooled(endpoint: &Endpoint, purpose: Purpose, limit: Duration) -> Result<(Channel, Accepted)> {
    let (channel, accepted) = handshake(endpoint, purpose, limit)?;
    channel.look_up_every(LOOK_UP).map_err(|e| away(endpoint, &e))?;
    Ok((channel, accepted))
}

/// A new connection that has introduced itself.
pub(crate) fn handshake(endpoint: &Endpoint, purpose: Purpose, limit: Duration) -> Result<(Channel, Accepted)> {
    let mut channel = Channel::new(endpoint.connect().map_err(|e| away(endpoint, &e))?);
    let accepted = introduce(&mut channel, endpoint, purpose, limit)?;
    Ok((channel, accepted))
}

/// The client's part of the handshake on a fresh connection.
pub(crate) fn introduce(
    channel: &mut Channel,
    endpoint: &Endpoint,
    purpose: Purpose,
    limit: Duration,
) -> Result<Accepted> {
    let away = |e: std::io::Error| away(endpoint, &e);
    channel.wait_at_most(Some(limit)).map_err(away)?;
    let body = expect(channel, FrameKind::Challenge).map_err(away)?;
    // The version comes first, so that a future challenge is told apart from a malformed one.
    let version = u32::take(&mut Input::new(body.clone()))?;
    if version != PROTOCOL_VERSION {
        return Err(Error::NotSupported {
            what: format!(
                "the server at {endpoint} speaks version {} of the protocol, this program {PROTOCOL_VERSION}; use the same release on both",
                version
            ),
        });
    }
    let challenge = Challenge::from_bytes(body)?;
    let nonce = random_nonce()?;
    let mut proof = Bytes::new();
    if let Endpoint::Tcp(address, secret) = endpoint {
        let shaken = Handshake { address: *address, purpose: &purpose, challenge: &challenge.nonce, hello: &nonce };
        proof = shaken.prove(secret, Side::Client)?;
    }
    let hello = Hello { version: PROTOCOL_VERSION, nonce: nonce.clone(), proof, purpose };
    channel.send(FrameKind::Hello, 0, |out| hello.put(out)).map_err(away)?;
    let body = expect(channel, FrameKind::Welcome).map_err(away)?;
    let accepted = Result::<Accepted>::from_bytes(body)??;
    if let Endpoint::Tcp(address, secret) = endpoint {
        let purpose = &hello.purpose;
        let shaken = Handshake { address: *address, purpose, challenge: &challenge.nonce, hello: &nonce };
        if !shaken.is_proof(secret, Side::Server, &accepted.proof)? {
            return Err(Error::Denied { what: format!("the server at {endpoint} does not know our secret") });
        }
    }
    channel.wait_at_most(None).map_err(away)?;
    Ok(accepted)
}
