//! One entry of a queue: the memory through which the kernel passes one request at a time and takes its reply, and an
//! io_uring of its own, by which one thread waits for the request.
//!
//! The layout is that of `struct fuse_uring_req_header` in linux/fuse.h: `fuse_in_header` or `fuse_out_header`, the
//! arguments of the opcode, and [`EntryInOut`]; the payload (names, data, the body of the reply) is apart.
//!
//! Invariants: the kernel writes to the memory, and posts completions, only while the entry's thread is in
//! io_uring_enter(2) (`IORING_SETUP_DEFER_TASKRUN`), so no slice of it changes while it is borrowed. Each length that is
//! read from it is checked.

use crate::abi::{EntryInOut, InHeader, OutHeader, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand};
use crate::buffers::{Buffers, COPIED_MAX, Pages};
use crate::device::Device;
use crate::encode::{Failed, Outcome};
use bytes::Bytes;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode::UringCmd80, squeue::Entry128};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Where the payload begins: the header has a page of its own.
const PAYLOAD_AT: usize = 4096;

/// Offset of `len` in `struct io_uring_sqe`. The library does not set it for commands.
const SQE_LEN_AT: usize = 24;

/// `struct fuse_uring_req_header`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    in_out: [u8; 128],
    arguments: [u8; 128],
    entry: EntryInOut,
}

const _: () = assert!(size_of::<Header>() == 288 && size_of::<Header>() <= PAYLOAD_AT);

/// `struct iovec`.
#[repr(C)]
struct Piece {
    address: u64,
    length: u64,
}

/// What the kernel has for an entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// A request: see [`Entry::request`]. It must be answered with [`Entry::reply`].
    Request,
    /// No request within the time limit.
    Nothing,
    /// The file system is unmounted, or the connection aborted.
    Ended,
    /// The kernel does not use this entry any more.
    Lost(Errno),
    /// io_uring failed.
    Failed(Errno),
}

pub(crate) struct Entry {
    // Dropped before the memory, which the kernel may use until then.
    io: IoUring<Entry128>,
    memory: Pages,
    device: Arc<Device>,
    queue: u16,
    /// The completion of the first request came with the registration.
    has_arrived: bool,
}

impl Entry {
    /// An entry of the queue of this number, with room for `payload_bytes`. The kernel does not know it yet. It can be
    /// moved to another thread before it is registered.
    ///
    /// # Errors
    /// The system has no io_uring, or forbids it, or has no memory.
    pub(crate) fn new(device: Arc<Device>, queue: u16, payload_bytes: usize) -> std::io::Result<Self> {
        let mut builder = IoUring::<Entry128>::builder();
        builder.setup_r_disabled().setup_single_issuer().setup_defer_taskrun();
        let memory = Pages::map(PAYLOAD_AT + payload_bytes)?;
        Ok(Self { io: builder.build(1)?, memory, device, queue, has_arrived: false })
    }

    /// Adds the entry to its queue. Only this thread may use it from now on.
    ///
    /// # Errors
    /// The kernel refuses it, and then uses /dev/fuse if it does not use rings yet.
    pub(crate) fn register(&mut self) -> rustix::io::Result<()> {
        self.io.submitter().register_enable_rings().map_err(|error| errno_of(&error))?;
        let start = self.memory.bytes().as_ptr() as u64;
        let payload_bytes = self.memory.bytes().len().saturating_sub(PAYLOAD_AT) as u64;
        let pieces = [
            Piece { address: start, length: size_of::<Header>() as u64 },
            Piece { address: start + PAYLOAD_AT as u64, length: payload_bytes },
        ];
        self.push(RING_REGISTER, 0, &pieces)?;
        // The kernel reads `pieces` before this returns, and reports a refusal at once.
        self.io.submit().map_err(|error| errno_of(&error))?;
        match self.io.completion().next().map(|done| done.result()) {
            Some(refused) if refused < 0 => return Err(errno_of_result(refused)),
            done => self.has_arrived = done.is_some(),
        }
        Ok(())
    }

