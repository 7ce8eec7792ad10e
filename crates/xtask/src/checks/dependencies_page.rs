//! Every foreign dependency has its row in `docs/dependencies.md`, and every row there has its dependency.
//!
//! A row is a line of a table that begins with the package's name in back quotes: "| `bytes` | … |".

use std::collections::BTreeSet;

use super::manifests;
use crate::report::{Offence, Result};
use crate::tree::Tree;

const PAGE: &str = "docs/dependencies.md";

pub fn check(tree: &Tree) -> Result<Vec<Offence>> {
    let text = tree.text(PAGE).unwrap_or_default();
    let rows: BTreeSet<&str> = text.lines().filter_map(row_name).collect();
    let used = manifests::dependencies(tree)?.into_iter().filter(|dependency| !dependency.ours);
    let used: BTreeSet<String> = used.map(|it| it.package).chain(manifests::shared_foreign(tree)?).collect();
    let missing = used.iter().filter(|name| !rows.contains(name.as_str())).map(|name| {
        let columns = "what for | why this one | what we would do without it";
        Offence::new(PAGE, format!("has no row for {name}; add \"| `{name}` | {columns} |\""))
    });
    let stale = rows
        .iter()
        .filter(|name| !used.contains(**name))
        .map(|name| Offence::new(PAGE, format!("has a row for {name}, which no Cargo.toml names; remove the row")));
    Ok(missing.chain(stale).collect())
}

fn row_name(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("| `")?.split_once('`')?;
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(page: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace.dependencies]\nbytes = '1'\nhekate-a = { path = 'crates/a' }"),
            ("crates/a/Cargo.toml", "[dependencies]\nbytes.workspace = true\n[dev-dependencies]\nsyn = '3'"),
            (PAGE, page),
        ]);
        check(&tree).unwrap().into_iter().map(|offence| offence.what).collect()
    }

    #[test]
    fn a_row_for_each_is_fine() {
        assert!(offences("| name | for |\n|---|---|\n| `bytes` | x |\n| `syn` | y |\n").is_empty());
    }

    #[test]
    fn missing_and_stale_rows_are_offences() {
        let found = offences("mentions `syn` in passing\n| `bytes` | x |\n| `rand` | y |\n");
        assert!(found[0].starts_with("has no row for syn"), "{found:?}");
        assert!(found[1].starts_with("has a row for rand"), "{found:?}");
    }
}
