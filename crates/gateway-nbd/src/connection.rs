//! Transmission: requests of a connection, executed as they arrive. Writes that have arrived together are one change.

use crate::handshake::{Chosen, violation};
use crate::pool::Pool;
use crate::protocol::*;
use crate::stream::Stream;
use bytes::{Bytes, BytesMut};
use hekate_proto::Error;
use hekate_vdisk::{Change, Disk};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Requests that are executed together.
const BATCH_REQUESTS: usize = 64;
/// Bytes of writes that are executed together, if no single one has more.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of reads of a connection that may be under way.
const READ_BYTES_MAX: u64 = 64 << 20;
/// A read is cut into parts of so many places at least, and so many parts at most.
const PART_PLACES: usize = 2;
const PARTS_MAX: usize = 8;
/// Parts are whole blocks.
const BLOCK: u32 = 4096;
/// Extents in a reply.
const EXTENTS_MAX: usize = 16 << 10;

/// A connection whose client has chosen an export.
pub struct Connection {
    stream: Arc<Stream>,
    chosen: Chosen,
    pool: Pool,
    reads: Arc<Reads>,
}

/// Reads that are under way.
#[derive(Default)]
struct Reads {
    bytes: Mutex<u64>,
    changed: Condvar,
}

/// A request with its data.
struct Job {
    request: Request,
    data: Bytes,
}

impl Job {
    /// Bytes that it takes while it is executed: zeros that are written are data too.
    fn memory(&self) -> usize {
        let writes_zeros = self.request.command == Command::WriteZeroes && self.request.has(command_flag::NO_HOLE);
        if writes_zeros { self.request.length as usize } else { self.data.len() }
    }
}

/// The outcome of a request without data in its reply.
type Outcome = std::result::Result<(), (u32, String)>;

impl Connection {
    pub fn new(stream: Arc<Stream>, chosen: Chosen, pool: Pool) -> Self {
        Self { stream, chosen, pool, reads: Arc::default() }
    }

    /// Serves the client until it goes.
    ///
    /// # Errors
    /// Those of the connection; `InvalidData` for a violation of the protocol.
    pub fn serve(self, buffer: &mut BytesMut) -> io::Result<()> {
        let served = self.serve_requests(buffer);
        self.reads.wait_below(1);
        served
    }

    fn serve_requests(&self, buffer: &mut BytesMut) -> io::Result<()> {
        loop {
            let (jobs, goes) = self.next_jobs(buffer)?;
            if !jobs.is_empty() {
                self.execute(jobs)?;
            }
            if goes {
                return Ok(());
            }
        }
    }

