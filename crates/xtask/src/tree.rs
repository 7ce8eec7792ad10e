//! The files of the repository, in memory, so that a check is a function of text and its tests need no disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{Result, Trouble};

/// Paths are relative to the root of the repository, with `/`.
pub struct Tree {
    /// None if the file is not UTF-8.
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// Every file that git tracks, or would track at the next `git add`.
    ///
    /// # Errors
    ///
    /// Git does not list the files, or one of them cannot be read.
    pub fn load(root: &Path) -> Result<Tree> {
        let mut files = BTreeMap::new();
        for path in list_files(root)? {
            let full = root.join(&path);
            if !full.is_file() {
                continue; // deleted but not yet committed, or a link to a folder
            }
            let bytes = std::fs::read(&full).map_err(|error| Trouble(format!("cannot read {path}: {error}")))?;
            files.insert(path, String::from_utf8(bytes).ok());
        }
        Ok(Tree { files })
    }

    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| (path.to_string(), Some(text.to_string()))).collect() }
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// True if there is such a file, or a folder with a file in it. The root is "".
    pub fn contains(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.range(folder.clone()..).next().is_some_and(|(first, _)| first.starts_with(&folder))
    }

    /// Path and text of every text file, in order of path.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// The names of the folders `crates/*` that hold a Cargo.toml.
    pub fn crates(&self) -> Vec<&str> {
        let name = |path| str::strip_suffix(str::strip_prefix(path, "crates/")?, "/Cargo.toml");
        self.files.keys().filter_map(|path| name(path)).filter(|name| !name.contains('/')).collect()
    }

    /// Path and text of the .rs files under `crates/NAME/src/`.
    pub fn sources_of<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let folder = format!("crates/{name}/src/");
        self.texts().filter(move |(path, _)| path.starts_with(&folder) && path.ends_with(".rs"))
    }
}

/// The root of the workspace that this program was built from.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

fn list_files(root: &Path) -> Result<Vec<String>> {
    let fix = "tidy asks git which files belong to the repository; run it in a git clone";
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| Trouble(format!("cannot run git: {error}; {fix}")))?;
    if !listed.status.success() {
        let said = String::from_utf8_lossy(&listed.stderr);
        return Err(Trouble(format!("git ls-files failed: {}; {fix}", said.trim())));
    }
    let names = String::from_utf8_lossy(&listed.stdout);
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_contained_when_a_file_is_in_it() {
        let tree = Tree::of(&[("docs/adr/0001.md", ""), ("docs-old.md", "")]);
        assert!(tree.contains("docs") && tree.contains("docs/adr/") && tree.contains("docs/adr/0001.md"));
        assert!(!tree.contains("doc") && !tree.contains("docs/adr/0001"));
    }

    #[test]
    fn crates_are_the_folders_with_a_manifest() {
        let tree = Tree::of(&[("crates/brick/Cargo.toml", ""), ("crates/brick/src/lib.rs", ""), ("crates/x/y.md", "")]);
        assert_eq!(tree.crates(), ["brick"]);
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("crates/xtask/Cargo.toml").is_file());
    }
}
