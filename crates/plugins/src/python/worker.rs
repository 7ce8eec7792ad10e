//! A worker: the process of one Python translator, with its channels. Whatever it does (raise, loop, leak, exit), the
//! program goes on: the process is ended and another one started.

use super::channel::{AREA_BYTES, CALL, Channel, DONE, Frame, NEXT, NoFrame, PASS, RESULT};
use crate::request::decoded;
use command_fds::{CommandFdExt, FdMapping};
use hekate_graph::{Context, Next, OpSet};
use hekate_proto::{Error, Op, Reply, Result, Wire};
use parking_lot::{Condvar, Mutex};
use rustix::fd::OwnedFd;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time that a worker has to load its translator.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// Time that it has to take other options, and to stop.
const OBEY_LIMIT: Duration = Duration::from_secs(5);
const STOP_LIMIT: Duration = Duration::from_secs(2);
const STOP_PAUSE: Duration = Duration::from_millis(20);
/// Number of the first descriptor that a worker gets.
const FIRST_FD: i32 = 3;

/// What a worker is started with.
#[derive(Clone)]
pub struct Wish {
    pub name: String,
    pub directory: PathBuf,
    /// Directory with the package `hekate`.
    pub library: PathBuf,
    pub options: BTreeMap<String, String>,
    pub memory_bytes_max: u64,
    pub channels: usize,
}

/// A process of a translator.
pub struct Worker {
    child: Mutex<Child>,
    control: Mutex<UnixStream>,
    free: Mutex<Vec<Channel>>,
    freed: Condvar,
    /// Number of channels for calls.
    channels: usize,
    /// Ends the channels of calls that wait.
    enders: Vec<OwnedFd>,
    pub ops: OpSet,
    told: Mutex<Told>,
    told_more: Condvar,
    is_over: AtomicBool,
    calls: AtomicU64,
}

/// What the worker has said and was not used yet.
#[derive(Default)]
struct Told {
    has_begun: bool,
    reconfigured: Option<std::result::Result<(), String>>,
    state: Option<String>,
    metrics: BTreeMap<String, String>,
    failed: Option<String>,
}

/// How a call ended.
pub enum Outcome {
    Answered(Result<Reply>),
    /// The op goes to the layer below as it came.
    Pass,
    /// The worker gave no answer. `below`: what the layer below has answered to the last op of the same kind, if that
    /// changes something: it must not be executed twice.
    Failed {
        why: String,
        below: Option<Result<Reply>>,
    },
}

impl Worker {
    /// Starts a process, and waits until its translator is loaded; [`Worker::begin`] lets it begin. Ops that it sends
    /// by itself go to `next`.
    ///
    /// # Errors
    /// `Invalid` with what Python says if the translator cannot be loaded.
    pub fn load(wish: &Wish, next: &Next) -> Result<Arc<Self>> {
        let failed = |error: std::io::Error| Error::io(format!("start translator {} in Python", wish.name), error);
        let (control, its_control) = UnixStream::pair().map_err(failed)?;
        let (mut channels, mut fds) = (Vec::new(), vec![OwnedFd::from(its_control)]);
        for _ in 0..wish.channels.max(2) {
            let (own, other) = Channel::make()?;
            channels.push(own);
            fds.extend([other.socket, other.memory]);
        }
        let child = spawn(wish, fds).map_err(failed)?;
        let enders = channels.iter().filter_map(Channel::ender).collect();
        let own = channels.remove(0);
        let mut worker = Self {
            child: Mutex::new(child),
            control: Mutex::new(control.try_clone().map_err(failed)?),
            channels: channels.len(),
            free: Mutex::new(channels),
            freed: Condvar::new(),
            enders,
            ops: OpSet::default(),
            told: Mutex::default(),
            told_more: Condvar::new(),
            is_over: AtomicBool::new(false),
            calls: AtomicU64::new(0),
        };
        control.set_read_timeout(Some(READY_LIMIT)).map_err(failed)?;
        let mut lines = BufReader::new(control);
        worker.ops = match ready(&wish.name, &mut lines) {
            Ok(ops) => ops,
            Err(why) => {
                worker.kill();
                return Err(Error::invalid(format!("translator {} in Python: {why}", wish.name)));
            }
        };
        let _ = lines.get_ref().set_read_timeout(None);
        let worker = Arc::new(worker);
        let (reading, name) = (worker.clone(), wish.name.clone());
        thread("hekate-py-log", move || reading.read_control(&name, lines))?;
        let (serving, next) = (Arc::downgrade(&worker), next.clone());
        thread("hekate-py-own", move || serve_own(own, &next, move || serving.upgrade().is_none()))?;
        Ok(worker)
    }