    /// The requests that have arrived, at least one. The second value is true if the client goes after them.
    fn next_jobs(&self, buffer: &mut BytesMut) -> io::Result<(Vec<Job>, bool)> {
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        loop {
            while let Some(job) = take_job(buffer)? {
                if job.request.command == Command::Disconnect {
                    return Ok((jobs, true));
                }
                bytes += job.memory();
                jobs.push(job);
                if jobs.len() >= BATCH_REQUESTS || bytes >= BATCH_BYTES {
                    return Ok((jobs, false));
                }
            }
            let is_idle = jobs.is_empty();
            match self.stream.receive(buffer, is_idle) {
                Ok(true) => {}
                Ok(false) if is_idle => return Ok((jobs, true)),
                Ok(false) => return Ok((jobs, false)),
                // Between requests a client may be silent for as long as it likes.
                Err(error) if error.kind() == io::ErrorKind::TimedOut && buffer.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn execute(&self, jobs: Vec<Job>) -> io::Result<()> {
        let is_single = jobs.len() == 1;
        let mut changes: Vec<(Request, Change)> = Vec::new();
        let (mut later, mut out) = (Vec::new(), BytesMut::new());
        for Job { request, data } in jobs {
            match self.check(&request) {
                Err((error, why)) => self.put_outcome(&mut out, &request, Err((error, why))),
                Ok(()) => match request.command {
                    Command::Read if is_single => self.read(&request, &mut out),
                    Command::Read => self.read_beside(request),
                    Command::Write => changes.push((request, Change::Write { offset: request.offset, data })),
                    Command::Trim | Command::WriteZeroes if request.length == 0 => {
                        self.put_outcome(&mut out, &request, Ok(()));
                    }
                    Command::WriteZeroes if request.has(command_flag::NO_HOLE) => {
                        let data = BytesMut::zeroed(request.length as usize).freeze();
                        changes.push((request, Change::Write { offset: request.offset, data }));
                    }
                    Command::Trim | Command::WriteZeroes => {
                        let (offset, length) = (request.offset, u64::from(request.length));
                        changes.push((request, Change::Zero { offset, length }));
                    }
                    _ => later.push(request),
                },
            }
        }
        self.change(changes, &mut out);
        for request in later {
            match request.command {
                Command::Flush => self.put_outcome(&mut out, &request, outcome(self.disk().flush())),
                Command::BlockStatus => self.block_status(&request, &mut out),
                // A cache needs no more than to know.
                _ => self.put_outcome(&mut out, &request, Ok(())),
            }
        }
        if out.is_empty() { Ok(()) } else { self.stream.send(&out) }
    }

    fn disk(&self) -> &Disk {
        &self.chosen.export.disk
    }

    /// Checks what the protocol leaves to the server.
    fn check(&self, request: &Request) -> Outcome {
        let refuse = |why: &str| Err((error::EINVAL, why.to_string()));
        if self.disk().has_ended() {
            return Err((error::ESHUTDOWN, "the door has lost the vDisk; connect again".into()));
        }
        let known = match request.command {
            Command::Read => command_flag::DF,
            Command::Write | Command::Trim | Command::Flush | Command::Cache => 0,
            Command::WriteZeroes => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            Command::BlockStatus => command_flag::REQ_ONE,
            Command::Disconnect | Command::Other(_) => return refuse("this request is not known"),
        };
        // FUA is allowed with each request, and ignored where it means nothing.
        if request.flags & !(known | command_flag::FUA) != 0 {
            return refuse("the request has a flag that it cannot have");
        }
        if request.command == Command::Flush {
            let is_plain = request.offset == 0 && request.length == 0;
            return if is_plain { Ok(()) } else { refuse("a flush has neither offset nor length") };
        }
        let size = self.disk().size();
        let ends = request.offset.checked_add(u64::from(request.length)).filter(|end| *end <= size);
        let changes = matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes);
        if ends.is_none() {
            let code = if changes && request.command != Command::Trim { error::ENOSPC } else { error::EINVAL };
            return Err((code, format!("the request ends beyond the {size} bytes of the vDisk")));
        }
        if changes && (self.chosen.is_read_only || self.disk().is_read_only()) {
            return Err((error::EPERM, "the export is read-only".into()));
        }
        if request.command == Command::Read && request.length > PAYLOAD_BYTES_MAX {
            return refuse("a read has at most 32 MiB");
        }
        if request.command == Command::BlockStatus {
            let is_fine = self.chosen.has_allocation && request.length > 0;
            return if is_fine { Ok(()) } else { refuse("choose base:allocation first, and ask for some bytes") };
        }
        let writes_zeros = request.command == Command::WriteZeroes && request.has(command_flag::NO_HOLE);
        if writes_zeros && request.has(command_flag::FAST_ZERO) {
            return Err((error::ENOTSUP, "zeros without a hole are written, which is not fast".into()));
        }
        if writes_zeros && request.length > PAYLOAD_BYTES_MAX {
            return refuse("zeros without a hole: at most 32 MiB");
        }
        Ok(())
    }

    /// Executes changes as one, and if that fails each of them.
    fn change(&self, changes: Vec<(Request, Change)>, out: &mut BytesMut) {
        if changes.is_empty() {
            return;
        }
        let durable = changes.iter().any(|(request, _)| request.has(command_flag::FUA));
        let (requests, changes): (Vec<Request>, Vec<Change>) = changes.into_iter().unzip();
        if self.disk().change(&changes, durable).is_ok() {
            requests.iter().for_each(|request| self.put_outcome(out, request, Ok(())));
            return;
        }
        for (request, change) in requests.iter().zip(changes) {
            let changed = self.disk().change(&[change], request.has(command_flag::FUA));
            self.put_outcome(out, request, outcome(changed));
        }
    }

    /// Executes a read on another thread.
    fn read_beside(&self, request: Request) {
        let length = u64::from(request.length);
        self.reads.wait_below(READ_BYTES_MAX.saturating_sub(length).max(1));
        *self.reads.bytes.lock() += length.max(1);
        let under_way = UnderWay(self.reads.clone(), length.max(1));
        let (stream, disk, is_structured) = (self.stream.clone(), self.disk().clone(), self.chosen.is_structured);
        self.pool.run(move || {
            let _under_way = under_way;
            let mut out = BytesMut::new();
            put_read(&disk, &request, is_structured, &mut out);
            if stream.send(&out).is_err() {
                stream.shutdown();
            }
        });
    }

    /// Executes a read that is alone: what lies at many places is read side by side.
    fn read(&self, request: &Request, out: &mut BytesMut) {
        let (offset, length) = (request.offset, request.length);
        let is_small = length <= PART_PLACES as u32 * BLOCK;
        let places = if is_small { 1 } else { self.disk().places(offset, u64::from(length)).unwrap_or(1) };
        let parts = (places / PART_PLACES).clamp(1, PARTS_MAX) as u32;
        if parts == 1 {
            return put_read(self.disk(), request, self.chosen.is_structured, out);
        }
        let part = length.div_ceil(parts).next_multiple_of(BLOCK);
        let (tell, told) = channel();
        let rest: Vec<u32> = (part..length).step_by(part as usize).collect();
        for at in &rest {
            let (disk, tell, at) = (self.disk().clone(), tell.clone(), *at);
            self.pool.run(move || {
                // Nobody listens any more if another part has failed.
                let _ = tell.send((at, disk.read(offset + u64::from(at), part.min(length - at))));
            });
        }
        drop(tell);
        let mut found = vec![(0, self.disk().read(offset, part.min(length)))];
        found.extend(told.iter());
        found.sort_unstable_by_key(|(at, _)| *at);
        let whole = found.into_iter().map(|(_, part)| part).collect::<hekate_proto::Result<Vec<_>>>();
        let whole = whole.and_then(|parts| match parts.concat() {
            bytes if bytes.len() == length as usize => Ok(bytes.into()),
            _ => Err(Error::bug("a part of a read is missing")),
        });
        put_bytes(whole, request, self.chosen.is_structured, out);
    }

    fn block_status(&self, request: &Request, out: &mut BytesMut) {
        let limit = if request.has(command_flag::REQ_ONE) { 1 } else { EXTENTS_MAX };
        match self.disk().extents(request.offset, u64::from(request.length), limit) {
            Ok(extents) => {
                put_chunk(out, request.cookie, chunk::BLOCK_STATUS, 4 + extents.len() * 8);
                out.extend_from_slice(&ALLOCATION_ID.to_be_bytes());
                for extent in extents {
                    let state = if extent.is_hole { STATE_HOLE_ZERO } else { 0 };
                    out.extend_from_slice(&(extent.length as u32).to_be_bytes());
                    out.extend_from_slice(&state.to_be_bytes());
                }
            }
            Err(error) => self.put_outcome(out, request, outcome(Err(error))),
        }
    }

    fn put_outcome(&self, out: &mut BytesMut, request: &Request, outcome: Outcome) {
        put_outcome(out, request, self.chosen.is_structured, outcome);
    }
}

fn put_outcome(out: &mut BytesMut, request: &Request, is_structured: bool, outcome: Outcome) {
    match outcome {
        Ok(()) => put_simple_reply(out, request.cookie, 0),
        Err((error, why)) if is_structured => put_error_chunk(out, request.cookie, error, &why),
        Err((error, _)) => put_simple_reply(out, request.cookie, error),
    }
}

fn put_read(disk: &Disk, request: &Request, is_structured: bool, out: &mut BytesMut) {
    let length = request.length as usize;
    let is_hole = is_structured
        && length > 0
        && matches!(disk.extents(request.offset, length as u64, 1).as_deref(), Ok([only]) if only.is_hole && only.length == length as u64);
    if is_hole {
        put_chunk(out, request.cookie, chunk::OFFSET_HOLE, 12);
        out.extend_from_slice(&request.offset.to_be_bytes());
        out.extend_from_slice(&request.length.to_be_bytes());
        return;
    }
    put_bytes(disk.read(request.offset, request.length), request, is_structured, out);
}

/// Puts what was read, or why nothing was.
fn put_bytes(read: hekate_proto::Result<Bytes>, request: &Request, is_structured: bool, out: &mut BytesMut) {
    let length = request.length as usize;
    match read {
        Ok(bytes) if is_structured => {
            out.reserve(28 + length);
            put_chunk(out, request.cookie, chunk::OFFSET_DATA, 8 + length);
            out.extend_from_slice(&request.offset.to_be_bytes());
            out.extend_from_slice(&bytes);
        }
        Ok(bytes) => {
            out.reserve(16 + length);
            put_simple_reply(out, request.cookie, 0);
            out.extend_from_slice(&bytes);
        }
        Err(error) => put_outcome(out, request, is_structured, outcome(Err(error))),
    }
}

/// The next request of a buffer, once it is there with its data.
fn take_job(buffer: &mut BytesMut) -> io::Result<Option<Job>> {
    if buffer.len() < REQUEST_BYTES {
        return Ok(None);
    }
    let request = Request::parse(buffer).map_err(|violated| violation(violated.0))?;
    if buffer.len() < REQUEST_BYTES + request.payload() {
        buffer.reserve(REQUEST_BYTES + request.payload() - buffer.len());
        return Ok(None);
    }
    let _ = buffer.split_to(REQUEST_BYTES);
    let data = buffer.split_to(request.payload()).freeze();
    Ok(Some(Job { request, data }))
}

/// What a client is told of an error.
fn outcome(result: hekate_proto::Result<()>) -> Outcome {
    result.map_err(|error| {
        let code = match &error {
            Error::NoSpace { .. } => error::ENOSPC,
            Error::Denied { .. } | Error::ReadOnly => error::EPERM,
            Error::Invalid { .. } => error::EINVAL,
            Error::SessionEnded => error::ESHUTDOWN,
            _ => error::EIO,
        };
        (code, error.to_string())
    })
}

/// Counts a read as ended.
struct UnderWay(Arc<Reads>, u64);

impl Drop for UnderWay {
    fn drop(&mut self) {
        *self.0.bytes.lock() -= self.1;
        self.0.changed.notify_all();
    }
}

impl Reads {
    /// Waits until fewer bytes are under way.
    fn wait_below(&self, limit: u64) {
        let mut bytes = self.bytes.lock();
        while *bytes >= limit {
            self.changed.wait(&mut bytes);
        }
    }
}
