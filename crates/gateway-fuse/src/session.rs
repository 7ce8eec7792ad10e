//! The worker threads of one mount: each reads a request, executes it, and reads the next.
//!
//! Invariants: every request that has a reply gets exactly one, on the descriptor that it was read from; a panic
//! during execution is an EIO for the caller and does not block the mount. [`crate::workers`] decides which workers
//! read and which execute. If the kernel passes requests over io_uring, only FORGET and INTERRUPT come this way, and
//! [`over_rings`] has the threads for all others.

mod over_rings;

use crate::abi::{ForgetOne, InitOut, init};
use crate::buffers::{Buffer, Buffers};
use crate::counters::Counters;
use crate::device::{Arrival, Device};
use crate::encode::{Failed, Outcome};
use crate::in_flight::{InFlight, Interrupted, Signals};
use crate::negotiate::{IO_BYTES, Wishes, negotiate};
use crate::request::{Body, Request, parse};
use crate::ring::{LateReplies, Rings};
use crate::workers::{Begin, HasBytes, Next, Workers};
use bytes::Bytes;
use hekate_proto::{Error, Result};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest request: a WRITE of [`IO_BYTES`], and a page for the structures before the data.
const REQUEST_BYTES_MAX: usize = IO_BYTES as usize + 4096;

/// Pause before another attempt to get memory for a request.
const MEMORY_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which callers that continued after a signal are checked.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// Time without a request after which the memory of a long one is returned to the system.
const MEMORY_IDLE: Duration = Duration::from_secs(1);

/// Executes requests.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Executes a request. `None`: the reply is sent later with `later`, and no worker waits for it.
    fn answer(&self, request: Request, signals: &Signals, later: PendingReply) -> Option<Outcome>;
    /// True if the reply to a request is sent later.
    fn is_later(&self, unique: u64) -> bool;
    /// Cancels a request whose reply is sent later: its caller got a signal.
    fn interrupt(&self, unique: u64);
    /// The kernel forgets nodes. There is no reply.
    fn forget(&self, forgotten: &[ForgetOne]);
}

/// The duty to send the reply to one request, from any thread.
pub(crate) struct PendingReply {
    unique: u64,
    path: ReplyPath,
    in_flight: Arc<InFlight>,
}

/// The way of a reply: that of its request.
enum ReplyPath {
    Device(Arc<Device>),
    Ring(Arc<LateReplies>),
}

impl PendingReply {
    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    pub(crate) fn answer(self, outcome: &Outcome) {
        self.in_flight.end(self.unique);
        match &self.path {
            ReplyPath::Device(device) => device.reply(self.unique, outcome),
            ReplyPath::Ring(late) => late.make(self.unique, outcome.clone()),
        }
    }
}

/// A mount's connection to the kernel, and its workers.
pub(crate) struct Session<A> {
    handler: A,
    device: Arc<Device>,
    buffers: Arc<Buffers>,
    workers: Workers<Work>,
    busy_max: usize,
    rings: Rings,
    in_flight: Arc<InFlight>,
    counters: Arc<Counters>,
    failure: Mutex<Option<Errno>>,
}

/// A request and what its reply needs.
struct Work {
    request: Request,
    device: Arc<Device>,
    signals: Arc<Signals>,
}

impl HasBytes for Work {
    fn bytes(&self) -> usize {
        match &self.request.body {
            Body::Write { data, .. } => data.len() + size_of::<Work>(),
            _ => size_of::<Work>(),
        }
    }
}

