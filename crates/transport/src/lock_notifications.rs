//! Notifications to a session that waiting ops have their replies, on a connection on which only the server sends.
//!
//! A notification is a hint: the client then asks for the reply. A client also asks for all replies after it has
//! connected, so a lost connection loses nothing. A server therefore never waits for a slow reader: it closes the
//! connection.

use crate::client::{Remote, handshake, unavailable};
use crate::frame::{Channel, FrameKind, HEADER_BYTES, Purpose, malformed, write_header};
use crate::servers::Notifications;
use crate::stream::Stream;
use hekate_proto::{OpId, Result, Wire};
use parking_lot::Mutex;
use rustix::net::{SendFlags, send};
use std::time::Duration;

/// Limit for the handshake and for the first frame.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// Most op ids in one frame. A server that has more to send uses several frames.
const NOTIFIED_OPS_MAX: usize = 1024;

/// Takes notifications for a session.
pub trait NotificationSink: Send + Sync {
    /// Sends the ids of waiting ops that now have their replies. Does not wait.
    fn tell(&self, op_ids: &[OpId]);
}

/// The server's end of such a connection.
#[derive(Debug)]
pub struct Listener(Mutex<Stream>);

impl Listener {
    pub(crate) fn new(channel: &Channel) -> Self {
        Self(Mutex::new(channel.stream.clone()))
    }

    /// Sends the first frame, which has no op ids.
    pub(crate) fn begin(&self) {
        self.send(&[]);
    }

    fn send(&self, op_ids: &[OpId]) {
        let mut frame = vec![0; HEADER_BYTES];
        op_ids.to_vec().put(&mut frame);
        let length = frame.len() - HEADER_BYTES;
        write_header(&mut frame, length, FrameKind::Notification, 0);
        let stream = self.0.lock();
        let mut sealed = Vec::new();
        let bytes = match stream.session() {
            None => &frame,
            Some(session) if session.encrypt(&frame, &mut sealed).is_ok() => &sealed,
            Some(_) => return stream.shutdown(),
        };
        if send(&*stream, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) != Ok(bytes.len()) {
            stream.shutdown();
        }
    }
}

impl NotificationSink for Listener {
    /// Closes the connection if its socket buffer has no room for the notifications.
    fn tell(&self, op_ids: &[OpId]) {
        op_ids.chunks(NOTIFIED_OPS_MAX).for_each(|some| self.send(some));
    }
}

/// The client's end of such a connection.
#[derive(Debug)]
pub struct LockNotifications(Channel);

impl Notifications for LockNotifications {
    fn next(&mut self, limit: Duration) -> std::io::Result<Option<Vec<OpId>>> {
        self.0.set_receive_timeout(Some(limit))?;
        match self.0.receive() {
            Ok((FrameKind::Notification, _, body)) => Vec::from_bytes(body).map(Some).map_err(|e| malformed(e.0)),
            Ok(_) => Err(malformed("a connection for notifications has a frame of another kind")),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Remote {
    /// Opens a connection for notifications to this session. Waits until the server has registered it, so that each op
    /// that gets its reply after this call is notified.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached or does not register the connection within 2 s; errors of the
    /// handshake, such as `SessionEnded`.
    pub fn listen(&self) -> Result<LockNotifications> {
        let purpose = Purpose::Listen { volume: self.volume.clone(), session: self.session };
        let (mut channel, _) = handshake(&self.endpoint, purpose, HELLO_LIMIT)?;
        channel.limit(NOTIFIED_OPS_MAX * size_of::<OpId>() + 4);
        let mut notifications = LockNotifications(channel);
        match notifications.next(HELLO_LIMIT) {
            Ok(Some(_)) => Ok(notifications),
            Ok(None) => Err(unavailable(&self.endpoint, &std::io::ErrorKind::TimedOut.into())),
            Err(error) => Err(unavailable(&self.endpoint, &error)),
        }
    }
}
