//! `cargo xtask tidy`: runs the checks in order and prints what they say.

use std::path::Path;

use crate::checks::{contract, dependencies_page, formats, headers, invariants, layers, leftovers, length, links};
use crate::checks::{messages, modules, policy, purity};
use crate::report::{Report, Result, Trouble};
use crate::settings::{self, Settings};
use crate::tree::{self, Tree};

/// What a check may look at.
pub struct Repository {
    pub tree: Tree,
    pub settings: Settings,
}

type Check = fn(&Repository) -> Result<Report>;

/// One line a check; the text is what holds when it is silent.
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
    ("licences, bans and sources obey deny.toml", |r| policy::check(&r.tree, &tree::root()).map(Report::from)),
];

pub fn open(root: &Path) -> Result<Repository> {
    let tree = Tree::load(root)?;
    let settings = settings::read(&tree)?;
    Ok(Repository { tree, settings })
}

/// Prints every check's outcome; true if there was no offence.
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

/// Writes the hashes that docs/format/*.md should carry. Bless only after rereading the document.
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
