//! Batches to several servers at once: sent to all, then each server's replies are awaited.

use crate::client::{ExchangeError, Remote, Replies};
use crate::frame::Channel;
use crate::servers::PendingBatch;
use hekate_proto::{Request, Result};
use std::sync::Arc;
use std::time::Duration;

/// Limit for a connection that has to be made first.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A batch that was sent once, whose replies have not been read. It is never resent.
pub struct Sent {
    remote: Arc<Remote>,
    state: State,
}

/// The replies, or why the batch could not be sent. It has been executed already if the server runs in this process.
enum State {
    Finished(Result<Replies>),
    Waiting { channel: Channel, frame: u64, requests: usize },
}

impl Sent {
    pub(crate) fn begin(remote: Arc<Remote>, requests: &[Request], gave_up: &dyn Fn() -> bool) -> Self {
        let state = match &remote.local {
            Some(local) => State::Finished(local.call(remote.session, requests.to_vec())),
            None => send(&remote, requests, gave_up).unwrap_or_else(|error| State::Finished(Err(error))),
        };
        Self { remote, state }
    }
}

impl PendingBatch for Sent {
    fn finish(self: Box<Self>, gave_up: &dyn Fn() -> bool) -> Result<Replies> {
        let Self { remote, state } = *self;
        match state {
            State::Finished(outcome) => outcome,
            State::Waiting { channel, frame, requests } => {
                let replies = remote.receive_replies(channel, frame, requests, &|| !gave_up());
                replies.map_err(|error| match error {
                    ExchangeError::Connection(error) => remote.unavailable(&error),
                    ExchangeError::Replies(error) => error,
                })
            }
        }
    }
}

fn send(remote: &Remote, requests: &[Request], gave_up: &dyn Fn() -> bool) -> Result<State> {
    let mut channel = match remote.pooled() {
        Some(channel) => channel,
        None => remote.resume(CONNECT_LIMIT)?.0,
    };
    let sent = remote.send_requests(&mut channel, requests, &|| !gave_up());
    let frame = sent.map_err(|error| remote.unavailable(&error))?;
    Ok(State::Waiting { channel, frame, requests: requests.len() })
}
