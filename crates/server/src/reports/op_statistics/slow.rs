//! The last slow ops: all of them for `hekate debug slow`, and at most one line a second in the log.

use hekate_control::status::SlowOpsReport;
use hekate_proto::{DataOp, LockOp, NameOp, Op, SessionId, VolumeId};
use hekate_threads::{Mutex, now};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Slow ops that are kept; a new one replaces the oldest.
const KEPT: usize = 256;
/// Time between two lines in the log.
const LINE_PAUSE: Duration = Duration::from_secs(1);
/// The duration from which on an op is slow, unless `--slow-op` says otherwise.
const LIMIT: Duration = Duration::from_secs(1);

/// An op that took long.
#[derive(Debug, Clone)]
pub struct SlowOp {
    /// When it was answered.
    pub at: SystemTime,
    /// The kind of op.
    pub op: &'static str,
    /// What it was about: an inode or a shard, never a name.
    pub about: String,
    pub session: SessionId,
    pub volume: VolumeId,
    /// From its start until it could be answered, with the syncs.
    pub took: Duration,
    /// The part of `took` that the syncs of its batch took.
    pub syncing: Duration,
    /// The error, if it failed.
    pub error: Option<String>,
}

/// The last slow ops.
pub struct SlowOps {
    limit_ns: AtomicU64,
    count: AtomicU64,
    kept: Mutex<VecDeque<SlowOp>>,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    last: Option<Instant>,
    left_out: u64,
}

impl Default for SlowOps {
    fn default() -> Self {
        let limit_ns = AtomicU64::new(LIMIT.as_nanos() as u64);
        Self { limit_ns, count: AtomicU64::new(0), kept: Mutex::default(), line: Mutex::default() }
    }
}

impl SlowOps {
    /// Sets the duration from which on an op is slow; zero: no op is.
    pub fn set_limit(&self, limit: Duration) {
        self.limit_ns.store(limit.as_nanos() as u64, Ordering::Relaxed);
    }

    /// True if an op of this duration is slow.
    pub fn is_slow(&self, took: Duration) -> bool {
        let limit = self.limit_ns.load(Ordering::Relaxed);
        limit != 0 && took.as_nanos() as u64 >= limit
    }

    /// Keeps a slow op. Returns the line for the log, unless there was one less than a second ago.
    pub fn keep(&self, slow: SlowOp) -> Option<String> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let line = self.line_of(&slow, now());
        let mut kept = self.kept.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(slow);
        line
    }

    fn line_of(&self, slow: &SlowOp, now: Instant) -> Option<String> {
        let mut line = self.line.lock();
        if line.last.is_some_and(|last| now.duration_since(last) < LINE_PAUSE) {
            line.left_out += 1;
            return None;
        }
        line.last = Some(now);
        let SlowOp { op, about, session, volume, took, syncing, .. } = slow;
        let mut text = format!(
            "slow op: {op} of {about}, volume {volume}, session {session}: {:.3} s, of which {:.3} s syncing disks",
            took.as_secs_f64(),
            syncing.as_secs_f64()
        );
        if let Some(error) = &slow.error {
            text += &format!("; it failed: {error}");
        }
        match std::mem::take(&mut line.left_out) {
            0 => {}
            count => text += &format!(" (and {count} more since the last such line: hekate debug slow)"),
        }
        Some(text)
    }

    /// Slow ops since the server started.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The slow ops that are kept, the newest first. The list of ops in progress is empty.
    pub fn report(&self) -> SlowOpsReport {
        let row = |slow: &SlowOp| hekate_control::status::SlowOp {
            at: humantime::format_rfc3339_millis(slow.at).to_string(),
            op: slow.op.into(),
            about: slow.about.clone(),
            volume: slow.volume,
            session: slow.session,
            milliseconds: slow.took.as_millis() as u64,
            syncing_milliseconds: slow.syncing.as_millis() as u64,
            error: slow.error.clone(),
        };
        SlowOpsReport {
            limit_milliseconds: self.limit_ns.load(Ordering::Relaxed) / 1_000_000,
            count: self.count(),
            ops: self.kept.lock().iter().rev().map(row).collect(),
            at_work: Vec::new(),
        }
    }
}

