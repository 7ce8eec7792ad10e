//! Frames: a 16-byte header (body length, kind, id) and a body. `docs/format/wire.md` has the byte map.

use crate::endpoint::Stream;
use crate::link::Boot;
use bytes::{Bytes, BytesMut};
use hekate_proto::{
    Error, Input, Malformed, Reply, Request, Result, ServerId, SessionId, Wire, wire_enum, wire_struct,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::time::{Duration, Instant};

/// The version of frames and ops; both ends must have the same.
pub const PROTOCOL_VERSION: u32 = 11;
/// Bytes of the greatest body: the greatest op, with room for its neighbours.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Requests in one frame.
pub const BATCH_MAX: usize = 1024;

pub(crate) const HEADER_BYTES: usize = 16;
const READ_BYTES_MIN: usize = 64 << 10;

/// What a frame's body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    Challenge = 1,
    Hello = 2,
    Welcome = 3,
    Requests = 4,
    Replies = 5,
    Control = 6,
    ControlReply = 7,
    Packet = 8,
    Told = 9,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        use FrameKind::*;
        let all = [Challenge, Hello, Welcome, Requests, Replies, Control, ControlReply, Packet, Told];
        all.into_iter().find(|k| *k as u8 == byte)
    }
}

wire_struct! {
    /// The server's first word.
    pub struct Challenge {
        /// What the server speaks.
        pub version: u32,
        /// Random, to be signed.
        pub nonce: Bytes,
        /// Whether the client must prove the secret (TCP).
        pub proof_needed: bool,
    }

    /// The client's answer.
    pub struct Hello {
        /// What the client speaks.
        pub version: u32,
        /// Random, to be signed by the server.
        pub nonce: Bytes,
        /// The client's proof over TCP; empty on a unix socket.
        pub proof: Bytes,
        /// What for.
        pub purpose: Purpose,
    }

    /// The server agrees.
    pub struct Accepted {
        /// The server's proof over TCP; empty on a unix socket.
        pub proof: Bytes,
        /// The session; 0 for control.
        pub session: SessionId,
        /// The volume's map as JSON; empty for control.
        pub map: String,
    }
}

wire_enum! {
    /// What a connection is for.
    pub enum Purpose {
        /// Ops on a volume, in a new session.
        1 = Open { volume: String },
        /// A further connection of a session.
        2 = Resume { volume: String, session: SessionId },
        /// The control interface.
        3 = Control,
        /// Packets of the link between two servers: from which process, to whom.
        4 = Peer { server: ServerId, boot: Boot, to: ServerId },
        /// A connection of a session on which only the server speaks: which ops that waited have their answers.
        5 = Listen { volume: String, session: SessionId },
    }
}

pub(crate) fn random_nonce() -> Result<Bytes> {
    let mut nonce = [0u8; 32];
    getrandom::fill(&mut nonce).map_err(|e| Error::bug(format!("getrandom: {e}")))?;
    Ok(Bytes::copy_from_slice(&nonce))
}

/// A stream and what has arrived on it.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) stream: Stream,
    received: BytesMut,
    out: Vec<u8>,
    frame_bytes_max: usize,
    /// When all that is waited for must have arrived, however it dribbles in.
    deadline: Option<Instant>,
}

impl Channel {
    pub(crate) fn new(stream: Stream) -> Self {
        let out = Vec::with_capacity(READ_BYTES_MIN);
        Self { stream, received: BytesMut::new(), out, frame_bytes_max: FRAME_BYTES_MAX, deadline: None }
    }

    /// Refuses greater bodies from now on.
    pub(crate) fn limit(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// How long `receive` waits for bytes from now on; without a limit for ever.
    pub(crate) fn wait_at_most(&self, limit: Option<Duration>) -> std::io::Result<()> {
        set_socket_timeout(&self.stream, Timeout::Recv, limit)?;
        Ok(())
    }

    /// What is received from now on must have arrived so soon, all of it together; without a limit it may take for ever.
    pub(crate) fn all_within(&mut self, limit: Option<Duration>) -> std::io::Result<()> {
        self.deadline = limit.map(|limit| Instant::now() + limit);
        self.wait_at_most(limit)
    }

    /// How often `send` and `receive` ask whether to go on, from now on.
    pub(crate) fn look_up_every(&self, pause: Duration) -> std::io::Result<()> {
        set_socket_timeout(&self.stream, Timeout::Send, Some(pause))?;
        self.wait_at_most(Some(pause))
    }

    /// Whether nothing has arrived, neither bytes nor the end of the connection.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut readable = [PollFd::new(&self.stream, PollFlags::IN)];
        self.received.is_empty() && poll(&mut readable, Some(&Timespec::default())) == Ok(0)
    }

