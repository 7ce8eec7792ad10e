//! Checkers. Each is a pure function from the result of a run (a history, or the content of bricks) to complaints as
//! text.
//!
//! No complaint means that the rules in the checker's module comment hold. Checkers are deterministic: the same input
//! yields the same complaints in the same order.

pub mod acknowledged;
pub mod appends;
pub mod attributes;
pub mod contents;
pub mod disks;
pub mod linearize;
pub mod locks;
pub mod names;
pub mod objects;
pub mod replicas;
pub mod space;
mod windows;
pub mod xattrs;

use crate::history::{self, History};
use linearize::Stuck;
use std::fmt;

/// Calls shown from the end of the longest order that was found.
const PLACED_SHOWN: usize = 20;

/// One broken rule, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// The file, directory or partition concerned.
    pub about: String,
    /// The broken rule, and the call or value that breaks it.
    pub what: String,
}

impl Complaint {
    /// The complaint of a search that found no order of the calls.
    fn stuck(about: impl Into<String>, history: &History, stuck: &Stuck) -> Self {
        let lines = |calls: &[history::CallNumber]| -> String {
            calls.iter().map(|call| format!("\n    {}", history.describe(*call))).collect()
        };
        let mut what = match (&stuck.next, stuck.gave_up) {
            (Some((call, why)), false) => {
                format!("no order of the calls gives this answer ({why}):\n    {}", history.describe(*call))
            }
            _ => "the search for an order of the calls gave up; make the run shorter".into(),
        };
        let recent = stuck.placed.len().saturating_sub(PLACED_SHOWN);
        what +=
            &format!("\n  after {} calls, of which the last:{}", stuck.placed.len(), lines(&stuck.placed[recent..]));
        what += &format!("\n  these overlap it and were not placed:{}", lines(&stuck.open));
        Self::new(about, what)
    }

    /// A complaint about `about`.
    pub fn new(about: impl Into<String>, what: impl Into<String>) -> Self {
        Self { about: about.into(), what: what.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.what)
    }
}

#[cfg(test)]
pub(crate) mod scenario;
