//! Translators in shared libraries (`include/hekate_translator.h`). A library is loaded once, initialised when it is
//! first used, and never unloaded: its threads and its pointers may outlive its instances.

use crate::pool::Pool;
use crate::request::{Answer, Pending, bytes_at, decoded, run};
use hekate_graph::{Context, Event, LayerKind, Next, OpSet, OptionKind, OptionSpec, Options, Side, Translator};
use hekate_plugin_sdk::abi::{self, Done, HostAbi, LayerAbi, RequestAbi, TranslatorAbi};
use hekate_proto::{Error, Op, Reply, Result, Wire};
use libloading::Library;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Most bytes of a text of a library.
const TEXT_BYTES_MAX: usize = 64 << 10;
const OPTIONS_MAX: u32 = 64;
const ETIMEDOUT: u32 = 110;

/// A library that was loaded.
struct Loaded {
    table: &'static TranslatorAbi,
    /// The outcome of its `init`.
    initialised: OnceLock<c_int>,
    _library: Library,
}

/// Loaded libraries: a file that was replaced is another library.
type Known = BTreeMap<(PathBuf, u64, i64), Arc<Loaded>>;

static LOADED: Mutex<Known> = Mutex::new(BTreeMap::new());

static HOST: HostAbi = HostAbi {
    abi: abi::ABI,
    size: size_of::<HostAbi>() as u32,
    log: host_log,
    count: host_count,
    option: host_option,
    pass: host_pass,
    pass_op: host_pass_op,
    reply: host_reply,
    fail: host_fail,
    call: host_call,
    want: host_want,
    is_durable: host_is_durable,
    is_cancelled: host_is_cancelled,
};

/// The kind of translator in a library. Nothing of the library is called.
///
/// # Errors
/// `Invalid` if it cannot be loaded, has no table, or another version of the interface.
pub fn kind(name: &str, path: &Path) -> Result<LayerKind> {
    let loaded = load(path)?;
    let table = loaded.table;
    let mut options = own_options();
    for at in 0..table.option_count as usize {
        // SAFETY: the table says how many options follow the pointer.
        let option = unsafe { &*table.options.add(at) };
        options.push(option_of(path, option)?);
    }
    let has = |flag| table.flags & flag != 0;
    let (made_name, made_path) = (name.to_string(), path.to_path_buf());
    let make = move |options: &Options, next: Next| {
        Ok(Arc::new(NativeLayer::make(&made_name, &made_path, options, next)?) as Next)
    };
    Ok(LayerKind {
        name: name.into(),
        summary: text(table.summary),
        help: format!("From the library {}.", path.display()),
        side: Side::Client,
        is_transparent: has(abi::TRANSPARENT),
        is_repeatable: has(abi::REPEATABLE),
        options,
        is_open: false,
        make: Some(Arc::new(make)),
    })
}

/// The options that every library has.
fn own_options() -> Vec<OptionSpec> {
    let deadline = OptionKind::Time { max: Duration::from_secs(24 * 3600) };
    vec![
        OptionSpec::new("deadline", deadline, "60s", "time without an answer after which an op fails with ETIMEDOUT"),
        OptionSpec::new(
            "threads",
            OptionKind::Number { min: 1, max: 256 },
            "8",
            "threads of a library that blocks: as many of its ops run at once",
        ),
    ]
}

fn option_of(path: &Path, option: &abi::OptionAbi) -> Result<OptionSpec> {
    let kind = match text(option.kind).as_str() {
        "flag" => OptionKind::Flag,
        "number" => OptionKind::Number { min: 0, max: u64::MAX },
        "bytes" => OptionKind::Bytes { min: 0, max: u64::MAX },
        "time" => OptionKind::Time { max: Duration::from_secs(365 * 24 * 3600) },
        "percent" => OptionKind::Percent,
        "text" => OptionKind::Text,
        words if words.contains('|') => OptionKind::Choice(words.split('|').map(String::from).collect()),
        other => {
            let (path, name) = (path.display(), text(option.name));
            return Err(Error::invalid(format!("{path}: option {name} is of kind {other:?}, which does not exist")));
        }
    };
    Ok(OptionSpec { name: text(option.name), kind, default: text(option.default_value), help: text(option.help) })
}