    /// Lets the translator begin, with the state of the one before, and waits until its `on_start` has returned.
    ///
    /// # Errors
    /// `Invalid` with what Python says if `on_start` raises.
    pub fn begin(&self, state: Option<&str>) -> Result<()> {
        if let Some(state) = state {
            self.send(&json!({"state": state}));
        }
        self.send(&json!({"start": true}));
        // It is answered after `on_start`.
        self.send(&json!({"describe": true}));
        self.has_begun().map_err(Error::invalid).inspect_err(|_| self.kill())
    }

    fn has_begun(&self) -> std::result::Result<(), String> {
        let end = Instant::now() + READY_LIMIT;
        let mut told = self.told.lock();
        loop {
            if told.has_begun {
                return Ok(());
            }
            if let Some(why) = &told.failed {
                return Err(why.clone());
            }
            if self.is_over() || self.told_more.wait_until(&mut told, end).timed_out() {
                return Err(format!("its on_start has not returned within {} s", READY_LIMIT.as_secs()));
            }
        }
    }

    /// Tells the translator that every op of the volume passes it from now on.
    pub fn is_live(&self) {
        self.send(&json!({"begin": true}));
    }

    /// Tells the translator that what it remembers may be out of date.
    pub fn recall(&self) {
        self.send(&json!({"recall": true}));
    }

    /// Waits until no call is under way, for `limit` at most. No other call may begin meanwhile.
    pub fn drain(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut free = self.free.lock();
        while free.len() < self.channels && !self.is_over() && !self.freed.wait_until(&mut free, end).timed_out() {}
    }

    fn send(&self, message: &Value) {
        let _ = self.control.lock().write_all(format!("{message}\n").as_bytes());
    }

    /// Reads what the worker says until it ends.
    fn read_control(&self, name: &str, mut lines: BufReader<UnixStream>) {
        while let Some(line) = read_line(&mut lines) {
            let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
            if let Some(text) = message.get("text").and_then(Value::as_str) {
                log_line(name, message.get("log").and_then(Value::as_str).unwrap_or("info"), text);
            }
            let mut told = self.told.lock();
            if message.get("reconfigured").is_some() {
                told.reconfigured = Some(Ok(()));
            } else if let Some(why) = message.get("refused").and_then(Value::as_str) {
                told.reconfigured = Some(Err(why.into()));
            } else if message.get("description").is_some() {
                told.has_begun = true;
            } else if let Some(state) = message.get("state").and_then(Value::as_str) {
                told.state = Some(state.into());
            } else if let Some(metrics) = message.get("metrics") {
                add_metrics(&mut told.metrics, metrics);
            } else if let Some(why) = message.get("failed").and_then(Value::as_str) {
                log::error!("translator {name}: {why}");
                told.failed = Some(why.into());
            }
            self.told_more.notify_all();
        }
        self.kill();
    }

    /// Gives the worker an op, and the layer below what the worker sends. `limit`: longest time without a word of it.
    pub fn call(&self, context: &Context, next: &Next, op: &Op, limit: Duration) -> Outcome {
        let Some(mut channel) = self.free_channel(limit) else {
            let why = if self.is_over() { "it is not running" } else { "all its channels are busy" };
            return Outcome::Failed { why: why.into(), below: None };
        };
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let mut below = None;
        let outcome = converse(&mut channel, context, next, op, number, limit, &mut below);
        let outcome = match outcome {
            Ok(outcome) => {
                self.free.lock().push(channel);
                // Who waits for a channel, and who waits for all of them.
                self.freed.notify_all();
                return outcome;
            }
            Err(NoFrame::Late) => Outcome::Failed { why: format!("it was stuck for {} s", limit.as_secs_f64()), below },
            Err(NoFrame::Ended(why)) => Outcome::Failed { why, below },
        };
        self.kill();
        outcome
    }

