//! The result of an export: what it has copied, and what it could not.

use super::super::json::text;
use super::super::lines::Lines;
use crate::failure::Failure;
use crate::output::{self, bytes};
use hekate_proto::VolumeId;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Why a copy differs from the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// Bytes or entries of this brick do not match their checksums.
    Damaged,
    /// Bytes are missing: they are holes in the copy.
    Incomplete,
    /// A name leads to an inode on another brick.
    Elsewhere,
    /// The directory of the inode is on another brick.
    LostAndFound,
    /// The copy could not be made like the original.
    NotMade,
}

impl Finding {
    fn word(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Incomplete => "incomplete",
            Self::Elsewhere => "elsewhere",
            Self::LostAndFound => "lost+found",
            Self::NotMade => "not made",
        }
    }
}

pub struct Report {
    json: bool,
    lines: Lines,
    volumes: Vec<Value>,
    findings: Vec<Value>,
    counts: BTreeMap<Finding, u64>,
    files: u64,
    directories: u64,
    others: u64,
    bytes: u64,
}

/// EX_DATAERR of sysexits(3): the brick does not have everything.
const NOT_ALL: u8 = 65;
/// EX_IOERR, the exit status of all damage.
const DAMAGED: u8 = 74;

impl Report {
    pub fn new(json: bool) -> Self {
        let (volumes, findings, counts) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { json, lines: Lines::new(json), volumes, findings, counts, files: 0, directories: 0, others: 0, bytes: 0 }
    }

    pub fn begin_volume(&mut self, volume: VolumeId, directory: &str) {
        self.lines.say(&format!("volume {volume}: {directory}/"));
        self.volumes.push(json!({ "volume": volume, "directory": directory }));
    }

    /// Records a difference.
    pub fn find(&mut self, finding: Finding, volume: Option<VolumeId>, path: &[u8], what: &str) {
        *self.counts.entry(finding).or_default() += 1;
        if self.json {
            let path = if path.is_empty() { Value::Null } else { text(path) };
            self.findings.push(json!({ "finding": finding.word(), "volume": volume, "path": path, "what": what }));
            return;
        }
        let shown = if path.is_empty() { String::new() } else { format!(" {:?}", String::from_utf8_lossy(path)) };
        self.lines.say(&format!("{}:{shown} {what}", finding.word()));
    }

    pub fn copied_file(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }

    pub fn copied_directory(&mut self) {
        self.directories += 1;
    }

    pub fn copied_other(&mut self) {
        self.others += 1;
    }

    /// Number of differences of each kind so far.
    pub fn counts(&self) -> BTreeMap<Finding, u64> {
        self.counts.clone()
    }

    /// The worst difference since `before`.
    pub fn worst_since(&self, before: &BTreeMap<Finding, u64>) -> Option<Finding> {
        self.counts.iter().find(|(finding, count)| before.get(finding) != Some(count)).map(|(finding, _)| *finding)
    }

    /// Progress in words.
    pub fn progress(&self) -> String {
        format!("{} files, {} so far", self.files, bytes(self.bytes))
    }

    /// Prints the sum.
    ///
    /// # Errors
    ///
    /// A copy differs from the original.
    pub fn finish(mut self) -> Result<(), Failure> {
        let all: u64 = self.counts.values().sum();
        let counts: BTreeMap<&str, u64> = self.counts.iter().map(|(finding, count)| (finding.word(), *count)).collect();
        if self.json {
            self.lines.flush();
            output::json(&json!({
                "volumes": self.volumes, "files": self.files, "directories": self.directories, "others": self.others,
                "bytes": self.bytes, "findings": self.findings, "counts": counts, "complete": all == 0,
            }));
        } else {
            let Self { files, directories, others, .. } = &self;
            let sum = format!("{files} files with {}, {directories} directories, {others} others", bytes(self.bytes));
            self.lines.say(&sum);
            self.lines.flush();
        }
        if all == 0 {
            return Ok(());
        }
        let words: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
        let exit = if self.counts.contains_key(&Finding::Damaged) { DAMAGED } else { NOT_ALL };
        if self.json {
            return Err(Failure::printed(exit));
        }
        Err(Failure::new(exit, format!("the copy differs from the original: {}", words.join(", "))))
    }
}
