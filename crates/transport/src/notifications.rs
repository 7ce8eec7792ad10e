//! Notifications to a session, on a connection on which only the server sends: waiting ops have their replies, and
//! pledges are recalled.
//!
//! A lost notification loses nothing: a client asks for all replies after it has connected, and leaders send a recall
//! again until it is returned. A server therefore never waits for a slow reader: it closes the connection.

use crate::client::{Remote, handshake, unavailable};
use crate::frame::{Channel, FrameKind, HEADER_BYTES, Purpose, malformed, write_header};
use crate::servers::Notifications;
use crate::stream::Stream;
use hekate_proto::{Notification, Result, Wire};
use parking_lot::Mutex;
use rustix::net::{SendFlags, send};
use std::time::Duration;

/// Limit for the handshake and for the first frame.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// Longest notification: 256 recalled names.
const NOTIFICATION_BYTES_MAX: usize = 128 << 10;

/// Takes notifications for a session.
pub trait NotificationSink: Send + Sync {
    /// Sends a notification. Does not wait.
    fn tell(&self, notification: &Notification);
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
        self.tell(&Notification::Answered { op_ids: Vec::new() });
    }
}

impl NotificationSink for Listener {
    /// Closes the connection if its socket buffer has no room for the notification.
    fn tell(&self, notification: &Notification) {
        let mut frame = vec![0; HEADER_BYTES];
        notification.put(&mut frame);
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

/// The client's end of such a connection.
#[derive(Debug)]
pub struct SessionNotifications(Channel);

impl Notifications for SessionNotifications {
    fn next(&mut self, limit: Duration) -> std::io::Result<Option<Notification>> {
        self.0.set_receive_timeout(Some(limit))?;
        match self.0.receive() {
            Ok((FrameKind::Notification, _, body)) => {
                Notification::from_bytes(body).map(Some).map_err(|e| malformed(e.0))
            }
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
    pub fn listen(&self) -> Result<SessionNotifications> {
        let purpose = Purpose::Listen { volume: self.volume.clone(), session: self.session };
        let (mut channel, _) = handshake(&self.endpoint, purpose, HELLO_LIMIT)?;
        channel.limit(NOTIFICATION_BYTES_MAX);
        let mut notifications = SessionNotifications(channel);
        match notifications.next(HELLO_LIMIT) {
            Ok(Some(_)) => Ok(notifications),
            Ok(None) => Err(unavailable(&self.endpoint, &std::io::ErrorKind::TimedOut.into())),
            Err(error) => Err(unavailable(&self.endpoint, &error)),
        }
    }
}