    fn free_channel(&self, limit: Duration) -> Option<Channel> {
        let end = Instant::now() + limit;
        let mut free = self.free.lock();
        loop {
            if self.is_over() {
                return None;
            }
            if let Some(channel) = free.pop() {
                return Some(channel);
            }
            if self.freed.wait_until(&mut free, end).timed_out() {
                return None;
            }
        }
    }

    /// True if the process has ended, or is about to.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// What the worker counts, by name.
    pub fn metrics(&self) -> BTreeMap<String, String> {
        self.told.lock().metrics.clone()
    }

    /// Why the worker's translator ended it.
    pub fn failure(&self) -> Option<String> {
        self.told.lock().failed.clone()
    }

    /// Gives the translator other options.
    ///
    /// # Errors
    /// `Invalid` if it refuses them.
    pub fn reconfigure(&self, options: &BTreeMap<String, String>) -> Result<()> {
        self.told.lock().reconfigured = None;
        self.send(&json!({"reconfigure": options}));
        let end = Instant::now() + OBEY_LIMIT;
        let mut told = self.told.lock();
        loop {
            match told.reconfigured.take() {
                Some(Ok(())) => return Ok(()),
                Some(Err(why)) => return Err(Error::invalid(why)),
                None if self.is_over() => return Err(Error::invalid("the translator is not running")),
                None if self.told_more.wait_until(&mut told, end).timed_out() => {
                    return Err(Error::invalid("the translator does not take its options in time"));
                }
                None => {}
            }
        }
    }

    /// Ends the translator in order. Returns its state for the next one.
    pub fn stop(&self) -> Option<String> {
        self.send(&json!({"stop": true}));
        let end = Instant::now() + STOP_LIMIT;
        let mut told = self.told.lock();
        // It says its state before it ends.
        while told.state.is_none() && !self.is_over() && Instant::now() < end {
            self.told_more.wait_for(&mut told, STOP_PAUSE);
        }
        let state = told.state.take();
        drop(told);
        self.kill();
        state
    }

    /// Ends the process now. Calls that wait for it fail.
    pub fn kill(&self) {
        if self.is_over.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
        drop(child);
        self.enders.iter().for_each(Channel::end);
        let _ = self.control.lock().shutdown(std::net::Shutdown::Both);
        self.freed.notify_all();
        self.told_more.notify_all();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.into()).spawn(run);
    started.map(drop).map_err(|error| Error::io("start a thread", error))
}

fn spawn(wish: &Wish, fds: Vec<OwnedFd>) -> std::io::Result<Child> {
    let pair = |number: i32| json!({"socket": FIRST_FD + 1 + 2 * number, "memory": FIRST_FD + 2 + 2 * number});
    let channels: Vec<Value> = (0..(fds.len() as i32 - 1) / 2).map(pair).collect();
    let config = json!({
        "name": wish.name, "directory": wish.directory, "options": wish.options, "control": FIRST_FD,
        "memory_bytes_max": wish.memory_bytes_max, "channels": channels, "area_bytes": AREA_BYTES,
    });
    let mappings = fds.into_iter().zip(FIRST_FD..);
    let mappings = mappings.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd }).collect();
    let mut command = python(&wish.library);
    command.args(["-m", "hekate.worker", &config.to_string()]).stdin(Stdio::null());
    command.fd_mappings(mappings).map_err(|error| std::io::Error::other(error.to_string()))?;
    command.spawn()
}

/// Python with the package, which imports nothing from the directory where it is started.
pub fn python(library: &Path) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", library).env("PYTHONDONTWRITEBYTECODE", "1").current_dir("/");
    command
}

/// Waits for READY_LIMIT at most until the worker has loaded its translator. Returns the ops that it wants.
fn ready(name: &str, lines: &mut BufReader<UnixStream>) -> std::result::Result<OpSet, String> {
    loop {
        let Some(line) = read_line(lines) else {
            return Err(format!(
                "it has not loaded within {} s; is python3 installed, does `hekate python test` pass, and has this \
                 machine time for it?",
                READY_LIMIT.as_secs()
            ));
        };
        let message: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        if let Some(why) = message.get("failed").and_then(Value::as_str) {
            return Err(why.into());
        }
        if let Some(text) = message.get("text").and_then(Value::as_str) {
            log_line(name, message.get("log").and_then(Value::as_str).unwrap_or("info"), text);
        }
        if message.get("ready").is_some() {
            let ops = message.get("ops").and_then(Value::as_array).cloned().unwrap_or_default();
            return Ok(OpSet::of(ops.iter().filter_map(Value::as_str)));
        }
    }
}