/// A text of a library; empty for null.
fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the interface says that texts end with a zero byte.
    let bytes = unsafe { CStr::from_ptr(pointer) }.to_bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]).into_owned()
}

fn load(path: &Path) -> Result<Arc<Loaded>> {
    let shown = path.display();
    let found = std::fs::metadata(path).map_err(|error| Error::invalid(format!("the library {shown}: {error}")))?;
    let key = (path.to_path_buf(), found.ino(), found.mtime_nsec() ^ found.mtime());
    let mut known = LOADED.lock();
    if let Some(loaded) = known.get(&key) {
        return Ok(loaded.clone());
    }
    // dlopen(3) returns what it has loaded under the same name before: a file that was replaced needs another name.
    let earlier = known.keys().filter(|(known, ..)| known == path).count();
    let name =
        path.parent().unwrap_or(Path::new("/")).join("./".repeat(earlier)).join(path.file_name().unwrap_or_default());
    // SAFETY: whoever installs a library trusts it with the program; its constructors run here.
    let library = unsafe { Library::new(&name) }
        .map_err(|error| Error::invalid(format!("the library {shown} cannot be loaded: {error}")))?;
    // SAFETY: the type is only read as far as its version agrees.
    let symbol = unsafe { library.get::<*const TranslatorAbi>(abi::SYMBOL) }.map_err(|_| {
        Error::invalid(format!("{shown} is no translator: it has no symbol hekate_translator (hekate_translator.h)"))
    })?;
    let table: *const TranslatorAbi = *symbol;
    // SAFETY: the first two fields are the same in all versions.
    let (version, size) = unsafe { ((*table).abi, (*table).size as usize) };
    if version != abi::ABI || size < size_of::<TranslatorAbi>() {
        return Err(Error::invalid(format!(
            "{shown} is built for version {version} of the translators' interface, this program has version {}; build it \
             again",
            abi::ABI
        )));
    }
    // SAFETY: the version agrees, and the library stays loaded.
    let table: &'static TranslatorAbi = unsafe { &*table };
    let lacks_options = table.option_count > 0 && table.options.is_null();
    if table.create.is_none() || table.handle.is_none() || lacks_options || table.option_count > OPTIONS_MAX {
        return Err(Error::invalid(format!(
            "{shown}: its table lacks create, handle or options, or has over {OPTIONS_MAX} options"
        )));
    }
    let loaded = Arc::new(Loaded { table, initialised: OnceLock::new(), _library: library });
    known.insert(key, loaded.clone());
    Ok(loaded)
}

/// What the program keeps for an instance; the library has its address as `LayerAbi`.
struct LayerState {
    name: String,
    options: RwLock<Options>,
    counters: Mutex<BTreeMap<String, u64>>,
    /// The ops that the instance gets, an [`OpSet`].
    ops: AtomicU64,
    /// The last error that the library has logged.
    said: Mutex<String>,
}

struct NativeLayer {
    next: Next,
    table: &'static TranslatorAbi,
    instance: Instance,
    state: Arc<LayerState>,
    deadline: RwLock<Duration>,
    pool: Option<Pool>,
    /// Ops that the library may still have after their caller has gone.
    abandoned: Arc<AtomicU64>,
}

#[derive(Clone, Copy)]
struct Instance(*mut c_void);

