//! Frames: a 16-byte header (body length, kind, id) and a body. `docs/format/wire.md` has the byte map.

use crate::link::Boot;
use crate::stream::{Stream, receive};
use bytes::{Bytes, BytesMut};
use hekate_proto::{Input, Malformed, Reply, Request, Result, ServerId, SessionId, Wire, wire_enum, wire_struct};
use hekate_tls::Inbox;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::time::{Duration, Instant};

/// Version of frames and ops. Both ends must have the same.
pub const PROTOCOL_VERSION: u32 = 17;
/// Longest body of a frame, in bytes: room for the longest op (4 MiB) and the other requests of its batch.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Most requests in one frame.
pub const BATCH_MAX: usize = 1024;

/// Length of a frame's header, in bytes.
pub(crate) const HEADER_BYTES: usize = 16;
/// Room that each receive offers the kernel at least, in bytes. Buffers that grew beyond four times as much are freed.
const READ_BYTES_MIN: usize = 64 << 10;

/// Kind of a frame: what its body holds.
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
    Notification = 9,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        use FrameKind::*;
        let all = [Challenge, Hello, Welcome, Requests, Replies, Control, ControlReply, Packet, Notification];
        all.into_iter().find(|k| *k as u8 == byte)
    }
}

wire_struct! {
    /// First frame of a connection, from the server.
    pub struct Challenge {
        /// [`PROTOCOL_VERSION`] of the server.
        pub version: u32,
    }

    /// The client's answer to the challenge.
    pub struct Hello {
        /// [`PROTOCOL_VERSION`] of the client.
        pub version: u32,
        /// What the client will use the connection for.
        pub purpose: Purpose,
    }

    /// Body of a successful `Welcome`.
    pub struct Accepted {
        /// The session. 0 on connections for control and between servers.
        pub session: SessionId,
        /// The volume's map as JSON. Empty on connections for control and between servers.
        pub map: String,
    }
}

wire_enum! {
    /// What a connection is for.
    pub enum Purpose {
        /// Ops on a volume, in a new session.
        1 = Open { volume: String },
        /// One more connection of an existing session.
        2 = Resume { volume: String, session: SessionId },
        /// The control interface.
        3 = Control,
        /// Packets of the link between two servers. `server` and `boot` name the process that connects, `to` the
        /// server that it expects to find.
        4 = Peer { server: ServerId, boot: Boot, to: ServerId },
        /// Notifications from the server only: the ids of waiting ops that now have their replies.
        5 = Listen { volume: String, session: SessionId },
    }
}

/// A stream, with buffers for the frames that it receives and sends.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) stream: Stream,
    /// Received bytes of TLS records that are not whole.
    inbox: Inbox,
    /// `inbox` holds what came behind the handshake, whose records may be whole.
    is_fresh: bool,
    received: BytesMut,
    out: Vec<u8>,
    /// `out` as TLS records.
    sealed: Vec<u8>,
    frame_bytes_max: usize,
    /// Time by which everything that is awaited must have arrived, however slowly its bytes come.
    deadline: Option<Instant>,
}

impl Channel {
    /// A channel over a stream, of which `inbox` has been received already.
    pub(crate) fn new(stream: Stream, inbox: Inbox) -> Self {
        Self {
            is_fresh: !inbox.is_empty(),
            stream,
            inbox,
            received: BytesMut::new(),
            out: Vec::new(),
            sealed: Vec::new(),
            frame_bytes_max: FRAME_BYTES_MAX,
            deadline: None,
        }
    }

    /// Refuses received bodies longer than this from now on.
    pub(crate) fn limit(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// Limits each wait of `receive` for bytes. `None`: no limit.
    pub(crate) fn set_receive_timeout(&self, limit: Option<Duration>) -> std::io::Result<()> {
        set_socket_timeout(&self.stream, Timeout::Recv, limit)?;
        Ok(())
    }

    /// Limits the time until everything received from now on has arrived. `None`: no limit.
    pub(crate) fn set_deadline(&mut self, limit: Option<Duration>) -> std::io::Result<()> {
        self.deadline = limit.map(|limit| Instant::now() + limit);
        self.set_receive_timeout(limit)
    }

    /// Sets how often `send_while` and `receive_while` call `keep_waiting` while the socket makes no progress.
    pub(crate) fn set_poll_interval(&self, interval: Duration) -> std::io::Result<()> {
        set_socket_timeout(&self.stream, Timeout::Send, Some(interval))?;
        self.set_receive_timeout(Some(interval))
    }

    /// True if neither bytes nor the end of the connection have arrived.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut readable = [PollFd::new(&self.stream, PollFlags::IN)];
        self.received.is_empty() && self.inbox.is_empty() && poll(&mut readable, Some(&Timespec::default())) == Ok(0)
    }

    /// Sends one frame, whose body `write` appends.
    pub(crate) fn send(&mut self, kind: FrameKind, id: u64, write: impl FnOnce(&mut Vec<u8>)) -> std::io::Result<()> {
        self.send_while(kind, id, write, &|| false)
    }

