//! Threads that a test waits for.

use hekate_threads::{Condvar, Mutex, spawn};
use std::sync::Arc;

/// Threads that were started together.
#[derive(Default)]
pub struct Tasks(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    running: usize,
    have_panicked: bool,
}

/// Counts a thread as ended, also after a panic.
struct Running {
    shared: Arc<Shared>,
    has_returned: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.running -= 1;
        state.have_panicked |= !self.has_returned;
        drop(state);
        self.shared.ended.notify_all();
    }
}

impl Tasks {
    /// Starts a thread.
    pub fn spawn(&self, body: impl FnOnce() + Send + 'static) {
        self.0.state.lock().running += 1;
        let running = Running { shared: self.0.clone(), has_returned: false };
        spawn("suite", move || {
            // The closure owns `running`, which is dropped when the thread ends.
            let mut running = running;
            body();
            running.has_returned = true;
        })
        .unwrap();
    }

    /// Waits until all threads have ended.
    ///
    /// # Panics
    /// If one of them has panicked.
    pub fn join(&self) {
        let mut state = self.0.state.lock();
        while state.running > 0 {
            self.0.ended.wait(&mut state);
        }
        assert!(!state.have_panicked, "a thread of the suite has failed");
    }
}
