//! Files that pages name in back quotes are there: `replica/ops/rename.rs`, `tests/e2e/run.sh`, `view.rs::open`.
//!
//! A path is given from the root of the repository, from `crates/`, from a crate's folder or its `src` (with or without
//! the crate's name before it), or from the folder of the page. A bare name is that of any file.

use crate::markdown;
use crate::report::Offence;
use crate::rust::{join, split};
use crate::tree::Tree;

/// Endings of files that are in the repository; others, such as `brick.toml`, may be files of a running store.
const ENDINGS: [&str; 4] = [".rs", ".py", ".sh", ".md"];

pub fn check(tree: &Tree) -> Vec<Offence> {
    let pages = tree.texts().filter(|(path, _)| path.ends_with(".md") && is_about_the_repository(path));
    pages.flat_map(|(path, text)| offences_in(tree, path, text)).collect()
}

fn is_about_the_repository(path: &str) -> bool {
    path.starts_with("docs/") || !path.contains('/')
}

fn offences_in(tree: &Tree, page: &str, text: &str) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (line, text) in markdown::lines(text) {
        let missing = markdown::code_spans(text).filter_map(file_named).filter(|file| !is_there(tree, page, file));
        let fix = "give the path from the root, from crates/ or from a crate's src";
        offences.extend(missing.map(|file| Offence::at_line(page, line, format!("there is no file {file}; {fix}"))));
    }
    offences
}

/// The file of a code span, without the item behind `::`; none if the span is something else.
fn file_named(span: &str) -> Option<&str> {
    let file = span.split("::").next().unwrap_or(span);
    let is_path = file.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'));
    let is_name = |rest: &str| !rest.is_empty() && !rest.ends_with('/');
    let is_source = ENDINGS.iter().any(|ending| file.strip_suffix(ending).is_some_and(is_name));
    (is_path && is_source && !file.starts_with('/')).then_some(file)
}

fn is_there(tree: &Tree, page: &str, file: &str) -> bool {
    let in_named_src = file.split_once('/').map(|(name, rest)| format!("crates/{name}/src/{rest}"));
    let in_crate = |name: &str| [format!("crates/{name}/{file}"), format!("crates/{name}/src/{file}")];
    let in_any_crate = tree.crates().into_iter().flat_map(in_crate);
    let candidates = [file.to_string(), format!("crates/{file}"), join(split(page).0, file)];
    let mut candidates = candidates.into_iter().chain(in_named_src).chain(in_any_crate);
    let is_bare = !file.contains('/');
    candidates.any(|path| tree.text(&path).is_some()) || is_bare && tree.texts().any(|(path, _)| split(path).1 == file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("docs/page.md", text),
            ("docs/adr/0001.md", ""),
            ("crates/replica/Cargo.toml", ""),
            ("crates/replica/src/ops/rename.rs", ""),
            ("crates/replica/tests/all.rs", ""),
            ("tests/e2e/run.sh", ""),
            ("tests/e2e/README.md", "`gone.rs`"),
        ]);
        check(&tree).into_iter().map(|offence| offence.to_string()).collect()
    }

    #[test]
    fn a_file_is_found_from_each_place_that_a_path_may_begin_at() {
        for text in [
            "`tests/e2e/run.sh`",
            "`crates/replica/src/ops/rename.rs`, `replica/src/ops/rename.rs`, `replica/ops/rename.rs`, `ops/rename.rs`",
            "`rename.rs::Rename::begin`, `replica/tests/all.rs::works`, `tests/all.rs`, `adr/0001.md`, `page.md`",
            "`brick.toml`, `FILE.rs gone`, `x{a,b}.rs`, `*.md`, `.rs`, `/etc/x.sh`\n```\n`gone.rs`\n```",
        ] {
            assert!(offences(text).is_empty(), "{:?}", offences(text));
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_an_offence() {
        for (text, file) in [
            ("see\n`replica/rename.rs`", "docs/page.md:2: there is no file replica/rename.rs"),
            ("`gone.rs::f`", "there is no file gone.rs"),
            ("`tests/run.sh`", "there is no file tests/run.sh"),
        ] {
            let found = offences(text);
            assert!(found.len() == 1 && found[0].contains(file), "{text}: {found:?}");
        }
    }
}
