//! What a check returns: offences against a rule, notes that fail nothing, or the trouble that kept it from looking.

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
    /// Printed, but not counted as offences.
    pub notes: Vec<String>,
}

impl Report {
    /// A report of the offences in files that are not `unfinished`, and a note for each entry of that list whose files
    /// have no offence. `list` is its key in `tidy.toml`.
    pub fn except(offences: Vec<Offence>, list: &str, unfinished: &[String]) -> Report {
        let covers = |entry: &String, offence: &Offence| {
            let path = offence.place.split(':').next().unwrap_or_default();
            path.strip_prefix(entry.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let idle = unfinished.iter().filter(|entry| !offences.iter().any(|offence| covers(entry, offence)));
        let notes = idle.map(|entry| format!("{entry} is done; remove it from {list} in tidy.toml")).collect();
        let is_open = |offence: &Offence| !unfinished.iter().any(|entry| covers(entry, offence));
        Report { offences: offences.into_iter().filter(is_open).collect(), notes }
    }
}

impl From<Vec<Offence>> for Report {
    fn from(offences: Vec<Offence>) -> Report {
        Report { offences, notes: Vec::new() }
    }
}

/// Why a check could not run: a program is missing, or a file of settings does not parse.
#[derive(Debug)]
pub struct Trouble(pub String);

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

pub type Result<T> = std::result::Result<T, Trouble>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_files_are_left_out_and_finished_ones_noted() {
        let offences = ["docs/a.md:3", "docs/b.md:1", "crates/x/src/lib.rs:2", "crates/xtask/src/main.rs:1"];
        let offences = offences.map(|place| Offence::new(place, "is wrong")).to_vec();
        let unfinished = ["docs/a.md", "crates/x", "docs/c.md"].map(String::from);
        let report = Report::except(offences, "history", &unfinished);
        let places: Vec<&str> = report.offences.iter().map(|offence| offence.place.as_str()).collect();
        assert_eq!(places, ["docs/b.md:1", "crates/xtask/src/main.rs:1"]);
        assert_eq!(report.notes, ["docs/c.md is done; remove it from history in tidy.toml"]);
    }
}
