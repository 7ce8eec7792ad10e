//! A line in the log for requests that failed by a fault of this side, a second at most.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(1);

/// Failures since the last line.
#[derive(Debug, Default)]
pub(super) struct Failures {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    logged: Option<Instant>,
    silent: u64,
}

impl Failures {
    /// Logs a failure, or counts it if the last line is too recent. `what`: the request and its answer.
    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        if let Some(silent) = self.turn(Instant::now()) {
            match silent {
                0 => log::warn!("the S3 door: {}", what()),
                _ => log::warn!("the S3 door: {}; {silent} others since the last such line", what()),
            }
        }
    }

    /// How many failures had no line, if this one is to have one.
    fn turn(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.logged.is_some_and(|logged| now.duration_since(logged) < PAUSE) {
            state.silent += 1;
            return None;
        }
        state.logged = Some(now);
        Some(std::mem::take(&mut state.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_a_line_a_second() {
        let (failures, begin) = (Failures::default(), Instant::now());
        assert_eq!(failures.turn(begin), Some(0));
        assert_eq!(failures.turn(begin + PAUSE / 2), None);
        assert_eq!(failures.turn(begin + PAUSE), Some(1));
        assert_eq!(failures.turn(begin + PAUSE * 2), Some(0));
    }
}
