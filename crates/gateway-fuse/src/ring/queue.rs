//! The entries of one queue of the kernel, and when another one is needed.

use parking_lot::Mutex;

/// A queue of the kernel.
#[derive(Debug)]
pub(crate) struct Queue {
    number: u16,
    /// Limit of entries, without those whose requests wait for a lock.
    entries_max: usize,
    state: Mutex<State>,
}

/// What lets requests go on that found no entry. They wait in the kernel until an entry of the queue sends a reply, also
/// if another one is registered meanwhile, and entries with locks that wait may send none before these requests are
/// executed. So the kernel is made to send a request that is answered at once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Nudge {
    /// Another entry is free: now.
    Now,
    /// Another entry must be started: once it is registered.
    Start,
    /// Once an entry that is being started is registered, or another request of the queue is answered.
    Later,
}

#[derive(Debug, Default)]
struct State {
    /// Entries that the kernel has.
    entries: usize,
    /// Entries with a request.
    busy: usize,
    /// Of these, the ones whose request waits for a lock.
    waiting: usize,
    /// A thread is about to register another entry.
    starting: bool,
    /// The node of the last request that found no entry left after it.
    node: Option<u64>,
}

impl Queue {
    /// A queue without entries, of which one is about to be registered.
    pub(crate) fn new(number: u16, entries_max: usize) -> Self {
        let state = State { starting: true, ..State::default() };
        Self { number, entries_max: entries_max.max(1), state: Mutex::new(state) }
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// An entry was registered. Returns whether another one must be started, and the node of [`Nudge`] if one is due.
    pub(crate) fn add(&self) -> (bool, Option<u64>) {
        let mut state = self.state.lock();
        state.starting = false;
        state.entries += 1;
        let nudged = state.node.take();
        (self.must_start(&mut state), nudged)
    }

    /// An entry could not be registered.
    pub(crate) fn give_up(&self) {
        self.state.lock().starting = false;
    }

    /// An entry was lost. True if another one must be started.
    pub(crate) fn lose(&self) -> bool {
        let mut state = self.state.lock();
        state.entries -= 1;
        self.must_start(&mut state)
    }

    /// An entry has a request about `node`. True if another one must be started.
    pub(crate) fn begin(&self, node: u64) -> bool {
        let mut state = self.state.lock();
        state.busy += 1;
        let must = self.must_start(&mut state);
        if must {
            state.node = Some(node);
        }
        must
    }

    /// An entry's reply is about to be sent.
    pub(crate) fn finish(&self) {
        self.state.lock().busy -= 1;
    }

    /// An entry's request waits for a lock of the file `node`.
    pub(crate) fn begin_waiting(&self, node: u64) -> Nudge {
        let mut state = self.state.lock();
        state.waiting += 1;
        if state.busy < state.entries {
            return Nudge::Now;
        }
        state.node = Some(node);
        match self.must_start(&mut state) {
            true => Nudge::Start,
            false => Nudge::Later,
        }
    }

    /// An entry's request has the lock.
    pub(crate) fn finish_waiting(&self) {
        self.state.lock().waiting -= 1;
    }

    /// True if no entry is left for the next request and the limit allows one more; it is then being started.
    fn must_start(&self, state: &mut State) -> bool {
        let has_room = state.entries.saturating_sub(state.waiting) < self.entries_max;
        let must = state.busy >= state.entries && has_room && !state.starting;
        state.starting |= must;
        must
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_entry_is_free_until_the_limit() {
        let queue = Queue::new(0, 2);
        assert_eq!(queue.add(), (false, None));
        assert!(queue.begin(7));
        assert_eq!(queue.add(), (false, Some(7)));
        assert!(!queue.begin(8), "two requests are the limit");
        queue.finish();
        assert!(!queue.begin(8));
    }

    #[test]
    fn a_lock_that_waits_does_not_count_and_lets_others_go_on() {
        let queue = Queue::new(0, 1);
        queue.add();
        assert!(!queue.begin(7));
        assert_eq!(queue.begin_waiting(7), Nudge::Start);
        assert_eq!(queue.add(), (false, Some(7)));
        assert!(!queue.begin(8));
        assert_eq!(queue.begin_waiting(8), Nudge::Start);
        assert_eq!(queue.add(), (false, Some(8)));
        queue.finish_waiting();
        queue.finish();
        assert!(!queue.begin(9));
        assert_eq!(queue.begin_waiting(9), Nudge::Now);
    }

    #[test]
    fn only_one_is_started_at_a_time_and_a_failed_start_is_tried_again() {
        let queue = Queue::new(0, 8);
        queue.add();
        assert!(queue.begin(7));
        assert_eq!(queue.begin_waiting(8), Nudge::Later);
        queue.give_up();
        queue.finish_waiting();
        queue.finish();
        assert!(queue.begin(9));
        assert_eq!(queue.add(), (false, Some(9)));
        assert!(queue.lose(), "the last free entry is lost");
    }
}
