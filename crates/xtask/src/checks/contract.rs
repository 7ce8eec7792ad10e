//! The contract, `docs/semantics.md`, names for each sentence a test that exists, or the issue that brings it; and so does the
//! page of limits, `docs/limits.md`.
//!
//! A test is named as "`FILE::NAME`", in back quotes anywhere in the text or after "Test:". FILE is a path from the
//! root of the repository or from `crates/`; `brick/journal.rs` also stands for `crates/brick/src/journal.rs`. NAME is
//! a `#[test]` in a .rs file, a function that pytest takes for a test (`test_...`) in a .py file, a function in a .sh file.

use crate::report::Offence;
use crate::tree::Tree;

const PAGES: [&str; 3] = ["docs/semantics.md", "docs/limits.md", "docs/security.md"];

pub fn check(tree: &Tree) -> Vec<Offence> {
    PAGES.into_iter().flat_map(|page| check_page(tree, page)).collect()
}

fn check_page(tree: &Tree, page: &str) -> Vec<Offence> {
    let Some(text) = tree.text(page) else {
        return vec![Offence::new(page, "is missing; it names the test of each of its sentences")];
    };
    let at = |(index, what): (usize, String)| Offence::at_line(page, index + 1, what);
    let lines = text.lines().enumerate();
    lines.flat_map(|(index, line)| offences_in(tree, line).into_iter().map(move |what| at((index, what)))).collect()
}

fn offences_in(tree: &Tree, line: &str) -> Vec<String> {
    let references: Vec<&str> = references(line).collect();
    let mut offences: Vec<String> = references.iter().filter_map(|reference| why_missing(tree, reference)).collect();
    if line.contains("Test:") && references.is_empty() {
        offences.push("names no test after \"Test:\"; write `FILE.rs::test_name`".to_string());
    }
    if let Some((_, issue)) = line.split_once("Comes with issue")
        && !issue.trim_start().starts_with(|c: char| c.is_ascii_digit())
    {
        offences.push("\"Comes with issue\" without a number; say which issue brings it".to_string());
    }
    offences
}

/// `FILE::NAME` in back quotes, and bare words of that form after "Test:".
fn references(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let bare = line.split_once("Test:").map(|(_, rest)| rest).unwrap_or_default();
    let bare = bare.split('`').step_by(2).flat_map(|text| text.split([' ', ',', ';']));
    let bare = bare.map(|word| word.trim_end_matches(['.', ')']));
    quoted.chain(bare).filter(|text| text.contains("::") && !text.contains(char::is_whitespace))
}

fn why_missing(tree: &Tree, reference: &str) -> Option<String> {
    let (file, name) = reference.rsplit_once("::")?;
    let Some(text) = find(tree, file) else {
        let form = "write the path from the root of the repository or from crates/";
        return Some(format!("names the test {reference}, but there is no file {file}; {form}"));
    };
    let there = match file.rsplit_once('.') {
        Some((_, "py")) => {
            name.starts_with("test_") && text.lines().any(|line| line.starts_with(&format!("def {name}(")))
        }
        Some((_, "sh")) => text.lines().any(|line| line.trim_start().starts_with(&format!("{name}()"))),
        _ => has_test(text, name),
    };
    (!there).then(|| format!("names the test {reference}, but {file} has no test of that name; correct or write it"))
}

fn find<'a>(tree: &'a Tree, file: &str) -> Option<&'a str> {
    let in_src = file.split_once('/').map(|(name, rest)| format!("crates/{name}/src/{rest}"));
    let candidates = [Some(file.to_string()), Some(format!("crates/{file}")), in_src];
    candidates.into_iter().flatten().find_map(|path| tree.text(&path))
}

/// Whether a line declares `fn name` with `#[test]` (or `#[some::test]`) among the attributes and comments above it.
/// On text and not on syntax, because tests also stand inside macros (`proptest!`).
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declared = |line: &str| {
        let rest = line.split_once("fn ").map(|(_, rest)| rest).and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    lines.iter().enumerate().filter(|(_, line)| declared(line)).any(|(index, _)| {
        let above = lines[..index].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.into_iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[") && line.contains("::test"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "#[test]\n/// Why.\nfn survives_a_kill() {}\n\nfn helper() {}\n";

    fn offences(line: &str) -> Vec<String> {
        let tree = Tree::of(&[
            (PAGES[0], line),
            (PAGES[1], ""),
            (PAGES[2], ""),
            ("crates/brick/src/journal.rs", TEST),
            ("crates/brick/tests/kill.rs", "proptest! {\n    #[test]\n    fn any(x in 0..9) {}\n}"),
            ("tests/e2e/posix.sh", "rename_is_atomic() {\n}"),
            ("tests/e2e/test_names.py", "def helper(store):\n    pass\n\n\ndef test_renames(store):\n    pass\n"),
        ]);
        check(&tree).into_iter().map(|offence| offence.to_string()).collect()
    }

    #[test]
    fn tests_that_exist_and_issues_with_a_number_are_fine() {
        for line in [
            "Test: crates/brick/src/journal.rs::survives_a_kill, `tests/e2e/posix.sh::rename_is_atomic`.",
            "Held by both (`brick/journal.rs::survives_a_kill`).",
            "Test: `brick/tests/kill.rs::any`",
            "Test: `tests/e2e/test_names.py::test_renames`.",
            "Comes with issue 7.",
            "Plain words about `write()`.",
        ] {
            assert!(offences(line).is_empty(), "{:?}", offences(line));
        }
    }

    #[test]
    fn a_name_without_a_test_is_an_offence() {
        for (line, complaint) in [
            ("Test: brick/journal.rs::gone", "has no test of that name"),
            ("Test: `brick/journal.rs::helper`", "has no test of that name"),
            ("Test: `tests/e2e/test_names.py::helper`", "has no test of that name"),
            ("`brick/gone.rs::x`", "there is no file brick/gone.rs"),
            ("Test: soon", "names no test"),
            ("Comes with issue soon", "without a number"),
        ] {
            let found = offences(line);
            assert!(found.len() == 1 && found[0].contains(complaint), "{line}: {found:?}");
        }
        assert!(check(&Tree::of(&[]))[0].what.starts_with("is missing"));
    }
}
