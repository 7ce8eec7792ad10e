//! Checkers: each is pure, takes what a run left (a history, or what bricks hold) and answers complaints in words.
//!
//! No complaint means that the rules of the checker's first lines hold. All are deterministic: the same input gives the
//! same complaints in the same order.

pub mod acknowledged;
pub mod appends;
pub mod attributes;
pub mod contents;
pub mod linearize;
pub mod locks;
pub mod names;
pub mod replicas;
pub mod space;
mod windows;
pub mod xattrs;

use crate::history::{self, History};
use linearize::Stuck;
use std::fmt;

/// Of the longest order that was found, so many of its last calls are shown.
const PLACED_SHOWN: usize = 20;

/// What is wrong, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// What it is about: a file, a directory, a partition.
    pub about: String,
    /// Which rule is broken, and by what.
    pub what: String,
}

impl Complaint {
    /// What a search for an order of calls could not get past.
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

    /// In words.
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