/// What an op is about, by inode number (`st_ino`) or shard. Names are left out: an administrator of servers need not
/// learn the names of files.
pub fn about(op: &Op) -> String {
    match op {
        Op::Name { op: NameOp::Rename { dir, to_dir, .. } } => {
            format!("directories {} and {}", dir.number(), to_dir.number())
        }
        Op::Name { op } => format!("directory {}", op.dir().number()),
        Op::Inode { op } => format!("inode {}", op.inode().number()),
        Op::Lock { op } => match op {
            LockOp::Get { inode, .. }
            | LockOp::Set { inode, .. }
            | LockOp::Cancel { inode, .. }
            | LockOp::Release { inode, .. } => format!("inode {}", inode.number()),
            LockOp::Restore { locks, .. } => format!("{} locks", locks.len()),
        },
        Op::Data { op } => about_data(op),
        Op::Volume { .. } => "the volume".into(),
        Op::Leg { .. } => "an op of another partition".into(),
    }
}

fn about_data(op: &DataOp) -> String {
    match op {
        DataOp::Read { inode, offset, length, .. } => format!("inode {}, {length} bytes at {offset}", inode.number()),
        DataOp::Write { inode, offset, data, .. } => {
            format!("inode {}, {} bytes at {offset}", inode.number(), data.len())
        }
        DataOp::Append { inode, data, .. } => format!("inode {}, {} bytes", inode.number(), data.len()),
        DataOp::Spill { inode }
        | DataOp::Wrote { inode, .. }
        | DataOp::FindEnd { inode }
        | DataOp::Fsync { inode }
        | DataOp::Allocate { inode, .. }
        | DataOp::Seek { inode, .. } => format!("inode {}", inode.number()),
        DataOp::ReadShard { data, index, offset, length } => {
            format!("shard {index} of data {:032x}, {length} bytes at {offset}", data.0)
        }
        DataOp::WriteShard { data, index, offset, bytes, .. }
        | DataOp::FastWrite { data, index, offset, bytes, .. } => {
            format!("shard {index} of data {:032x}, {} bytes at {offset}", data.0, bytes.len())
        }
        DataOp::AllocateShard { data, index, .. }
        | DataOp::RawWrite { data, index, .. }
        | DataOp::SeekShard { data, index, .. }
        | DataOp::CopyShard { data, index, .. } => format!("shard {index} of data {:032x}", data.0),
        DataOp::NextShard { data, .. } | DataOp::EmptyShards { data, .. } => format!("data {:032x}", data.0),
        DataOp::Copy { from, to, .. } => format!("inodes {} and {}", from.number(), to.number()),
        DataOp::Sync { shards, all, .. } => {
            format!("{} shards{}", shards.len(), if *all { " and all others" } else { "" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(milliseconds: u64) -> SlowOp {
        SlowOp {
            at: SystemTime::UNIX_EPOCH,
            op: "write",
            about: "inode 7".into(),
            session: SessionId(3),
            volume: VolumeId(1),
            took: Duration::from_millis(milliseconds),
            syncing: Duration::from_millis(10),
            error: None,
        }
    }

    #[test]
    fn the_limit_is_a_choice() {
        let ops = SlowOps::default();
        assert!(ops.is_slow(LIMIT) && !ops.is_slow(LIMIT - Duration::from_nanos(1)));
        ops.set_limit(Duration::from_millis(5));
        assert!(ops.is_slow(Duration::from_millis(5)));
        ops.set_limit(Duration::ZERO);
        assert!(!ops.is_slow(Duration::from_secs(1000)));
    }

    #[test]
    fn the_last_are_kept_and_one_line_a_second_is_logged() {
        let ops = SlowOps::default();
        let first = ops.keep(slow(1234));
        assert_eq!(
            first.as_deref(),
            Some("slow op: write of inode 7, volume 1, session 3: 1.234 s, of which 0.010 s syncing disks")
        );
        (0..KEPT as u64).for_each(|number| assert_eq!(ops.keep(slow(2000 + number)), None));
        let shown = ops.report();
        assert_eq!(shown.count, KEPT as u64 + 1);
        assert_eq!((shown.ops.len(), shown.ops[0].milliseconds), (KEPT, 2000 + KEPT as u64 - 1));
        assert_eq!(shown.ops[0].at, "1970-01-01T00:00:00.000Z");
        let later = ops.line_of(&slow(1), Instant::now() + LINE_PAUSE).unwrap();
        assert!(later.ends_with(&format!("(and {KEPT} more since the last such line: hekate debug slow)")), "{later}");
    }
}
