//! Requests over io_uring: a thread for each entry, which executes one request at a time ([`crate::ring`]).

use super::{Handler, MEMORY_IDLE, ReplyPath, Session, WATCH_PAUSE};
use crate::abi::Opcode;
use crate::buffers::COPIED_MAX;
use crate::encode::{Failed, Outcome};
use crate::request::{Body, Request, parse};
use crate::ring::{Entry, Fetched, Nudge, Queue};
use bytes::Bytes;
use hekate_proto::{Error, Result};
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::Arc;

/// Data of a READ or WRITE from which on its thread is not bound to a CPU, in bytes.
const LONG_BYTES: usize = 64 << 10;

/// Part of the threads' names.
const THREAD_NAME: &str = "hekate-ring";

impl<A: Handler> Session<A> {
    /// Has an entry made for each queue, before the kernel is told that requests may come over io_uring. False if they
    /// cannot.
    pub(super) fn prepare_rings(&self) -> bool {
        let prepared = self.rings.prepare(&self.device);
        if let Err(why) = &prepared {
            log::warn!("requests come over /dev/fuse, not over io_uring: {why}");
        }
        prepared.is_ok()
    }

    /// Starts a thread for each prepared entry. The kernel keeps all requests until each queue has its entry.
    ///
    /// # Errors
    /// A thread cannot be started. The mount must end.
    pub(super) fn start_rings(self: &Arc<Self>) -> Result<()> {
        let entries = self.rings.take_prepared();
        if !entries.is_empty() {
            self.watch_for_signals()?;
            log::info!("requests come over io_uring, in {} queues", entries.len());
        }
        for (number, entry) in (0..).zip(entries) {
            let queue = Arc::new(Queue::new(number, self.busy_max));
            self.start_entry(&queue, Some(entry))?;
        }
        Ok(())
    }

    /// Finds signals that the kernel does not report: it sends no INTERRUPT for a signal that was there before the
    /// request was passed to its ring (`fuse_uring_prepare_send` of Linux 6.18, where fuse_dev_do_read looks at
    /// FR_INTERRUPTED). A killed process that closes its files has one for each FLUSH.
    fn watch_for_signals(self: &Arc<Self>) -> Result<()> {
        let session = self.clone();
        let watch = move || {
            let mut seen = HashSet::new();
            while let Some(signalled) = session.in_flight.unreported_signals(&mut seen) {
                for unique in signalled {
                    session.interrupt(unique);
                    if session.handler.is_later(unique) {
                        session.cancel_lock(unique);
                    }
                }
                std::thread::sleep(WATCH_PAUSE);
            }
        };
        let started = std::thread::Builder::new().name("hekate-watch".into()).spawn(watch);
        started.map(|_| ()).map_err(|error| Error::io("start a thread", error))
    }

    /// Cancels the wait for a lock, on a thread of its own: that sends a request to a server.
    fn cancel_lock(self: &Arc<Self>, unique: u64) {
        let session = self.clone();
        let cancel = move || session.handler.interrupt(unique);
        if let Err(error) = std::thread::Builder::new().name("hekate-watch".into()).spawn(cancel) {
            log::warn!("cannot start a thread that cancels the wait for a lock: {error}");
        }
    }

    /// Starts the thread of an entry, which it makes unless it is given.
    fn start_entry(self: &Arc<Self>, queue: &Arc<Queue>, entry: Option<Entry>) -> Result<()> {
        let (session, queue) = (self.clone(), queue.clone());
        let run = move || {
            session.serve_entry(&queue, entry);
            session.rings.leave();
        };
        self.rings.join();
        let started = std::thread::Builder::new().name(THREAD_NAME.into()).spawn(run);
        started.map(|_| ()).map_err(|error| {
            self.rings.leave();
            Error::io("start a thread", error)
        })
    }

    /// Starts another entry: none is left for the next request.
    fn add_entry(self: &Arc<Self>, queue: &Arc<Queue>) {
        if let Err(error) = self.start_entry(queue, None) {
            queue.give_up();
            log::warn!("{error}; continuing with fewer threads");
        }
    }

