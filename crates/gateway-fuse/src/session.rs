//! The workers of one mount: each reads a request, answers it, and reads the next.
//!
//! Invariants: every request that wants an answer gets exactly one, on the descriptor that it was read from; a panic
//! while answering is an EIO to the caller, not a hung mount. [`crate::crew`] says who reads and who works.

use crate::abi::{ForgetOne, InitOut};
use crate::buffers::{Buffer, Buffers};
use crate::counters::Counters;
use crate::device::{Arrival, Device};
use crate::encode::{Failed, Outcome};
use crate::in_flight::{GaveUp, InFlight, Interrupted, Signals};
use crate::negotiate::{IO_BYTES, Wishes, negotiate};
use crate::request::{Body, Request, parse};
use crate::workers::{Begin, Crew, Next, Weighed};
use bytes::Bytes;
use hekate_proto::{Error, Result};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A request's header and the greatest structure, with room: the kernel wants a page beside the bytes of a WRITE.
const REQUEST_BYTES_MAX: usize = IO_BYTES as usize + 4096;

const MEMORY_PAUSE: Duration = Duration::from_secs(1);
/// How often callers that went on after a signal are looked at.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// Who answers.
pub(crate) trait Answers: Send + Sync + 'static {
    /// What the kernel is to be answered; `None`: `later` does it, so that no worker waits.
    fn answer(&self, request: Request, signals: &Signals, later: Later) -> Option<Outcome>;
    /// Whether a request is one that is answered later.
    fn is_later(&self, unique: u64) -> bool;
    /// The caller of such a request gives up.
    fn interrupt(&self, unique: u64);
    /// The kernel forgets nodes; no answer.
    fn forget(&self, forgotten: &[ForgetOne]);
}

/// Answers one request, from any thread; whoever has it must.
pub(crate) struct Later {
    unique: u64,
    device: Arc<Device>,
    in_flight: Arc<InFlight>,
}

impl Later {
    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    pub(crate) fn answer(self, outcome: &Outcome) {
        self.in_flight.end(self.unique);
        self.device.reply(self.unique, outcome);
    }
}

/// See the module.
pub(crate) struct Session<A> {
    answers: A,
    device: Arc<Device>,
    buffers: Arc<Buffers>,
    crew: Crew<Work>,
    in_flight: Arc<InFlight>,
    counters: Arc<Counters>,
    failure: Mutex<Option<Errno>>,
}

/// A request on its way to its answer.
struct Work {
    request: Request,
    device: Arc<Device>,
    gave_up: GaveUp,
}

impl Weighed for Work {
    fn bytes(&self) -> usize {
        match &self.request.body {
            Body::Write { data, .. } => data.len() + size_of::<Work>(),
            _ => size_of::<Work>(),
        }
    }
}

