//! Simulated threads: code of the client runs on them as it is, and blocks by suspending its thread.
//!
//! Each is a coroutine with a stack of its own. It runs until it suspends itself, so the order of all threads follows
//! from the order of the world's events. What a thread asks of the world meanwhile (a message, a notification, another
//! thread) is collected as actions, which the world carries out when the thread has suspended itself.

use crate::simulator::faults::clock::Clock;
use crate::simulator::settings::workload::Micros;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use hekate_brick::storage::Random;
use hekate_proto::map::VolumeMap;
use hekate_proto::{Error, Notification, Request, ServerId};
use hekate_threads::Scheduler;
use hekate_transport::{Replies, Welcome};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

/// Bytes of a thread's stack.
const STACK_BYTES: usize = 1 << 20;
/// Longest time of an operation of a disk, in µs.
const DISK_MAX: u64 = 5_000;
/// Of so many locks that threads take, one lets other threads run first.
const LOCKS_PER_SWITCH: u64 = 128;
/// Waits of a thread that is being ended, after which it is taken to hang.
const DYING_WAITS_MAX: u32 = 10_000;

/// The number of a thread.
pub type ThreadNumber = u64;
/// The number of a message that waits for its reply.
pub type MessageNumber = u64;

/// What a thread is a part of: it ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Client(u32),
    Server(u32),
}

/// What a thread asks of the world.
pub enum Action {
    Spawn(Box<dyn FnOnce()>),
    Notify {
        key: u64,
        all: bool,
    },
    Send {
        message: MessageNumber,
        server: ServerId,
        requests: Vec<Request>,
    },
    AskMap {
        message: MessageNumber,
        server: ServerId,
    },
    /// Opens a session.
    Open {
        message: MessageNumber,
        server: ServerId,
    },
    /// Opens a connection on which the session is notified.
    Listen {
        message: MessageNumber,
        server: ServerId,
    },
    /// Notifies the session that has opened this connection.
    Tell {
        listener: MessageNumber,
        notification: Notification,
    },
    /// A replica has reached this branch.
    Count(&'static str),
    /// Nobody waits for the reply any more.
    Forget {
        message: MessageNumber,
    },
}

/// A reply to a message.
#[derive(Debug)]
pub enum Answer {
    Replies(Replies),
    Map(Box<VolumeMap>),
    Opened(Box<Welcome>),
    /// The connection for notifications is open.
    Listening,
    /// What came on a connection for notifications.
    Notified(Vec<Notification>),
    /// The reply of a control interface.
    Control(String),
    /// The server refuses the connection.
    Refused(Error),
    /// The connection is lost: the message may or may not have been handled.
    Lost,
}

/// Something that the world does while a thread waits for it.
pub type WorldCall = Box<dyn FnOnce(&mut dyn Any)>;

/// Why a thread is suspended.
pub enum Suspended {
    /// Until a notification with this key, or for this long.
    Waiting {
        key: Option<u64>,
        limit: Option<Micros>,
    },
    /// Another thread holds a lock.
    Contended,
    /// Until the world has done this, which it does at once.
    Calling(WorldCall),
    Ended,
}

/// What threads share with the world.
pub struct Shared {
    now: Micros,
    begin: Instant,
    /// The clock of the server whose thread runs.
    clock: Option<Clock>,
    random: Random,
    actions: Vec<Action>,
    answers: BTreeMap<MessageNumber, Answer>,
    messages: MessageNumber,
    dying: Option<u32>,
}

thread_local! {
    static SHARED: RefCell<Option<Shared>> = const { RefCell::new(None) };
    static YIELDER: Cell<*const Yielder<bool, Suspended>> = const { Cell::new(std::ptr::null()) };
}

/// One thread.
struct Thread {
    owner: Owner,
    coroutine: Coroutine<bool, Suspended, ()>,
    key: Option<u64>,
    /// It was notified, and has not run since.
    notified: bool,
    /// Number of suspensions: a timer of an earlier one does nothing.
    suspended: u64,
}

/// All threads of a run.
pub struct Threads {
    /// The clocks of the servers.
    pub clocks: BTreeMap<u32, Clock>,
    all: BTreeMap<ThreadNumber, Thread>,
    last: ThreadNumber,
    /// Lent to the thread that runs.
    shared: Option<Shared>,
    stacks: Vec<DefaultStack>,
}

/// The outcome of a part of a thread: why it is suspended, the number of this suspension, and what it asks for.
pub struct Ran {
    pub owner: Owner,
    pub suspended: Suspended,
    pub number: u64,
    pub actions: Vec<Action>,
}

impl Threads {
    /// Without threads.
    pub fn new() -> Self {
        let shared = Shared {
            now: 0,
            begin: hekate_threads::now(),
            clock: None,
            random: Random::new(0),
            actions: Vec::new(),
            answers: BTreeMap::new(),
            messages: 0,
            dying: None,
        };
        Self { clocks: BTreeMap::new(), all: BTreeMap::new(), last: 0, shared: Some(shared), stacks: Vec::new() }
    }

