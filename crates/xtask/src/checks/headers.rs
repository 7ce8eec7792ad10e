//! Every source file of a crate begins with `//!`, which says what the file is for.

use crate::report::Offence;
use crate::tree::Tree;

pub fn check(tree: &Tree) -> Vec<Offence> {
    let sources = tree.crates().into_iter().flat_map(|name| tree.sources_of(name));
    sources.filter(|(_, text)| !states_its_purpose(text)).map(|(path, _)| Offence::at_line(path, 1, FIX)).collect()
}

const FIX: &str = "the first line is not `//! …`; say there what the file is for";

fn states_its_purpose(text: &str) -> bool {
    text.lines().next().and_then(|line| line.strip_prefix("//!")).is_some_and(|said| !said.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_states_its_purpose_is_accepted() {
        assert!(states_its_purpose("//! The journal.\n\nuse x;"));
    }

    #[test]
    fn a_bare_file_is_an_offence_in_src_only() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", "use x;\n//! Late."),
            ("crates/a/src/empty.rs", "//!\n"),
            ("crates/a/tests/all.rs", "use x;"),
        ]);
        let places: Vec<String> = check(&tree).into_iter().map(|offence| offence.place).collect();
        assert_eq!(places, ["crates/a/src/empty.rs:1", "crates/a/src/lib.rs:1"]);
    }
}