impl<A: Answers> Session<A> {
    pub(crate) fn new(answers: A, device: Device, workers_max: usize, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            answers,
            device: Arc::new(device),
            buffers: Buffers::new(REQUEST_BYTES_MAX),
            crew: Crew::new(workers_max),
            in_flight: Arc::default(),
            counters,
            failure: Mutex::default(),
        })
    }

    pub(crate) fn answers(&self) -> &A {
        &self.answers
    }

    /// Workers now.
    pub(crate) fn workers(&self) -> usize {
        self.crew.workers()
    }

    /// Answers INIT, which comes before all else. -> what was agreed upon.
    pub(crate) fn shake_hands(&self, wishes: &Wishes) -> Result<InitOut> {
        let mut buffer = self.buffer();
        loop {
            let filled = match self.device.read(buffer.space()) {
                Arrival::Request(filled) => filled,
                Arrival::Nothing => continue,
                Arrival::Ended => {
                    return Err(Error::Unavailable { what: "unmounted while it was being mounted".into() });
                }
                Arrival::Failed(errno) => return Err(Error::io("read /dev/fuse", errno.into())),
            };
            let request = parse(&Bytes::copy_from_slice(&buffer.space()[..filled]))
                .map_err(|e| Error::Protocol { what: format!("the kernel's INIT: {}", e.what) })?;
            let Body::Init { init, flags } = request.body else {
                self.device.reply(request.unique, &Err(Failed(Errno::IO)));
                continue;
            };
            let agreed = negotiate(&init, flags, wishes);
            let outcome = agreed.as_ref().map(crate::encode::bytes_of).map_err(|_| Failed(Errno::PROTO));
            self.device.reply(request.unique, &outcome);
            return agreed;
        }
    }

    /// Answers requests until the file system is unmounted, or the device fails: then it is to be unmounted.
    pub(crate) fn run(self: &Arc<Self>) -> Result<()> {
        self.crew.join();
        self.start_worker()?;
        self.crew.wait();
        match self.failure.lock().take() {
            Some(errno) => Err(Error::io("read /dev/fuse", errno.into())),
            None => Ok(()),
        }
    }

    /// Starts a worker that the crew has counted.
    fn start_worker(self: &Arc<Self>) -> Result<()> {
        let session = self.clone();
        let run = move || {
            let device = session.device.another().map_or_else(|| session.device.clone(), Arc::new);
            session.serve(&device);
        };
        let started = std::thread::Builder::new().name("hekate-fuse".into()).spawn(run);
        started.map(|_| ()).map_err(|error| {
            self.crew.leave();
            Error::io("start a thread", error)
        })
    }

    fn serve(self: &Arc<Self>, device: &Arc<Device>) {
        let mut buffer = None;
        while let Some(bytes) = self.receive(device, &mut buffer) {
            let Some(work) = self.take(device, &bytes) else { continue };
            drop(bytes);
            let Begin::Work { work, start } = self.crew.begin(work) else { continue };
            if start && let Err(error) = self.start_worker() {
                log::warn!("{error}; going on with fewer workers");
            }
            if !self.work(work) {
                return;
            }
        }
        self.in_flight.interrupt_all();
        self.crew.end(self.failure.lock().is_some());
        self.crew.leave();
    }

    /// The next request, or `None` once there will be no more.
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

    /// Waits for memory if there is none: a mount is not given up for that.
    fn buffer(&self) -> Buffer {
        loop {
            match self.buffers.take() {
                Ok(buffer) => return buffer,
                Err(errno) => log::warn!("no memory for a request, waiting: {errno}"),
            }
            std::thread::sleep(MEMORY_PAUSE);
        }
    }

    /// Deals with what needs no worker: -> what does.
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
                // To end it takes asking its server, which is not for who reads.
                if self.answers.is_later(of) {
                    return Some(Work { request, device: device.clone(), gave_up: GaveUp::default() });
                }
            }
            Body::Forget { forgotten } => {
                forgotten.iter_mut().filter(|one| one.node == 0).for_each(|one| one.node = request.node);
                self.answers.forget(forgotten);
            }
            _ => {
                let gave_up = self.in_flight.begin(request.unique, request.pid);
                return Some(Work { request, device: device.clone(), gave_up });
            }
        }
        None
    }

    /// A signal that does not end the caller leaves it waiting, as on a local disk; but one that comes later may, of
    /// which the kernel does not tell.
    fn interrupt(self: &Arc<Self>, unique: u64) {
        match self.in_flight.interrupt(unique) {
            Interrupted::Dying => self.withdraw(unique),
            Interrupted::Unwatched => {
                let session = self.clone();
                let watch = move || {
                    while let Some(dying) = session.in_flight.look() {
                        dying.into_iter().for_each(|unique| session.withdraw(unique));
                        std::thread::sleep(WATCH_PAUSE);
                    }
                };
                if let Err(error) = std::thread::Builder::new().name("hekate-watch".into()).spawn(watch) {
                    log::warn!("a thread that watches callers: {error}");
                    self.in_flight.is_unwatched();
                }
            }
            Interrupted::Nothing => {}
        }
    }

    /// What is being answered ends by itself; what waits for a worker ends here.
    fn withdraw(&self, unique: u64) {
        if let Some(work) = self.crew.withdraw(|work| work.request.unique == unique) {
            self.in_flight.end(unique);
            work.device.reply(unique, &Err(Failed(Errno::INTR)));
        }
    }

    /// Answers this and what waits. -> Whether the worker goes on.
    fn work(&self, mut work: Work) -> bool {
        loop {
            self.answer(work);
            match self.crew.finish() {
                Next::Work(next) => work = next,
                Next::Read => return true,
                Next::Leave => return false,
            }
        }
    }

    fn answer(&self, work: Work) {
        let Work { request, device, gave_up } = work;
        let unique = request.unique;
        if let Body::Interrupt { of } = request.body {
            let _ = catch_unwind(AssertUnwindSafe(|| self.answers.interrupt(of)));
            return;
        }
        let later = Later { unique, device: device.clone(), in_flight: self.in_flight.clone() };
        let answered = catch_unwind(AssertUnwindSafe(|| self.answers.answer(request, &gave_up, later)));
        let Some(mut outcome) = answered.unwrap_or(Some(Err(Failed(Errno::IO)))) else { return };
        // A server that is away answers so, and an op whose caller gave up does not wait for it.
        if outcome == Err(Failed(Errno::TIMEDOUT)) && gave_up.fatal.load(Ordering::SeqCst) {
            outcome = Err(Failed(Errno::INTR));
        }
        self.in_flight.end(unique);
        device.reply(unique, &outcome);
    }
}

#[cfg(test)]
mod tests;
