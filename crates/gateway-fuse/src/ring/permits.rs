//! The limit of requests that are executed at once.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which a request that waits for a permit looks for a signal to its caller.
const SIGNAL_PAUSE: Duration = Duration::from_millis(50);

/// Permits to execute a request.
#[derive(Debug)]
pub(crate) struct Permits {
    left: Mutex<usize>,
    returned: Condvar,
}

/// One permit. It is returned by the drop.
#[derive(Debug)]
pub(crate) struct Permit<'a>(&'a Permits);

impl Permits {
    pub(crate) fn new(count: usize) -> Self {
        Self { left: Mutex::new(count.max(1)), returned: Condvar::new() }
    }

    /// Waits for a permit. `None` once `fatal` is set: the caller has ended.
    pub(crate) fn take(&self, fatal: &AtomicBool) -> Option<Permit<'_>> {
        let mut left = self.left.lock();
        while *left == 0 {
            if fatal.load(Ordering::SeqCst) {
                return None;
            }
            self.returned.wait_for(&mut left, SIGNAL_PAUSE);
        }
        *left -= 1;
        Some(Permit(self))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.left.lock() += 1;
        self.0.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_given_than_there_are_and_the_dead_do_not_wait() {
        let permits = Permits::new(1);
        let (alive, dead) = (AtomicBool::new(false), AtomicBool::new(true));
        let first = permits.take(&alive);
        assert!(first.is_some() && permits.take(&dead).is_none());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| permits.take(&alive).is_some());
            drop(first);
            assert!(second.join().unwrap());
        });
    }
}
