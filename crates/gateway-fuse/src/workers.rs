//! The number of worker threads, and what each does next.
//!
//! Invariants: while the connection lasts, one worker always reads, even when [`Workers::busy_max`] others execute
//! requests, so that INTERRUPT and FORGET are handled. Requests that it then reads wait in a queue of bounded length,
//! and only a full queue stops it. A worker is started when none is left to read. When more than [`IDLE_MAX`] workers
//! have been reading for a while, one ends.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Workers kept to read at the same time.
const IDLE_MAX: usize = 2;
/// Time with more readers than that after which one ends, and the pause before the next one ends: workers outlast
/// bursts.
const CALM_TIME: Duration = Duration::from_secs(1);
/// Limit of requests that wait for a worker.
const QUEUE_MAX: usize = 1024;
/// Limit of the bytes of these requests.
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// Work that can wait in the queue.
pub(crate) trait HasBytes {
    /// Bytes of memory that it holds.
    fn bytes(&self) -> usize;
}

/// The workers of a mount.
#[derive(Debug)]
pub(crate) struct Workers<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
    busy_max: usize,
}

#[derive(Debug)]
struct State<W> {
    /// Workers that are started, or about to start.
    workers: usize,
    /// Workers that execute a request.
    busy: usize,
    /// Requests that were read and wait for a worker.
    queue: VecDeque<W>,
    /// Memory of the requests in `queue`, in bytes.
    queued_bytes: usize,
    /// When there was last at most one reader, or when a worker last ended for lack of work.
    scarce_at: Instant,
    /// The connection has ended.
    over: bool,
    /// A worker found that the device failed.
    failed: bool,
}

/// What a worker does after it has read a request.
#[derive(Debug)]
pub(crate) enum Begin<W> {
    /// Executes it. `start`: first starts another worker, which is already counted.
    Work { work: W, start: bool },
    /// Reads again; the request is queued.
    Read,
}

/// What a worker does after it has executed a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<W> {
    Work(W),
    Read,
    Leave,
}

impl<W: HasBytes> Workers<W> {
    /// At most `busy_max` workers execute requests at once.
    pub(crate) fn new(busy_max: usize) -> Self {
        let state = State {
            workers: 0,
            busy: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            scarce_at: Instant::now(),
            over: false,
            failed: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), busy_max: busy_max.max(1) }
    }

    /// Counts a worker that is about to start.
    pub(crate) fn join(&self) {
        self.state.lock().workers += 1;
    }

    /// A counted worker has ended, or could not be started.
    pub(crate) fn leave(&self) {
        self.state.lock().workers -= 1;
        self.changed.notify_all();
    }

    /// The connection has ended. `failed`: the device failed, and other workers may not notice.
    pub(crate) fn end(&self, failed: bool) {
        let mut state = self.state.lock();
        state.over = true;
        state.failed |= failed;
        self.changed.notify_all();
    }

    /// Waits until all workers have ended, or until one has failed.
    pub(crate) fn wait(&self) {
        let mut state = self.state.lock();
        while state.workers > 0 && !state.failed {
            self.changed.wait(&mut state);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.state.lock().workers
    }

    /// A worker has read a request.
    pub(crate) fn begin(&self, work: W) -> Begin<W> {
        let mut state = self.state.lock();
        loop {
            if state.busy < self.busy_max {
                let start = state.begin_work();
                return Begin::Work { work, start };
            }
            if state.over || state.queue.len() < QUEUE_MAX && state.queued_bytes < QUEUE_BYTES_MAX {
                state.queued_bytes += work.bytes();
                state.queue.push_back(work);
                return Begin::Read;
            }
            self.changed.wait(&mut state);
        }
    }

    /// A worker has executed a request.
    pub(crate) fn finish(&self) -> Next<W> {
        let mut state = self.state.lock();
        if let Some(work) = state.queue.pop_front() {
            state.queued_bytes -= work.bytes();
            self.changed.notify_all();
            return Next::Work(work);
        }
        state.busy -= 1;
        if state.workers - state.busy <= IDLE_MAX || state.scarce_at.elapsed() < CALM_TIME {
            return Next::Read;
        }
        state.scarce_at = Instant::now();
        state.workers -= 1;
        self.changed.notify_all();
        Next::Leave
    }

    /// Removes queued work.
    pub(crate) fn withdraw(&self, which: impl Fn(&W) -> bool) -> Option<W> {
        let mut state = self.state.lock();
        let position = state.queue.iter().position(which)?;
        let work = state.queue.remove(position)?;
        state.queued_bytes -= work.bytes();
        Some(work)
    }
}

impl<W> State<W> {
    /// One more worker executes. True if no worker reads any more; another one is then counted.
    fn begin_work(&mut self) -> bool {
        self.busy += 1;
        let readers = self.workers.saturating_sub(self.busy);
        if readers <= 1 && self.workers > IDLE_MAX {
            self.scarce_at = Instant::now();
        }
        if readers == 0 {
            self.workers += 1;
        }
        readers == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl HasBytes for usize {
        fn bytes(&self) -> usize {
            *self
        }
    }

    fn starts(begin: Begin<usize>) -> bool {
        matches!(begin, Begin::Work { start: true, .. })
    }

    #[test]
    fn one_worker_always_reads_and_no_more_than_the_limit_execute() {
        let workers = Workers::new(2);
        workers.join();
        assert!(starts(workers.begin(1)));
        assert!(starts(workers.begin(2)));
        assert_eq!(workers.count(), 3);
        assert!(matches!(workers.begin(3), Begin::Read));
        assert_eq!(workers.finish(), Next::Work(3));
        assert_eq!(workers.finish(), Next::Read);
        assert!(!starts(workers.begin(4)));
    }

    #[test]
    fn idle_workers_leave_one_by_one_after_a_calm_while() {
        let workers = Workers::new(8);
        workers.join();
        (0..5).for_each(|_| assert!(starts(workers.begin(0))));
        assert_eq!(workers.finish(), Next::Read);
        assert_eq!(workers.finish(), Next::Read);
        workers.state.lock().scarce_at = Instant::now() - CALM_TIME * 2;
        assert_eq!(workers.finish(), Next::Leave);
        assert_eq!(workers.finish(), Next::Read);
        assert_eq!(workers.count(), 5);
    }

    #[test]
    fn a_full_queue_stops_the_reader_until_there_is_room() {
        let workers = Workers::new(1);
        workers.join();
        workers.begin(0);
        assert!(matches!(workers.begin(QUEUE_BYTES_MAX), Begin::Read));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| workers.begin(7));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!reader.is_finished());
            assert_eq!(workers.finish(), Next::Work(QUEUE_BYTES_MAX));
            assert!(matches!(reader.join().unwrap(), Begin::Read));
        });
        assert_eq!(workers.withdraw(|work| *work == 7), Some(7));
        assert_eq!(workers.withdraw(|work| *work == 7), None);
    }
}
