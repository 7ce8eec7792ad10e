//! `io-stats`: how long each kind of op takes, and which files and processes have the most ops and bytes. For each op the
//! curve of "this time or better": half of the ops, 90, 99 and 99.9 of a hundred.

use super::clients::{Client, Threads};
use super::details::{inode_of, range_of};
use super::{kind as plain, made_by};
use hekate_graph::options::index_of;
use hekate_graph::{Context, Event, Histogram, LayerKind, Next, OptionKind, OptionSpec, Options, Translator};
use hekate_proto::op::OP_LABELS;
use hekate_proto::{DataOp, Op, Reply, Result};
use hekate_threads::{HashMap, Mutex, RwLock, elapsed, now};
use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

/// Points of the curves.
const SHARES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];
/// Processes that are counted, about 100 bytes each; beyond it as with files.
const CLIENTS_MAX: usize = 4096;

pub fn kind() -> LayerKind {
    let options = vec![
        OptionSpec::new(
            "top",
            OptionKind::Number { min: 0, max: 100 },
            "10",
            "number of files, and of processes, that are shown",
        ),
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
        help:
            "Processes are known at a mount only. What a program wrote through a mapping is sent by the kernel, of no \
               known process; what other programs than mounts do is counted without a process."
                .into(),
        make: made_by(IoStats::make),
        ..plain("io-stats", "counts and times ops, shows the files and the processes with the most", options)
    }
}

struct IoStats {
    next: Next,
    settings: RwLock<Settings>,
    /// By place of the op in [`OP_LABELS`].
    times: Vec<Histogram>,
    errors: Vec<AtomicU64>,
    files: Mutex<Ranking<u64>>,
    clients: Mutex<Ranking<Client>>,
    threads: Threads,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

#[derive(Clone, Copy)]
struct Settings {
    top: usize,
    files: usize,
}

#[derive(Default, Clone, Copy)]
struct Counts {
    ops: u64,
    bytes: u64,
}

/// Ops and bytes by file, or by process.
struct Ranking<K>(HashMap<K, Counts>);

impl<K> Default for Ranking<K> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Ord + Hash + Clone> Ranking<K> {
    /// Counts an op. Beyond `most` keys those with the fewest ops are forgotten, half of them or more.
    fn add(&mut self, key: K, bytes: u64, most: usize) {
        let counts = self.0.entry(key).or_default();
        counts.ops += 1;
        counts.bytes += bytes;
        if self.0.len() > most {
            let mut ops: Vec<u64> = self.0.values().map(|counts| counts.ops).collect();
            let middle = ops.len() / 2;
            let least = *ops.select_nth_unstable(middle).1;
            self.0.retain(|_, counts| counts.ops > least);
        }
    }

    /// Those with the most ops.
    fn top(&self, count: usize) -> Vec<(K, Counts)> {
        let mut all: Vec<(K, Counts)> = self.0.iter().map(|(key, counts)| (key.clone(), *counts)).collect();
        all.sort_by(|a, b| b.1.ops.cmp(&a.1.ops).then_with(|| a.0.cmp(&b.0)));
        all.truncate(count);
        all
    }
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
            clients: Mutex::default(),
            threads: Threads::default(),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        })
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
        let mut bytes = 0;
        if let Some((inode, length, is_write)) = file {
            bytes = match &reply {
                Ok(Reply::FileData { bytes, .. }) => bytes.len() as u64,
                Ok(_) if is_write => length,
                _ => 0,
            };
            let counter = if is_write { &self.bytes_written } else { &self.bytes_read };
            counter.fetch_add(bytes, Ordering::Relaxed);
            let files_max = self.settings.read().files;
            self.files.lock().add(inode, bytes, files_max);
        }
        if let Some(caller) = context.caller {
            let client = self.threads.client(caller);
            self.clients.lock().add(client, bytes, CLIENTS_MAX);
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
        let top = self.settings.read().top;
        let mut rows = |kind: &str, rank: usize, key: String, Counts { ops, bytes }| {
            counters.insert(format!("top {kind} {:03}", rank + 1), format!("{key}: {ops} ops, {bytes} bytes"));
        };
        for (rank, (inode, counts)) in self.files.lock().top(top).into_iter().enumerate() {
            rows("file", rank, format!("inode {inode}"), counts);
        }
        for (rank, (client, counts)) in self.clients.lock().top(top).into_iter().enumerate() {
            rows("client", rank, client.to_string(), counts);
        }
        counters
    }
}
