//! Log lines about peers that are refused, at most one a second: a peer that is refused may try again at once.

use hekate_threads::{Mutex, elapsed, now};
use std::time::{Duration, Instant};

/// Shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Logs refusals, at most one a second, and how many it left out.
#[derive(Default)]
pub struct RefusalLog(Mutex<State>);

#[derive(Default)]
struct State {
    last: Option<Instant>,
    left_out: u64,
}

impl RefusalLog {
    /// Logs this refusal, unless the last line is less than a second old.
    pub fn add(&self, refusal: impl FnOnce() -> String) {
        if let Some(others) = self.turn() {
            log::warn!("{}{others}", refusal());
        }
    }

    /// Returns what to add to a line that is logged now; `None` if none is.
    fn turn(&self) -> Option<String> {
        let mut state = self.0.lock();
        if state.last.is_some_and(|last| elapsed(last) < PAUSE) {
            state.left_out += 1;
            return None;
        }
        state.last = Some(now());
        match std::mem::take(&mut state.left_out) {
            0 => Some(String::new()),
            count => Some(format!(" ({count} more since the last line)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_second_counts_those_that_have_none() {
        let refusals = RefusalLog::default();
        assert_eq!(refusals.turn().as_deref(), Some(""));
        assert_eq!([refusals.turn(), refusals.turn()], [None, None]);
        let past = |log: &RefusalLog| log.0.lock().last = now().checked_sub(PAUSE);
        past(&refusals);
        assert_eq!(refusals.turn().as_deref(), Some(" (2 more since the last line)"));
        assert_eq!(refusals.turn(), None);
        past(&refusals);
        assert_eq!(refusals.turn().as_deref(), Some(" (1 more since the last line)"));
        past(&refusals);
        assert_eq!(refusals.turn().as_deref(), Some(""));
    }
}
