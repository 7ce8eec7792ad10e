//! What several checks need to know about Rust source: which files a crate reaches, and what is a test.

use std::collections::BTreeMap;

use syn::{Attribute, Item, ItemMod, Meta};

use crate::tree::Tree;

/// The files of one crate that its targets reach through `mod` declarations.
#[derive(Default)]
pub struct Modules {
    /// Path of the file, and true if it is compiled for tests only.
    pub reached: BTreeMap<String, bool>,
    /// Path of the file, and what the parser said.
    pub unparsed: Vec<(String, String)>,
}

/// Follows `mod name;` from the roots of the crate in `crates/NAME`. Inline modules, `#[path]` and both layouts
/// (`name.rs`, `name/mod.rs`) are followed; a declaration inside a macro is not seen.
pub fn modules(tree: &Tree, name: &str) -> Modules {
    let mut modules = Modules::default();
    for root in roots(tree, name) {
        let (folder, _) = split(&root);
        modules.follow(tree, &root, folder, false);
    }
    modules
}

impl Modules {
    /// `folder` is where the modules that `path` declares are looked for.
    fn follow(&mut self, tree: &Tree, path: &str, folder: &str, test_only: bool) {
        let Some(text) = tree.text(path) else { return };
        if self.reached.get(path).is_some_and(|known| !known || test_only) {
            return; // already followed for the product, or for tests once more
        }
        self.reached.insert(path.to_string(), test_only);
        match syn::parse_file(text) {
            Ok(file) => self.follow_items(tree, path, folder, &file.items, test_only),
            Err(error) => self.unparsed.push((path.to_string(), error.to_string())),
        }
    }

    fn follow_items(&mut self, tree: &Tree, path: &str, folder: &str, items: &[Item], test_only: bool) {
        for item in items {
            let Item::Mod(module) = item else { continue };
            let test_only = test_only || is_test_only(&module.attrs);
            let below = join(folder, &module.ident.to_string());
            match (&module.content, path_attribute(module)) {
                (Some((_, items)), _) => self.follow_items(tree, path, &below, items, test_only),
                (None, Some(given)) => {
                    let target = join(split(path).0, &given);
                    let (folder, _) = split(&target);
                    self.follow(tree, &target, folder, test_only);
                }
                (None, None) => {
                    self.follow(tree, &format!("{below}.rs"), &below, test_only);
                    self.follow(tree, &format!("{below}/mod.rs"), &below, test_only);
                }
            }
        }
    }
}

/// True if an item with these attributes is compiled only for tests: `#[cfg(test)]` or `#[cfg(all(test, …))]`.
pub fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        let condition: String = list.tokens.to_string().split_whitespace().collect();
        list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all(test,"))
    })
}

/// True if a function with these attributes is a test: `#[test]`, or another crate's attribute of that name.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().segments.last().is_some_and(|last| last.ident == "test"))
}

/// Folder and name: "a/b.rs" -> ("a", "b.rs").
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// `folder` and `path` as one path without `.` and `..`.
pub fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    parts.join("/")
}

/// Roots of the crate's targets: Cargo's default paths, and the paths that the manifest gives.
fn roots(tree: &Tree, name: &str) -> Vec<String> {
    let folder = format!("crates/{name}");
    let guessed = tree.sources_of(name).map(|(path, _)| path.to_string()).filter(|path| {
        let inner = path.trim_start_matches(&folder);
        let in_bin = inner.strip_prefix("/src/bin/");
        inner == "/src/lib.rs"
            || inner == "/src/main.rs"
            || in_bin
                .is_some_and(|rest| !rest.contains('/') || rest.ends_with("/main.rs") && rest.matches('/').count() == 1)
    });
    guessed.chain(named_roots(tree, &folder)).collect()
}

fn named_roots(tree: &Tree, folder: &str) -> Vec<String> {
    let manifest = tree.text(&format!("{folder}/Cargo.toml")).and_then(|text| toml::from_str::<toml::Table>(text).ok());
    let Some(manifest) = manifest else { return Vec::new() };
    let library = manifest.get("lib").into_iter();
    let binaries = manifest.get("bin").and_then(|list| list.as_array()).into_iter().flatten();
    library.chain(binaries).filter_map(|target| Some(join(folder, target.get("path")?.as_str()?))).collect()
}

fn path_attribute(module: &ItemMod) -> Option<String> {
    module.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(files: &[(&str, &str)]) -> Vec<(String, bool)> {
        modules(&Tree::of(files), "a").reached.into_iter().collect()
    }

    #[test]
    fn declarations_are_followed_in_both_layouts_and_inside_modules() {
        let files = [
            ("crates/a/src/lib.rs", "mod one; mod two; mod inner { mod three; } #[path = \"odd/four.rs\"] mod x;"),
            ("crates/a/src/one.rs", "mod deep;"),
            ("crates/a/src/one/deep.rs", ""),
            ("crates/a/src/two/mod.rs", ""),
            ("crates/a/src/inner/three.rs", ""),
            ("crates/a/src/odd/four.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
        ];
        assert_eq!(reached(&files).len(), 7);
    }

    #[test]
    fn a_file_is_a_test_when_every_way_to_it_is() {
        let files = [
            ("crates/a/src/lib.rs", "#[cfg(test)] mod tests; #[cfg(all(test, unix))] mod twin; mod code;"),
            ("crates/a/src/tests.rs", "mod helpers;"),
            ("crates/a/src/tests/helpers.rs", ""),
            ("crates/a/src/twin.rs", ""),
            ("crates/a/src/code.rs", ""),
        ];
        let product: Vec<String> =
            reached(&files).into_iter().filter(|(_, test)| !test).map(|(path, _)| path).collect();
        assert_eq!(product, ["crates/a/src/code.rs", "crates/a/src/lib.rs"]);
    }

    #[test]
    fn the_manifest_may_name_a_root() {
        let files = [("crates/a/Cargo.toml", "[lib]\npath = 'src/odd.rs'"), ("crates/a/src/odd.rs", "")];
        assert_eq!(reached(&files), [("crates/a/src/odd.rs".to_string(), false)]);
    }

    #[test]
    fn a_file_that_does_not_parse_is_named() {
        let modules = modules(&Tree::of(&[("crates/a/src/lib.rs", "fn {")]), "a");
        assert_eq!(modules.unparsed.len(), 1);
    }

    #[test]
    fn paths_join_without_dots() {
        assert_eq!(join("docs/adr", "../format/wire.md"), "docs/format/wire.md");
        assert_eq!(join("", "../shared/x"), "../shared/x");
    }
}