    fn serve_entry(self: &Arc<Self>, queue: &Arc<Queue>, prepared: Option<Entry>) {
        self.rings.bind(queue.number());
        let Some(mut entry) = self.registered(queue, prepared) else { return queue.give_up() };
        let (must_start, nudged) = queue.add();
        if must_start {
            self.add_entry(queue);
        }
        nudged.inspect(|node| self.nudge(*node));
        let mut has_touched = false;
        loop {
            match entry.wait(has_touched.then_some(MEMORY_IDLE)) {
                Fetched::Request => has_touched |= self.answer_entry(queue, &mut entry),
                Fetched::Nothing => {
                    entry.clear();
                    has_touched = false;
                }
                Fetched::Ended => break,
                Fetched::Lost(errno) => {
                    log::warn!("an entry of queue {} is lost: {errno}", queue.number());
                    if queue.lose() {
                        self.add_entry(queue);
                    }
                    break;
                }
                Fetched::Failed(errno) => {
                    self.failure.lock().get_or_insert(errno);
                    self.workers.end(true);
                    break;
                }
            }
        }
    }

    /// Lets requests go on that found no entry of this thread's queue: see [`Nudge`]. `node` is a file that the kernel has.
    fn nudge(&self, node: u64) {
        self.device.ask_for_notify_reply(self.rings.new_unique(), node);
    }

    /// An entry that the kernel has. `None` if there is no memory for it, or the kernel refuses it.
    fn registered(&self, queue: &Queue, prepared: Option<Entry>) -> Option<Entry> {
        let payload_bytes = self.rings.payload_bytes;
        let made = prepared.map_or_else(|| Entry::new(self.device.clone(), queue.number(), payload_bytes), Ok);
        let mut entry = made.inspect_err(|error| log::warn!("no memory for another entry of a ring: {error}")).ok()?;
        match entry.register() {
            Ok(()) => return Some(entry),
            // The mount has ended.
            Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV) => {}
            Err(errno) => {
                log::warn!("the kernel refuses an entry of a ring, and uses /dev/fuse if it was the first: {errno}")
            }
        }
        None
    }

    /// Executes the request of an entry, and makes its reply. True if either has touched much memory.
    fn answer_entry(self: &Arc<Self>, queue: &Arc<Queue>, entry: &mut Entry) -> bool {
        let (unique, node, bytes) = entry.request(&self.buffers);
        if queue.begin(node) {
            self.add_entry(queue);
        }
        let length = bytes.as_ref().map_or(0, Bytes::len);
        let request =
            bytes.map_err(Failed).and_then(|bytes| parse(&bytes).map_err(|malformed| Failed(malformed.errno)));
        let is_long = request.as_ref().is_ok_and(is_long);
        if is_long {
            self.rings.unbind();
        }
        let outcome = request.and_then(|request| self.answer_ring_request(queue, request));
        queue.finish();
        if !entry.reply(unique, &outcome) {
            log::error!("the reply to request {unique} does not fit into the ring");
        }
        if is_long {
            entry.send();
            self.rings.bind(queue.number());
        }
        length.max(outcome.map_or(0, |body| body.len())) > COPIED_MAX
    }

    fn answer_ring_request(self: &Arc<Self>, queue: &Arc<Queue>, mut request: Request) -> Outcome {
        if request.opcode == Opcode::NotifyReply {
            return Ok(Bytes::new());
        }
        self.counters.count(request.opcode);
        if let Body::Forget { forgotten } = &mut request.body {
            self.forget(request.node, forgotten);
            return Ok(Bytes::new());
        }
        let Request { unique, node, .. } = request;
        // Nobody waits for a RELEASE, which may carry the number of a thread that has ended.
        let is_awaited = !matches!(request.body, Body::Release { .. } | Body::ReleaseDir { .. });
        let signals = self.in_flight.begin(unique, if is_awaited { request.pid } else { 0 });
        let Some(permit) = self.rings.permits.take(&signals.fatal) else {
            self.in_flight.end(unique);
            return Err(Failed(Errno::INTR));
        };
        if let Some(outcome) = self.execute(request, &signals, ReplyPath::Ring(self.rings.late.clone())) {
            return outcome;
        }
        drop(permit);
        match queue.begin_waiting(node) {
            Nudge::Now => self.nudge(node),
            Nudge::Start => self.add_entry(queue),
            Nudge::Later => {}
        }
        let outcome = self.rings.late.wait(unique);
        queue.finish_waiting();
        outcome.unwrap_or(Err(Failed(Errno::CONNABORTED)))
    }
}

/// True if executing a request takes longer than to wake a CPU for it: its data is copied several times.
fn is_long(request: &Request) -> bool {
    match &request.body {
        Body::Write { data, .. } => data.len() > LONG_BYTES,
        Body::Read { size, .. } => *size as usize > LONG_BYTES,
        _ => false,
    }
}