// SAFETY: the interface says that the library's functions may be called by any thread.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl NativeLayer {
    fn make(name: &str, path: &Path, options: &Options, next: Next) -> Result<Self> {
        let loaded = load(path)?;
        let table = loaded.table;
        // SAFETY: the library is called once, before anything else of it.
        let init = || table.init.map_or(0, |init| unsafe { init(&HOST) });
        let outcome = *loaded.initialised.get_or_init(init);
        if outcome != 0 {
            return Err(Error::invalid(format!("translator {name}: the library's init has failed ({outcome})")));
        }
        let ops = if table.ops.is_null() { OpSet::ALL } else { OpSet::of(text(table.ops).split_whitespace()) };
        let state = Arc::new(LayerState {
            name: name.into(),
            ops: AtomicU64::new(ops.bits()),
            options: RwLock::new(options.clone()),
            counters: Mutex::default(),
            said: Mutex::default(),
        });
        let Some(create) = table.create else { return Err(Error::bug("a table without create")) };
        // SAFETY: the state lives at least as long as the instance.
        let instance = Instance(unsafe { create(&HOST, Arc::as_ptr(&state).cast()) });
        if instance.0.is_null() {
            let said = state.said.lock().clone();
            return Err(Error::invalid(format!("translator {name} cannot be made: {said}")));
        }
        let pool = (table.flags & abi::BLOCKS != 0).then(|| Pool::new(name, options.number("threads") as usize));
        let deadline = RwLock::new(options.time("deadline"));
        let pool = pool.transpose()?;
        Ok(Self { next, table, instance, state, deadline, pool, abandoned: Arc::default() })
    }

    fn tell(&self, event: c_int) -> c_int {
        // SAFETY: the instance lives.
        self.table.event.map_or(0, |tell| unsafe { tell(self.instance.0, event) })
    }
}

impl Translator for NativeLayer {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        let ops = OpSet::from_bits(self.state.ops.load(Ordering::Relaxed));
        let (true, Some(handle)) = (ops.has(op.label()), self.table.handle) else {
            return self.next.handle(context, op);
        };
        let (bytes, instance) = (op.to_bytes(), self.instance);
        let limit = *self.deadline.read();
        let outcome = run(context, &self.next, op, limit, |request| {
            let Some(pool) = &self.pool else {
                // SAFETY: the instance lives, and the bytes are valid during the call.
                return unsafe { handle(instance.0, request, bytes.as_ptr(), bytes.len()) };
            };
            let (request, bytes) = (SentRequest(request), bytes.clone());
            pool.run(move || {
                let (instance, request) = (instance, request);
                // SAFETY: an instance with an op that it has not answered is not destroyed.
                unsafe { handle(instance.0, request.0, bytes.as_ptr(), bytes.len()) }
            });
        });
        outcome.unwrap_or_else(|| {
            self.abandoned.fetch_add(1, Ordering::Relaxed);
            let what = format!("translator {} has not answered for {} s", self.state.name, limit.as_secs_f64());
            Err(Error::Refused { errno: ETIMEDOUT, what })
        })
    }

    fn event(&self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::Reconfigure(options) => {
                let before = self.state.options.read().clone();
                if before.number("threads") != options.number("threads") {
                    return Err(Error::NotSupported { what: "another number of threads needs a new instance".into() });
                }
                *self.state.options.write() = (*options).clone();
                let told = self.tell(abi::RECONFIGURE);
                if told != 0 {
                    *self.state.options.write() = before;
                    if told == 2 {
                        return Err(Error::NotSupported { what: "another instance has to be made".into() });
                    }
                    let (name, said) = (&self.state.name, self.state.said.lock().clone());
                    return Err(Error::invalid(format!("translator {name} refuses the options: {said}")));
                }
                *self.deadline.write() = options.time("deadline");
            }
            Event::Start => _ = self.tell(abi::START),
            Event::Stop => _ = self.tell(abi::STOP),
            Event::Timer => _ = self.tell(abi::TIMER),
            Event::Recall(_) => _ = self.tell(abi::RECALL),
        }
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, String> {
        self.state.counters.lock().iter().map(|(name, count)| (name.clone(), count.to_string())).collect()
    }
}

impl Drop for NativeLayer {
    fn drop(&mut self) {
        drop(self.pool.take());
        if self.abandoned.load(Ordering::Relaxed) > 0 {
            log::warn!("translator {} is left in memory: it never answered some ops", self.state.name);
            std::mem::forget(self.state.clone());
            return;
        }
        if let Some(destroy) = self.table.destroy {
            // SAFETY: nobody uses the instance any more.
            unsafe { destroy(self.instance.0) }
        }
    }
}

struct SentRequest(*mut RequestAbi);

// SAFETY: requests may be answered by any thread.
unsafe impl Send for SentRequest {}

/// # Safety
/// `layer` is the address of a state that lives.
unsafe fn state<'a>(layer: *const LayerAbi) -> &'a LayerState {
    // SAFETY: by the caller.
    unsafe { &*layer.cast::<LayerState>() }
}

