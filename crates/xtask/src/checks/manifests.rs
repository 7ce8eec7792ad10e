//! The dependencies that the manifests of the workspace declare, whatever their kind or platform.

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::report::{Result, Trouble};
use crate::tree::Tree;

/// One line of a `dependencies` table of a crate.
#[derive(Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The crate that asks: its folder under `crates/`.
    pub of: String,
    /// The package asked for, by its true name.
    pub package: String,
    /// True if it is a path: a crate of this repository.
    pub ours: bool,
}

/// Every dependency of every crate under `crates/`, dev- and build-dependencies included.
///
/// # Errors
///
/// A manifest is missing or does not parse.
pub fn dependencies(tree: &Tree) -> Result<Vec<Dependency>> {
    let shared = workspace(tree)?;
    let mut found = Vec::new();
    for name in tree.crates() {
        let manifest = parse(tree, &manifest_of(name))?;
        for table in dependency_tables(&manifest) {
            for (key, value) in table {
                let inherited = value.get("workspace").and_then(Value::as_bool) == Some(true);
                let declared = if inherited { shared.get(key).unwrap_or(value) } else { value };
                found.push(Dependency {
                    of: name.to_string(),
                    package: package(key, declared),
                    ours: is_path(declared),
                });
            }
        }
    }
    Ok(found)
}

/// The packages in `[workspace.dependencies]` that are not paths.
///
/// # Errors
///
/// The manifest of the workspace is missing or does not parse.
pub fn shared_foreign(tree: &Tree) -> Result<Vec<String>> {
    let shared = workspace(tree)?;
    Ok(shared.iter().filter(|(_, value)| !is_path(value)).map(|(key, value)| package(key, value)).collect())
}

/// Package name -> folder under `crates/`.
///
/// # Errors
///
/// A manifest is missing or does not parse.
pub fn folders(tree: &Tree) -> Result<BTreeMap<String, String>> {
    let mut folders = BTreeMap::new();
    for folder in tree.crates() {
        let manifest = parse(tree, &manifest_of(folder))?;
        let name = manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
        folders.insert(name.unwrap_or(folder).to_string(), folder.to_string());
    }
    Ok(folders)
}

pub fn manifest_of(folder: &str) -> String {
    format!("crates/{folder}/Cargo.toml")
}

fn workspace(tree: &Tree) -> Result<Table> {
    let manifest = parse(tree, "Cargo.toml")?;
    let shared =
        manifest.get("workspace").and_then(|workspace| workspace.get("dependencies")).and_then(Value::as_table);
    Ok(shared.cloned().unwrap_or_default())
}

fn dependency_tables(manifest: &Table) -> Vec<&Table> {
    let platforms = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let scopes = platforms.filter_map(Value::as_table).chain([manifest]);
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    scopes.flat_map(|scope| kinds.iter().filter_map(|kind| scope.get(*kind)?.as_table())).collect()
}

fn package(key: &str, value: &Value) -> String {
    value.get("package").and_then(Value::as_str).unwrap_or(key).to_string()
}

fn is_path(value: &Value) -> bool {
    value.get("path").is_some()
}

fn parse(tree: &Tree, path: &str) -> Result<Table> {
    let text = tree.text(path).ok_or_else(|| Trouble(format!("{path} is missing")))?;
    toml::from_str(text).map_err(|error| Trouble(format!("{path}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_inheritance_kinds_and_platforms_are_seen() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace.dependencies]\nours = { path = 'crates/b', package = 'hekate-b' }\nbytes = '1'"),
            (
                "crates/a/Cargo.toml",
                "[package]\nname = 'hekate-a'\n[dependencies]\nours.workspace = true\n[dev-dependencies]\nx = '1'
                 [target.'cfg(unix)'.build-dependencies]\ny = { package = 'z', version = '1' }",
            ),
        ]);
        let mut found: Vec<(String, bool)> =
            dependencies(&tree).unwrap().into_iter().map(|dependency| (dependency.package, dependency.ours)).collect();
        found.sort();
        assert_eq!(found, [("hekate-b".to_string(), true), ("x".to_string(), false), ("z".to_string(), false)]);
        assert_eq!(shared_foreign(&tree).unwrap(), ["bytes"]);
        assert_eq!(folders(&tree).unwrap().get("hekate-a").map(String::as_str), Some("a"));
    }
}
