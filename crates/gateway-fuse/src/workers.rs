//! How many workers there are and what each does next.
//!
//! Invariants: while the connection lasts one worker is always reading, even when [`Crew::busy_max`] others are at work,
//! so that INTERRUPT and FORGET get through; what it reads then waits in a queue of bounded length, and only a full
//! queue stops it. A worker starts when nobody is left to read; when there have been more readers than [`IDLE_MAX`] for
//! a while one leaves.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Workers that wait for requests though others do.
const IDLE_MAX: usize = 2;
/// How long there must have been more, and the pause before the next leaves: bursts keep their workers.
const CALM: Duration = Duration::from_secs(1);
/// Requests that wait for a worker, and their bytes.
const QUEUE_MAX: usize = 1024;
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// What can wait in the queue.
pub(crate) trait Weighed {
    /// Bytes that it holds.
    fn bytes(&self) -> usize;
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Crew<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
    busy_max: usize,
}

#[derive(Debug)]
struct State<W> {
    workers: usize,
    busy: usize,
    queue: VecDeque<W>,
    queued_bytes: usize,
    /// When readers were last scarce, or one left.
    scarce_at: Instant,
    over: bool,
    failed: bool,
}

/// What a worker that has read a request does.
#[derive(Debug)]
pub(crate) enum Begin<W> {
    /// Answers it; `start`: after starting another worker, which is counted already.
    Work { work: W, start: bool },
    /// Reads on.
    Read,
}

/// What a worker that has answered a request does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<W> {
    Work(W),
    Read,
    Leave,
}

impl<W: Weighed> Crew<W> {
    /// Of at most `busy_max` workers at work.
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

    /// A worker that was counted is gone, or did not start.
    pub(crate) fn leave(&self) {
        self.state.lock().workers -= 1;
        self.changed.notify_all();
    }

    /// The connection is gone: nothing waits any more. `failed`: it may be that others do not notice.
    pub(crate) fn end(&self, failed: bool) {
        let mut state = self.state.lock();
        state.over = true;
        state.failed |= failed;
        self.changed.notify_all();
    }

    /// Waits until all workers have left, or one has failed.
    pub(crate) fn wait(&self) {
        let mut state = self.state.lock();
        while state.workers > 0 && !state.failed {
            self.changed.wait(&mut state);
        }
    }

    /// Workers now.
    pub(crate) fn workers(&self) -> usize {
        self.state.lock().workers
    }

    /// A request has been read.
    pub(crate) fn begin(&self, work: W) -> Begin<W> {
        let mut state = self.state.lock();
        loop {
            if state.busy < self.busy_max {
                let start = state.take_up();
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

    /// A request has been answered.
    pub(crate) fn finish(&self) -> Next<W> {
        let mut state = self.state.lock();
        if let Some(work) = state.queue.pop_front() {
            state.queued_bytes -= work.bytes();
            self.changed.notify_all();
            return Next::Work(work);
        }
        state.busy -= 1;
        if state.workers - state.busy <= IDLE_MAX || state.scarce_at.elapsed() < CALM {
            return Next::Read;
        }
        state.scarce_at = Instant::now();
        state.workers -= 1;
        self.changed.notify_all();
        Next::Leave
    }

    /// Takes work out of the queue.
    pub(crate) fn withdraw(&self, which: impl Fn(&W) -> bool) -> Option<W> {
        let mut state = self.state.lock();
        let position = state.queue.iter().position(which)?;
        let work = state.queue.remove(position)?;
        state.queued_bytes -= work.bytes();
        Some(work)
    }
}

impl<W> State<W> {
    /// One more is at work. -> Whether nobody reads any more, in which case another worker is counted.
    fn take_up(&mut self) -> bool {
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

    impl Weighed for usize {
        fn bytes(&self) -> usize {
            *self
        }
    }

    fn starts(begin: Begin<usize>) -> bool {
        matches!(begin, Begin::Work { start: true, .. })
    }

    #[test]
    fn somebody_always_reads_and_no_more_than_the_limit_work() {
        let crew = Crew::new(2);
        crew.join();
        assert!(starts(crew.begin(1)));
        assert!(starts(crew.begin(2)));
        assert_eq!(crew.workers(), 3);
        assert!(matches!(crew.begin(3), Begin::Read));
        assert_eq!(crew.finish(), Next::Work(3));
        assert_eq!(crew.finish(), Next::Read);
        assert!(!starts(crew.begin(4)));
    }

    #[test]
    fn idle_workers_leave_one_by_one_after_a_calm_while() {
        let crew = Crew::new(8);
        crew.join();
        (0..5).for_each(|_| assert!(starts(crew.begin(0))));
        assert_eq!(crew.finish(), Next::Read);
        assert_eq!(crew.finish(), Next::Read);
        crew.state.lock().scarce_at = Instant::now() - CALM * 2;
        assert_eq!(crew.finish(), Next::Leave);
        assert_eq!(crew.finish(), Next::Read);
        assert_eq!(crew.workers(), 5);
    }

    #[test]
    fn a_full_queue_stops_the_reader_until_there_is_room() {
        let crew = Crew::new(1);
        crew.join();
        crew.begin(0);
        assert!(matches!(crew.begin(QUEUE_BYTES_MAX), Begin::Read));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| crew.begin(7));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!reader.is_finished());
            assert_eq!(crew.finish(), Next::Work(QUEUE_BYTES_MAX));
            assert!(matches!(reader.join().unwrap(), Begin::Read));
        });
        assert_eq!(crew.withdraw(|work| *work == 7), Some(7));
        assert_eq!(crew.withdraw(|work| *work == 7), None);
    }
}
