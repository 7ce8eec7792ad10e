//! Bricks: their state, their figures, their scrubs.

use hekate_proto::{BrickId, Incarnation, ServerId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a brick can do now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BrickState {
    /// It reads and writes.
    Online,
    /// It cannot complete a checkpoint because its disk is full, and takes no writes until there is room.
    Full,
    /// A failed write or sync, or wide damage, has stopped it until its server restarts or it is replaced.
    Stopped,
    /// Its directory cannot be read.
    Failing,
    /// Its server runs without it, or could not open it.
    #[serde(rename = "not opened")]
    NotOpened,
    /// It was added while its server ran. The server opens it at its next start.
    #[serde(rename = "not opened yet")]
    NotOpenedYet,
    /// Its server does not answer.
    Away,
    /// A state that this version does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl BrickState {
    /// The word in JSON and in tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Full => "full",
            Self::Stopped => "stopped",
            Self::Failing => "failing",
            Self::NotOpened => "not opened",
            Self::NotOpenedYet => "not opened yet",
            Self::Away => "away",
            Self::Unknown => "unknown",
        }
    }

    /// True if an operator has to act: the brick has stopped, is failing or is full.
    pub fn has_failed(self) -> bool {
        matches!(self, Self::Stopped | Self::Failing | Self::Full)
    }
}

/// A brick as the cluster records it and as its server reports it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrickStatus {
    /// What its server reports.
    #[serde(flatten)]
    pub report: BrickReport,
    /// Its directory on its server.
    pub directory: String,
    /// Its pool.
    pub pool: String,
    /// Its server.
    pub server: ServerId,
    /// Number of partitions that it leads.
    pub leads: usize,
    /// Number of replicas that are placed on it.
    pub replicas: usize,
}

/// A brick as its server reports it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrickReport {
    /// The brick.
    pub brick: BrickId,
    /// What it can do now.
    pub state: BrickState,
    /// Why it is not online.
    pub reason: Option<String>,
    /// None if the brick is not open, or its directory cannot be read.
    #[serde(flatten)]
    pub figures: Option<BrickFigures>,
}

/// Figures of a brick that is open.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BrickFigures {
    /// Number of boots of its machine and new mounts of its file system that the brick has found when it was opened.
    pub incarnation: Incarnation,
    /// Why it cannot complete a checkpoint. None: it can.
    #[serde(default)]
    pub stalled: Option<String>,
    /// Size of its file system, or of its quota if that is less, in bytes.
    pub bytes_total: u64,
    /// Bytes of it that the brick may still use.
    pub bytes_free: u64,
    /// Inodes of its file system. None: the file system does not count them.
    #[serde(default)]
    pub inodes_total: Option<u64>,
    /// Inodes that the brick may still use.
    #[serde(default)]
    pub inodes_free: Option<u64>,
    /// Bytes of the journal in use.
    #[serde(default)]
    pub journal_bytes_used: u64,
    /// Size of the journal, in bytes.
    #[serde(default)]
    pub journal_bytes_total: u64,
    /// Bytes in memory that the next checkpoint writes home.
    #[serde(default)]
    pub overlay_bytes: usize,
    /// Records of the journal that were replayed when the brick was opened.
    #[serde(default)]
    pub recovered_records: Option<u64>,
    /// Blocks that a power cut kept from the disk before that. They read as holes until they are copied from a replica.
    #[serde(default)]
    pub recovered_blocks_lost: Option<usize>,
    /// Why the brick had stopped before it was opened. None: it had not.
    #[serde(default)]
    pub recovered_after_stop: Option<String>,
    /// What was cut off the journal's end when the brick was opened.
    #[serde(default)]
    pub recovered_torn_tail: Option<TornTail>,
    /// Bytes held back, so that files can be deleted when everything else is full.
    #[serde(default)]
    pub reserve_bytes: u64,
    /// Inodes held back so that files can be deleted when all others are in use.
    #[serde(default)]
    pub reserve_files: u64,
    /// Its scrubs.
    #[serde(default)]
    pub scrub: ScrubStatus,
}

/// Bytes behind the end of a journal that are no valid record. None of them was ever synced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TornTail {
    /// File in the brick's directory.
    pub file: String,
    /// Offset in that file, in bytes.
    pub offset: u64,
    /// What does not match.
    pub why: String,
    /// Records at and behind the offset that were dropped.
    pub records: u64,
}

/// The scrubs of a brick since its server started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubStatus {
    /// Whether a pass is running.
    pub state: ScrubState,
    /// The running pass.
    pub now: Option<ScrubRunning>,
    /// The last pass that has ended.
    pub last: Option<ScrubEnded>,
    /// Items repaired from another replica, by scrubs and by reads.
    pub mended_since_start: u64,
    /// Why the last pass ended early. None: it did not.
    pub error: Option<String>,
}

/// Whether a pass is running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubState {
    /// A pass is running or about to begin.
    Runs,
    /// The next pass is not due yet.
    #[default]
    Waits,
}

impl ScrubState {
    /// The word in JSON and in tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Waits => "waits",
        }
    }
}

/// One pass over a brick.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubPass {
    /// The only volume that it checks. None: all.
    pub volume: Option<VolumeId>,
    /// Seconds since it began.
    pub seconds: u64,
    /// Why it did not check everything. None: it did, or has not ended.
    pub left_out: Option<String>,
    /// Bytes that were read and checked.
    pub bytes_checked: u64,
    /// Items repaired from another replica.
    pub mended: u64,
    /// Damaged items that no other replica could repair.
    pub damaged: u64,
    /// Data files removed because nothing refers to them.
    pub stray_files_removed: u64,
    /// Descriptions of the first damaged items.
    pub damage: BTreeSet<String>,
}

/// A pass that is running.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubRunning {
    /// Its figures so far.
    #[serde(flatten)]
    pub pass: ScrubPass,
    /// The part of the brick that it has gone through, from 0 to 1.
    pub done: f64,
    /// Estimated seconds until it ends. None: not known yet.
    pub seconds_left: Option<f64>,
}

/// A pass that has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubEnded {
    /// Its figures. `seconds` counts from its beginning to now.
    #[serde(flatten)]
    pub pass: ScrubPass,
    /// Seconds since it ended.
    pub ended_seconds_ago: u64,
}

/// A brick that was asked to begin a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubBegun {
    /// The brick.
    pub brick: BrickId,
    /// Its directory.
    pub directory: String,
    /// Why the pass has not begun. None: it begins.
    pub why_not: Option<String>,
}

/// The cluster's record of a brick.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrickRecord {
    /// The brick.
    pub brick: BrickId,
    /// Its directory on its server.
    pub directory: String,
    /// Its pool.
    pub pool: String,
    /// Size of its file system when it joined, in bytes.
    pub weight: u64,
    /// Its server.
    pub server: ServerId,
    /// Its incarnation when it was last opened; 0: never.
    pub incarnation: Incarnation,
    /// The number of that opening; numbers grow with each opening and may have gaps.
    pub openings: u32,
    /// Its server opens it at its next start. Nothing is placed on it before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unopened: bool,
}

/// A brick that is no longer part of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrickRemoved {
    /// The brick.
    pub brick: BrickId,
    /// Its directory, which stays as it is.
    pub directory: String,
    /// Always `removed`.
    pub state: String,
}

/// A new brick on which all replicas of another one are placed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrickReplaced {
    /// The new brick.
    pub brick: BrickId,
    /// Its directory.
    pub directory: String,
    /// The brick that it replaces.
    pub replaces: BrickId,
    /// The directory of that brick.
    pub old_directory: String,
    /// Number of replicas.
    pub replicas: usize,
}
