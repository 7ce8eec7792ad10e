//! `io-stats`: how long each kind of op takes, and which files have the most ops and bytes. For each op the curve of
//! "this time or better": half of the ops, 90, 99 and 99.9 of a hundred.

use super::details::{inode_of, range_of};
use super::{kind as plain, made_by};
use hekate_graph::options::index_of;
use hekate_graph::{Context, Event, Histogram, LayerKind, Next, OptionKind, OptionSpec, Options, Translator};
use hekate_proto::op::OP_LABELS;
use hekate_proto::{DataOp, Op, Reply, Result};
use hekate_threads::{HashMap, Mutex, RwLock, elapsed, now};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Points of the curves.
const SHARES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

pub fn kind() -> LayerKind {
    let options = vec![
        OptionSpec::new("top", OptionKind::Number { min: 0, max: 100 }, "10", "number of files that are shown"),
        OptionSpec::new(
            "files",
            OptionKind::Number { min: 1, max: 1_000_000 },
            "10000",
            "most files that are counted, about 60 bytes each; beyond it those with the fewest ops are forgotten, half of them or more",
        ),
    ];
    LayerKind {
        is_transparent: true,
        is_repeatable: true,
        make: made_by(IoStats::make),
        ..plain("io-stats", "counts and times ops, shows the files with the most", options)
    }
}

struct IoStats {
    next: Next,
    settings: RwLock<Settings>,
    /// By place of the op in [`OP_LABELS`].
    times: Vec<Histogram>,
    errors: Vec<AtomicU64>,
    files: Mutex<HashMap<u64, FileCounts>>,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

#[derive(Clone, Copy)]
struct Settings {
    top: usize,
    files: usize,
}

#[derive(Default, Clone, Copy)]
struct FileCounts {
    ops: u64,
    bytes: u64,
}

impl Settings {
    fn of(options: &Options) -> Self {
        Self { top: options.number("top") as usize, files: options.number("files") as usize }
    }
}

impl IoStats {
    fn make(options: &Options, next: Next) -> Result<Self> {
        Ok(Self {
            next,
            settings: RwLock::new(Settings::of(options)),
            times: OP_LABELS.iter().map(|_| Histogram::default()).collect(),
            errors: OP_LABELS.iter().map(|_| AtomicU64::new(0)).collect(),
            files: Mutex::default(),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        })
    }

    fn count_file(&self, inode: u64, bytes: u64) {
        let mut files = self.files.lock();
        let counts = files.entry(inode).or_default();
        counts.ops += 1;
        counts.bytes += bytes;
        if files.len() > self.settings.read().files {
            let mut ops: Vec<u64> = files.values().map(|counts| counts.ops).collect();
            let middle = ops.len() / 2;
            let least = *ops.select_nth_unstable(middle).1;
            files.retain(|_, counts| counts.ops > least);
        }
    }

    fn top(&self) -> Vec<(u64, FileCounts)> {
        let mut files: Vec<(u64, FileCounts)> =
            self.files.lock().iter().map(|(inode, counts)| (*inode, *counts)).collect();
        files.sort_by_key(|(inode, counts)| (std::cmp::Reverse(counts.ops), *inode));
        files.truncate(self.settings.read().top);
        files
    }
}

impl Translator for IoStats {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        let at = index_of(op.label());
        let file = match &op {
            Op::Data { op } => inode_of(op).map(|inode| {
                (
                    inode,
                    range_of(op).map_or(0, |range| range.1),
                    matches!(op, DataOp::Write { .. } | DataOp::Append { .. }),
                )
            }),
            _ => None,
        };
        let begun = now();
        let reply = self.next.handle(context, op);
        if let Some(at) = at {
            self.times[at].add(elapsed(begun));
            self.errors[at].fetch_add(u64::from(reply.is_err()), Ordering::Relaxed);
        }
        if let Some((inode, length, is_write)) = file {
            let bytes = match &reply {
                Ok(Reply::FileData { bytes, .. }) => bytes.len() as u64,
                Ok(_) if is_write => length,
                _ => 0,
            };
            let counter = if is_write { &self.bytes_written } else { &self.bytes_read };
            counter.fetch_add(bytes, Ordering::Relaxed);
            self.count_file(inode, bytes);
        }
        reply
    }

    fn event(&self, event: &Event<'_>) -> Result<()> {
        if let Event::Reconfigure(options) = event {
            *self.settings.write() = Settings::of(options);
        }
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, String> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counters = BTreeMap::from([
            ("bytes read".to_string(), count(&self.bytes_read).to_string()),
            ("bytes written".to_string(), count(&self.bytes_written).to_string()),
        ]);
        for (at, label) in OP_LABELS.iter().enumerate() {
            let rows = self.times[at].rows();
            let ops: u64 = rows.iter().map(|row| row.1).sum();
            if ops == 0 {
                continue;
            }
            let point = |share: f64| {
                let time = self.times[at].quantile(share).unwrap_or_default();
                format!("{} % in {:.1} us or better", share * 100.0, time.as_nanos() as f64 / 1000.0)
            };
            let curve = SHARES.map(point).join(", ");
            counters.insert(format!("op {label}"), format!("{ops} ops, {} errors: {curve}", count(&self.errors[at])));
        }
        for (rank, (inode, FileCounts { ops, bytes })) in self.top().into_iter().enumerate() {
            counters.insert(format!("top file {:03}", rank + 1), format!("inode {inode}: {ops} ops, {bytes} bytes"));
        }
        counters
    }
}
