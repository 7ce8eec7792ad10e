//! The words of the command line, and the brick that they ask for.

use crate::counted::{Counted, Counts};
use hekate_brick::storage::RealStorage;
use hekate_brick::{Brick, BrickSettings, Identity};
use hekate_proto::{BrickId, Incarnation};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Why a measurement did not end, in words.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// `--name value` and `--name`.
pub struct Options(BTreeMap<String, String>);

const FLAGS: [&str; 3] = ["json", "inline", "direct"];
const VALUES: [&str; 12] = [
    "dir",
    "seconds",
    "rounds",
    "writers",
    "count",
    "shape",
    "names",
    "directories",
    "ops",
    "journal-segments",
    "segment-mib",
    "index-cache-mib",
];

impl Options {
    /// Takes the words apart.
    pub fn parse(words: &[String]) -> Result<Self, Failed> {
        let mut found = BTreeMap::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("{word} is no option; see `brick help`"))?;
            let value = if FLAGS.contains(&name) {
                "yes".to_string()
            } else if VALUES.contains(&name) {
                words.next().ok_or_else(|| format!("--{name} needs a value"))?.clone()
            } else {
                return Err(format!("there is no option --{name}; see `brick help`").into());
            };
            found.insert(name.to_string(), value);
        }
        Ok(Self(found))
    }

    /// Whether a flag is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// A value as it was written.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A value, or what holds without it.
    pub fn get<T: FromStr>(&self, name: &str, otherwise: T) -> Result<T, Failed> {
        let parse = |text: &String| text.parse().map_err(|_| format!("--{name} {text}: not understood").into());
        self.0.get(name).map_or(Ok(otherwise), parse)
    }

    /// `1,8,64`.
    pub fn list(&self, name: &str, otherwise: &[usize]) -> Result<Vec<usize>, Failed> {
        let Some(text) = self.text(name) else { return Ok(otherwise.to_vec()) };
        let parse = |word: &str| match word.trim().parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("--{name} {text}: not a list of numbers").into()),
        };
        text.split(',').map(parse).collect()
    }

    /// The directory that this run may fill: `--dir`, and a folder of our own in it.
    pub fn directory(&self) -> Result<Scratch, Failed> {
        let given = self.text("dir").ok_or("--dir DIR is missing: a directory on the disk to measure")?;
        Scratch::new(PathBuf::from(given).join("brick-bench"))
    }

    /// How the brick is laid out.
    pub fn settings(&self) -> Result<BrickSettings, Failed> {
        let usual = BrickSettings::default();
        Ok(BrickSettings {
            journal_segments: self.get("journal-segments", usual.journal_segments)?,
            segment_bytes: self.get("segment-mib", usual.segment_bytes >> 20)? << 20,
            index_cache_bytes: self.get("index-cache-mib", usual.index_cache_bytes >> 20)? << 20,
            reserve_bytes: usual.reserve_bytes,
        })
    }
}

/// A directory that is removed in the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes it; an older one of the same name is removed.
    pub fn new(path: PathBuf) -> Result<Self, Failed> {
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// A new brick in it, which counts its calls to the file system.
    pub fn brick(&self, settings: BrickSettings) -> Result<(Arc<Brick>, Arc<Counts>), Failed> {
        let counts = Arc::new(Counts::default());
        let storage = Arc::new(Counted::new(RealStorage::new(&self.0), counts.clone()));
        let identity = Identity::new(BrickId(1), "bench", settings);
        Brick::create_on(&*storage, &identity)?;
        let (brick, _) = Brick::open_on(storage, &identity, Incarnation(1), false)?;
        Ok((Arc::new(brick), counts))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("brick: {} is left behind: {error}", self.0.display());
        }
    }
}
