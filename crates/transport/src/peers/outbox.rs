//! Frames that wait to be written to a socket.

use crate::frame::{FrameKind, HEADER_BYTES, write_header};
use crate::link::Packet;
use crate::stream::Stream;
use bytes::Bytes;
use hekate_tls::Session;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use std::collections::VecDeque;
use std::io::IoSlice;

/// A message up to this length, in bytes, is copied behind its header; a longer one is passed to `sendmsg` by
/// reference. Copying 8 KiB takes about as long as one more element in a `sendmsg`.
const COPY_BYTES_MAX: usize = 8 << 10;
/// Most elements of one `sendmsg`.
const PIECES_MAX: usize = 64;
/// A buffer that grew beyond this capacity, in bytes, is freed once it is empty.
const KEPT_BYTES_MAX: usize = 256 << 10;
/// Bytes that are encrypted before they are written together.
const SEALED_BYTES: usize = 256 << 10;

/// Bytes to write: `sealed`, then `pieces` in order, then `tail`. The first `written` bytes of the first element are
/// done.
#[derive(Default)]
pub(super) struct Outbox {
    /// TLS records that are next.
    sealed: Vec<u8>,
    pieces: VecDeque<Bytes>,
    tail: Vec<u8>,
    written: usize,
    #[cfg(test)]
    pub writes: u64,
}

impl Outbox {
    pub fn push(&mut self, packet: &Packet) {
        let begin = self.tail.len();
        self.tail.extend_from_slice(&[0; HEADER_BYTES]);
        let message = packet.put_head(&mut self.tail);
        let length = self.tail.len() - begin - HEADER_BYTES + message.len();
        write_header(&mut self.tail[begin..], length, FrameKind::Packet, 0);
        if message.len() <= COPY_BYTES_MAX {
            self.tail.extend_from_slice(&message);
        } else {
            self.pieces.push_back(std::mem::take(&mut self.tail).into());
            self.pieces.push_back(message);
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub fn is_empty(&self) -> bool {
        self.sealed.is_empty() && self.pieces.is_empty() && self.tail.is_empty()
    }

    /// Writes as much as the socket takes without waiting. True if nothing is left to write.
    ///
    /// # Errors
    /// The error of sendmsg(2): the connection has failed.
    pub fn write(&mut self, stream: &Stream) -> std::io::Result<bool> {
        while !self.is_empty() {
            if let Some(session) = stream.session()
                && self.sealed.is_empty()
            {
                self.seal(session)?;
            }
            #[cfg(test)]
            (self.writes += 1);
            match self.write_some(stream) {
                Ok(count) => {
                    if let Some(counters) = stream.counters() {
                        counters.sent(count);
                    }
                    self.advance(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn write_some(&self, stream: &Stream) -> rustix::io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if !self.sealed.is_empty() {
            return send(stream, &self.sealed[self.written..], flags);
        }
        if self.pieces.is_empty() {
            return send(stream, &self.tail[self.written..], flags);
        }
        let all = self.pieces.iter().map(|piece| &piece[..]).chain([&self.tail[..]]).take(PIECES_MAX);
        let mut written = self.written;
        let slices: Vec<_> = all.map(|piece| IoSlice::new(&piece[std::mem::take(&mut written)..])).collect();
        sendmsg(stream, &slices, &mut SendAncillaryBuffer::default(), flags)
    }

    /// Encrypts what is next, at least [`SEALED_BYTES`] if there is so much.
    fn seal(&mut self, session: &Session) -> std::io::Result<()> {
        while self.sealed.len() < SEALED_BYTES {
            match self.pieces.pop_front() {
                Some(piece) => session.encrypt(&piece, &mut self.sealed)?,
                None => {
                    session.encrypt(&self.tail, &mut self.sealed)?;
                    self.clear_tail();
                    break;
                }
            }
        }
        Ok(())
    }

    fn clear_tail(&mut self) {
        self.tail.clear();
        if self.tail.capacity() > KEPT_BYTES_MAX {
            self.tail = Vec::new();
        }
    }

    /// Removes bytes that were written.
    fn advance(&mut self, count: usize) {
        self.written += count;
        if !self.sealed.is_empty() {
            if self.written == self.sealed.len() {
                self.written = 0;
                self.sealed.clear();
                if self.sealed.capacity() > KEPT_BYTES_MAX {
                    self.sealed = Vec::new();
                }
            }
            return;
        }
        while let Some(first) = self.pieces.front() {
            if self.written < first.len() {
                return;
            }
            self.written -= first.len();
            self.pieces.pop_front();
        }
        if self.written == self.tail.len() {
            self.written = 0;
            self.clear_tail();
        }
    }
}
