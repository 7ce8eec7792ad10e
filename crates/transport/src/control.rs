//! The client's side of the control interface: text requests and replies over reused connections.

use crate::client::{HANDSHAKE_LIMIT, handshake, unavailable};
use crate::endpoint::Endpoint;
use crate::frame::*;
use hekate_proto::{Error, Result, Wire};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Sends one request over a new connection and waits for the reply.
///
/// # Errors
/// As [`Control::ask`].
pub fn control(endpoint: &Endpoint, request: &str) -> Result<String> {
    Control::new(endpoint.clone(), None).ask(request)
}

/// The control interface of one server. A request is sent once; after `Unavailable` the caller does not know whether
/// the server executed it.
#[derive(Debug)]
pub struct Control {
    endpoint: Endpoint,
    limit: Option<Duration>,
    idle: Mutex<Vec<Channel>>,
}

impl Control {
    /// Connects when the first request is sent. `limit` bounds the wait for each reply.
    pub fn new(endpoint: Endpoint, limit: Option<Duration>) -> Self {
        Self { endpoint, limit, idle: Mutex::default() }
    }

    /// Address of the server.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached, the connection breaks or the reply is late. The server may have
    /// executed the request.
    pub fn ask(&self, request: &str) -> Result<String> {
        match self.send(request)?.receive(self.limit, &|| true)? {
            Asked::Answered(reply) => Ok(reply),
            Asked::Unanswered(error) => Err(error),
        }
    }

    /// Sends a request, whose reply [`Sent::receive`] waits for.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached, or the connection breaks before the whole request was sent: the
    /// server never executes it.
    pub fn send(&self, request: &str) -> Result<Sent<'_>> {
        let mut channel = self.channel()?;
        let sent = channel.send(FrameKind::Control, 1, |out| request.to_string().put(out));
        sent.map_err(|e| unavailable(&self.endpoint, &e))?;
        Ok(Sent { control: self, channel })
    }

    /// An idle connection that the server has not closed, or a new one. If a request were sent to a process that has
    /// ended, its outcome would count as unknown.
    fn channel(&self) -> Result<Channel> {
        loop {
            let kept = self.idle.lock().pop();
            match kept {
                Some(channel) if channel.is_quiet() => return Ok(channel),
                Some(_) => {}
                None => {
                    let limit = self.limit.unwrap_or(HANDSHAKE_LIMIT);
                    return Ok(handshake(&self.endpoint, Purpose::Control, limit)?.0);
                }
            }
        }
    }
}

/// Time between two checks whether a reply is still wanted.
const CHECK_PAUSE: Duration = Duration::from_millis(50);

/// A request that was sent.
#[derive(Debug)]
pub struct Sent<'a> {
    control: &'a Control,
    channel: Channel,
}

/// What became of a request that was sent.
#[derive(Debug)]
pub enum Asked {
    Answered(String),
    /// No reply: the server may have executed the request, or may still do so.
    Unanswered(Error),
}

impl Sent<'_> {
    /// Waits for the reply, for at most `limit`, and only while `keep_waiting` returns true.
    ///
    /// # Errors
    /// `Protocol` if the reply cannot be read.
    pub fn receive(mut self, limit: Option<Duration>, keep_waiting: &dyn Fn() -> bool) -> Result<Asked> {
        let begun = Instant::now();
        let is_late = || limit.is_some_and(|limit| begun.elapsed() >= limit);
        let received = self.channel.set_receive_timeout(Some(CHECK_PAUSE));
        let received = received.and_then(|()| self.channel.receive_while(&|| keep_waiting() && !is_late()));
        let (kind, _, body) = match received {
            Ok(received) => received,
            Err(error) => return Ok(Asked::Unanswered(unavailable(&self.control.endpoint, &error))),
        };
        if kind != FrameKind::ControlReply {
            return Err(Error::Protocol { what: "the reply to a control request is a frame of another kind".into() });
        }
        self.control.idle.lock().push(self.channel);
        Ok(Asked::Answered(String::from_bytes(body)?))
    }
}
