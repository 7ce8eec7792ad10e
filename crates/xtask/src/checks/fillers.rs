//! No comment of Rust source is a filler: a text that says nothing which the name beside it does not say.

use crate::comments::comments;
use crate::report::Offence;
use crate::tree::Tree;

/// Whole texts, in lower case and without the full stop.
const FILLERS: &[&str] = &[
    "see the module",
    "see the design",
    "see above",
    "see below",
    "see there",
    "so",
    "and so",
    "the same",
    "likewise",
    "which",
    "whose",
    "who",
    "what",
    "when",
    "where",
    "how many",
    "how much",
    "how long",
    "with what",
    "in words",
    "never",
    "nothing",
    "undoes it",
    "added up",
    "it does not",
    "when it begins",
    "where it begins",
    "as it is",
    "as it is now",
    "all of it",
    "all of them",
    "all three",
    "all that were made",
    "all that it lists",
    "what is there",
    "what changes",
    "what it says",
    "what it is",
    "what is wrong",
    "where in it",
    "where it leads",
    "who answers",
    "who asked",
    "who asks",
    "and these no more",
];

/// A text of at most three words that begins so says only that there is one: "Of which ring.", "Which op.".
const BEGINNINGS: [&str; 6] = ["which ", "of which ", "on which ", "in which ", "with which ", "to which "];
const WORDS_MAX: usize = 3;

pub fn check(tree: &Tree) -> Vec<Offence> {
    let sources = tree.texts().filter(|(path, _)| path.starts_with("crates/") && path.ends_with(".rs"));
    sources.flat_map(|(path, text)| offences_in(path, text)).collect()
}

fn offences_in(path: &str, text: &str) -> Vec<Offence> {
    let fillers = comments(text).into_iter().filter(|comment| is_filler(&comment.text));
    let fix = "say what the name does not say (unit, range, who may change it), or delete the comment";
    fillers.map(|comment| Offence::at_line(path, comment.line, format!("\"{}\"; {fix}", comment.text))).collect()
}

fn is_filler(text: &str) -> bool {
    let text = text.trim_end_matches(['.', ':', ',']).to_lowercase();
    let is_short_question =
        BEGINNINGS.iter().any(|begin| text.starts_with(begin)) && text.split_whitespace().count() <= WORDS_MAX;
    FILLERS.contains(&text.as_str()) || is_short_question
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(source: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/a/src/lib.rs", source), ("docs/a.rs", "// So.\n")]);
        check(&tree).into_iter().map(|offence| offence.place).collect()
    }

    #[test]
    fn a_comment_that_says_nothing_is_an_offence() {
        let source = "/// See the module.\nstruct A {\n    /// Of which ring.\n    ring: u8, // the same\n}\n";
        assert_eq!(places(source), [1, 3, 4].map(|line| format!("crates/a/src/lib.rs:{line}")));
    }

    #[test]
    fn a_comment_that_says_something_is_fine() {
        let source = "/// So.\n/// It goes on.\nfn a() {}\n/// Which of the two replicas leads.\nfn b() {}\n\
                      /// Index of the record, from 1.\nconst C: &str = \"// So.\";\n";
        assert!(places(source).is_empty(), "{:?}", places(source));
    }
}
