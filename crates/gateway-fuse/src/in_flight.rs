//! The requests that are being answered, so that an INTERRUPT finds its request.
//!
//! An INTERRUPT may overtake its request, since another worker may have read it: then it is remembered, at most
//! [`EARLY_MAX`] of them, and found when the request comes. It may also come too late, and is then forgotten in time.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const EARLY_MAX: usize = 64;

/// SIGKILL as a bit of a set of signals; every thread of a process that a signal ends has it pending.
const KILL: u64 = 1 << 8;
/// Signals that end a process with a core: these rest as they are.
const CORE: u64 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 23 | 1 << 24 | 1 << 30;

/// Whether a request's caller was interrupted.
pub(crate) type GaveUp = Arc<Signals>;

/// What has come to a caller while it waits.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pid: u32,
    /// Some signal; POSIX lets it end the wait for a lock.
    pub(crate) any: AtomicBool,
    /// One that ends the process: whatever it waits for, it does not want it any more.
    pub(crate) fatal: AtomicBool,
}

impl Signals {
    fn of(pid: u32) -> Self {
        Self { pid, ..Self::default() }
    }

    /// A signal came; -> whether it ends the caller.
    fn came(&self) -> bool {
        self.any.store(true, Ordering::SeqCst);
        let fatal = is_dying(self.pid);
        if fatal {
            self.fatal.store(true, Ordering::SeqCst);
        }
        fatal
    }
}

/// Whether a thread is about to end. One that we cannot look at (another pid namespace) is taken to be.
fn is_dying(thread: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => dies_of(&status),
        Err(_) => true,
    }
}

/// Whether a signal that is pending ends the process, by its status (proc(5)).
fn dies_of(status: &str) -> bool {
    let set = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
    };
    let pending = set("SigPnd") | set("ShdPnd");
    pending & KILL != 0 || pending & CORE & !(set("SigBlk") | set("SigIgn") | set("SigCgt")) != 0
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    requests: HashMap<u64, GaveUp>,
    early: VecDeque<u64>,
    over: bool,
    watched: bool,
}

/// What an interrupt comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The caller ends.
    Dying,
    /// It does not, so far; nobody watches it yet.
    Unwatched,
    /// It does not, and is watched; or there is no such request yet.
    Nothing,
}

impl InFlight {
    /// A request has been read.
    pub(crate) fn begin(&self, unique: u64, pid: u32) -> GaveUp {
        let mut table = self.0.lock();
        let early = table.early.iter().position(|interrupted| *interrupted == unique);
        early.map(|position| table.early.remove(position));
        let gave_up = GaveUp::new(Signals::of(pid));
        if early.is_some() {
            gave_up.came();
        }
        gave_up.fatal.fetch_or(table.over, Ordering::SeqCst);
        table.requests.insert(unique, gave_up.clone());
        gave_up
    }

    /// It is about to be answered.
    pub(crate) fn end(&self, unique: u64) {
        self.0.lock().requests.remove(&unique);
    }

    /// A signal came to its caller.
    pub(crate) fn interrupt(&self, unique: u64) -> Interrupted {
        let mut table = self.0.lock();
        if let Some(gave_up) = table.requests.get(&unique) {
            return match gave_up.came() {
                true => Interrupted::Dying,
                false if std::mem::replace(&mut table.watched, true) => Interrupted::Nothing,
                false => Interrupted::Unwatched,
            };
        }
        if table.early.len() == EARLY_MAX {
            table.early.pop_front();
        }
        table.early.push_back(unique);
        Interrupted::Nothing
    }

    /// Looks at the callers that a signal came to and that went on: the kernel tells of their first signal only. -> those
    /// that are ending by now; `None`, once there is nobody to watch.
    pub(crate) fn look(&self) -> Option<Vec<u64>> {
        let mut table = self.0.lock();
        let is_watched = |signals: &GaveUp| signals.any.load(Ordering::SeqCst) && !signals.fatal.load(Ordering::SeqCst);
        let watched: Vec<u64> = table.requests.iter().filter(|(_, one)| is_watched(one)).map(|(at, _)| *at).collect();
        table.watched = !watched.is_empty();
        let dying = |unique: &u64| table.requests.get(unique).is_some_and(|signals| signals.came());
        table.watched.then(|| watched.into_iter().filter(dying).collect())
    }

    /// Nobody looks, after all; the next signal tries again.
    pub(crate) fn is_unwatched(&self) {
        self.0.lock().watched = false;
    }

    /// All callers are gone, and all that come.
    pub(crate) fn interrupt_all(&self) {
        let mut table = self.0.lock();
        table.over = true;
        for signals in table.requests.values() {
            signals.any.store(true, Ordering::SeqCst);
            signals.fatal.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that nobody can look at.
    const GONE: u32 = 0;

    fn is_set(gave_up: &GaveUp) -> bool {
        gave_up.fatal.load(Ordering::SeqCst)
    }

    #[test]
    fn an_interrupt_reaches_its_request_and_no_other() {
        let table = InFlight::default();
        let (two, four) = (table.begin(2, GONE), table.begin(4, GONE));
        assert_eq!(table.interrupt(2), Interrupted::Dying);
        assert_eq!((is_set(&two), is_set(&four)), (true, false));
    }

    #[test]
    fn who_goes_on_after_a_signal_is_watched_until_it_has_its_answer() {
        let table = InFlight::default();
        let own = table.begin(2, std::process::id());
        assert_eq!((table.interrupt(2), table.interrupt(2)), (Interrupted::Unwatched, Interrupted::Nothing));
        assert_eq!((own.any.load(Ordering::SeqCst), is_set(&own)), (true, false));
        assert_eq!(table.look(), Some(vec![]));
        table.end(2);
        assert_eq!(table.look(), None);
    }

    #[test]
    fn a_process_dies_of_what_it_neither_blocks_nor_ignores_nor_catches() {
        let status = |pending: u64, caught: u64| {
            format!("Name:\tx\nSigPnd:\t{pending:016x}\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t{caught:016x}\n")
        };
        let (quit, alarm) = (1 << 2, 1 << 13);
        assert!(dies_of(&status(KILL, 0)) && dies_of(&status(quit, 0)));
        assert!(!dies_of(&status(quit, quit)) && !dies_of(&status(alarm, alarm)) && !dies_of(""));
    }

    #[test]
    fn an_interrupt_that_overtakes_is_remembered_once() {
        let table = InFlight::default();
        table.interrupt(6);
        assert!(is_set(&table.begin(6, GONE)));
        table.end(6);
        assert!(!is_set(&table.begin(6, GONE)));
    }

    #[test]
    fn late_interrupts_do_not_pile_up() {
        let table = InFlight::default();
        (0..1000).for_each(|unique| _ = table.interrupt(unique));
        assert_eq!(table.0.lock().early.len(), EARLY_MAX);
        assert!(!is_set(&table.begin(1, GONE)) && is_set(&table.begin(999, GONE)));
    }

    #[test]
    fn the_end_interrupts_all() {
        let table = InFlight::default();
        let running = table.begin(1, GONE);
        table.interrupt_all();
        assert!(is_set(&running) && is_set(&table.begin(2, GONE)));
    }
}
