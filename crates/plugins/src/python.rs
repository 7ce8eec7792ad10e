//! Translators in Python, each in a worker process of its own. The layer starts the worker anew when it has ended, and
//! when its files have changed.

mod channel;
mod worker;

use crate::home::Home;
use hekate_graph::{Context, Event, LayerKind, Next, OpSet, OptionKind, OptionSpec, Options, Side, Translator};
use hekate_proto::{Error, Op, Reply, Result};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};
pub use worker::python;
use worker::{Outcome, Wish, Worker};

const EIO: u32 = 5;
/// Time between two looks at the worker and at its files.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// Pause before a worker that has ended is started again: doubled each time up to the second, back to the first after
/// it has run for longer than that.
const RESTART_PAUSE: Duration = Duration::from_millis(250);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(30);

/// The options that each has; others are the class's own.
pub fn own_options() -> Vec<OptionSpec> {
    let words = |words: [&str; 2]| OptionKind::Choice(words.map(String::from).into());
    vec![
        OptionSpec::new("translator", OptionKind::Text, "", "its name, as it was installed (`hekate python list`)"),
        OptionSpec::new(
            "deadline",
            OptionKind::Time { max: Duration::from_secs(3600) },
            "10s",
            "time in which the translator has to answer, or to send an op below; the op's time below does not count",
        ),
        OptionSpec::new(
            "stuck",
            words(["fail", "pass"]),
            "fail",
            "an op that gets no answer in time, or whose worker has ended, fails with EIO, or passes by the translator",
        ),
        OptionSpec::new(
            "memory",
            OptionKind::Bytes { min: 0, max: 1 << 40 },
            "512M",
            "bytes that the worker may use beyond what Python itself needs; 0 for no limit",
        ),
        OptionSpec::new(
            "channels",
            OptionKind::Number { min: 1, max: 64 },
            "8",
            "ops that the translator answers at once",
        ),
    ]
}

