//! The servers of a volume, as the layers above see them: what they need of a network.
//!
//! [`crate::ServerPool`] reaches real servers; the simulator has an implementation of its own.

use crate::client::Replies;
use hekate_proto::map::VolumeMap;
use hekate_proto::{Notification, Request, Result, ServerId};
use std::time::Duration;

/// The servers of a volume, in one session.
pub trait Servers: Send + Sync {
    /// The server where the session was opened.
    fn first(&self) -> ServerId;

    /// Makes one attempt to execute a batch at a server. Requests that the server may have executed are marked as
    /// retries.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached, the connection breaks, the replies take longer than `limit`, or
    /// `gave_up` returned true. The server may or may not have executed the batch; the caller may resend it.
    fn attempt(
        &self,
        server: ServerId,
        requests: &mut [Request],
        limit: Option<Duration>,
        gave_up: &dyn Fn() -> bool,
    ) -> Result<Replies>;

    /// Sends a batch to a server once and does not wait for the replies.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached.
    fn begin(
        &self,
        server: ServerId,
        requests: &[Request],
        gave_up: &dyn Fn() -> bool,
    ) -> Result<Box<dyn PendingBatch>>;

    /// Opens a connection on which a server notifies this session.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached, `SessionEnded` if the session is over.
    fn listen(&self, server: ServerId) -> Result<Box<dyn Notifications>>;

    /// The volume's current map, from the first server that answers. Servers are asked in turn, because one that
    /// cannot reach the coordinator may return an old map.
    ///
    /// # Errors
    /// `Unavailable` if no server answers; retry. Other errors as the server says.
    fn map(&self) -> Result<VolumeMap>;

    /// Makes waits for an absent server fail from now on.
    fn close(&self);

    fn is_closed(&self) -> bool;
}

/// A batch that was sent once, whose replies have not been read. It is never resent.
pub trait PendingBatch {
    /// Waits for the replies.
    ///
    /// # Errors
    /// `Unavailable` if the connection broke or `gave_up` returned true. The server may or may not have executed the
    /// batch.
    fn finish(self: Box<Self>, gave_up: &dyn Fn() -> bool) -> Result<Replies>;
}

/// A connection on which a server notifies a session.
pub trait Notifications: Send {
    /// The next notification, or `None` if none arrives within `limit`.
    ///
    /// # Errors
    /// The connection has ended; the caller opens another one.
    fn next(&mut self, limit: Duration) -> std::io::Result<Option<Notification>>;
}
