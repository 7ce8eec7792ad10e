//! No mark of unfinished work is left in the source: unfinished work belongs in an issue.
//!
//! The marks are put together here so that this file does not hold them.

use crate::report::Offence;
use crate::tree::Tree;

/// Found only as whole words: the row of X in a template for `mktemp` is not one.
const WORDS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const CALLS: [&str; 2] = [concat!("unimplemented", "!"), concat!("todo", "!(")];
const SOURCE: [&str; 8] = [".rs", ".py", ".sh", ".c", ".h", ".toml", ".js", "Makefile"];

pub fn check(tree: &Tree) -> Vec<Offence> {
    let sources = tree.texts().filter(|(path, text)| is_source(path, text));
    sources.flat_map(|(path, text)| offences_in(path, text)).collect()
}

fn is_source(path: &str, text: &str) -> bool {
    SOURCE.iter().any(|ending| path.ends_with(ending)) || text.starts_with("#!")
}

fn offences_in(path: &str, text: &str) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = WORDS.iter().filter(|word| has_word(line, word));
        for needle in words.chain(CALLS.iter().filter(|call| has_call(line, call))) {
            let what = format!("holds `{needle}`; finish it, or open an issue and remove the mark");
            offences.push(Offence::at_line(path, index + 1, what));
        }
    }
    offences
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(start, _)| {
        let touches = |neighbour: Option<char>| neighbour.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !touches(line[..start].chars().next_back()) && !touches(line[start + word.len()..].chars().next())
    })
}

fn has_call(line: &str, call: &str) -> bool {
    let inside_a_name = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    line.match_indices(call).any(|(start, _)| !inside_a_name(&line[..start]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_source_is_fine() {
        let template = format!("d=$(mktemp -d /tmp/x.{})", "X".repeat(6));
        let tree = Tree::of(&[("a.sh", &template), ("b.rs", "fn todo() {}"), ("notes.md", WORDS[0])]);
        assert!(check(&tree).is_empty());
    }

    #[test]
    fn every_mark_is_found_with_its_line() {
        for needle in WORDS.iter().chain(&CALLS) {
            let text = format!("fn f() {{\n    // {needle}: later\n}}");
            assert_eq!(check(&Tree::of(&[("a.rs", &text)]))[0].place, "a.rs:2", "{needle}");
        }
        let script = format!("#!/bin/sh\n# {}", WORDS[1]);
        assert_eq!(check(&Tree::of(&[(".ci/run", &script)])).len(), 1);
    }
}
