//! Replies to requests that wait for a lock: another thread makes the reply, and the thread of the entry sends it.

use crate::encode::Outcome;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;

#[derive(Debug, Default)]
pub(crate) struct LateReplies {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By the number of the request.
    made: HashMap<u64, Outcome>,
    /// The connection has ended.
    over: bool,
}

impl LateReplies {
    /// Passes a reply to the thread of the entry.
    pub(crate) fn make(&self, unique: u64, outcome: Outcome) {
        let mut state = self.state.lock();
        if !state.over {
            state.made.insert(unique, outcome);
            self.changed.notify_all();
        }
    }

    /// Waits for the reply to a request. `None` once the connection has ended.
    pub(crate) fn wait(&self, unique: u64) -> Option<Outcome> {
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = state.made.remove(&unique) {
                return Some(outcome);
            }
            if state.over {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// The connection has ended.
    pub(crate) fn end(&self) {
        self.state.lock().over = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::Failed;
    use rustix::io::Errno;

    #[test]
    fn a_reply_reaches_its_request_and_the_end_all_others() {
        let late = LateReplies::default();
        late.make(2, Ok(bytes::Bytes::new()));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| (late.wait(4), late.wait(6)));
            assert_eq!(late.wait(2), Some(Ok(bytes::Bytes::new())));
            late.make(4, Err(Failed(Errno::INTR)));
            late.end();
            assert!(matches!(waiting.join().unwrap(), (Some(Err(_)), None)));
        });
    }
}