    /// Sends one frame, whose body `write` appends. After each poll interval without progress it continues only if
    /// `keep_waiting` returns true.
    pub(crate) fn send_while(
        &mut self,
        kind: FrameKind,
        id: u64,
        write: impl FnOnce(&mut Vec<u8>),
        keep_waiting: &dyn Fn() -> bool,
    ) -> std::io::Result<()> {
        self.out.clear();
        self.out.extend_from_slice(&[0; HEADER_BYTES]);
        write(&mut self.out);
        let length = self.out.len() - HEADER_BYTES;
        if length > FRAME_BYTES_MAX {
            return Err(malformed("the frame to send is longer than 16 MiB"));
        }
        write_header(&mut self.out, length, kind, id);
        let mut rest = match self.stream.session() {
            None => &self.out[..],
            Some(session) => {
                self.sealed.clear();
                session.encrypt(&self.out, &mut self.sealed)?;
                &self.sealed[..]
            }
        };
        while !rest.is_empty() {
            match rustix::net::send(&self.stream, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if keep_waiting() => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(counters) = self.stream.counters() {
            counters.sent(self.sealed.len());
        }
        // One long frame must not pin its buffer for the life of the connection.
        for buffer in [&mut self.out, &mut self.sealed] {
            if buffer.capacity() > 4 * READ_BYTES_MIN {
                *buffer = Vec::new();
            }
        }
        Ok(())
    }

    /// Waits for one frame: its kind, id and body.
    pub(crate) fn receive(&mut self) -> std::io::Result<(FrameKind, u64, Bytes)> {
        self.receive_while(&|| false)
    }

    /// Waits for one frame. After each poll interval without progress it continues only if `keep_waiting` returns
    /// true.
    pub(crate) fn receive_while(
        &mut self,
        keep_waiting: &dyn Fn() -> bool,
    ) -> std::io::Result<(FrameKind, u64, Bytes)> {
        self.fill(HEADER_BYTES, keep_waiting)?;
        let (length, id) = (self.word(0..4) as usize, self.word(8..16));
        let Some(kind) = FrameKind::from_byte(self.received[4]) else {
            return Err(malformed("a frame has an unknown kind"));
        };
        if length > self.frame_bytes_max {
            return Err(malformed("a frame is longer than its connection allows"));
        }
        self.fill(HEADER_BYTES + length, keep_waiting)?;
        if let Some(counters) = self.stream.counters() {
            counters.frame();
        }
        let mut frame = self.received.split_to(HEADER_BYTES + length).freeze();
        Ok((kind, id, frame.split_off(HEADER_BYTES)))
    }

    /// True if a whole frame has arrived, so that the next `receive` does not wait.
    pub(crate) fn has_frame(&self) -> bool {
        let arrived = self.received.len();
        arrived >= HEADER_BYTES && arrived - HEADER_BYTES >= self.word(0..4) as usize
    }

    /// The little-endian number in these bytes of the header.
    fn word(&self, range: std::ops::Range<usize>) -> u64 {
        self.received[range].iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte))
    }

    /// Receives until `count` bytes are buffered.
    fn fill(&mut self, count: usize, keep_waiting: &dyn Fn() -> bool) -> std::io::Result<()> {
        if std::mem::take(&mut self.is_fresh) {
            self.decrypt()?;
        }
        while self.received.len() < count {
            let missing = count - self.received.len();
            let arrived = match self.receive_some(missing) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && keep_waiting() => continue,
                outcome => outcome?,
            };
            if arrived == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Receives what the socket has, for `missing` bytes of a frame. Returns the number of bytes, 0 at the end of the
    /// connection.
    fn receive_some(&mut self, missing: usize) -> std::io::Result<usize> {
        if self.stream.session().is_some() {
            let arrived = receive(&self.stream, self.inbox.buffer())?;
            if let Some(counters) = self.stream.counters() {
                counters.received(arrived);
            }
            self.received.reserve(missing.max(arrived));
            return Ok(if self.decrypt()? { arrived } else { 0 });
        }
        self.received.reserve(missing.max(READ_BYTES_MIN));
        let spare = self.received.spare_capacity_mut();
        let ((init, _), _) = rustix::net::recv(&self.stream, spare, rustix::net::RecvFlags::empty())?;
        let arrived = init.len();
        let length = self.received.len() + arrived;
        // SAFETY: recv has initialised the first `arrived` bytes of the spare capacity.
        unsafe { self.received.set_len(length) };
        Ok(arrived)
    }

    /// Decrypts the whole records that were received. False: the other end has closed the connection.
    fn decrypt(&mut self) -> std::io::Result<bool> {
        let Self { stream, inbox, received, .. } = self;
        match stream.session() {
            Some(session) => session.decrypt(inbox, &mut |plain| received.extend_from_slice(plain)),
            None => Ok(true),
        }
    }
}

/// Writes the header at the beginning of `frame`.
pub(crate) fn write_header(frame: &mut [u8], length: usize, kind: FrameKind, id: u64) {
    frame[0..4].copy_from_slice(&(length as u32).to_le_bytes());
    frame[4] = kind as u8;
    frame[8..16].copy_from_slice(&id.to_le_bytes());
}

pub(crate) fn malformed(what: &'static str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, Malformed(what))
}

/// Decodes the requests of a frame; refuses more than [`BATCH_MAX`].
pub(crate) fn take_requests(body: Bytes) -> std::result::Result<Vec<Request>, Malformed> {
    take_batch(body)
}

/// Decodes the replies of a frame; refuses more than [`BATCH_MAX`].
pub(crate) fn take_replies(body: Bytes) -> std::result::Result<Vec<Result<Reply>>, Malformed> {
    take_batch(body)
}

/// The count is checked first: 16 MiB of two-byte replies would otherwise take gigabytes of memory before they are
/// refused.
fn take_batch<T: Wire>(body: Bytes) -> std::result::Result<Vec<T>, Malformed> {
    if u32::take(&mut Input::new(body.clone()))? as usize > BATCH_MAX {
        return Err(Malformed("a frame has more requests or replies than allowed"));
    }
    Vec::from_bytes(body)
}
