//! The interface between a program and the shared library of a translator, as `include/hekate_translator.h` has it for
//! C. Ops and results cross it in the encoding of `docs/format/wire.md`.

use std::ffi::{c_char, c_int, c_void};

/// Version of this interface. A library with another one is refused before anything of it is called.
pub const ABI: u32 = 1;
/// Name of the one symbol of a library: a [`TranslatorAbi`].
pub const SYMBOL: &[u8] = b"hekate_translator\0";

/// The translator changes neither ops nor replies.
pub const TRANSPARENT: u32 = 1;
/// `handle` may block: it is called by a pool of threads, and not by the thread of the caller.
pub const BLOCKS: u32 = 2;
/// A graph may have several of it.
pub const REPEATABLE: u32 = 4;

/// Events of an instance.
pub const START: c_int = 1;
pub const STOP: c_int = 2;
pub const RECONFIGURE: c_int = 3;
pub const TIMER: c_int = 4;
pub const RECALL: c_int = 5;

/// One op under way. The library answers it exactly once, by any thread; the answer ends its life.
#[repr(C)]
pub struct RequestAbi {
    _opaque: [u8; 0],
}

/// One instance of a translator, as the program knows it.
#[repr(C)]
pub struct LayerAbi {
    _opaque: [u8; 0],
}

/// Receives the result of an op that a library sent to the layer below: `Result<Reply, Error>`, valid during the call.
pub type Done = unsafe extern "C" fn(user: *mut c_void, result: *const u8, length: usize);

/// An option of a translator.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OptionAbi {
    pub name: *const c_char,
    /// `flag`, `number`, `bytes`, `time`, `percent`, `text`, or words with `|` between them.
    pub kind: *const c_char,
    pub default_value: *const c_char,
    pub help: *const c_char,
}

/// What the program does for libraries. All functions may be called by any thread.
#[repr(C)]
pub struct HostAbi {
    pub abi: u32,
    /// Bytes of this table: a later program has more functions behind these.
    pub size: u32,
    /// Level: 1 error, 2 warning, 3 information, 4 debugging.
    pub log: unsafe extern "C" fn(layer: *const LayerAbi, level: c_int, text: *const c_char, length: usize),
    /// Adds to a counter that `hekate graph` shows.
    pub count: unsafe extern "C" fn(layer: *const LayerAbi, name: *const c_char, add: u64),
    /// Copies the value of an option with a zero byte, at most `room` bytes. Returns the length of the whole value, or
    /// -1 if there is no such option.
    pub option:
        unsafe extern "C" fn(layer: *const LayerAbi, name: *const c_char, out: *mut c_char, room: usize) -> isize,
    /// Answers with what the layer below answers to the op as it came.
    pub pass: unsafe extern "C" fn(request: *mut RequestAbi),
    /// Answers with what the layer below answers to this op.
    pub pass_op: unsafe extern "C" fn(request: *mut RequestAbi, op: *const u8, length: usize),
    /// Answers with a result: `Result<Reply, Error>`.
    pub reply: unsafe extern "C" fn(request: *mut RequestAbi, result: *const u8, length: usize),
    /// Answers with an errno (errno(3)) and a text for people, which may be null.
    pub fail: unsafe extern "C" fn(request: *mut RequestAbi, error: c_int, text: *const c_char),
    /// Sends an op to the layer below. `done` is called once: before this returns if the caller's thread called it.
    pub call:
        unsafe extern "C" fn(request: *mut RequestAbi, op: *const u8, length: usize, done: Done, user: *mut c_void),
    /// Narrows the ops that `handle` gets of this instance to those with these labels, with spaces between them.
    pub want: unsafe extern "C" fn(layer: *const LayerAbi, ops: *const c_char),
    /// 1 if the caller wants its change on stable storage. Ops that the library sends have the same wish.
    pub is_durable: unsafe extern "C" fn(request: *const RequestAbi) -> c_int,
    /// 1 if the caller has given up: the answer reaches nobody.
    pub is_cancelled: unsafe extern "C" fn(request: *const RequestAbi) -> c_int,
}

/// The one symbol of a library.
#[repr(C)]
pub struct TranslatorAbi {
    pub abi: u32,
    /// Bytes of this table.
    pub size: u32,
    /// A sentence for people.
    pub summary: *const c_char,
    /// [`TRANSPARENT`], [`BLOCKS`], [`REPEATABLE`].
    pub flags: u32,
    pub option_count: u32,
    pub options: *const OptionAbi,
    /// The labels of the ops that `handle` gets, with spaces between them; null for all. Others pass by.
    pub ops: *const c_char,
    /// Once for each library, before its first instance; 0 if it can be used. May be null.
    pub init: Option<unsafe extern "C" fn(host: *const HostAbi) -> c_int>,
    /// Makes an instance; null if it cannot, after a line in the log that says why.
    pub create: Option<unsafe extern "C" fn(host: *const HostAbi, layer: *const LayerAbi) -> *mut c_void>,
    /// Answers the request, now or later. `op` is valid until this returns.
    pub handle:
        Option<unsafe extern "C" fn(instance: *mut c_void, request: *mut RequestAbi, op: *const u8, length: usize)>,
    /// An event. For [`RECONFIGURE`] 0 if the instance takes the new options, 2 if another instance has to be made for
    /// them; else they are refused, and it goes on with the old ones. May be null.
    pub event: Option<unsafe extern "C" fn(instance: *mut c_void, event: c_int) -> c_int>,
    /// Ends an instance. No op of it is under way.
    pub destroy: Option<unsafe extern "C" fn(instance: *mut c_void)>,
}

// SAFETY: the table is read-only, and its strings are those of the library.
unsafe impl Sync for TranslatorAbi {}
// SAFETY: as above; the functions may be called by any thread.
unsafe impl Send for TranslatorAbi {}
// SAFETY: options are read-only text.
unsafe impl Sync for OptionAbi {}