    /// Sends one frame whose body `write` appends.
    pub(crate) fn send(&mut self, kind: FrameKind, id: u64, write: impl FnOnce(&mut Vec<u8>)) -> std::io::Result<()> {
        self.send_while(kind, id, write, &|| false)
    }

    /// The same; when it has waited for room as long as it may, it goes on if it is told to.
    pub(crate) fn send_while(
        &mut self,
        kind: FrameKind,
        id: u64,
        write: impl FnOnce(&mut Vec<u8>),
        goes_on: &dyn Fn() -> bool,
    ) -> std::io::Result<()> {
        self.out.clear();
        self.out.extend_from_slice(&[0; HEADER_BYTES]);
        write(&mut self.out);
        let length = self.out.len() - HEADER_BYTES;
        if length > FRAME_BYTES_MAX {
            return Err(malformed("a frame over 16 MiB was to be sent"));
        }
        write_header(&mut self.out, length, kind, id);
        let mut rest = &self.out[..];
        while !rest.is_empty() {
            match rustix::net::send(&self.stream, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if goes_on() => {}
                Err(error) => return Err(error.into()),
            }
        }
        // One great op must not pin its buffer for the life of the connection.
        if self.out.capacity() > 4 * READ_BYTES_MIN {
            self.out = Vec::with_capacity(READ_BYTES_MIN);
        }
        Ok(())
    }

    /// Waits for one frame.
    pub(crate) fn receive(&mut self) -> std::io::Result<(FrameKind, u64, Bytes)> {
        self.receive_while(&|| false)
    }

    /// The same; when it has waited for bytes as long as it may, it goes on if it is told to.
    pub(crate) fn receive_while(&mut self, goes_on: &dyn Fn() -> bool) -> std::io::Result<(FrameKind, u64, Bytes)> {
        self.fill(HEADER_BYTES, goes_on)?;
        let (length, id) = (self.word(0..4) as usize, self.word(8..16));
        let Some(kind) = FrameKind::from_byte(self.received[4]) else {
            return Err(malformed("an unknown kind of frame"));
        };
        if length > self.frame_bytes_max {
            return Err(malformed("a frame that is too long"));
        }
        self.fill(HEADER_BYTES + length, goes_on)?;
        let mut frame = self.received.split_to(HEADER_BYTES + length).freeze();
        Ok((kind, id, frame.split_off(HEADER_BYTES)))
    }

    /// Whether a whole frame has arrived already, so that the next `receive` does not wait.
    pub(crate) fn has_frame(&self) -> bool {
        let arrived = self.received.len();
        arrived >= HEADER_BYTES && arrived - HEADER_BYTES >= self.word(0..4) as usize
    }

    fn word(&self, range: std::ops::Range<usize>) -> u64 {
        self.received[range].iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte))
    }

    fn fill(&mut self, count: usize, goes_on: &dyn Fn() -> bool) -> std::io::Result<()> {
        while self.received.len() < count {
            let missing = count - self.received.len();
            self.received.reserve(missing.max(READ_BYTES_MIN));
            let spare = self.received.spare_capacity_mut();
            let arrived = match rustix::net::recv(&self.stream, spare, rustix::net::RecvFlags::empty()) {
                Ok(((init, _), _)) => init.len(),
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) if goes_on() => continue,
                Err(error) => return Err(error.into()),
            };
            if arrived == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            let length = self.received.len() + arrived;
            // SAFETY: recv has initialised the first `arrived` bytes of the spare capacity.
            unsafe { self.received.set_len(length) };
        }
        Ok(())
    }
}

/// Fills in the header that `frame` begins with.
pub(crate) fn write_header(frame: &mut [u8], length: usize, kind: FrameKind, id: u64) {
    frame[0..4].copy_from_slice(&(length as u32).to_le_bytes());
    frame[4] = kind as u8;
    frame[8..16].copy_from_slice(&id.to_le_bytes());
}

pub(crate) fn malformed(what: &'static str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, Malformed(what))
}

/// Requests of a frame; refuses more than [`BATCH_MAX`].
pub(crate) fn take_requests(body: Bytes) -> std::result::Result<Vec<Request>, Malformed> {
    take_batch(body)
}

/// Replies of a frame; refuses more than [`BATCH_MAX`].
pub(crate) fn take_replies(body: Bytes) -> std::result::Result<Vec<Result<Reply>>, Malformed> {
    take_batch(body)
}

/// The count comes first, so that 16 MiB of two-byte replies do not become gigabytes of memory before they are refused.
fn take_batch<T: Wire>(body: Bytes) -> std::result::Result<Vec<T>, Malformed> {
    if u32::take(&mut Input::new(body.clone()))? as usize > BATCH_MAX {
        return Err(Malformed("more requests or replies than a frame may have"));
    }
    Vec::from_bytes(body)
}
