//! An op under way in a shared library. The thread of the caller waits for the answer, and meanwhile executes what the
//! library sends to the layer below: so ops below have the caller's context, and no thread is needed for them.

use hekate_graph::{Context, Next};
use hekate_plugin_sdk::abi::{Done, RequestAbi};
use hekate_proto::{Error, Op, Reply, Result, Wire};
use parking_lot::{Condvar, Mutex};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between two looks at whether the caller has given up.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

const EIO: u32 = 5;
/// The answer of a library.
pub enum Answer {
    /// What the layer below answers to the op as it came.
    Pass,
    /// What the layer below answers to this op.
    PassOp(Op),
    Result(Result<Reply>),
}

/// An op that a library sends to the layer below.
struct Call {
    op: Result<Op>,
    done: Done,
    user: User,
}

/// The library's own word for a call.
struct User(*mut c_void);

// SAFETY: the pointer is given back to the library, which may be called by any thread.
unsafe impl Send for User {}

/// One op under way.
pub struct Pending {
    is_durable: bool,
    state: Mutex<State>,
    changed: Condvar,
    is_cancelled: AtomicBool,
}

#[derive(Default)]
struct State {
    answer: Option<Answer>,
    calls: VecDeque<Call>,
    /// The caller has gone: calls fail, and the answer reaches nobody.
    is_over: bool,
}

/// An op that this thread has given to a library and that has no answer yet, with what executes its calls.
#[derive(Clone, Copy)]
struct Current {
    pending: *const Pending,
    context: *const Context<'static>,
    next: *const Next,
}

thread_local! {
    static CURRENT: RefCell<Vec<Current>> = const { RefCell::new(Vec::new()) };
}

/// Makes calls of an op on this thread run at once, until it is dropped.
struct Given;

impl Given {
    fn new(pending: &Arc<Pending>, context: &Context, next: &Next) -> Self {
        let context = std::ptr::from_ref(context).cast::<Context<'static>>();
        CURRENT.with_borrow_mut(|all| all.push(Current { pending: Arc::as_ptr(pending), context, next }));
        Self
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|all| _ = all.pop());
    }
}

/// Gives an op to a library by `give`, and waits for its answer. `limit`: longest time without an answer or a call.
/// `None` after `limit`: the library may still use the request.
pub fn run(
    context: &Context,
    next: &Next,
    op: Op,
    limit: Duration,
    give: impl FnOnce(*mut RequestAbi),
) -> Option<Result<Reply>> {
    let pending = Arc::new(Pending {
        is_durable: context.durable,
        state: Mutex::default(),
        changed: Condvar::new(),
        is_cancelled: AtomicBool::new(false),
    });
    // The library's reference, which its answer ends.
    let request = Arc::into_raw(pending.clone()).cast_mut().cast::<RequestAbi>();
    // Also while `wait` executes calls: what a library sends below from within `done` would wait for this thread.
    let given = Given::new(&pending, context, next);
    give(request);
    let answer = pending.wait(context, next, limit);
    drop(given);
    Some(match answer? {
        Answer::Pass => next.handle(context, op),
        Answer::PassOp(op) => next.handle(context, op),
        Answer::Result(result) => result,
    })
}

impl Pending {
    /// `None` after `limit`.
    fn wait(&self, context: &Context, next: &Next, limit: Duration) -> Option<Answer> {
        let mut begun = Instant::now();
        let mut state = self.state.lock();
        loop {
            if let Some(answer) = state.answer.take() {
                let left: Vec<Call> = state.calls.drain(..).collect();
                state.is_over = true;
                drop(state);
                left.into_iter().for_each(|call| call.end(Err(Error::Interrupted)));
                return Some(answer);
            }
            if let Some(call) = state.calls.pop_front() {
                drop(state);
                call.execute(context, next);
                begun = Instant::now();
                state = self.state.lock();
                continue;
            }
            if begun.elapsed() >= limit {
                state.is_over = true;
                self.is_cancelled.store(true, Ordering::Relaxed);
                return None;
            }
            if context.interrupted() {
                self.is_cancelled.store(true, Ordering::Relaxed);
            }
            self.changed.wait_for(&mut state, LOOK_PAUSE);
        }
    }

    pub fn is_durable(&self) -> bool {
        self.is_durable
    }

    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Sends an op below: at once on the thread that gave the request to the library, else on the caller's thread.
    pub fn call(&self, op: Result<Op>, done: Done, user: *mut c_void) {
        let call = Call { op, done, user: User(user) };
        let own = std::ptr::from_ref(self);
        let current = CURRENT.with_borrow(|all| all.last().copied().filter(|current| current.pending == own));
        if let Some(Current { context, next, .. }) = current {
            // SAFETY: `run` is on this thread's stack, and holds both.
            return unsafe { call.execute(&*context, &*next) };
        }
        let mut state = self.state.lock();
        if state.is_over {
            drop(state);
            return call.end(Err(Error::Interrupted));
        }
        state.calls.push_back(call);
        self.changed.notify_all();
    }

    /// Gives the answer, and ends the library's reference.
    ///
    /// # Safety
    /// `request` is a pointer of `run` that no answer has ended.
    pub unsafe fn answer(request: *mut RequestAbi, answer: Answer) {
        // SAFETY: the pointer is the library's reference.
        let pending = unsafe { Arc::from_raw(request.cast::<Self>()) };
        pending.state.lock().answer = Some(answer);
        pending.changed.notify_all();
    }
}

impl Call {
    fn execute(self, context: &Context, next: &Next) {
        let result = self.op.clone().and_then(|op| next.handle(context, op));
        self.end(result);
    }

    fn end(self, result: Result<Reply>) {
        let bytes = result.to_bytes();
        // SAFETY: the library gave the function for this; the bytes are valid during the call.
        unsafe { (self.done)(self.user.0, bytes.as_ptr(), bytes.len()) }
    }
}

/// The bytes of a library, which may say null for none.
///
/// # Safety
/// A pointer that is not null has so many bytes, which nobody changes during `'a`.
pub unsafe fn bytes_at<'a>(pointer: *const u8, length: usize) -> &'a [u8] {
    if pointer.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: by the caller.
    unsafe { std::slice::from_raw_parts(pointer, length) }
}

/// An op or a result in the library's bytes.
///
/// # Errors
/// `Refused` with EIO if the bytes are no such value.
pub fn decoded<T: Wire>(bytes: &[u8]) -> Result<T> {
    let copy = bytes::Bytes::copy_from_slice(bytes);
    T::from_bytes(copy).map_err(|error| Error::Refused { errno: EIO, what: format!("the translator sent {error}") })
}
