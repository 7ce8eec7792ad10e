//! Attempts of one change, until its outcome is known.

use crate::coordinator::Outcome;
use crate::coordinator::moving::{Closing, Role, parse_closing};
use hekate_proto::{Error, Result};

/// Attempts with an unknown outcome after which a change fails.
const UNKNOWN_MAX: u32 = 3;

/// The attempts of one change.
#[derive(Debug, Default)]
pub struct Attempts {
    unknown: u32,
}

impl Attempts {
    /// True if the outcome of an attempt is unknown: the caller may find its own record.
    pub fn are_unsure(&self) -> bool {
        self.unknown > 0
    }

    /// Records the outcome of an attempt. Returns true if the change was written. Otherwise the caller reads again and
    /// decides anew.
    ///
    /// # Errors
    /// That of the attempt; `Unavailable` if the outcome is unknown for the third time, or the records are being moved.
    pub fn is_written(&mut self, outcome: Result<Outcome>) -> Result<bool> {
        match outcome? {
            Outcome::Written => Ok(true),
            Outcome::Refused => Ok(false),
            Outcome::Closed { by } => Err(closed(&by)),
            Outcome::Unknown { why } => {
                self.unknown += 1;
                let what = || format!("the coordinator does not say whether it has made the change: {why}; repeat it");
                if self.unknown < UNKNOWN_MAX { Ok(false) } else { Err(Error::Unavailable { what: what() }) }
            }
        }
    }
}

/// The error for a store that is closed by this value.
pub fn closed(by: &str) -> Error {
    let what = match parse_closing(by) {
        Ok(Closing { role: Role::Moved, other, .. }) => {
            format!("the cluster's records have moved to {other}; ask a server")
        }
        Ok(Closing { other, .. }) => format!("the cluster's records are being moved ({other}); repeat it"),
        Err(error) => return error,
    };
    Error::Unavailable { what }
}
