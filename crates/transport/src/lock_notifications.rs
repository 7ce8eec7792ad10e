//! Telling a session that ops which waited have their answers: on a connection of its own, on which only the server
//! speaks.
//!
//! What is told is a hint. Who hears it asks again, and so does who has just connected, so nothing is lost with a
//! connection; therefore a server never waits for one either: who does not read is cut off.

use crate::client::{Remote, away, handshake};
use crate::frame::{Channel, FrameKind, HEADER_BYTES, Purpose, malformed, write_header};
use hekate_proto::{OpId, Result, Wire};
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use std::time::Duration;

/// How long a server may take to agree.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// Op ids in one frame; a server that tells more at once sends more frames.
const TOLD_MAX: usize = 1024;

/// The server's end.
#[derive(Debug)]
pub struct Listener(Mutex<OwnedFd>);

impl Listener {
    pub(crate) fn new(channel: &Channel) -> std::io::Result<Self> {
        Ok(Self(Mutex::new(channel.stream.as_fd().try_clone_to_owned()?)))
    }

    /// Tells, without waiting; a connection that has no room for it is given up.
    pub fn tell(&self, op_ids: &[OpId]) {
        op_ids.chunks(TOLD_MAX).for_each(|some| self.send(some));
    }

    /// The first frame, of nothing.
    pub(crate) fn begin(&self) {
        self.send(&[]);
    }

    fn send(&self, op_ids: &[OpId]) {
        let mut frame = vec![0; HEADER_BYTES];
        op_ids.to_vec().put(&mut frame);
        let length = frame.len() - HEADER_BYTES;
        write_header(&mut frame, length, FrameKind::Told, 0);
        let stream = self.0.lock();
        if send(&*stream, &frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) != Ok(frame.len()) {
            let _ = shutdown(&*stream, Shutdown::Both);
        }
    }
}

/// The client's end.
#[derive(Debug)]
pub struct Ears(Channel);

impl Ears {
    /// What is told next; `None` if that is nothing for this long. After an error there is nothing more to hear.
    pub fn next(&mut self, limit: Duration) -> std::io::Result<Option<Vec<OpId>>> {
        self.0.wait_at_most(Some(limit))?;
        match self.0.receive() {
            Ok((FrameKind::Told, _, body)) => Vec::from_bytes(body).map(Some).map_err(|e| malformed(e.0)),
            Ok(_) => Err(malformed("another frame on a connection for listening")),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Remote {
    /// A connection on which the server tells this session of ops that waited, from when this returns.
    pub fn listen(&self) -> Result<Ears> {
        let purpose = Purpose::Listen { volume: self.volume.clone(), session: self.session };
        let (mut channel, _) = handshake(&self.endpoint, purpose, HELLO_LIMIT)?;
        channel.limit(TOLD_MAX * size_of::<OpId>() + 4);
        let mut ears = Ears(channel);
        match ears.next(HELLO_LIMIT) {
            Ok(Some(_)) => Ok(ears),
            Ok(None) => Err(away(&self.endpoint, &std::io::ErrorKind::TimedOut.into())),
            Err(error) => Err(away(&self.endpoint, &error)),
        }
    }
}
