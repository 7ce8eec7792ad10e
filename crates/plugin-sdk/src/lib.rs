//! What a translator in Rust needs that is a shared library of its own: a type that implements [`Plugin`], and
//! [`export_translator!`] for it. `docs/translators.md` is the guide; `examples/plugins/count-names` is one.
//!
//! The library links the program's types of ops and replies (`hekate-proto`), so it is built for one version of them:
//! [`abi::ABI`] changes with their encoding.

pub mod abi;

use bytes::Bytes;
pub use hekate_proto as proto;
use hekate_proto::{Error, Op, Reply, Result, Wire};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::mpsc::channel;

/// A translator.
pub trait Plugin: Send + Sync + Sized + 'static {
    /// Makes an instance.
    ///
    /// # Errors
    /// A text for people that says why there can be none: the graph is refused with it.
    fn new(layer: Layer) -> std::result::Result<Self, String>;

    /// Answers the request now or later, by any thread.
    fn handle(&self, request: Request, op: Op);

    /// Takes note of an event.
    ///
    /// # Errors
    /// For [`Event::Reconfigure`]: the instance goes on with the options that it had.
    fn event(&self, event: Event) -> std::result::Result<(), String> {
        let _ = event;
        Ok(())
    }
}

/// What happens to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Every op of the volume passes from now on.
    Start,
    /// No op passes any more.
    Stop,
    /// [`Layer::option`] has other values.
    Reconfigure,
    /// About a second has gone.
    Timer,
    /// Forget what the instance remembers of the volume: servers may have changed it since.
    Recall,
}

/// The instance, as the program knows it.
#[derive(Clone, Copy)]
pub struct Layer {
    host: *const abi::HostAbi,
    layer: *const abi::LayerAbi,
}

// SAFETY: the host's functions may be called by any thread, and both outlive the instance.
unsafe impl Send for Layer {}
// SAFETY: as above.
unsafe impl Sync for Layer {}

impl Layer {
    fn host(&self) -> &abi::HostAbi {
        // SAFETY: the table lives as long as the program.
        unsafe { &*self.host }
    }

    /// Writes a line into the program's log. Level: 1 error, 2 warning, 3 information, 4 debugging.
    pub fn log(&self, level: i32, text: &str) {
        // SAFETY: the text is valid during the call.
        unsafe { (self.host().log)(self.layer, level, text.as_ptr().cast(), text.len()) }
    }

    /// Adds to a counter that `hekate graph` shows.
    pub fn count(&self, name: &str, add: u64) {
        if let Ok(name) = CString::new(name) {
            // SAFETY: the name is valid during the call.
            unsafe { (self.host().count)(self.layer, name.as_ptr(), add) }
        }
    }

    /// The value of an option as text; empty if there is no such option.
    pub fn option(&self, name: &str) -> String {
        let Ok(name) = CString::new(name) else { return String::new() };
        let mut room = vec![0u8; 256];
        loop {
            // SAFETY: the buffer has room for as many bytes as the call is told.
            let length =
                unsafe { (self.host().option)(self.layer, name.as_ptr(), room.as_mut_ptr().cast(), room.len()) };
            let Ok(length) = usize::try_from(length) else { return String::new() };
            if length < room.len() {
                room.truncate(length);
                return String::from_utf8_lossy(&room).into_owned();
            }
            room.resize(length + 1, 0);
        }
    }
}

/// One op under way. A request that is dropped without an answer fails with EIO.
pub struct Request {
    host: *const abi::HostAbi,
    request: *mut abi::RequestAbi,
}

// SAFETY: the host's functions may be called by any thread.
unsafe impl Send for Request {}

impl Request {
    fn host(&self) -> &'static abi::HostAbi {
        // SAFETY: the table lives as long as the program.
        unsafe { &*self.host }
    }

    /// Ends the request's life here: the host has it from now on.
    fn into_raw(self) -> *mut abi::RequestAbi {
        let request = self.request;
        std::mem::forget(self);
        request
    }

    /// Answers with what the layer below answers to the op as it came.
    pub fn pass(self) {
        let host = self.host();
        // SAFETY: the request is answered once, since it is consumed.
        unsafe { (host.pass)(self.into_raw()) }
    }

    /// Answers with what the layer below answers to this op.
    pub fn pass_op(self, op: &Op) {
        let (host, bytes) = (self.host(), op.to_bytes());
        // SAFETY: the request is answered once, and the bytes are valid during the call.
        unsafe { (host.pass_op)(self.into_raw(), bytes.as_ptr(), bytes.len()) }
    }

    /// Answers.
    pub fn reply(self, result: &Result<Reply>) {
        let (host, bytes) = (self.host(), result.to_bytes());
        // SAFETY: as above.
        unsafe { (host.reply)(self.into_raw(), bytes.as_ptr(), bytes.len()) }
    }

    /// Answers with an errno (errno(3)).
    pub fn fail(self, errno: i32, text: &str) {
        let host = self.host();
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: as above.
        unsafe { (host.fail)(self.into_raw(), errno, text.as_ptr()) }
    }

    /// Sends an op to the layer below. `done` gets the result: before this returns on the caller's thread, else later,
    /// by the caller's thread.
    pub fn call(&self, op: &Op, done: impl FnOnce(Result<Reply>) + Send + 'static) {
        let bytes = op.to_bytes();
        let user = Box::into_raw(Box::new(Box::new(done) as Box<dyn FnOnce(Result<Reply>) + Send>));
        // SAFETY: `call_done` takes the box back, once.
        unsafe { (self.host().call)(self.request, bytes.as_ptr(), bytes.len(), call_done, user.cast()) }
    }

    /// Sends an op to the layer below and waits for its result.
    ///
    /// # Errors
    /// Those of the op.
    pub fn next(&self, op: &Op) -> Result<Reply> {
        let (sender, receiver) = channel();
        self.call(op, move |result| _ = sender.send(result));
        receiver.recv().unwrap_or_else(|_| Err(Error::Interrupted))
    }

    /// True if the caller wants its change on stable storage.
    pub fn is_durable(&self) -> bool {
        // SAFETY: the request has not been answered.
        unsafe { (self.host().is_durable)(self.request) == 1 }
    }

    /// True if the caller has given up.
    pub fn is_cancelled(&self) -> bool {
        // SAFETY: the request has not been answered.
        unsafe { (self.host().is_cancelled)(self.request) == 1 }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: every answer forgets the request, so this is the first one.
        unsafe { (self.host().fail)(self.request, 5, c"the translator gave no answer".as_ptr()) }
    }
}

