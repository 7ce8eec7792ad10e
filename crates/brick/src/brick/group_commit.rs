//! Group commit: threads that wait for the log to be stable share one sync.
//!
//! The first thread syncs for itself. Threads that come meanwhile wait; one of those that this sync did not cover leads
//! the next sync, for all of them. Each waiter is woken once: because it is covered, or to lead
//! (`docs/adr/0003-runtime.md`: waking all of them at once costs more than the sync).

use crate::journal::Lsn;
use hekate_proto::{Error, Result};
use hekate_threads::{Mutex, Sleeper};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Default)]
pub struct GroupCommit {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stable: Lsn,
    running: bool,
    failed: Option<Error>,
    waiting: Vec<Arc<Ticket>>,
}

struct Ticket {
    upto: Lsn,
    thread: Sleeper,
    turn: AtomicU8,
}

const WAIT: u8 = 0;
const LEAD: u8 = 1;
const DONE: u8 = 2;

impl Ticket {
    fn wake(&self, turn: u8) {
        self.turn.store(turn, Ordering::Release);
        self.thread.wake();
    }

    fn wait(&self) -> u8 {
        loop {
            match self.turn.load(Ordering::Acquire) {
                WAIT => self.thread.sleep(),
                turn => return turn,
            }
        }
    }
}

impl GroupCommit {
    /// Returns once a sync, by whichever thread, has made the log stable up to `upto`. `sync` makes stable what is
    /// written when it is called, and returns the position up to which that is.
    ///
    /// # Errors
    /// The error of the first sync that failed: every later wait fails with it.
    pub fn wait(&self, upto: Lsn, sync: impl FnOnce() -> Result<Lsn>) -> Result<()> {
        let ticket = {
            let mut state = self.state.lock();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.stable >= upto {
                return Ok(());
            }
            let ticket = state
                .running
                .then(|| Arc::new(Ticket { upto, thread: Sleeper::this_thread(), turn: AtomicU8::new(WAIT) }));
            state.running = true;
            state.waiting.extend(ticket.clone());
            ticket
        };
        if ticket.is_some_and(|ticket| ticket.wait() == DONE) {
            return self.state.lock().failed.clone().map_or(Ok(()), Err);
        }
        let outcome = sync();
        self.finish(&outcome);
        outcome.map(|_| ())
    }

    fn finish(&self, outcome: &Result<Lsn>) {
        let mut state = self.state.lock();
        match outcome {
            Ok(stable) => state.stable = state.stable.max(*stable),
            Err(error) => drop(state.failed.get_or_insert_with(|| error.clone())),
        }
        let (covered, waiting) = std::mem::take(&mut state.waiting)
            .into_iter()
            .partition(|ticket| state.failed.is_some() || ticket.upto <= state.stable);
        state.waiting = waiting;
        let next = state.waiting.pop();
        state.running = next.is_some();
        drop(state);
        if let Some(next) = next {
            next.wake(LEAD);
        }
        covered.into_iter().for_each(|ticket: Arc<Ticket>| ticket.wake(DONE));
    }

    /// All waits from now on fail with `error`.
    pub fn fail(&self, error: &Error) {
        self.state.lock().failed.get_or_insert_with(|| error.clone());
    }
}
