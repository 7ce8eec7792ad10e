//! The settings of `cargo xtask tidy`, read from `tidy.toml`.

use serde::Deserialize;

use crate::report::{Result, Trouble};
use crate::tree::Tree;

pub const FILE: &str = "tidy.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub layers: Layers,
    #[serde(default)]
    pub reserved: Vec<Reserved>,
    #[serde(default)]
    pub forbidden: Vec<Forbidden>,
    #[serde(default)]
    pub purity: Vec<Purity>,
    pub limits: Limits,
    #[serde(default)]
    pub long_file: Vec<LongFile>,
    #[serde(default)]
    pub long_function: Vec<LongFunction>,
    #[serde(default)]
    pub unfinished: Unfinished,
}

/// Crates are named by their folder under `crates/`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layers {
    /// Top to bottom. A crate may depend only on crates in later rows, not on crates in its own row.
    pub order: Vec<Vec<String>>,
    /// Crates without a dependency on, or from, another crate of this repository.
    pub alone: Vec<String>,
}

/// Dependencies that only `crates` may have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserved {
    pub dependencies: Vec<String>,
    pub crates: Vec<String>,
    pub why: String,
}

/// Dependencies that `crates` may not have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forbidden {
    pub crates: Vec<String>,
    pub dependencies: Vec<String>,
    pub why: String,
}

/// Paths that the source of `crates` may not name. `std::net` matches wherever these two follow each other;
/// `rand::` (with the colons) matches only at the beginning of a longer path.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Purity {
    pub crates: Vec<String>,
    /// Only files whose path begins with one of these; none: all files.
    #[serde(default)]
    pub files: Vec<String>,
    /// Files whose path ends with one of these are exempt: tests do the IO that their subject does not.
    #[serde(default)]
    pub but: Vec<String>,
    pub paths: Vec<String>,
    pub why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub file_lines: usize,
    pub function_lines: usize,
}

/// A file that may be longer than the limit, up to `lines`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongFile {
    pub path: String,
    pub lines: usize,
    pub why: String,
}

/// A function that may be longer than the limit, up to `lines`. `name` is `function` or `Type::function`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongFunction {
    pub path: String,
    pub name: String,
    pub lines: usize,
    pub why: String,
}

/// Files that a check leaves out until they have been rewritten: a path, or a folder for all that is below it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Unfinished {
    pub fillers: Vec<String>,
    pub history: Vec<String>,
    pub long_lines: Vec<String>,
    pub file_names: Vec<String>,
}

/// # Errors
///
/// `tidy.toml` is missing, does not parse, or has an exception without a reason.
pub fn read(tree: &Tree) -> Result<Settings> {
    let text = tree.text(FILE).ok_or_else(|| Trouble(format!("{FILE} is missing from the root of the repository")))?;
    let settings: Settings = toml::from_str(text).map_err(|error| Trouble(format!("{FILE}: {error}")))?;
    let reasons = (settings.long_file.iter().map(|entry| (&entry.path, &entry.why)))
        .chain(settings.long_function.iter().map(|entry| (&entry.name, &entry.why)));
    for (name, why) in reasons {
        if why.trim().is_empty() {
            return Err(Trouble(format!("{FILE}: the exception for {name} gives no reason; fill in its `why`")));
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "[layers]\norder = [['hekate']]\nalone = []\n[limits]\nfile_lines = 600\nfunction_lines = 70\n";

    #[test]
    fn settings_without_exceptions_parse() {
        assert!(read(&Tree::of(&[(FILE, SOUND)])).is_ok());
    }

    #[test]
    fn an_exception_needs_a_reason() {
        let text = format!("{SOUND}[[long_file]]\npath = 'a.rs'\nlines = 900\nwhy = ' '\n");
        let trouble = read(&Tree::of(&[(FILE, &text)])).unwrap_err();
        assert!(trouble.0.contains("a.rs gives no reason"), "{trouble}");
    }

    #[test]
    fn an_unknown_word_is_refused() {
        assert!(read(&Tree::of(&[(FILE, &format!("{SOUND}[[long_files]]\n"))])).is_err());
    }
}