impl<A: Handler> Session<A> {
    pub(crate) fn new(handler: A, device: Device, workers_max: usize, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            handler,
            device: Arc::new(device),
            buffers: Buffers::new(REQUEST_BYTES_MAX),
            workers: Workers::new(workers_max),
            busy_max: workers_max,
            rings: Rings::new(workers_max, IO_BYTES as usize),
            in_flight: Arc::default(),
            counters,
            failure: Mutex::default(),
        })
    }

    pub(crate) fn handler(&self) -> &A {
        &self.handler
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Number of workers.
    pub(crate) fn worker_count(&self) -> usize {
        self.workers.count() + self.rings.thread_count()
    }

    /// Answers INIT, the first request. Returns what was agreed.
    ///
    /// # Errors
    /// The kernel is too old, the device failed, or the mount was unmounted meanwhile.
    pub(crate) fn handshake(&self, wishes: &Wishes) -> Result<InitOut> {
        let mut buffer = self.buffer();
        loop {
            let filled = match self.device.read(buffer.space()) {
                Arrival::Request(filled) => filled,
                Arrival::Nothing => continue,
                Arrival::Ended => {
                    return Err(Error::Unavailable {
                        what: "the volume was unmounted while it was being mounted".into(),
                    });
                }
                Arrival::Failed(errno) => return Err(Error::io("read /dev/fuse", errno.into())),
            };
            let request = parse(&Bytes::copy_from_slice(&buffer.space()[..filled]))
                .map_err(|e| Error::Protocol { what: format!("the kernel's INIT cannot be parsed: {}", e.what) })?;
            let Body::Init { init, flags } = request.body else {
                self.device.reply(request.unique, &Err(Failed(Errno::IO)));
                continue;
            };
            let rings = wishes.rings && flags & init::OVER_IO_URING != 0 && self.prepare_rings();
            let agreed = negotiate(&init, flags, &Wishes { rings, ..wishes.clone() });
            let outcome = agreed.as_ref().map(crate::encode::bytes_of).map_err(|_| Failed(Errno::PROTO));
            self.device.reply(request.unique, &outcome);
            return agreed;
        }
    }

    /// Serves requests until the file system is unmounted.
    ///
    /// # Errors
    /// The device failed; the file system must be unmounted.
    pub(crate) fn run(self: &Arc<Self>) -> Result<()> {
        self.workers.join();
        self.start_worker()?;
        self.start_rings()?;
        self.workers.wait();
        match self.failure.lock().take() {
            Some(errno) => Err(Error::io("read /dev/fuse", errno.into())),
            None => {
                self.rings.wait();
                Ok(())
            }
        }
    }

    /// Starts a worker that is already counted.
    fn start_worker(self: &Arc<Self>) -> Result<()> {
        let session = self.clone();
        let run = move || {
            let device = session.device.another().map_or_else(|| session.device.clone(), Arc::new);
            session.serve(&device);
        };
        let started = std::thread::Builder::new().name("hekate-fuse".into()).spawn(run);
        started.map(|_| ()).map_err(|error| {
            self.workers.leave();
            Error::io("start a thread", error)
        })
    }

    fn serve(self: &Arc<Self>, device: &Arc<Device>) {
        let mut buffer = None;
        while let Some(bytes) = self.receive(device, &mut buffer) {
            let Some(work) = self.take(device, &bytes) else { continue };
            drop(bytes);
            let Begin::Work { work, start } = self.workers.begin(work) else { continue };
            if start && let Err(error) = self.start_worker() {
                log::warn!("{error}; continuing with fewer workers");
            }
            if !self.work(work) {
                return;
            }
        }
        self.in_flight.interrupt_all();
        self.rings.late.end();
        self.workers.end(self.failure.lock().is_some());
        self.workers.leave();
    }

    /// The next request, or `None` once the connection has ended.
    fn receive(&self, device: &Device, kept: &mut Option<Buffer>) -> Option<Bytes> {
        let mut buffer = kept.take().unwrap_or_else(|| self.buffer());
        loop {
            match device.read(buffer.space()) {
                Arrival::Request(filled) => {
                    let (bytes, rest) = buffer.request(filled);
                    *kept = rest;
                    return Some(bytes);
                }
                Arrival::Nothing => {}
                Arrival::Ended => return None,
                Arrival::Failed(errno) => {
                    self.failure.lock().get_or_insert(errno);
                    return None;
                }
            }
        }
    }

    /// A buffer for a request. If the system has no memory, tries again every second: the mount must not end.
    fn buffer(&self) -> Buffer {
        loop {
            match self.buffers.take() {
                Ok(buffer) => return buffer,
                Err(errno) => log::warn!("no memory for a request, trying again in 1 s: {errno}"),
            }
            std::thread::sleep(MEMORY_PAUSE);
        }
    }

    /// Executes a request that needs no worker, and returns one that does.
    fn take(self: &Arc<Self>, device: &Arc<Device>, bytes: &Bytes) -> Option<Work> {
        let mut request = match parse(bytes) {
            Ok(request) => request,
            Err(malformed) => {
                malformed.unique.inspect(|unique| device.reply(*unique, &Err(Failed(malformed.errno))));
                return None;
            }
        };
        self.counters.count(request.opcode);
        match &mut request.body {
            Body::Interrupt { of } => {
                let of = *of;
                self.interrupt(of);
                // Another thread cancels the wait: that sends a request to a server, and the reading thread must not
                // wait for a reply.
                if self.handler.is_later(of) {
                    return Some(Work { request, device: device.clone(), signals: Arc::default() });
                }
            }
            Body::Forget { forgotten } => self.forget(request.node, forgotten),
            _ => {
                let signals = self.in_flight.begin(request.unique, request.pid);
                return Some(Work { request, device: device.clone(), signals });
            }
        }
        None
    }

    /// `node` is that of the header, which FORGET has no other one than.
    fn forget(&self, node: u64, forgotten: &mut [ForgetOne]) {
        forgotten.iter_mut().filter(|one| one.node == 0).for_each(|one| one.node = node);
        self.handler.forget(forgotten);
    }

    /// A signal that does not end the caller does not end its wait, as on a local disk. A later signal may end the
    /// caller, and the kernel does not report that one: the caller is watched.
    fn interrupt(self: &Arc<Self>, unique: u64) {
        match self.in_flight.interrupt(unique) {
            Interrupted::Dying => self.withdraw(unique),
            Interrupted::Unwatched => {
                let session = self.clone();
                let watch = move || {
                    while let Some(dying) = session.in_flight.check_watched() {
                        dying.into_iter().for_each(|unique| session.withdraw(unique));
                        std::thread::sleep(WATCH_PAUSE);
                    }
                };
                if let Err(error) = std::thread::Builder::new().name("hekate-watch".into()).spawn(watch) {
                    log::warn!("cannot start a thread that watches interrupted callers: {error}");
                    self.in_flight.stop_watching();
                }
            }
            Interrupted::Nothing => {}
        }
    }

    /// Removes a request that waits for a worker. A request in execution ends by itself.
    fn withdraw(&self, unique: u64) {
        if let Some(work) = self.workers.withdraw(|work| work.request.unique == unique) {
            self.in_flight.end(unique);
            work.device.reply(unique, &Err(Failed(Errno::INTR)));
        }
    }

    /// Executes this request and then queued ones. True if the worker must read again, false if it must end.
    fn work(&self, mut work: Work) -> bool {
        loop {
            self.answer(work);
            match self.workers.finish() {
                Next::Work(next) => work = next,
                Next::Read => return true,
                Next::Leave => return false,
            }
        }
    }

    fn answer(&self, work: Work) {
        let Work { request, device, signals } = work;
        let unique = request.unique;
        if let Body::Interrupt { of } = request.body {
            let _ = catch_unwind(AssertUnwindSafe(|| self.handler.interrupt(of)));
            return;
        }
        if let Some(outcome) = self.execute(request, &signals, ReplyPath::Device(device.clone())) {
            device.reply(unique, &outcome);
        }
    }

    /// Executes a request. `None`: its reply is sent later.
    fn execute(&self, request: Request, signals: &Signals, path: ReplyPath) -> Option<Outcome> {
        let unique = request.unique;
        let later = PendingReply { unique, path, in_flight: self.in_flight.clone() };
        let answered = catch_unwind(AssertUnwindSafe(|| self.handler.answer(request, signals, later)));
        let mut outcome = answered.unwrap_or(Some(Err(Failed(Errno::IO))))?;
        // An op whose caller gave up stops waiting for an unavailable server, and fails as interrupted.
        if outcome == Err(Failed(Errno::TIMEDOUT)) && signals.fatal.load(Ordering::SeqCst) {
            outcome = Err(Failed(Errno::INTR));
        }
        self.in_flight.end(unique);
        Some(outcome)
    }
}

#[cfg(test)]
mod tests;
