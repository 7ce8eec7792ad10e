//! One thread that gives links the time, and says `down` where no reader can.
//!
//! An acknowledgement that waits for a message to go with is due within milliseconds almost always, and then is not: so
//! the thread is woken only for something that is due earlier than when it wakes anyway.

use super::Shared;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

const NEVER: u64 = u64::MAX;

/// When the thread wakes.
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
    /// The thread wakes by then.
    pub fn set(&self, due: Duration) {
        let due_ns = due.as_nanos() as u64;
        if self.at_ns.load(Ordering::SeqCst) > due_ns && self.at_ns.fetch_min(due_ns, Ordering::SeqCst) > due_ns {
            self.thread.get().inspect(|thread| thread.unpark());
        }
    }

    /// The thread's own way: it is awake, and an `unpark` would keep it so.
    fn set_for_self(&self, due: Duration) {
        self.at_ns.fetch_min(due.as_nanos() as u64, Ordering::SeqCst);
    }

    /// The thread wakes now.
    pub fn ring(&self) {
        self.set(Duration::ZERO);
    }
}

pub(super) fn run(shared: &Shared) {
    shared.alarm.thread.get_or_init(std::thread::current);
    while !shared.stopping() {
        #[cfg(test)]
        shared.alarm.wakes.fetch_add(1, Ordering::SeqCst);
        // Whatever becomes due while the links are looked at sets the alarm, and the thread does not sleep.
        shared.alarm.at_ns.store(NEVER, Ordering::SeqCst);
        let peers: Vec<_> = shared.peers.read().values().cloned().collect();
        peers.iter().filter_map(|peer| peer.tick(shared)).for_each(|due| shared.alarm.set_for_self(due));
        match shared.alarm.at_ns.load(Ordering::SeqCst) {
            NEVER => std::thread::park(),
            at_ns => std::thread::park_timeout(Duration::from_nanos(at_ns).saturating_sub(shared.now())),
        }
    }
}