    /// Sends the reply, if one was made, and waits for a request, for `limit` at most.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> Fetched {
        if std::mem::take(&mut self.has_arrived) {
            return Fetched::Request;
        }
        loop {
            if let Some(done) = self.io.completion().next() {
                return fetched(done.result());
            }
            let entered = match limit {
                None => self.io.submit_and_wait(1),
                Some(limit) => {
                    let limit = Timespec::from(limit);
                    self.io.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
                }
            };
            match entered.map_err(|error| errno_of(&error)) {
                Ok(_) | Err(Errno::INTR) => {}
                // A request may have come at the last moment.
                Err(Errno::TIME) if self.io.completion().is_empty() => return Fetched::Nothing,
                Err(Errno::TIME) => {}
                Err(errno) => return Fetched::Failed(errno),
            }
        }
    }

    /// The number of the request, its node, and its bytes as /dev/fuse delivers them.
    ///
    /// # Errors
    /// The lengths contradict each other, or the system has no memory: the error of the reply.
    pub(crate) fn request(&self, buffers: &Arc<Buffers>) -> (u64, u64, Result<Bytes, Errno>) {
        let (unique, node) = self.head().map_or((0, 0), |header| (header.unique, header.node));
        (unique, node, self.header().and_then(|header| whole(header, self.payload(), buffers)))
    }

    /// Writes the reply. The next [`Entry::wait`] sends it. Returns false if it is too long for the entry, or the kernel
    /// expects none.
    pub(crate) fn reply(&mut self, unique: u64, outcome: &Outcome) -> bool {
        let room = self.memory.bytes().len().saturating_sub(PAYLOAD_AT);
        let (error, body) = match outcome {
            Ok(body) if body.len() > room => (-Errno::IO.raw_os_error(), &[][..]),
            Ok(body) => (0, &body[..]),
            Err(Failed(errno)) => (-errno.raw_os_error(), &[][..]),
        };
        let len = (size_of::<OutHeader>() + body.len()) as u32;
        let reply = OutHeader { len, error, unique };
        let (start, payload) = self.memory.bytes_mut().split_at_mut(PAYLOAD_AT);
        payload[..body.len()].copy_from_slice(body);
        let Ok((header, _)) = Header::mut_from_prefix(start) else { return false };
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(reply.as_bytes());
        header.entry.payload_bytes = body.len() as u32;
        let commit = header.entry.commit;
        let is_whole = outcome.as_ref().map_or(true, |whole| whole.len() == body.len());
        self.push(RING_COMMIT_AND_FETCH, commit, &[]).is_ok() && is_whole
    }

    /// Sends the reply, and does not wait. An error is reported by the next [`Entry::wait`].
    pub(crate) fn send(&mut self) {
        let _ = self.io.submit();
    }

    /// Returns the payload's memory to the system. No request may be waiting for its reply.
    pub(crate) fn clear(&mut self) {
        self.memory.clear();
    }

    fn header(&self) -> Result<&Header, Errno> {
        Header::ref_from_prefix(self.memory.bytes()).map(|(header, _)| header).map_err(|_| Errno::IO)
    }

    fn head(&self) -> Option<InHeader> {
        InHeader::read_from_prefix(&self.header().ok()?.in_out).ok().map(|(head, _)| head)
    }

    fn payload(&self) -> &[u8] {
        self.memory.bytes().get(PAYLOAD_AT..).unwrap_or(&[])
    }

    /// Queues a command. `pieces` must live until the command is submitted.
    fn push(&mut self, command: u32, commit: u64, pieces: &[Piece]) -> rustix::io::Result<()> {
        let mut arguments = [0; 80];
        let about = RingCommand { commit, queue: self.queue, ..Default::default() };
        arguments.copy_from_slice(about.as_bytes());
        let address = (!pieces.is_empty()).then_some(pieces.as_ptr() as u64);
        let mut command = UringCmd80::new(Fd(self.device.0.as_raw_fd()), command).cmd(arguments).addr(address).build();
        let length = (pieces.len() as u32).to_ne_bytes();
        // SAFETY: an Entry128 is a `struct io_uring_sqe` (repr(C), 128 bytes), plain integers, of which `len` are the
        // four bytes at SQE_LEN_AT.
        unsafe { (&raw mut command).cast::<u8>().add(SQE_LEN_AT).copy_from_nonoverlapping(length.as_ptr(), 4) };
        // SAFETY: the device is open and the memory mapped as long as this entry exists, which the io_uring does not
        // outlive; `pieces` live until the command is submitted.
        unsafe { self.io.submission().push(&command) }.map_err(|_| Errno::BUSY)
    }
}

