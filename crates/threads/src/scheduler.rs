//! The scheduler of simulated threads, and which thread runs under one.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime};

/// The operating system as the simulator replaces it for the simulated thread that runs now.
pub trait Scheduler {
    /// The simulated monotonic clock.
    fn now(&self) -> Instant;

    /// Simulated time since the machine booted.
    fn boot_time(&self) -> Duration;

    /// The simulated time of day.
    fn time_of_day(&self) -> SystemTime;

    /// Suspends the thread for `time`.
    fn sleep(&self, time: Duration);

    /// Suspends the thread until `notify` is called with the same key, or for at most `limit`. False if the limit was
    /// reached.
    fn wait(&self, key: usize, limit: Option<Duration>) -> bool;

    /// Resumes threads that wait for this key: all, or the one that has waited longest.
    fn notify(&self, key: usize, all: bool);

    /// Lets the time pass that an operation of a disk takes.
    fn use_disk(&self);

    /// Called before the thread takes a lock: other threads may run first.
    fn before_lock(&self);

    /// Suspends the thread because another one holds a lock. It resumes after other threads have run.
    fn contended(&self);

    /// Starts a thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>);

    /// A random number.
    fn random(&self) -> u64;

    /// True if the thread's process is being ended: the thread only runs its destructors, and none of the process's
    /// other threads runs any more.
    fn is_ending(&self) -> bool;
}

thread_local! {
    static CURRENT: Cell<Option<&'static dyn Scheduler>> = const { Cell::new(None) };
}

/// The scheduler of the thread that runs now; none for a thread of the operating system.
pub(crate) fn current() -> Option<&'static dyn Scheduler> {
    CURRENT.get()
}

/// Runs `part` of a simulated thread: meanwhile the calls of this crate go to the scheduler.
pub fn run_simulated<T>(scheduler: &'static dyn Scheduler, part: impl FnOnce() -> T) -> T {
    /// Restores the previous scheduler when it is dropped, also by a panic.
    struct Before(Option<&'static dyn Scheduler>);
    impl Drop for Before {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _before = Before(CURRENT.replace(Some(scheduler)));
    part()
}

/// Starts a detached thread.
///
/// # Errors
///
/// The operating system gives no thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    match current() {
        Some(scheduler) => {
            scheduler.spawn(name, Box::new(body));
            Ok(())
        }
        None => std::thread::Builder::new().name(name.into()).spawn(body).map(|_| ()),
    }
}

/// Says that an operation of a disk follows. In the simulator it takes time.
pub fn use_disk() {
    if let Some(scheduler) = current() {
        scheduler.use_disk();
    }
}

/// A random number that cannot be guessed (getrandom(2)), or one of the simulator's seed.
///
/// # Errors
///
/// The operating system gives no random bytes.
pub fn random() -> std::io::Result<u64> {
    match current() {
        Some(scheduler) => Ok(scheduler.random()),
        None => getrandom::u64().map_err(|error| std::io::Error::other(error.to_string())),
    }
}
