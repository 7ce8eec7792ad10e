//! The client's side of the control interface: text requests and replies over reused connections.

use crate::client::{HANDSHAKE_LIMIT, handshake, unavailable};
use crate::endpoint::Endpoint;
use crate::frame::*;
use hekate_proto::{Error, Result, Wire};
use parking_lot::Mutex;
use std::time::Duration;

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
        let failed = |e: std::io::Error| unavailable(&self.endpoint, &e);
        let mut channel = self.channel()?;
        channel.set_receive_timeout(self.limit).map_err(failed)?;
        channel.send(FrameKind::Control, 1, |out| request.to_string().put(out)).map_err(failed)?;
        let (kind, _, body) = channel.receive().map_err(failed)?;
        if kind != FrameKind::ControlReply {
            return Err(Error::Protocol { what: "the reply to a control request is a frame of another kind".into() });
        }
        self.idle.lock().push(channel);
        Ok(String::from_bytes(body)?)
    }

    /// An idle connection whose server has not closed it, or a new one. A request sent to a dead process would count
    /// as possibly executed.
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