    /// Adds a thread, which is to be resumed.
    pub fn add(&mut self, owner: Owner, body: impl FnOnce() + 'static) -> ThreadNumber {
        let stack = self.stacks.pop().or_else(|| DefaultStack::new(STACK_BYTES).ok());
        let Some(stack) = stack else { unreachable!("the machine has memory for a stack") };
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<bool, Suspended>, _| {
            YIELDER.set(yielder);
            body();
        });
        self.last += 1;
        self.all.insert(self.last, Thread { owner, coroutine, key: None, notified: false, suspended: 0 });
        self.last
    }

    /// Runs `part` as a part of a simulated thread that does not suspend itself.
    pub fn with<T>(&mut self, now: Micros, random: &mut Random, part: impl FnOnce() -> T) -> (T, Vec<Action>) {
        let mut shared = self.shared.take().unwrap_or_else(|| unreachable!("one thread runs at a time"));
        shared.now = now;
        std::mem::swap(&mut shared.random, random);
        SHARED.set(Some(shared));
        let outcome = hekate_threads::run_simulated(&Simulator, part);
        YIELDER.set(std::ptr::null());
        let mut shared = SHARED.take().unwrap_or_else(|| unreachable!("what threads share is put back"));
        std::mem::swap(&mut shared.random, random);
        let actions = std::mem::take(&mut shared.actions);
        self.shared = Some(shared);
        (outcome, actions)
    }

    /// Resumes a thread. `number`: only if it is still in this suspension. `notified` is what its wait returns.
    pub fn resume(
        &mut self,
        thread: ThreadNumber,
        number: Option<u64>,
        notified: bool,
        (now, random): (Micros, &mut Random),
    ) -> Option<Ran> {
        if number.is_some_and(|number| self.all.get(&thread).is_some_and(|known| known.suspended != number)) {
            return None;
        }
        let mut own = self.all.remove(&thread)?;
        let notified = notified || own.notified;
        (own.key, own.notified) = (None, false);
        own.suspended += 1;
        self.set_clock_of(own.owner);
        let (result, actions) = self.with(now, random, || own.coroutine.resume(notified));
        let (owner, number) = (own.owner, own.suspended);
        let suspended = match result {
            CoroutineResult::Return(()) => {
                self.stacks.push(own.coroutine.into_stack());
                Suspended::Ended
            }
            CoroutineResult::Yield(suspended) => {
                if let Suspended::Waiting { key, .. } = &suspended {
                    own.key = *key;
                }
                self.all.insert(thread, own);
                suspended
            }
        };
        Some(Ran { owner, suspended, number, actions })
    }

    fn set_clock_of(&mut self, owner: Owner) {
        let clock = if let Owner::Server(server) = owner { self.clocks.get(&server) } else { None };
        if let Some(shared) = &mut self.shared {
            shared.clock = clock.copied();
        }
    }

    pub fn owner_of(&self, thread: ThreadNumber) -> Option<Owner> {
        self.all.get(&thread).map(|thread| thread.owner)
    }