unsafe extern "C" fn call_done(user: *mut c_void, result: *const u8, length: usize) {
    // SAFETY: `Request::call` made the box, and the host calls this once.
    let done = unsafe { Box::from_raw(user.cast::<Box<dyn FnOnce(Result<Reply>) + Send>>()) };
    // SAFETY: the host's bytes are valid during the call.
    let bytes = Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(result, length) });
    done(Result::<Reply>::from_bytes(bytes).unwrap_or_else(|error| Err(error.into())));
}

/// The functions behind [`export_translator!`].
pub mod exported {
    use super::*;

    /// # Safety
    /// Called by the program with its table and a new layer.
    pub unsafe extern "C" fn create<P: Plugin>(host: *const abi::HostAbi, layer: *const abi::LayerAbi) -> *mut c_void {
        let layer = Layer { host, layer };
        let made = std::panic::catch_unwind(|| P::new(layer)).unwrap_or_else(|_| Err("it panicked".into()));
        match made {
            Ok(plugin) => Box::into_raw(Box::new((plugin, layer))).cast(),
            Err(why) => {
                layer.log(1, &why);
                std::ptr::null_mut()
            }
        }
    }

    /// # Safety
    /// Called by the program with an instance of `create`.
    pub unsafe extern "C" fn handle<P: Plugin>(
        instance: *mut c_void,
        request: *mut abi::RequestAbi,
        op: *const u8,
        length: usize,
    ) {
        // SAFETY: the instance lives until `destroy`, which waits for its ops.
        let (plugin, layer) = unsafe { &*instance.cast::<(P, Layer)>() };
        let request = Request { host: layer.host, request };
        // SAFETY: the bytes are valid during the call.
        let bytes = Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(op, length) });
        let run = move || match Op::from_bytes(bytes) {
            Ok(op) => plugin.handle(request, op),
            Err(error) => request.reply(&Err(error.into())),
        };
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
            layer.log(1, "the translator panicked; the op has failed with EIO");
        }
    }

    /// # Safety
    /// Called by the program with an instance of `create`.
    pub unsafe extern "C" fn event<P: Plugin>(instance: *mut c_void, event: c_int) -> c_int {
        // SAFETY: as of `handle`.
        let (plugin, layer) = unsafe { &*instance.cast::<(P, Layer)>() };
        let event = match event {
            abi::START => Event::Start,
            abi::STOP => Event::Stop,
            abi::RECONFIGURE => Event::Reconfigure,
            abi::RECALL => Event::Recall,
            _ => Event::Timer,
        };
        let run = || plugin.event(event);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(Ok(())) => 0,
            Ok(Err(why)) => {
                layer.log(2, &why);
                1
            }
            Err(_) => {
                layer.log(1, &format!("the translator panicked on {event:?}"));
                1
            }
        }
    }

    /// # Safety
    /// Called by the program once with an instance of `create`.
    pub unsafe extern "C" fn destroy<P: Plugin>(instance: *mut c_void) {
        // SAFETY: `create` made the box.
        drop(unsafe { Box::from_raw(instance.cast::<(P, Layer)>()) });
    }

    /// The pointer of a text in a table.
    pub const fn text(text: &'static CStr) -> *const c_char {
        text.as_ptr()
    }
}

/// Makes a type the translator of this library.
///
/// ```ignore
/// export_translator!(CountNames {
///     summary: c"counts the names that are looked up",
///     flags: hekate_plugin_sdk::abi::TRANSPARENT,
///     ops: c"lookup",
///     options: [(c"suffix", c"text", c"", c"count only names that end so")],
/// });
/// ```
#[macro_export]
macro_rules! export_translator {
    ($plugin:ty {
        summary: $summary:expr, flags: $flags:expr, ops: $ops:expr,
        options: [$(($name:expr, $kind:expr, $default:expr, $help:expr)),* $(,)?] $(,)?
    }) => {
        const OPTIONS: &[$crate::abi::OptionAbi] = &[$($crate::abi::OptionAbi {
            name: $crate::exported::text($name),
            kind: $crate::exported::text($kind),
            default_value: $crate::exported::text($default),
            help: $crate::exported::text($help),
        }),*];

        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static hekate_translator: $crate::abi::TranslatorAbi = $crate::abi::TranslatorAbi {
            abi: $crate::abi::ABI,
            size: size_of::<$crate::abi::TranslatorAbi>() as u32,
            summary: $crate::exported::text($summary),
            flags: $flags,
            option_count: OPTIONS.len() as u32,
            options: OPTIONS.as_ptr(),
            ops: $crate::exported::text($ops),
            init: None,
            create: Some($crate::exported::create::<$plugin>),
            handle: Some($crate::exported::handle::<$plugin>),
            event: Some($crate::exported::event::<$plugin>),
            destroy: Some($crate::exported::destroy::<$plugin>),
        };
    };
}
