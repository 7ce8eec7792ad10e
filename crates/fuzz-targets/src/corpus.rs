//! The files of `fuzz/`: seeds from real encoders, and every input that ever broke a target.

use crate::Target;
use std::path::{Path, PathBuf};

/// `fuzz/` of this repository.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The seeds of a target, as files.
pub fn corpus_of(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    files(&folder().join("corpus").join(target.name))
}

/// What once broke it.
pub fn regressions_of(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    files(&folder().join("regressions").join(target.name))
}

/// Writes `fuzz/corpus/TARGET` anew from the encoders.
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

/// In order of name, so that a seed of the mutator means the same everywhere.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}
