//! `cargo xtask tidy`: runs the checks in order and prints their reports.

use std::path::Path;

use crate::checks::{contract, dependencies_page, file_names, fillers, formats, headers, history, invariants, layers};
use crate::checks::{leftovers, length, links, long_lines, messages, modules, policy, purity};
use crate::report::{Report, Result, Trouble};
use crate::settings::{self, Settings};
use crate::tree::{self, Tree};

/// The input of a check.
pub struct Repository {
    pub tree: Tree,
    pub settings: Settings,
}

type Check = fn(&Repository) -> Result<Report>;

/// A check and the rule that holds if it reports nothing.
pub const CHECKS: &[(&str, Check)] = &[
    ("dependencies point down the list in tidy.toml", |r| layers::check(&r.tree, &r.settings).map(Report::from)),
    ("pure crates stay pure", |r| Ok(purity::check(&r.tree, &r.settings.purity).into())),
    ("every source file begins with //!", |r| Ok(headers::check(&r.tree).into())),
    ("format documents match their source", |r| Ok(formats::check(&r.tree).into())),
    ("each invariant of a format is held and tested", |r| Ok(invariants::check(&r.tree).into())),
    ("nothing is left open in the source", |r| Ok(leftovers::check(&r.tree).into())),
    ("no dead source files", |r| Ok(modules::check(&r.tree).into())),
    ("files and functions are short, or say why not", |r| Ok(length::check(&r.tree, &r.settings))),
    ("every dependency has its line in docs/dependencies.md", |r| dependencies_page::check(&r.tree).map(Report::from)),
    ("the contract names tests that exist", |r| Ok(contract::check(&r.tree).into())),
    ("replication.md has each message, and each rule that is asserted", |r| Ok(messages::check(&r.tree).into())),
    ("links in *.md lead somewhere", |r| Ok(links::check(&r.tree).into())),
    ("files that pages name are there", |r| {
        Ok(Report::except(file_names::check(&r.tree), "file_names", &r.settings.unfinished.file_names))
    }),
    ("lines of *.md have at most 120 characters", |r| {
        Ok(Report::except(long_lines::check(&r.tree), "long_lines", &r.settings.unfinished.long_lines))
    }),
    ("no comment is a filler", |r| {
        Ok(Report::except(fillers::check(&r.tree), "fillers", &r.settings.unfinished.fillers))
    }),
    ("comments and docs name no issue or seed by number", |r| {
        Ok(Report::except(history::check(&r.tree), "history", &r.settings.unfinished.history))
    }),
    ("licences, bans and sources obey deny.toml", |r| policy::check(&r.tree, &tree::root()).map(Report::from)),
];

pub fn open(root: &Path) -> Result<Repository> {
    let tree = Tree::load(root)?;
    let settings = settings::read(&tree)?;
    Ok(Repository { tree, settings })
}

/// Prints each check's outcome; true if there was no offence.
///
/// # Errors
///
/// A file of settings is missing or does not parse, or git does not list the files.
pub fn run() -> Result<bool> {
    let repository = open(&tree::root())?;
    let mut count = 0;
    for (rule, check) in CHECKS {
        let Report { offences, notes } = check(&repository)?;
        println!("{} {rule}", if offences.is_empty() { "ok  " } else { "FAIL" });
        offences.iter().for_each(|offence| println!("       {offence}"));
        notes.iter().for_each(|note| println!("       (note) {note}"));
        count += offences.len();
    }
    match count {
        0 => println!("tidy: no offences"),
        1 => println!("tidy: 1 offence"),
        _ => println!("tidy: {count} offences"),
    }
    Ok(count == 0)
}

/// Writes the current hashes into docs/format/*.md; to be run after the documents were reread.
///
/// # Errors
///
/// Git does not list the files, or a document cannot be written.
pub fn bless() -> Result<()> {
    let root = tree::root();
    for (path, text) in formats::blessed(&Tree::load(&root)?) {
        std::fs::write(root.join(&path), text).map_err(|error| Trouble(format!("cannot write {path}: {error}")))?;
        println!("blessed {path}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let repository = open(&tree::root()).unwrap();
        let offences: Vec<String> = CHECKS
            .iter()
            .flat_map(|(rule, check)| {
                let report = check(&repository).unwrap();
                report.offences.into_iter().map(move |offence| format!("{rule}: {offence}"))
            })
            .collect();
        assert!(offences.is_empty(), "cargo xtask tidy finds:\n{}", offences.join("\n"));
    }
}