    /// Threads that wait for a key, the one that has waited longest first, with the numbers of their suspensions.
    pub fn waiting_for(&self, key: u64) -> Vec<(ThreadNumber, u64)> {
        let waiting = self.all.iter().filter(|(_, thread)| thread.key == Some(key));
        waiting.map(|(number, thread)| (*number, thread.suspended)).collect()
    }

    /// Ends the wait of a thread, which is to be resumed.
    pub fn set_notified(&mut self, thread: ThreadNumber) {
        if let Some(thread) = self.all.get_mut(&thread) {
            (thread.key, thread.notified) = (None, true);
        }
    }

    /// Keeps an answer for the thread that waits for it, or will. Notifications that it has not taken yet stay. Nothing
    /// comes on a connection that is lost.
    pub fn put_answer(&mut self, message: MessageNumber, mut answer: Answer) {
        let Some(shared) = &mut self.shared else { return };
        if matches!(shared.answers.get(&message), Some(Answer::Lost)) {
            return;
        }
        if let (Some(Answer::Notified(before)), Answer::Notified(all)) = (shared.answers.get(&message), &mut answer) {
            all.splice(..0, before.iter().cloned());
        }
        shared.answers.insert(message, answer);
    }

    /// Ends all threads of an owner, as the end of its process does, and drops `also`.
    pub fn end(&mut self, owner: Owner, also: impl Sized, now: Micros, random: &mut Random) {
        if self.shared.is_none() {
            // A thread has panicked, and what it held is lost with the run.
            return std::mem::forget(also);
        }
        let ended: Vec<ThreadNumber> =
            self.all.iter().filter(|(_, thread)| thread.owner == owner).map(|(number, _)| *number).collect();
        let threads: Vec<Thread> = ended.iter().filter_map(|number| self.all.remove(number)).collect();
        self.set_clock_of(owner);
        self.die(threads, also, now, random);
    }

    fn die(&mut self, threads: Vec<Thread>, also: impl Sized, now: Micros, random: &mut Random) {
        self.set_dying(Some(0));
        self.with(now, random, || {
            // Each runs its destructors on its own stack.
            drop(threads);
            YIELDER.set(std::ptr::null());
            drop(also);
        });
        self.set_dying(None);
    }

