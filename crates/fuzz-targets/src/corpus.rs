//! The files of `fuzz/`: seeds made by the encoders, and every input that a target has failed on.

use crate::Target;
use std::path::{Path, PathBuf};

/// The folder `fuzz/` of this repository.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The committed seeds of a target: path and bytes.
pub fn corpus_of(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    files(&folder().join("corpus").join(target.name))
}

/// Inputs that this target has failed on: path and bytes.
pub fn regressions_of(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    files(&folder().join("regressions").join(target.name))
}

/// Replaces `fuzz/corpus/TARGET` by what the encoders make.
///
/// # Errors
///
/// A file or folder cannot be removed or written.
pub fn write_corpus(target: &Target) -> std::io::Result<()> {
    let corpus = folder().join("corpus").join(target.name);
    if corpus.exists() {
        std::fs::remove_dir_all(&corpus)?;
    }
    std::fs::create_dir_all(&corpus)?;
    for (number, seed) in (target.seeds)().iter().enumerate() {
        std::fs::write(corpus.join(format!("{number:02}")), seed)?;
    }
    Ok(())
}

/// Sorted by name, so that a seed of the mutator selects the same inputs on every machine.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}
