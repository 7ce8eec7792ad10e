//! `python-inside`: a translator in Python in the process of the mount or door itself, and not in a worker. **Unsafe**:
//! a loop, a leak, `os._exit` or a crash of an extension hits the program. It saves two switches between processes for
//! each op; one op at a time computes in Python, because of its interpreter lock.
//!
//! The library links libpython, and nothing else of Hekate does (`docs/python-translators.md`, *Inside the process*).

use hekate_plugin_sdk::abi::{self, Done, HostAbi, LayerAbi, RequestAbi, TranslatorAbi};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

const EIO: c_int = 5;

/// One instance.
struct Inside {
    host: &'static HostAbi,
    layer: *const LayerAbi,
    /// `hekate.inside.Inside`.
    object: Py<PyAny>,
    /// What it was made of: another one needs another instance.
    made_of: [String; 2],
}

/// The op that a call of Python is about: what `self.next` sends its ops below with.
#[pyclass(unsendable)]
struct Below {
    host: &'static HostAbi,
    request: *mut RequestAbi,
}

#[pymethods]
impl Below {
    /// Executes an op in the layer below. Returns its result; both are encodings.
    fn __call__(&self, py: Python<'_>, op: &[u8]) -> PyResult<Py<PyBytes>> {
        let mut result: Vec<u8> = Vec::new();
        let (host, request) = (self.host, SentRequest(self.request));
        let user = SentResult(&raw mut result);
        py.detach(move || {
            let (request, user) = (request, user);
            // SAFETY: the request has no answer yet, and on this thread the call returns after `keep` was called.
            unsafe { (host.call)(request.0, op.as_ptr(), op.len(), keep as Done, user.0.cast()) }
        });
        if result.is_empty() {
            return Err(PyOSError::new_err((EIO, "the op has no result")));
        }
        Ok(PyBytes::new(py, &result).unbind())
    }
}

struct SentRequest(*mut RequestAbi);
// SAFETY: it is used by this thread only, which gives up the interpreter meanwhile.
unsafe impl Send for SentRequest {}

struct SentResult(*mut Vec<u8>);
// SAFETY: as above.
unsafe impl Send for SentResult {}

unsafe extern "C" fn keep(user: *mut c_void, result: *const u8, length: usize) {
    // SAFETY: `Below` passes its vector, and waits.
    unsafe { (*user.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(result, length)) }
}

/// Extensions of Python look for its symbols among those that are global, and libraries are loaded with local ones.
unsafe extern "C" fn init(_: *const HostAbi) -> c_int {
    let mut found: nix::libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is that of a function of libpython.
    let known = unsafe { nix::libc::dladdr(pyo3::ffi::Py_IsInitialized as *const c_void, &raw mut found) };
    // SAFETY: the name is that of a library that is loaded.
    let opened = known != 0
        && !unsafe { nix::libc::dlopen(found.dli_fname, nix::libc::RTLD_NOW | nix::libc::RTLD_GLOBAL) }.is_null();
    c_int::from(!opened)
}

fn option(host: &HostAbi, layer: *const LayerAbi, name: &CStr) -> String {
    let mut room = vec![0u8; 64 << 10];
    // SAFETY: the buffer has room for as many bytes as the call is told.
    let length = unsafe { (host.option)(layer, name.as_ptr(), room.as_mut_ptr().cast::<c_char>(), room.len()) };
    room.truncate(usize::try_from(length).unwrap_or(0).min(room.len() - 1));
    String::from_utf8_lossy(&room).into_owned()
}

fn log(host: &HostAbi, layer: *const LayerAbi, level: c_int, text: &str) {
    // SAFETY: the text is valid during the call.
    unsafe { (host.log)(layer, level, text.as_ptr().cast(), text.len()) }
}

/// The options of the class: `NAME=VALUE;NAME=VALUE`.
fn class_options(text: &str) -> Vec<(&str, &str)> {
    text.split(';').filter_map(|item| item.split_once('=')).collect()
}

fn make(host: &'static HostAbi, layer: *const LayerAbi) -> PyResult<Inside> {
    let (library, directory) = (option(host, layer, c"library"), option(host, layer, c"directory"));
    let (options, made_of) = (option(host, layer, c"options"), [library.clone(), directory.clone()]);
    Python::attach(|py| {
        py.import("sys")?.getattr("path")?.call_method1("insert", (0, library))?;
        let values = PyDict::new(py);
        for (name, value) in class_options(&options) {
            values.set_item(name, value)?;
        }
        let address = (layer as usize, host as *const HostAbi as usize);
        let line = pyo3::types::PyCFunction::new_closure(py, None, None, move |arguments, _| {
            let (level, text): (c_int, String) = arguments.extract()?;
            // SAFETY: both live as long as the instance.
            let host = unsafe { &*(address.1 as *const HostAbi) };
            log(host, address.0 as *const LayerAbi, level, &text);
            PyResult::Ok(())
        })?;
        let object = py.import("hekate.inside")?.getattr("Inside")?.call1((directory, values, line))?;
        let ops: String = object.call_method0("ops")?.extract()?;
        let ops = CString::new(ops).unwrap_or_default();
        // SAFETY: the text is valid during the call.
        unsafe { (host.want)(layer, ops.as_ptr()) };
        Ok(Inside { host, layer, object: object.unbind(), made_of })
    })
}

