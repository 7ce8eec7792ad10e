//! Each numbered invariant of a format document is named where the code holds it, and has a test that violates it and
//! bears its name.
//!
//! `docs/format/PAGE.md` lists them under `## Invariants`; the code says `PAGE invariant N`, a test is called
//! `PAGE_invariant_N_…`. A number that code or tests name and no document lists is an offence too.

use std::collections::BTreeSet;

use crate::report::Offence;
use crate::tree::Tree;

const PAGES: [&str; 4] = ["brick", "journal", "index", "data"];
const SOURCES: &str = "crates/brick/src/";

pub fn check(tree: &Tree) -> Vec<Offence> {
    PAGES.iter().flat_map(|page| offences(tree, page)).collect()
}

fn offences(tree: &Tree, page: &str) -> Vec<Offence> {
    let document = format!("docs/format/{page}.md");
    let Some((_, text)) = tree.texts().find(|(path, _)| *path == document) else { return Vec::new() };
    let listed = numbers_listed(text);
    let (held, tested) =
        (numbers_named(tree, &format!("{page} invariant ")), numbers_named(tree, &format!("{page}_invariant_")));
    let mut offences = Vec::new();
    let mut say = |text: String| offences.push(Offence::new(document.clone(), text));
    for number in &listed {
        if !held.contains(number) {
            say(format!("nothing in {SOURCES} holds \"{page} invariant {number}\""));
        }
        if !tested.contains(number) {
            say(format!("no test in {SOURCES} is called {page}_invariant_{number}_…"));
        }
    }
    for number in held.union(&tested).filter(|number| !listed.contains(number)) {
        say(format!("{SOURCES} names {page} invariant {number}, which is not listed"));
    }
    offences
}

/// `1. `, `2. ` … at the beginning of lines under the heading.
fn numbers_listed(text: &str) -> BTreeSet<u32> {
    let lines = text.lines().skip_while(|line| *line != "## Invariants").skip(1);
    let section = lines.take_while(|line| !line.starts_with("## "));
    section.filter_map(|line| line.split_once(". ")?.0.parse().ok()).collect()
}

/// The numbers that follow `prefix` anywhere in the sources.
fn numbers_named(tree: &Tree, prefix: &str) -> BTreeSet<u32> {
    let sources = tree.texts().filter(|(path, _)| path.starts_with(SOURCES));
    let named = sources.flat_map(|(_, text)| text.match_indices(prefix).map(|(at, _)| &text[at + prefix.len()..]));
    named.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_their_section() {
        let text = "1. no\n## Invariants\nwords\n1. one\n2. two\n   more\n10. ten\n## Next\n3. no\n";
        assert_eq!(numbers_listed(text), BTreeSet::from([1, 2, 10]));
    }
}
