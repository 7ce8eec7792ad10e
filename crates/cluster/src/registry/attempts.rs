//! Attempts of one change, until its outcome is known.

use crate::coordinator::Outcome;
use hekate_proto::{Error, Result};

/// Attempts with an unknown outcome after which a change fails.
const UNKNOWN_MAX: u32 = 3;

/// The attempts of one change.
#[derive(Debug, Default)]
pub struct Attempts {
    unknown: u32,
}

impl Attempts {
    /// True if an attempt was made whose outcome is unknown: what is found may be its own.
    pub fn are_unsure(&self) -> bool {
        self.unknown > 0
    }

    /// Takes the outcome of an attempt. True if it was written; if not the caller reads again.
    ///
    /// # Errors
    /// That of the attempt; `Unavailable` if the outcome is unknown for the third time.
    pub fn is_written(&mut self, outcome: Result<Outcome>) -> Result<bool> {
        match outcome? {
            Outcome::Written => Ok(true),
            Outcome::Refused => Ok(false),
            Outcome::Unknown { why } => {
                self.unknown += 1;
                let what = || format!("the coordinator does not say whether it has made the change: {why}");
                if self.unknown < UNKNOWN_MAX { Ok(false) } else { Err(Error::Unavailable { what: what() }) }
            }
        }
    }
}