unsafe extern "C" fn create(host: *const HostAbi, layer: *const LayerAbi) -> *mut c_void {
    // SAFETY: the program's table lives as long as the program.
    let host: &'static HostAbi = unsafe { &*host };
    match make(host, layer) {
        Ok(inside) => Box::into_raw(Box::new(inside)).cast(),
        Err(error) => {
            log(host, layer, 1, &error.to_string());
            std::ptr::null_mut()
        }
    }
}

unsafe extern "C" fn handle(instance: *mut c_void, request: *mut RequestAbi, op: *const u8, length: usize) {
    // SAFETY: the instance lives until `destroy`.
    let inside = unsafe { &*instance.cast::<Inside>() };
    let host = inside.host;
    // SAFETY: the bytes are valid during the call.
    let bytes = unsafe { std::slice::from_raw_parts(op, length) };
    // SAFETY: the request has no answer yet.
    let durable = unsafe { (host.is_durable)(request) } == 1;
    let answer = Python::attach(|py| -> PyResult<Option<Vec<u8>>> {
        let below = Bound::new(py, Below { host, request })?;
        let found = inside.object.bind(py).call_method1("call", (PyBytes::new(py, bytes), durable, below))?;
        if found.is_none() { Ok(None) } else { Ok(Some(found.extract::<Vec<u8>>()?)) }
    });
    // SAFETY: each way answers once.
    unsafe {
        match answer {
            Ok(None) => (host.pass)(request),
            Ok(Some(result)) => (host.reply)(request, result.as_ptr(), result.len()),
            Err(error) => {
                log(host, inside.layer, 1, &error.to_string());
                let text = CString::new("the translator in Python failed; the log says why").unwrap_or_default();
                (host.fail)(request, EIO, text.as_ptr());
            }
        }
    }
}

unsafe extern "C" fn event(instance: *mut c_void, event: c_int) -> c_int {
    // SAFETY: the instance lives until `destroy`.
    let inside = unsafe { &*instance.cast::<Inside>() };
    let told = match event {
        abi::START => "begin",
        abi::RECALL => "recall",
        abi::STOP => "stop",
        abi::RECONFIGURE => return reconfigure(inside),
        _ => return 0,
    };
    if let Err(error) = Python::attach(|py| inside.object.bind(py).call_method0(told).map(drop)) {
        log(inside.host, inside.layer, 1, &error.to_string());
    }
    0
}

/// As `event` answers it.
fn reconfigure(inside: &Inside) -> c_int {
    let value = |name| option(inside.host, inside.layer, name);
    if [value(c"library"), value(c"directory")] != inside.made_of {
        return 2;
    }
    let options = value(c"options");
    let told = Python::attach(|py| -> PyResult<()> {
        let values = PyDict::new(py);
        for (name, value) in class_options(&options) {
            values.set_item(name, value)?;
        }
        inside.object.bind(py).call_method1("reconfigure", (values,)).map(drop)
    });
    if let Err(error) = &told {
        log(inside.host, inside.layer, 2, &error.to_string());
    }
    c_int::from(told.is_err())
}

unsafe extern "C" fn destroy(instance: *mut c_void) {
    // SAFETY: `create` made the box.
    let inside = unsafe { Box::from_raw(instance.cast::<Inside>()) };
    Python::attach(|py| {
        // Threads of the translator may outlive it: their lines have nowhere to go once the layer is gone.
        if let Err(error) = inside.object.bind(py).call_method0("close") {
            log(inside.host, inside.layer, 1, &error.to_string());
        }
        drop(inside);
    });
}

const OPTIONS: &[abi::OptionAbi] = &[
    row(c"directory", c"", c"directory with the translator.py"),
    row(c"library", c"", c"directory with the package hekate: python-library-* in the state directory, or python/"),
    row(c"options", c"", c"options of the class: NAME=VALUE;NAME=VALUE"),
];

const fn row(name: &'static CStr, default: &'static CStr, help: &'static CStr) -> abi::OptionAbi {
    abi::OptionAbi { name: name.as_ptr(), kind: c"text".as_ptr(), default_value: default.as_ptr(), help: help.as_ptr() }
}

#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static hekate_translator: TranslatorAbi = TranslatorAbi {
    abi: abi::ABI,
    size: size_of::<TranslatorAbi>() as u32,
    summary: c"UNSAFE: a translator in Python inside of the program's process".as_ptr(),
    flags: abi::REPEATABLE,
    option_count: OPTIONS.len() as u32,
    options: OPTIONS.as_ptr(),
    ops: std::ptr::null(),
    init: Some(init),
    create: Some(create),
    handle: Some(handle),
    event: Some(event),
    destroy: Some(destroy),
};
