//! `negative-lookup`: remembers that a name is missing, as a compiler asks for the same include file in directory after
//! directory.
//!
//! Invariants: a name that this client has made is never reported as missing after the op that made it has returned. A
//! name that another client has made is reported as missing for `lifetime` at most.

use super::{kind as plain, made_by};
use hekate_graph::{Context, Event, LayerKind, Next, OptionKind, OptionSpec, Options, Translator};
use hekate_proto::{Error, InodeId, Name, NameOp, Op, Reply, Result};
use hekate_threads::{HashMap, Mutex, RwLock, now};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of parts with a lock each.
const PARTS: usize = 16;

pub fn kind() -> LayerKind {
    let entries = OptionKind::Number { min: PARTS as u64, max: 10_000_000 };
    let options = vec![
        OptionSpec::new("entries", entries, "100000", "most names that are remembered, about 120 bytes each"),
        OptionSpec::new(
            "lifetime",
            OptionKind::Time { max: Duration::from_secs(24 * 3600) },
            "1s",
            "time after which a name is looked up again: for so long a name that another client makes stays unseen",
        ),
    ];
    LayerKind {
        is_transparent: true,
        help: "Other clients' new names are seen after `lifetime` at most; those of this client at once. Names that a \
               program asks for again and again without success, as compilers do, cost no message."
            .into(),
        make: made_by(NegativeLookup::make),
        ..plain("negative-lookup", "remembers which names are missing", options)
    }
}

struct NegativeLookup {
    next: Next,
    settings: RwLock<Settings>,
    parts: [Mutex<Part>; PARTS],
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Clone, Copy)]
struct Settings {
    entries: usize,
    lifetime: Duration,
    /// Ops of an earlier graph, which do not pass here, have ended.
    is_started: bool,
}

/// A part of the missing names.
#[derive(Default)]
struct Part {
    /// When each was found missing.
    missing: HashMap<(InodeId, Name), Instant>,
    /// When each name was entered, oldest first. A name that was entered again has a row for each time, and one that was
    /// removed keeps its rows until they come to the front: a row counts if `missing` has its time.
    order: VecDeque<((InodeId, Name), Instant)>,
    /// Increases when an op that makes a name begins and ends.
    changes: u64,
}

impl Part {
    fn forget(&mut self, key: &(InodeId, Name)) {
        self.changes += 1;
        self.missing.remove(key);
    }

    fn remember(&mut self, key: (InodeId, Name), settings: Settings) {
        let at = now();
        self.order.push_back((key.clone(), at));
        self.missing.insert(key, at);
        let room = (settings.entries / PARTS).max(1);
        while self.missing.len() > room || self.order.len() > 2 * room || self.is_first_over(settings.lifetime) {
            let Some((key, entered)) = self.order.pop_front() else { return };
            if self.missing.get(&key) == Some(&entered) {
                self.missing.remove(&key);
            }
        }
    }

    fn is_first_over(&self, lifetime: Duration) -> bool {
        self.order.front().is_some_and(|(_, entered)| hekate_threads::elapsed(*entered) > lifetime)
    }
}

impl NegativeLookup {
    fn make(options: &Options, next: Next) -> Result<Self> {
        let parts = std::array::from_fn(|_| Mutex::default());
        let settings = RwLock::new(Settings { is_started: false, ..Settings::of(options) });
        Ok(Self { next, settings, parts, hits: AtomicU64::new(0), misses: AtomicU64::new(0) })
    }

    fn part(&self, (directory, name): &(InodeId, Name)) -> &Mutex<Part> {
        // FNV-1a.
        let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325 ^ directory.number(), add);
        &self.parts[(hash >> 32) as usize % PARTS]
    }

    fn lookup(&self, context: &Context, dir: InodeId, name: Name) -> Result<Reply> {
        let settings = *self.settings.read();
        let key = (dir, name);
        let changes = {
            let part = self.part(&key).lock();
            if part.missing.get(&key).is_some_and(|entered| hekate_threads::elapsed(*entered) <= settings.lifetime) {
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Err(Error::NotFound);
            }
            part.changes
        };
        self.misses.fetch_add(1, Ordering::Relaxed);
        let op = NameOp::Lookup { dir, name: key.1.clone() };
        let reply = self.next.handle(context, Op::Name { op });
        if reply == Err(Error::NotFound) && settings.is_started {
            let mut part = self.part(&key).lock();
            // A name that was made meanwhile may have been missing before.
            if part.changes == changes {
                part.remember(key, settings);
            }
        }
        reply
    }
}

impl Settings {
    fn of(options: &Options) -> Self {
        let entries = usize::try_from(options.number("entries")).unwrap_or(usize::MAX);
        Self { entries, lifetime: options.time("lifetime"), is_started: true }
    }
}

/// The names that an op may make.
fn made_by_op(op: &NameOp) -> Vec<(InodeId, Name)> {
    let with = |dir: &InodeId, name: &Name, alternate: &Name| vec![(*dir, name.clone()), (*dir, alternate.clone())];
    match op {
        NameOp::Create { dir, name, .. } | NameOp::Link { dir, name, .. } | NameOp::Join { dir, to: name, .. } => {
            vec![(*dir, name.clone())]
        }
        // An exchange makes neither, and a whiteout makes the old name again.
        NameOp::Rename { dir, name, to_dir, to_name, .. } => {
            vec![(*dir, name.clone()), (*to_dir, to_name.clone())]
        }
        NameOp::Put { dir, name, alternate: Some(alternate), .. } | NameOp::MakePrefix { dir, name, alternate, .. } => {
            with(dir, name, alternate)
        }
        NameOp::Put { dir, name, alternate: None, .. } => vec![(*dir, name.clone())],
        _ => Vec::new(),
    }
}

impl Translator for NegativeLookup {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        let Op::Name { op } = op else { return self.next.handle(context, op) };
        let op = match op {
            NameOp::Lookup { dir, name } => return self.lookup(context, dir, name),
            other => other,
        };
        let made = made_by_op(&op);
        let forget = || made.iter().for_each(|key| self.part(key).lock().forget(key));
        forget();
        let reply = self.next.handle(context, Op::Name { op });
        // Look-ups that ran beside the op may have found the name missing.
        forget();
        reply
    }

    fn event(&self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::Start => self.settings.write().is_started = true,
            Event::Reconfigure(options) => {
                let mut settings = self.settings.write();
                *settings = Settings { is_started: settings.is_started, ..Settings::of(options) };
            }
            Event::Recall(_) | Event::Stop => self.parts.iter().for_each(|part| {
                let mut part = part.lock();
                *part = Part { changes: part.changes + 1, ..Part::default() };
            }),
            Event::Timer => {}
        }
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, String> {
        let names: usize = self.parts.iter().map(|part| part.lock().missing.len()).sum();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed).to_string();
        [("hits", count(&self.hits)), ("misses", count(&self.misses)), ("names", names.to_string())]
            .map(|(name, value)| (name.into(), value))
            .into()
    }
}
