//! Threads that execute ops side by side, what one upload has in flight, and the memory of all uploads together.

use super::error::Result;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Job = Box<dyn FnOnce() + Send>;

/// A fixed number of threads. If none can be started, the caller executes its jobs itself.
pub struct Pool {
    shared: Arc<Shared>,
    threads: usize,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Pool {
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let start = |number: &usize| {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("s3-io-{number}")).spawn(move || shared.work()).is_ok()
        };
        let threads = (0..threads).take_while(start).count();
        Self { shared, threads }
    }

    fn run(&self, job: Job) {
        if self.threads == 0 {
            return job();
        }
        self.shared.queue.lock().jobs.push_back(job);
        self.shared.changed.notify_one();
    }

    /// The results of `each` for all items, in their order. The calling thread takes part, so it ends also while all
    /// threads have other jobs.
    ///
    /// # Panics
    /// If one of them panics.
    pub fn map<T, R>(&self, items: Vec<T>, each: impl Fn(T) -> R + Send + Sync + 'static) -> Vec<R>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        let helpers = self.threads.min(items.len().saturating_sub(1));
        let work = Arc::new(Shares::new(items, each));
        for _ in 0..helpers {
            let work = work.clone();
            self.run(Box::new(move || work.take_part()));
        }
        work.take_part();
        work.results()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            while queue.jobs.is_empty() && !queue.closed {
                self.changed.wait(&mut queue);
            }
            let Some(job) = queue.jobs.pop_front() else { return };
            drop(queue);
            // The panic is logged and reported to the caller that waits for the job. The thread takes the next job.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }
}

/// Items that several threads work on.
struct Shares<T, R, F> {
    state: Mutex<SharesState<T, R>>,
    done: Condvar,
    each: F,
}

struct SharesState<T, R> {
    left: VecDeque<(usize, T)>,
    results: Vec<Option<R>>,
    unfinished: usize,
}

/// Counts an item as finished, also if it panics.
struct Finish<'a, T, R, F>(&'a Shares<T, R, F>);

impl<T, R, F> Drop for Finish<'_, T, R, F> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.unfinished -= 1;
        if state.unfinished == 0 {
            self.0.done.notify_all();
        }
    }
}

impl<T, R, F: Fn(T) -> R> Shares<T, R, F> {
    fn new(items: Vec<T>, each: F) -> Self {
        let unfinished = items.len();
        let results = items.iter().map(|_| None).collect();
        let state = SharesState { left: items.into_iter().enumerate().collect(), results, unfinished };
        Self { state: Mutex::new(state), done: Condvar::new(), each }
    }

    fn take_part(&self) {
        loop {
            let Some((at, item)) = self.state.lock().left.pop_front() else { return };
            let _finish = Finish(self);
            let result = (self.each)(item);
            self.state.lock().results[at] = Some(result);
        }
    }

    fn results(&self) -> Vec<R> {
        let mut state = self.state.lock();
        while state.unfinished > 0 {
            self.done.wait(&mut state);
        }
        let results: Option<Vec<R>> = std::mem::take(&mut state.results).into_iter().collect();
        drop(state);
        assert!(results.is_some(), "the work on one of the items panicked");
        results.unwrap_or_default()
    }
}

/// Jobs of one upload or copy: a limited number at a time, and the first error.
pub struct Flight {
    state: Arc<(Mutex<FlightState>, Condvar)>,
    /// Jobs at a time.
    limit: usize,
}

#[derive(Default)]
struct FlightState {
    running: usize,
    failed: Option<super::Error>,
}

/// Counts a job as ended. One that panicked has failed.
struct Landing(Arc<(Mutex<FlightState>, Condvar)>);

impl Drop for Landing {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.running -= 1;
        if std::thread::panicking() {
            state.failed.get_or_insert_with(|| hekate_proto::Error::bug("a job panicked").into());
        }
        drop(state);
        self.0.1.notify_all();
    }
}

