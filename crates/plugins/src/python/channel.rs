//! A channel to a worker: one call at a time. Its memory is shared, its socket carries frames of 16 bytes
//! (`python/hekate/worker.py` has the protocol).

use hekate_proto::{Error, Result};
use memmap2::MmapMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::time::{Duration, Instant};

/// Bytes of one direction: the longest op has 4 MiB and its names, the longest reply the same.
pub const AREA_BYTES: usize = 5 << 20;
const FRAME_BYTES: usize = 16;

pub const CALL: u8 = 1;
pub const RESULT: u8 = 2;
pub const NEXT: u8 = 3;
pub const DONE: u8 = 4;
pub const PASS: u8 = 5;

/// This end of a channel.
pub struct Channel {
    socket: OwnedFd,
    memory: MmapMut,
}

/// The worker's end.
pub struct WorkerEnd {
    pub socket: OwnedFd,
    pub memory: OwnedFd,
}

/// A frame from the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub length: usize,
    pub number: u64,
}

/// Why no frame came.
#[derive(Debug)]
pub enum NoFrame {
    /// None came within the time.
    Late,
    /// The worker has ended, or broke the protocol.
    Ended(String),
}

impl Channel {
    /// # Errors
    /// `Io` if the kernel has no room for it.
    pub fn make() -> Result<(Self, WorkerEnd)> {
        let failed = |error: std::io::Error| Error::io("make a channel to a worker", error);
        let memory = rustix::fs::memfd_create("hekate-channel", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        rustix::fs::ftruncate(&memory, 2 * AREA_BYTES as u64).map_err(|e| failed(e.into()))?;
        // SAFETY: the worker writes in its own area only between frames that give this end the turn; what it writes
        // out of turn makes wrong values, which are decoded like any other bytes.
        let mapped = unsafe { MmapMut::map_mut(&memory) }.map_err(failed)?;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|e| failed(e.into()))?;
        Ok((Self { socket: own, memory: mapped }, WorkerEnd { socket: other, memory }))
    }

    /// Sends a frame; `parts` are its bytes.
    pub fn send(&mut self, kind: u8, number: u64, parts: &[&[u8]]) -> std::result::Result<(), NoFrame> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > AREA_BYTES {
            return Err(NoFrame::Ended(format!("{length} bytes do not fit into a channel")));
        }
        let mut at = 0;
        for part in parts {
            self.memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let mut frame = [0; FRAME_BYTES];
        frame[0] = kind;
        frame[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        frame[8..].copy_from_slice(&number.to_le_bytes());
        // A socket has room for the few frames that are ever on their way.
        match send(&self.socket, &frame, SendFlags::NOSIGNAL) {
            Ok(FRAME_BYTES) => Ok(()),
            Ok(_) => Err(NoFrame::Ended("a frame was cut".into())),
            Err(error) => Err(NoFrame::Ended(error.to_string())),
        }
    }

    /// Waits for a frame. `None`: without limit.
    pub fn receive(&mut self, limit: Option<Duration>) -> std::result::Result<Frame, NoFrame> {
        let end = limit.map(|limit| Instant::now() + limit);
        let mut bytes = [0; FRAME_BYTES];
        let mut got = 0;
        while got < FRAME_BYTES {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(NoFrame::Late);
            }
            let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut ready, left.as_ref()) {
                Ok(0) => return Err(NoFrame::Late),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(NoFrame::Ended(error.to_string())),
            }
            match recv(&self.socket, &mut bytes[got..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(NoFrame::Ended("it has ended".into())),
                Ok((count, _)) => got += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(NoFrame::Ended(error.to_string())),
            }
        }
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        let number = u64::from_le_bytes(bytes[8..].try_into().unwrap_or_default());
        if length > AREA_BYTES || bytes[1..4] != [0; 3] {
            return Err(NoFrame::Ended("it sent a malformed frame".into()));
        }
        Ok(Frame { kind: bytes[0], length, number })
    }

    /// The bytes of a frame from the worker.
    pub fn bytes(&self, frame: Frame) -> &[u8] {
        &self.memory[AREA_BYTES..AREA_BYTES + frame.length]
    }

    /// Wakes the thread that waits for a frame: the channel has ended.
    pub fn end(socket: &impl AsFd) {
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }

    /// Another descriptor of the socket, to end the channel with.
    pub fn ender(&self) -> Option<OwnedFd> {
        self.socket.try_clone().ok()
    }
}
