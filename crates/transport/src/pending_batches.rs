//! Batches to several servers side by side: sent to all, then answered by each.

use crate::client::Remote;
use crate::frame::Channel;
use hekate_proto::{Reply, Request, Result};
use std::sync::Arc;
use std::time::Duration;

/// A connection that has to be made first takes so long at most.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A batch that was sent once, and is not sent again.
pub struct Sent {
    remote: Arc<Remote>,
    state: State,
}

enum State {
    Ended(Result<Vec<Result<Reply>>>),
    Waiting { channel: Channel, frame: u64, requests: usize },
}

impl Sent {
    pub(crate) fn begin(remote: Arc<Remote>, requests: &[Request], gave_up: &dyn Fn() -> bool) -> Self {
        let state = match &remote.local {
            Some(local) => State::Ended(local.call(remote.session, requests.to_vec())),
            None => send(&remote, requests, gave_up).unwrap_or_else(|error| State::Ended(Err(error))),
        };
        Self { remote, state }
    }

    /// Waits for the answers.
    pub fn finish(self, gave_up: &dyn Fn() -> bool) -> Result<Vec<Result<Reply>>> {
        let Self { remote, state } = self;
        match state {
            State::Ended(outcome) => outcome,
            State::Waiting { channel, frame, requests } => {
                let answered = remote.get(channel, frame, requests, &|| !gave_up());
                answered.unwrap_or_else(|error| Err(remote.away(&error)))
            }
        }
    }
}

fn send(remote: &Remote, requests: &[Request], gave_up: &dyn Fn() -> bool) -> Result<State> {
    let mut channel = match remote.pooled() {
        Some(channel) => channel,
        None => remote.resume(CONNECT_LIMIT)?.0,
    };
    let frame = remote.put(&mut channel, requests, &|| !gave_up()).map_err(|error| remote.away(&error))?;
    Ok(State::Waiting { channel, frame, requests: requests.len() })
}
