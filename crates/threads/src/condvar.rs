//! Condition variables.

use crate::scheduler::{Scheduler, current};
use crate::time::now;
use parking_lot::MutexGuard;
use std::time::{Duration, Instant};

/// A condition variable. As with every condition variable, a wait may end without a notification.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: parking_lot::Condvar,
    /// Gives the variable an address of its own: the simulator's key.
    _key: u8,
}

impl Condvar {
    pub const fn new() -> Self {
        Self { inner: parking_lot::Condvar::new(), _key: 0 }
    }

    /// Releases the lock until a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        match current() {
            Some(scheduler) => _ = self.wait_simulated(scheduler, guard, None),
            None => self.inner.wait(guard),
        }
    }

    /// Releases the lock until a notification, for at most `limit`. False if the limit was reached.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> bool {
        match current() {
            Some(scheduler) => self.wait_simulated(scheduler, guard, Some(limit)),
            None => !self.inner.wait_for(guard, limit).timed_out(),
        }
    }

    /// As [`Condvar::wait_for`], until this time.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) -> bool {
        self.wait_for(guard, end.saturating_duration_since(now()))
    }

    /// Ends the wait of one thread.
    pub fn notify_one(&self) {
        match current() {
            Some(scheduler) => scheduler.notify(self.key(), false),
            None => _ = self.inner.notify_one(),
        }
    }

    /// Ends the waits of all threads.
    pub fn notify_all(&self) {
        match current() {
            Some(scheduler) => scheduler.notify(self.key(), true),
            None => _ = self.inner.notify_all(),
        }
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn wait_simulated<T>(
        &self,
        scheduler: &dyn Scheduler,
        guard: &mut MutexGuard<'_, T>,
        limit: Option<Duration>,
    ) -> bool {
        let mutex = MutexGuard::mutex(guard);
        MutexGuard::unlocked(guard, || {
            let notified = scheduler.wait(self.key(), limit);
            // All simulated threads share one thread of the operating system, which must not block on the lock.
            while mutex.is_locked() {
                scheduler.contended();
            }
            notified
        })
    }
}
