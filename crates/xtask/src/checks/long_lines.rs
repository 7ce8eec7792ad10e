//! Lines of *.md have at most 120 characters, so that pages read well in a terminal and changes of them in a diff.
//! Rows of tables, code blocks, the line with a document's sources, and words that are longer themselves may exceed it.
//! Past measurements are kept as they were written.

use crate::markdown;
use crate::report::Offence;
use crate::tree::Tree;

const CHARACTERS_MAX: usize = 120;
const PAST: &str = "bench/history/";

pub fn check(tree: &Tree) -> Vec<Offence> {
    let pages = tree.texts().filter(|(path, _)| path.ends_with(".md") && !path.starts_with(PAST));
    pages.flat_map(|(path, text)| offences_in(path, text)).collect()
}

fn offences_in(path: &str, text: &str) -> Vec<Offence> {
    let long = markdown::lines(text).into_iter().filter(|(_, line)| is_too_long(line));
    let what = |line: &str| format!("has {} characters; break it before {CHARACTERS_MAX}", line.chars().count());
    long.map(|(number, line)| Offence::at_line(path, number, what(line))).collect()
}

fn is_too_long(line: &str) -> bool {
    let is_free = line.trim_start().starts_with('|') || line.starts_with("<!-- source");
    line.chars().count() > CHARACTERS_MAX && !is_free && can_be_broken(line)
}

/// True if there is a space behind the mark of a list or quotation.
fn can_be_broken(line: &str) -> bool {
    let text = line
        .trim_start()
        .trim_start_matches(['-', '*', '>', '#', '.'])
        .trim_start_matches(|c: char| c.is_ascii_digit());
    text.trim_start_matches(['.', ')']).trim().contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Vec<String> {
        check(&Tree::of(&[("a.md", text)])).into_iter().map(|offence| offence.place).collect()
    }

    #[test]
    fn a_line_that_can_be_broken_is_short() {
        let words = "word ".repeat(24);
        assert!(places(words.trim_end()).is_empty());
        assert_eq!(places(&format!("short\n{words}and more\n- {words}")), ["a.md:2", "a.md:3"]);
    }

    #[test]
    fn tables_code_sources_and_long_words_are_free() {
        let words = "word ".repeat(30);
        let link = format!("- [page](https://example.org/{})", "x".repeat(120));
        for text in [format!("| {words} |"), format!("```\n{words}\n```"), format!("<!-- source: {words} -->"), link] {
            assert!(places(&text).is_empty(), "{text}");
        }
    }
}
