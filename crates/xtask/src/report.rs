//! What a check says: offences against a rule, notes that fail nothing, and trouble that kept it from looking.

use std::fmt;

/// One breach of one rule: where, what is wrong, and the fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offence {
    /// A path in the repository, with `:line` where a line is to blame.
    pub place: String,
    pub what: String,
}

impl Offence {
    pub fn new(place: impl Into<String>, what: impl Into<String>) -> Offence {
        Offence { place: place.into(), what: what.into() }
    }

    pub fn at_line(path: &str, line: usize, what: impl Into<String>) -> Offence {
        Offence::new(format!("{path}:{line}"), what)
    }
}

impl fmt::Display for Offence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, self.what)
    }
}

/// The answer of one check.
#[derive(Debug, Default)]
pub struct Report {
    pub offences: Vec<Offence>,
    /// Printed for the reader; they fail nothing.
    pub notes: Vec<String>,
}

impl From<Vec<Offence>> for Report {
    fn from(offences: Vec<Offence>) -> Report {
        Report { offences, notes: Vec::new() }
    }
}

/// Why a check could not look at all: a program is missing, a file of settings does not parse.
#[derive(Debug)]
pub struct Trouble(pub String);

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

pub type Result<T> = std::result::Result<T, Trouble>;