const _: () = assert!(size_of::<Entry128>() == 128);

/// Meaning of a completion.
fn fetched(result: i32) -> Fetched {
    match result {
        0.. => Fetched::Request,
        refused => match errno_of_result(refused) {
            Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED => Fetched::Ended,
            errno => Fetched::Lost(errno),
        },
    }
}

/// The errno of a negative result. EIO if it is none that Linux has.
fn errno_of_result(result: i32) -> Errno {
    match result {
        -4095..0 => Errno::from_raw_os_error(-result),
        _ => Errno::IO,
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The bytes of a request, put together. The kernel gives the length of the whole and that of the payload; the
/// arguments fill the rest.
fn whole(header: &Header, payload: &[u8], buffers: &Arc<Buffers>) -> Result<Bytes, Errno> {
    let (head, _) = InHeader::read_from_prefix(&header.in_out).map_err(|_| Errno::IO)?;
    let payload = payload.get(..header.entry.payload_bytes as usize).ok_or(Errno::INVAL)?;
    let head_bytes = header.in_out.get(..size_of::<InHeader>()).ok_or(Errno::IO)?;
    let arguments_bytes = (head.len as usize).checked_sub(head_bytes.len() + payload.len()).ok_or(Errno::INVAL)?;
    let arguments = header.arguments.get(..arguments_bytes).ok_or(Errno::INVAL)?;
    let parts = [head_bytes, arguments, payload];
    if head.len as usize <= COPIED_MAX {
        return Ok(parts.concat().into());
    }
    let mut buffer = buffers.take()?;
    let mut space = buffer.space();
    for part in parts {
        let (next, rest) = space.split_at_mut_checked(part.len()).ok_or(Errno::INVAL)?;
        next.copy_from_slice(part);
        space = rest;
    }
    Ok(buffer.request(head.len as usize).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(len: u32, payload_bytes: u32) -> Header {
        let mut header = Header { in_out: [0; 128], arguments: [7; 128], entry: EntryInOut::default() };
        let head = InHeader { len, opcode: 16, unique: 4, ..Default::default() };
        header.in_out[..40].copy_from_slice(head.as_bytes());
        header.entry.payload_bytes = payload_bytes;
        header
    }

    #[test]
    fn a_request_is_put_together_as_the_device_delivers_it() {
        let buffers = Buffers::new((1 << 20) + 4096);
        for payload in [vec![], vec![9; 100], vec![9; 1 << 20]] {
            let len = (40 + 24 + payload.len()) as u32;
            let request = whole(&header(len, payload.len() as u32), &payload, &buffers).unwrap();
            let head = InHeader { len, opcode: 16, unique: 4, ..Default::default() };
            assert_eq!(&request[..], [head.as_bytes(), &[7; 24], &payload].concat());
        }
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let buffers = Buffers::new(1 << 16);
        let payload = [0; 4096];
        let refused = |len, payload_bytes| whole(&header(len, payload_bytes), &payload, &buffers).unwrap_err();
        assert_eq!(refused(39, 0), Errno::INVAL, "less than a header");
        assert_eq!(refused(50, 20), Errno::INVAL, "less than header and payload");
        assert_eq!(refused(40 + 129, 0), Errno::INVAL, "more arguments than there is room for");
        assert_eq!(refused(5000, 4097), Errno::INVAL, "more payload than there is room for");
        assert_eq!(refused(u32::MAX, u32::MAX), Errno::INVAL);
        let large = vec![0; 1 << 17];
        assert_eq!(whole(&header(40 + (1 << 17), 1 << 17), &large, &buffers).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn completions_are_told_apart() {
        assert_eq!(fetched(0), Fetched::Request);
        assert_eq!(fetched(-107), Fetched::Ended);
        assert_eq!(fetched(-103), Fetched::Ended);
        assert_eq!(fetched(-2), Fetched::Lost(Errno::NOENT));
        assert_eq!(fetched(i32::MIN), Fetched::Lost(Errno::IO));
    }
}
