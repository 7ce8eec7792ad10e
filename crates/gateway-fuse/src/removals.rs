//! Orders opens after the removals that began before them, on one mount.
//!
//! A removal looks whether the inode is open here and then tells the servers; an open marks the inode and then asks the
//! servers whether it is there still. Without order the removal may look before the mark, and reach the servers after
//! the open was told that all is well: an open file would be gone. So an open, once it has marked, waits for the
//! removals that are under way; those that begin later see the mark.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a waiter looks whether its caller gave up.
const LOOK_UP: Duration = Duration::from_millis(20);

/// The removals under way.
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

/// A removal, until it is dropped.
#[derive(Debug)]
pub(crate) struct Removal<'a> {
    removals: &'a Removals,
    ticket: u64,
}

impl Removals {
    /// A removal is under way from here on.
    pub(crate) fn begin(&self) -> Removal<'_> {
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next += 1;
        state.running.insert(ticket);
        Removal { removals: self, ticket }
    }

    /// Waits for the removals that are under way now, or until `interrupt`.
    pub(crate) fn wait(&self, interrupt: &AtomicBool) {
        let mut state = self.state.lock();
        let later = state.next;
        while state.running.first().is_some_and(|ticket| *ticket < later) && !interrupt.load(Ordering::Relaxed) {
            self.ended.wait_for(&mut state, LOOK_UP);
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
            std::thread::sleep(LOOK_UP);
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