/// A line of the control, of a bounded length.
fn read_line(lines: &mut BufReader<UnixStream>) -> Option<String> {
    const LINE_BYTES_MAX: u64 = 64 << 20;
    let mut line = String::new();
    let count = std::io::Read::take(lines, LINE_BYTES_MAX).read_line(&mut line).ok()?;
    (count > 0 && line.ends_with('\n')).then_some(line)
}

fn log_line(name: &str, level: &str, text: &str) {
    let level = match level {
        "error" => log::Level::Error,
        "warn" => log::Level::Warn,
        "debug" => log::Level::Debug,
        _ => log::Level::Info,
    };
    log::log!(level, "translator {name}: {text}");
}

/// Adds what a second has brought.
fn add_metrics(known: &mut BTreeMap<String, String>, metrics: &Value) {
    let rows = |name: &str| metrics.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, value) in rows("gauges") {
        put_in(known, name, value.to_string());
    }
    for (name, value) in rows("counts") {
        let before: f64 = known_number(known, &name);
        put_in(known, name, (before + value.as_f64().unwrap_or_default()).to_string());
    }
    for (name, value) in rows("times") {
        let part = |at: usize| value.get(at).and_then(Value::as_f64).unwrap_or_default();
        let (count, max) = (format!("{name} (count)"), format!("{name} (longest, s)"));
        let (counted, longest) = (known_number(known, &count), known_number(known, &max));
        put_in(known, count, (counted + part(0)).to_string());
        put_in(known, max, longest.max(part(2)).to_string());
    }
}

fn known_number(known: &BTreeMap<String, String>, name: &str) -> f64 {
    known.get(name).and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn put_in(known: &mut BTreeMap<String, String>, name: String, value: String) {
    const METRICS_MAX: usize = 256;
    if known.len() < METRICS_MAX || known.contains_key(&name) {
        known.insert(name, value);
    }
}

/// Executes the ops that a worker sends by itself: of timers, and of the start.
fn serve_own(mut channel: Channel, next: &Next, is_over: impl Fn() -> bool) {
    loop {
        let frame = match channel.receive(Some(Duration::from_secs(1))) {
            Ok(frame) if frame.kind == NEXT => frame,
            Err(NoFrame::Late) if !is_over() => continue,
            _ => return,
        };
        let context = Context { durable: channel.bytes(frame).first() == Some(&1), ..Context::default() };
        let result = op_of(&channel, frame).and_then(|op| next.handle(&context, op));
        if channel.send(RESULT, frame.number, &[&result.to_bytes()]).is_err() {
            return;
        }
    }
}

fn op_of(channel: &Channel, frame: Frame) -> Result<Op> {
    decoded(channel.bytes(frame).get(1..).unwrap_or_default())
}

/// One call on a channel. `below`: as in [`Outcome::Failed`].
fn converse(
    channel: &mut Channel,
    context: &Context,
    next: &Next,
    op: &Op,
    number: u64,
    limit: Duration,
    below: &mut Option<Result<Reply>>,
) -> std::result::Result<Outcome, NoFrame> {
    channel.send(CALL, number, &[&[u8::from(context.durable)], &op.to_bytes()])?;
    loop {
        let frame = channel.receive(Some(limit))?;
        match frame.kind {
            NEXT => {
                let durable = context.durable || channel.bytes(frame).first() == Some(&1);
                let sent = op_of(channel, frame);
                // Before the worker hears of it: it may end meanwhile, and the op must not be executed again.
                let answers = sent.as_ref().is_ok_and(|sent| !sent.is_read() && sent.label() == op.label());
                let result = sent.and_then(|op| next.handle(&Context { durable, ..*context }, op));
                let bytes = result.to_bytes();
                if answers {
                    *below = Some(result);
                }
                channel.send(RESULT, frame.number, &[&bytes])?;
            }
            DONE => {
                let result = decoded::<Result<Reply>>(channel.bytes(frame)).and_then(|result| result);
                return Ok(Outcome::Answered(result));
            }
            PASS => return Ok(Outcome::Pass),
            kind => return Err(NoFrame::Ended(format!("it sent a frame of kind {kind}"))),
        }
    }
}