unsafe extern "C" fn host_log(layer: *const LayerAbi, level: c_int, text: *const c_char, length: usize) {
    if layer.is_null() || text.is_null() {
        return;
    }
    // SAFETY: the interface says that the text has so many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length.min(TEXT_BYTES_MAX)) };
    // SAFETY: libraries pass the layer that they got.
    let (state, line) = (unsafe { state(layer) }, String::from_utf8_lossy(bytes));
    if level <= 2 {
        *state.said.lock() = line.clone().into_owned();
    }
    let level = match level {
        1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        _ => log::Level::Debug,
    };
    log::log!(level, "translator {}: {line}", state.name);
}

unsafe extern "C" fn host_count(layer: *const LayerAbi, name: *const c_char, add: u64) {
    const COUNTERS_MAX: usize = 256;
    // SAFETY: as of `host_log`.
    let mut counters = unsafe { state(layer) }.counters.lock();
    let name = text(name);
    if counters.len() < COUNTERS_MAX || counters.contains_key(&name) {
        *counters.entry(name).or_default() += add;
    }
}

unsafe extern "C" fn host_option(layer: *const LayerAbi, name: *const c_char, out: *mut c_char, room: usize) -> isize {
    // SAFETY: as of `host_log`.
    let options = unsafe { state(layer) }.options.read();
    let Some(value) = options.values().get(&text(name)) else { return -1 };
    if room > 0 && !out.is_null() {
        let count = value.len().min(room - 1);
        // SAFETY: the library says that `out` has room for so many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(value.as_ptr(), out.cast::<u8>(), count);
            *out.add(count) = 0;
        }
    }
    value.len() as isize
}

unsafe extern "C" fn host_pass(request: *mut RequestAbi) {
    // SAFETY: the interface says that a request is answered once.
    unsafe { Pending::answer(request, Answer::Pass) }
}

unsafe extern "C" fn host_pass_op(request: *mut RequestAbi, op: *const u8, length: usize) {
    // SAFETY: the library gives so many bytes.
    let op = decoded::<Op>(unsafe { bytes_at(op, length) });
    let answer = op.map_or_else(|error| Answer::Result(Err(error)), Answer::PassOp);
    // SAFETY: as of `host_pass`.
    unsafe { Pending::answer(request, answer) }
}

unsafe extern "C" fn host_reply(request: *mut RequestAbi, result: *const u8, length: usize) {
    // SAFETY: the library gives so many bytes.
    let result = decoded::<Result<Reply>>(unsafe { bytes_at(result, length) });
    // SAFETY: as of `host_pass`.
    unsafe { Pending::answer(request, Answer::Result(result.and_then(|result| result))) }
}

unsafe extern "C" fn host_fail(request: *mut RequestAbi, error: c_int, what: *const c_char) {
    let refused = Error::Refused { errno: u32::try_from(error).unwrap_or_default(), what: text(what) };
    // SAFETY: as of `host_pass`.
    unsafe { Pending::answer(request, Answer::Result(Err(refused))) }
}

unsafe extern "C" fn host_call(request: *mut RequestAbi, op: *const u8, length: usize, done: Done, user: *mut c_void) {
    // SAFETY: the library gives so many bytes.
    let op = decoded::<Op>(unsafe { bytes_at(op, length) });
    // SAFETY: the request has not been answered.
    unsafe { &*request.cast::<Pending>() }.call(op, done, user);
}

unsafe extern "C" fn host_want(layer: *const LayerAbi, ops: *const c_char) {
    let wanted = OpSet::of(text(ops).split_whitespace());
    // SAFETY: as of `host_log`.
    unsafe { state(layer) }.ops.store(wanted.bits(), Ordering::Relaxed);
}

unsafe extern "C" fn host_is_durable(request: *const RequestAbi) -> c_int {
    // SAFETY: the request has not been answered.
    unsafe { &*request.cast::<Pending>() }.is_durable().into()
}

unsafe extern "C" fn host_is_cancelled(request: *const RequestAbi) -> c_int {
    // SAFETY: the request has not been answered.
    unsafe { &*request.cast::<Pending>() }.is_cancelled().into()
}
