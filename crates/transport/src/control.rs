//! The client's side of the control interface: text to text, over connections that are kept.

use crate::client::{HANDSHAKE_LIMIT, away, handshake};
use crate::endpoint::Endpoint;
use crate::frame::*;
use hekate_proto::{Error, Result, Wire};
use parking_lot::Mutex;
use std::time::Duration;

/// One request.
pub fn control(endpoint: &Endpoint, request: &str) -> Result<String> {
    Control::new(endpoint.clone(), None).ask(request)
}

/// The control interface of one server. A request is sent once: whoever is told `Unavailable` does not know whether it
/// was done.
#[derive(Debug)]
pub struct Control {
    endpoint: Endpoint,
    limit: Option<Duration>,
    idle: Mutex<Vec<Channel>>,
}

impl Control {
    /// Connected to when it is first asked; an answer that takes longer than the limit is given up.
    pub fn new(endpoint: Endpoint, limit: Option<Duration>) -> Self {
        Self { endpoint, limit, idle: Mutex::default() }
    }

    /// Where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Asks, and waits for the answer.
    pub fn ask(&self, request: &str) -> Result<String> {
        let away = |e: std::io::Error| away(&self.endpoint, &e);
        let mut channel = self.channel()?;
        channel.wait_at_most(self.limit).map_err(away)?;
        channel.send(FrameKind::Control, 1, |out| request.to_string().put(out)).map_err(away)?;
        let (kind, _, body) = channel.receive().map_err(away)?;
        if kind != FrameKind::ControlReply {
            return Err(Error::Protocol { what: "the control interface answered with another kind of frame".into() });
        }
        self.idle.lock().push(channel);
        Ok(String::from_bytes(body)?)
    }

    /// One that was kept, unless its server has ended since: what is sent to a dead process might have been done.
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