/// The options of a layer that are its class's own.
pub fn of_class(given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = own_options();
    let is_own = |option: &String| own.iter().any(|own| own.name == *option);
    given.iter().filter(|(option, _)| !is_own(option)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The kind `python`; `home`: where translators are installed.
pub fn kind(home: Home) -> LayerKind {
    let make = move |options: &Options, next: Next| Ok(PythonLayer::make(&home, options, next)? as Next);
    LayerKind {
        name: "python".into(),
        summary: "a translator in Python, in a process of its own".into(),
        help: "`hekate translator show python:NAME` has the options of an installed one.".into(),
        side: Side::Client,
        is_transparent: false,
        is_repeatable: true,
        options: own_options(),
        is_open: true,
        make: Some(Arc::new(make)),
    }
}

#[derive(Clone, Copy)]
struct Settings {
    deadline: Duration,
    passes: bool,
}

impl Settings {
    fn of(options: &Options) -> Self {
        Self { deadline: options.time("deadline"), passes: options.text("stuck") == "pass" }
    }
}

struct PythonLayer {
    name: String,
    next: Next,
    settings: RwLock<Settings>,
    ops: RwLock<OpSet>,
    wish: Mutex<Wish>,
    current: Mutex<Current>,
    changed: Condvar,
    /// Every op of the volume passes: no graph of before has ops under way.
    is_live: AtomicBool,
    /// Ops that failed or passed by because the worker gave no answer, and starts of workers.
    unanswered: AtomicU64,
    starts: AtomicU64,
}

#[derive(Default)]
struct Current {
    worker: Option<Arc<Worker>>,
    /// Why there is none.
    why: String,
    /// Another one is about to take its place: ops wait.
    is_changing: bool,
    is_over: bool,
}

impl PythonLayer {
    fn make(home: &Home, options: &Options, next: Next) -> Result<Arc<Self>> {
        let name = options.text("translator").to_string();
        let directory = home.python_directory(&name)?;
        let wish = Wish {
            name,
            directory,
            library: home.python_library()?,
            options: of_class(options.values()),
            memory_bytes_max: options.bytes("memory"),
            channels: options.number("channels") as usize + 1,
        };
        let worker = begun(&wish, &next, None)?;
        let layer = Arc::new(Self {
            name: wish.name.clone(),
            next,
            settings: RwLock::new(Settings::of(options)),
            ops: RwLock::new(worker.ops),
            wish: Mutex::new(wish),
            current: Mutex::new(Current { worker: Some(worker), ..Current::default() }),
            changed: Condvar::new(),
            is_live: AtomicBool::new(false),
            unanswered: AtomicU64::new(0),
            starts: AtomicU64::new(1),
        });
        let watched = Arc::downgrade(&layer);
        let started = std::thread::Builder::new().name("hekate-py-watch".into()).spawn(move || watch(&watched));
        started.map_err(|error| Error::io("start a thread", error))?;
        Ok(layer)
    }

    /// The worker; waits while another one takes its place.
    fn worker(&self, limit: Duration) -> std::result::Result<Arc<Worker>, String> {
        let end = Instant::now() + limit;
        let mut current = self.current.lock();
        while current.is_changing && !self.changed.wait_until(&mut current, end).timed_out() {}
        current.worker.clone().filter(|worker| !worker.is_over()).ok_or_else(|| current.why.clone())
    }

    fn unanswered(&self, context: &Context, op: Op, settings: Settings, why: &str) -> Result<Reply> {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        if settings.passes {
            return self.next.handle(context, op);
        }
        let why = if why.is_empty() { "it is not running" } else { why };
        Err(Error::Refused { errno: EIO, what: format!("translator {} in Python: {why}", self.name) })
    }

    /// Replaces the worker by one that has the translator's present files, with the state of the old one. If they
    /// cannot be loaded, the old one goes on.
    fn reload(&self) {
        let wish = self.wish.lock().clone();
        let new = match Worker::load(&wish, &self.next) {
            Ok(new) => new,
            Err(error) => return log::error!("{error}; the one before goes on"),
        };
        let old = {
            let mut current = self.current.lock();
            current.is_changing = true;
            current.worker.take()
        };
        let state = old.and_then(|worker| {
            worker.drain(self.settings.read().deadline);
            worker.stop()
        });
        let started = new.begin(state.as_deref()).map(|()| new).map_err(|error| named(&wish, &error));
        self.take(&wish, started);
    }

    fn start(&self) {
        let wish = self.wish.lock().clone();
        let started = begun(&wish, &self.next, None);
        self.take(&wish, started);
    }

    fn take(&self, wish: &Wish, started: Result<Arc<Worker>>) {
        self.starts.fetch_add(1, Ordering::Relaxed);
        // The options may have changed since the worker was started: what `event` says meanwhile waits for this lock.
        let now = self.wish.lock();
        let started = started.and_then(|worker| {
            if now.options != wish.options {
                worker.reconfigure(&now.options).inspect_err(|_| worker.kill())?;
            }
            Ok(worker)
        });
        let mut current = self.current.lock();
        current.is_changing = false;
        match started {
            Ok(worker) if !current.is_over => {
                if self.is_live.load(Ordering::SeqCst) {
                    worker.is_live();
                }
                *self.ops.write() = worker.ops;
                current.worker = Some(worker);
                log::info!("translator {} in Python runs", wish.name);
            }
            Ok(worker) => worker.kill(),
            Err(error) => {
                log::error!("{error}");
                current.why = error.to_string();
            }
        }
        self.changed.notify_all();
    }
}

/// A worker whose translator has begun.
fn begun(wish: &Wish, next: &Next, state: Option<&str>) -> Result<Arc<Worker>> {
    let worker = Worker::load(wish, next)?;
    worker.begin(state).map_err(|error| named(wish, &error))?;
    Ok(worker)
}

/// The error with the translator's name.
fn named(wish: &Wish, error: &Error) -> Error {
    Error::invalid(format!("translator {} in Python: {}", wish.name, error.detail().unwrap_or_default()))
}

/// When a file of the translator was last changed.
fn changed_at(directory: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(directory).ok()?;
    let times = entries.filter_map(|entry| entry.ok()?.metadata().ok()?.modified().ok());
    times.max()
}

/// Starts the worker again when it has ended, or when its files have changed.
fn watch(layer: &Weak<PythonLayer>) {
    let mut seen = layer.upgrade().and_then(|layer| changed_at(&layer.wish.lock().directory.clone()));
    let (mut pause, mut started) = (RESTART_PAUSE, Instant::now());
    loop {
        std::thread::sleep(LOOK_PAUSE);
        let Some(layer) = layer.upgrade() else { return };
        let (is_over, worker) = {
            let current = layer.current.lock();
            (current.is_over, current.worker.clone())
        };
        if is_over {
            return;
        }
        let directory = layer.wish.lock().directory.clone();
        let changed = changed_at(&directory);
        if changed.is_some() && changed != seen {
            seen = changed;
            log::info!("translator {}: its files have changed; it is loaded again", layer.name);
            layer.reload();
            (pause, started) = (RESTART_PAUSE, Instant::now());
        } else if worker.as_ref().is_none_or(|worker| worker.is_over()) && started.elapsed() >= pause {
            let why = worker.and_then(|worker| worker.failure()).unwrap_or_else(|| "it has ended".into());
            log::warn!("translator {}: {why}; it is started again", layer.name);
            layer.current.lock().why = why;
            layer.start();
            pause =
                if started.elapsed() > RESTART_PAUSE_MAX { RESTART_PAUSE } else { (pause * 2).min(RESTART_PAUSE_MAX) };
            started = Instant::now();
        }
    }
}

/// Keeps a worker alive no longer than its layer.
impl Drop for PythonLayer {
    fn drop(&mut self) {
        if let Some(worker) = self.current.lock().worker.take() {
            worker.kill();
        }
    }
}

impl Translator for PythonLayer {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        if !self.ops.read().has(op.label()) {
            return self.next.handle(context, op);
        }
        let settings = *self.settings.read();
        let worker = match self.worker(settings.deadline) {
            Ok(worker) => worker,
            Err(why) => return self.unanswered(context, op, settings, &why),
        };
        match worker.call(context, &self.next, &op, settings.deadline) {
            Outcome::Answered(result) => result,
            Outcome::Pass => self.next.handle(context, op),
            Outcome::Failed { why, below: Some(result) } => {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
                log::warn!("translator {}: {why}; the op has been executed below", self.name);
                result
            }
            Outcome::Failed { why, below: None } => self.unanswered(context, op, settings, &why),
        }
    }

    fn event(&self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::Reconfigure(options) => {
                let (of_class, mut wish) = (of_class(options.values()), self.wish.lock());
                let is_another = options.text("translator") != wish.name
                    || options.bytes("memory") != wish.memory_bytes_max
                    || options.number("channels") as usize + 1 != wish.channels;
                if is_another {
                    return Err(Error::NotSupported { what: "another worker has to be started".into() });
                }
                if of_class != wish.options {
                    let worker = self.current.lock().worker.clone();
                    worker.map_or(Ok(()), |worker| worker.reconfigure(&of_class))?;
                    wish.options = of_class;
                }
                *self.settings.write() = Settings::of(options);
            }
            Event::Stop => {
                let worker = {
                    let mut current = self.current.lock();
                    current.is_over = true;
                    current.worker.take()
                };
                worker.into_iter().for_each(|worker| _ = worker.stop());
            }
            Event::Start => {
                self.is_live.store(true, Ordering::SeqCst);
                self.current.lock().worker.iter().for_each(|worker| worker.is_live());
            }
            Event::Recall(_) => self.current.lock().worker.iter().for_each(|worker| worker.recall()),
            Event::Timer => {}
        }
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, String> {
        let current = self.current.lock();
        let mut counters = current.worker.as_ref().map(|worker| worker.metrics()).unwrap_or_default();
        let is_running = current.worker.as_ref().is_some_and(|worker| !worker.is_over());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed).to_string();
        counters.insert("worker".into(), if is_running { "runs".into() } else { format!("ended: {}", current.why) });
        counters.insert("workers started".into(), count(&self.starts));
        counters.insert("ops without an answer".into(), count(&self.unanswered));
        counters.insert("ops".into(), self.ops.read().labels().join(" "));
        counters
    }
}
