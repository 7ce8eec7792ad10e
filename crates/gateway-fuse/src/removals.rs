//! Orders opens after removals that began before them, on one mount.
//!
//! A removal checks whether the inode is open here, and then sends the op. An open marks the inode as open, and then
//! asks the servers whether it exists. Without an order between them the removal could check before the mark and
//! reach the servers after the open was confirmed: the inode of an open file would be removed. So an open, after it
//! has set the mark, waits for the removals in progress; removals that begin later see the mark.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which a waiter checks whether its caller gave up.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The removals in progress.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    running: BTreeSet<u64>,
}

/// A removal in progress, until this is dropped.
#[derive(Debug)]
pub(crate) struct Removal<'a> {
    removals: &'a Removals,
    ticket: u64,
}

impl Removals {
    /// Begins a removal.
    pub(crate) fn begin(&self) -> Removal<'_> {
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next += 1;
        state.running.insert(ticket);
        Removal { removals: self, ticket }
    }

    /// Waits for the removals in progress now, or until `interrupt`.
    pub(crate) fn wait(&self, interrupt: &AtomicBool) {
        let mut state = self.state.lock();
        let later = state.next;
        while state.running.first().is_some_and(|ticket| *ticket < later) && !interrupt.load(Ordering::Relaxed) {
            self.ended.wait_for(&mut state, POLL_INTERVAL);
        }
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.removals.state.lock().running.remove(&self.ticket);
        self.removals.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_waits_for_earlier_removals_only() {
        let removals = Removals::default();
        let never = AtomicBool::new(false);
        removals.wait(&never);
        let first = removals.begin();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| removals.wait(&never));
            std::thread::sleep(POLL_INTERVAL);
            let _later = removals.begin();
            assert!(!waiting.is_finished());
            drop(first);
            waiting.join().unwrap();
        });
    }

    #[test]
    fn a_signal_ends_the_wait() {
        let removals = Removals::default();
        let _running = removals.begin();
        removals.wait(&AtomicBool::new(true));
    }
}