impl Flight {
    pub fn new(limit: usize) -> Self {
        Self { state: Arc::default(), limit }
    }

    /// True if no job is running and none has failed.
    pub fn is_idle(&self) -> bool {
        let state = self.state.0.lock();
        state.running == 0 && state.failed.is_none()
    }

    /// Starts a job, once fewer than the limit are running.
    ///
    /// # Errors
    /// That of a job that failed before.
    pub fn start(&self, pool: &Pool, job: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let (state, changed) = &*self.state;
        let mut running = state.lock();
        while running.running >= self.limit && running.failed.is_none() {
            changed.wait(&mut running);
        }
        if let Some(error) = &running.failed {
            return Err(error.clone());
        }
        running.running += 1;
        drop(running);
        let landing = Landing(self.state.clone());
        pool.run(Box::new(move || {
            if let Err(error) = job() {
                landing.0.0.lock().failed.get_or_insert(error);
            }
        }));
        Ok(())
    }

    /// Waits for all jobs.
    ///
    /// # Errors
    /// That of the first job that failed.
    pub fn land(&self) -> Result<()> {
        let (state, changed) = &*self.state;
        let mut running = state.lock();
        while running.running > 0 {
            changed.wait(&mut running);
        }
        running.failed.clone().map_or(Ok(()), Err)
    }
}

/// Bytes that all uploads together may hold.
pub struct Memory {
    free_bytes: Mutex<u64>,
}

/// A share of the memory, until it is dropped.
pub struct Share {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Memory {
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { free_bytes: Mutex::new(bytes) })
    }

    /// A share of this many bytes, if so many are free.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let mut free = self.free_bytes.lock();
        *free = free.checked_sub(bytes)?;
        Some(Share { memory: self.clone(), bytes })
    }
}

impl Share {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        *self.memory.free_bytes.lock() += self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_flight_runs_no_more_than_its_limit_and_reports_the_first_error() {
        let pool = Pool::new(8);
        let (flight, now, most) = (Flight::new(3), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..50 {
            let (now, most) = (now.clone(), most.clone());
            flight
                .start(&pool, move || {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                })
                .unwrap();
        }
        flight.land().unwrap();
        assert!((2..=3).contains(&most.load(Ordering::SeqCst)));
        flight.start(&pool, || Err(super::super::Error::InvalidRange)).unwrap();
        assert_eq!(flight.land(), Err(super::super::Error::InvalidRange));
        assert!(!flight.is_idle() && Flight::new(1).is_idle());
        assert_eq!(flight.start(&pool, || Ok(())), Err(super::super::Error::InvalidRange));
    }

    #[test]
    fn map_keeps_the_order_with_and_without_threads() {
        for threads in [0, 1, 5] {
            let pool = Pool::new(threads);
            let doubled = pool.map((0..100).collect(), |number: u32| number * 2);
            assert_eq!(doubled, (0..100).map(|number| number * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    #[allow(clippy::panic, reason = "the work that fails")]
    fn work_that_panics_fails_and_leaves_the_threads() {
        let pool = Arc::new(Pool::new(2));
        for _ in 0..4 {
            let flight = Flight::new(2);
            flight.start(&pool, || panic!("a bug")).unwrap();
            assert!(flight.land().is_err());
            let mapping = pool.clone();
            let items = (0..8).collect();
            let mapped = move || mapping.map(items, |number: u32| assert!(number != 5, "a bug"));
            assert!(std::thread::spawn(mapped).join().is_err());
        }
        let flight = Flight::new(2);
        flight.start(&pool, || Ok(())).unwrap();
        flight.land().unwrap();
    }

    #[test]
    fn memory_comes_back() {
        let memory = Memory::new(10);
        let share = memory.take(8).unwrap();
        assert!(memory.take(3).is_none());
        drop(share);
        assert!(memory.take(10).is_some());
    }
}
