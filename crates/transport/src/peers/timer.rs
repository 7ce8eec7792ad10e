//! One thread that drives the timers of all links, and delivers events that no reader thread delivers.
//!
//! A delayed acknowledgement is almost always due within milliseconds, and then a message carries it. So the thread
//! is woken only for something that is due before its next wake-up.

use super::Shared;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

const NEVER: u64 = u64::MAX;

/// When the timer thread wakes up.
pub(super) struct Alarm {
    at_ns: AtomicU64,
    thread: OnceLock<Thread>,
    #[cfg(test)]
    pub wakes: AtomicU64,
}

impl Default for Alarm {
    fn default() -> Self {
        Self {
            at_ns: AtomicU64::new(NEVER),
            thread: OnceLock::new(),
            #[cfg(test)]
            wakes: AtomicU64::new(0),
        }
    }
}

impl Alarm {
    /// The thread wakes up at this time at the latest.
    pub fn set(&self, due: Duration) {
        let due_ns = due.as_nanos() as u64;
        if self.at_ns.load(Ordering::SeqCst) > due_ns && self.at_ns.fetch_min(due_ns, Ordering::SeqCst) > due_ns {
            self.thread.get().inspect(|thread| thread.unpark());
        }
    }

    /// As [`Alarm::set`], on the timer thread itself, which is awake and needs no `unpark`.
    fn set_for_self(&self, due: Duration) {
        self.at_ns.fetch_min(due.as_nanos() as u64, Ordering::SeqCst);
    }

    /// The thread wakes up now.
    pub fn fire_now(&self) {
        self.set(Duration::ZERO);
    }
}

/// Body of the timer thread.
pub(super) fn run(shared: &Shared) {
    shared.alarm.thread.get_or_init(std::thread::current);
    while !shared.stopping() {
        #[cfg(test)]
        shared.alarm.wakes.fetch_add(1, Ordering::SeqCst);
        // An event that becomes due while the links are visited sets the alarm again, and then the thread does not
        // sleep.
        shared.alarm.at_ns.store(NEVER, Ordering::SeqCst);
        let peers: Vec<_> = shared.peers.read().values().cloned().collect();
        peers.iter().filter_map(|peer| peer.tick(shared)).for_each(|due| shared.alarm.set_for_self(due));
        match shared.alarm.at_ns.load(Ordering::SeqCst) {
            NEVER => std::thread::park(),
            at_ns => std::thread::park_timeout(Duration::from_nanos(at_ns).saturating_sub(shared.now())),
        }
    }
}
