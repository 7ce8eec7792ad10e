//! Every source file of a crate is reached by a `mod` declaration; a file that is not is never compiled.

use crate::report::Offence;
use crate::rust;
use crate::tree::Tree;

pub fn check(tree: &Tree) -> Vec<Offence> {
    tree.crates().into_iter().flat_map(|name| offences_in(tree, name)).collect()
}

fn offences_in(tree: &Tree, name: &str) -> Vec<Offence> {
    let modules = rust::modules(tree, name);
    let dead = tree.sources_of(name).filter(|(path, _)| !modules.reached.contains_key(*path));
    let dead =
        dead.map(|(path, _)| Offence::new(path, "no `mod` declaration leads here; declare it or remove the file"));
    let unparsed = modules.unparsed.iter().map(|(path, error)| Offence::new(path, format!("does not parse: {error}")));
    dead.chain(unparsed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declared_file_is_fine_and_another_is_dead() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", "mod live;"),
            ("crates/a/src/live.rs", ""),
            ("crates/a/src/dead.rs", ""),
        ]);
        let places: Vec<String> = check(&tree).into_iter().map(|offence| offence.place).collect();
        assert_eq!(places, ["crates/a/src/dead.rs"]);
    }
}