    fn set_dying(&mut self, dying: Option<u32>) {
        if let Some(shared) = &mut self.shared {
            shared.dying = dying;
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.shared.is_some() {
            let threads = std::mem::take(&mut self.all).into_values().collect();
            self.die(threads, (), 0, &mut Random::new(0));
        } else {
            // A thread has panicked: what the others hold is lost with the run.
            std::mem::take(&mut self.all).into_values().for_each(std::mem::forget);
        }
    }
}

fn shared<T>(act: impl FnOnce(&mut Shared) -> T) -> T {
    SHARED.with_borrow_mut(|shared| match shared {
        Some(shared) => act(shared),
        None => unreachable!("only simulated threads call this"),
    })
}

/// True if the thread's process has ended: it only runs its destructors, and no wait suspends it.
pub fn is_dying() -> bool {
    let is_dying = shared(|shared| shared.dying.is_some());
    if is_dying && !std::thread::panicking() && !YIELDER.get().is_null() {
        // Something has caught the unwinding of this thread, which begins anew.
        suspend(Suspended::Contended);
    }
    shared(|shared| {
        let Some(waits) = &mut shared.dying else { return false };
        *waits += 1;
        assert!(*waits < DYING_WAITS_MAX, "a destructor waits for what will not happen");
        true
    })
}

/// Asks something of the world.
pub fn ask(action: Action) {
    shared(|shared| shared.actions.push(action));
}

/// The number of a new message.
pub fn new_message() -> MessageNumber {
    shared(|shared| {
        shared.messages += 1;
        shared.messages
    })
}

/// The answer to a message, if it has arrived.
pub fn take_answer(message: MessageNumber) -> Option<Answer> {
    shared(|shared| shared.answers.remove(&message))
}

/// A random number below `limit`.
pub fn below(limit: u64) -> u64 {
    shared(|shared| shared.random.below(limit))
}

/// The key of waits for the reply to a message: no address has it.
pub fn key_of(message: MessageNumber) -> u64 {
    1 << 63 | message
}

/// Suspends the thread until a notification with this key, for at most `limit` of its own clock.
pub fn wait(key: Option<u64>, limit: Option<Duration>) -> bool {
    if is_dying() {
        return false;
    }
    let limit = limit.map(|limit| shared(|shared| shared.takes(limit)));
    suspend(Suspended::Waiting { key, limit })
}

fn suspend(why: Suspended) -> bool {
    let yielder = YIELDER.get();
    assert!(!yielder.is_null(), "the world itself does not wait");
    // SAFETY: the thread that runs now has set the pointer when it began or was last resumed, and its yielder lives on
    // its stack until it ends.
    let own = unsafe { &*yielder };
    /// Also set when the thread is unwound: its destructors run on it.
    struct Back(*const Yielder<bool, Suspended>);
    impl Drop for Back {
        fn drop(&mut self) {
            YIELDER.set(self.0);
        }
    }
    let _back = Back(yielder);
    own.suspend(why)
}

/// Has the world do something, and returns what it returned. `None`: the thread's process has ended.
pub fn in_world<W: 'static, T: 'static>(act: impl FnOnce(&mut W) -> T + 'static) -> Option<T> {
    if is_dying() {
        return None;
    }
    let outcome = Rc::new(Cell::new(None));
    let set = outcome.clone();
    let call = move |world: &mut dyn Any| set.set(world.downcast_mut::<W>().map(act));
    suspend(Suspended::Calling(Box::new(call)));
    outcome.take()
}

impl Shared {
    /// Time since the beginning of the run, by the clock of the thread that runs.
    fn elapsed(&self) -> Duration {
        match &self.clock {
            Some(clock) => clock.elapsed(self.now),
            None => Duration::from_micros(self.now),
        }
    }

    /// The world's time that passes while the clock of the thread that runs advances by `limit`.
    fn takes(&self, limit: Duration) -> Micros {
        match &self.clock {
            Some(clock) => clock.after(0, limit.as_micros() as Micros),
            None => limit.as_micros() as Micros,
        }
    }

    fn time_of_day(&self) -> Duration {
        match &self.clock {
            Some(clock) => Duration::from_nanos(clock.time(self.now).0.unsigned_abs()),
            None => self.elapsed(),
        }
    }
}

struct Simulator;

impl Scheduler for Simulator {
    fn now(&self) -> Instant {
        shared(|shared| shared.begin + shared.elapsed())
    }

    fn boot_time(&self) -> Duration {
        shared(|shared| shared.elapsed())
    }

    fn time_of_day(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + shared(|shared| shared.time_of_day())
    }

    fn sleep(&self, time: Duration) {
        wait(None, Some(time));
    }

    fn wait(&self, key: usize, limit: Option<Duration>) -> bool {
        wait(Some(key as u64), limit)
    }

    fn notify(&self, key: usize, all: bool) {
        ask(Action::Notify { key: key as u64, all });
    }

    fn use_disk(&self) {
        wait(None, Some(Duration::from_micros(below(DISK_MAX))));
    }

    fn before_lock(&self) {
        // What holds no yielder is a part of a thread that does not suspend itself.
        if below(LOCKS_PER_SWITCH) == 0 && !YIELDER.get().is_null() && !is_dying() {
            suspend(Suspended::Contended);
        }
    }

    fn contended(&self) {
        assert!(!is_dying(), "a destructor waits for a lock of a thread that has ended");
        suspend(Suspended::Contended);
    }

    fn spawn(&self, _: &str, body: Box<dyn FnOnce() + Send>) {
        ask(Action::Spawn(body));
    }

    fn random(&self) -> u64 {
        shared(|shared| shared.random.number())
    }

    fn is_ending(&self) -> bool {
        is_dying()
    }
}
