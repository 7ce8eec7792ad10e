//! Comments of Rust source and pages in docs/ name no issue and no seed by its number: they give the rule that holds,
//! and the test that shows it. The number's story is in git. A hash's seed 0 is none of these.

use crate::comments::comments;
use crate::markdown;
use crate::report::Offence;
use crate::tree::Tree;

/// Words that are offences in front of a number.
const WORDS: [&str; 5] = ["issue", "issues", "seed", "narrow run", "rivals"];

/// The contract says so of a sentence that holds later; the check of the contract wants the number.
const PROMISE: &str = "Comes with issue";

pub fn check(tree: &Tree) -> Vec<Offence> {
    tree.texts().flat_map(|(path, text)| offences_in(path, text)).collect()
}

fn offences_in(path: &str, text: &str) -> Vec<Offence> {
    let lines: Vec<(usize, String)> = match path {
        _ if path.starts_with("crates/") && path.ends_with(".rs") => {
            comments(text).into_iter().map(|comment| (comment.line, comment.text)).collect()
        }
        _ if path.starts_with("docs/") && path.ends_with(".md") => {
            markdown::lines(text).into_iter().map(|(line, text)| (line, text.replace(PROMISE, ""))).collect()
        }
        _ => Vec::new(),
    };
    let mut offences = Vec::new();
    for (line, text) in lines {
        let fix = "give the rule that holds, and the test that shows it";
        let found = numbered(&text).map(|what| Offence::at_line(path, line, format!("names \"{what}\"; {fix}")));
        offences.extend(found);
    }
    offences
}

/// The first of [`WORDS`] with a number behind it, as it is written.
fn numbered(text: &str) -> Option<&str> {
    let words = WORDS.iter().flat_map(|word| {
        text.to_ascii_lowercase().match_indices(word).map(|(at, _)| (at, word.len())).collect::<Vec<_>>()
    });
    words
        .filter_map(|(at, bytes)| {
            let begins = !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let number = text[at + bytes..].strip_prefix(' ')?;
            let digits = number.len() - number.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            (begins && digits > 0 && &number[..digits] != "0").then(|| &text[at..at + bytes + 1 + digits])
        })
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|offence| offence.to_string()).collect()
    }

    #[test]
    fn a_number_of_an_issue_or_seed_is_an_offence() {
        for (path, text, expected) in [
            ("crates/a/src/lib.rs", "/// Seed 7352: an older copy\n/// is refused.\n", "lib.rs:1: names \"Seed 7352\""),
            ("crates/a/src/lib.rs", "fn f() {} // as in issue 7\n", "names \"issue 7\""),
            ("docs/simulator.md", "It failed\nin narrow run 1765.\n", "simulator.md:2: names \"narrow run 1765\""),
        ] {
            let found = offences(path, text);
            assert!(found.len() == 1 && found[0].contains(expected), "{text}: {found:?}");
        }
    }

    #[test]
    fn other_numbers_and_code_are_fine() {
        for (path, text) in [
            (
                "crates/a/src/lib.rs",
                "/// The same seed gives the same run; reseed 5 times.\nconst A: &str = \"seed 5\";\n",
            ),
            ("docs/semantics.md", "Comes with issue 7. XXH3-64 (seed 0).\n```\nHEKATE_SEED=7 seed 7\n```\n"),
            ("README.md", "issue 7"),
        ] {
            assert!(offences(path, text).is_empty(), "{:?}", offences(path, text));
        }
    }
}
