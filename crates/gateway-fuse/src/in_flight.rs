//! The requests in progress, so that an INTERRUPT finds its request.
//!
//! An INTERRUPT may be handled before its request, which another worker has read. It is then stored until the request
//! is registered. An INTERRUPT that arrives after the reply is stored too. At most [`EARLY_MAX`] are stored; the oldest
//! is dropped for a new one.

use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Limit of INTERRUPTs remembered without a request.
const EARLY_MAX: usize = 64;

/// SIGKILL, as a bit of a signal set. It is pending for every thread of a process that a signal ends.
const KILL: u64 = 1 << 8;
/// Signals that end a process with a core dump. The kernel leaves them pending instead of replacing them by SIGKILL.
const CORE: u64 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 23 | 1 << 24 | 1 << 30;

/// Signals that a caller got while it waits.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pid: u32,
    /// Any signal. It ends a wait for a lock (POSIX).
    pub(crate) any: AtomicBool,
    /// A signal that ends the process. It ends all waits of the process.
    pub(crate) fatal: AtomicBool,
}

impl Signals {
    fn of(pid: u32) -> Self {
        Self { pid, ..Self::default() }
    }

    /// Notes a signal. True if it ends the caller.
    fn note_signal(&self) -> bool {
        self.any.store(true, Ordering::SeqCst);
        let fatal = is_dying(self.pid);
        if fatal {
            self.fatal.store(true, Ordering::SeqCst);
        }
        fatal
    }
}

/// True if a thread is about to end, or if it cannot be seen from this pid namespace.
fn is_dying(thread: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => has_fatal_signal(&status),
        Err(_) => true,
    }
}

/// True if a pending signal ends the process, by its status (proc(5)).
fn has_fatal_signal(status: &str) -> bool {
    let pending = pending_signals(status);
    let handled = signal_set(status, "SigBlk") | signal_set(status, "SigIgn") | signal_set(status, "SigCgt");
    pending & KILL != 0 || pending & CORE & !handled != 0
}

/// True if a thread exists, can be seen from this pid namespace, and has a signal that ends a wait.
fn has_signal(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| {
        let pending = pending_signals(&status);
        pending & KILL != 0 || pending & !(signal_set(&status, "SigBlk") | signal_set(&status, "SigIgn")) != 0
    })
}

fn pending_signals(status: &str) -> u64 {
    signal_set(status, "SigPnd") | signal_set(status, "ShdPnd")
}

fn signal_set(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
}

/// The requests in progress, by number.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    table: Mutex<Table>,
    /// There is a request, or the connection has ended.
    begun: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    requests: HashMap<u64, Arc<Signals>>,
    /// INTERRUPTs that came before their requests.
    early: VecDeque<u64>,
    /// The connection has ended.
    over: bool,
    /// A thread watches interrupted callers.
    watched: bool,
    /// A thread waits for a request ([`InFlight::unreported_signals`]).
    is_awaited: bool,
}

/// Effect of an INTERRUPT.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The caller is ending.
    Dying,
    /// The caller is not ending, and no thread watches it: the handler must start one.
    Unwatched,
    /// The caller is not ending and is watched, or the request is not known yet.
    Nothing,
}

impl InFlight {
    /// Registers a request that was read.
    pub(crate) fn begin(&self, unique: u64, pid: u32) -> Arc<Signals> {
        let mut table = self.table.lock();
        let early = table.early.iter().position(|interrupted| *interrupted == unique);
        early.map(|position| table.early.remove(position));
        let signals = Arc::new(Signals::of(pid));
        if early.is_some() {
            signals.note_signal();
        }
        signals.fatal.fetch_or(table.over, Ordering::SeqCst);
        table.requests.insert(unique, signals.clone());
        if std::mem::take(&mut table.is_awaited) {
            self.begun.notify_all();
        }
        signals
    }

    /// Removes a request, whose reply is about to be sent.
    pub(crate) fn end(&self, unique: u64) {
        self.table.lock().requests.remove(&unique);
    }

    /// The caller of a request got a signal.
    pub(crate) fn interrupt(&self, unique: u64) -> Interrupted {
        let mut table = self.table.lock();
        if let Some(signals) = table.requests.get(&unique) {
            return match signals.note_signal() {
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

    /// Checks the callers that got a signal and continued, because the kernel reports only the first signal. Returns
    /// the requests whose callers are now ending, or `None` if no caller has to be watched.
    pub(crate) fn check_watched(&self) -> Option<Vec<u64>> {
        let mut table = self.table.lock();
        let is_watched =
            |signals: &Signals| signals.any.load(Ordering::SeqCst) && !signals.fatal.load(Ordering::SeqCst);
        let watched: Vec<u64> = table.requests.iter().filter(|(_, one)| is_watched(one)).map(|(at, _)| *at).collect();
        table.watched = !watched.is_empty();
        let dying = |unique: &u64| table.requests.get(unique).is_some_and(|signals| signals.note_signal());
        table.watched.then(|| watched.into_iter().filter(dying).collect())
    }

    /// Requests whose callers have a signal that no INTERRUPT has reported. Only those are looked at that were in
    /// progress at the last call, which `seen` remembers. Waits if there is no request. `None` once the connection has
    /// ended.
    pub(crate) fn unreported_signals(&self, seen: &mut HashSet<u64>) -> Option<Vec<u64>> {
        let mut table = self.table.lock();
        while table.requests.is_empty() && !table.over {
            seen.clear();
            table.is_awaited = true;
            self.begun.wait(&mut table);
        }
        if table.over {
            return None;
        }
        let is_unreported = |signals: &Signals| signals.pid != 0 && !signals.any.load(Ordering::SeqCst);
        let unreported = table.requests.iter().filter(|(unique, one)| seen.contains(unique) && is_unreported(one));
        let callers: Vec<(u64, u32)> = unreported.map(|(unique, one)| (*unique, one.pid)).collect();
        *seen = table.requests.keys().copied().collect();
        drop(table);
        Some(callers.into_iter().filter(|(_, caller)| has_signal(*caller)).map(|(unique, _)| unique).collect())
    }

    /// The watching thread could not be started; the next signal tries again.
    pub(crate) fn stop_watching(&self) {
        self.table.lock().watched = false;
    }

    /// The connection has ended: all callers, and those of later requests, count as ended.
    pub(crate) fn interrupt_all(&self) {
        let mut table = self.table.lock();
        table.over = true;
        for signals in table.requests.values() {
            signals.any.store(true, Ordering::SeqCst);
            signals.fatal.store(true, Ordering::SeqCst);
        }
        self.begun.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that does not exist.
    const GONE: u32 = 0;

    fn is_set(signals: &Signals) -> bool {
        signals.fatal.load(Ordering::SeqCst)
    }

    #[test]
    fn signals_without_an_interrupt_are_found_at_the_second_look() {
        let table = InFlight::default();
        let mut stopped = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, own) = (stopped.id(), std::process::id());
        let mut seen = HashSet::new();
        let two = [(2, pid), (4, own), (6, GONE)].map(|(unique, caller)| table.begin(unique, caller))[0].clone();
        (0..2).for_each(|_| assert_eq!(table.unreported_signals(&mut seen), Some(vec![])));
        // A stopped process keeps its signal.
        for signal in [rustix::process::Signal::STOP, rustix::process::Signal::TERM] {
            rustix::process::kill_process(rustix::process::Pid::from_child(&stopped), signal).unwrap();
        }
        assert_eq!(table.unreported_signals(&mut HashSet::new()), Some(vec![]), "the first look");
        assert_eq!(table.unreported_signals(&mut seen), Some(vec![2]));
        two.any.store(true, Ordering::SeqCst);
        assert_eq!(table.unreported_signals(&mut seen), Some(vec![]), "known by now");
        stopped.kill().unwrap();
        stopped.wait().unwrap();
        table.interrupt_all();
        assert_eq!(table.unreported_signals(&mut seen), None);
    }

    #[test]
    fn an_interrupt_reaches_its_request_and_no_other() {
        let table = InFlight::default();
        let (two, four) = (table.begin(2, GONE), table.begin(4, GONE));
        assert_eq!(table.interrupt(2), Interrupted::Dying);
        assert_eq!((is_set(&two), is_set(&four)), (true, false));
    }

    #[test]
    fn a_caller_that_continues_after_a_signal_is_watched_until_it_has_its_reply() {
        let table = InFlight::default();
        let own = table.begin(2, std::process::id());
        assert_eq!((table.interrupt(2), table.interrupt(2)), (Interrupted::Unwatched, Interrupted::Nothing));
        assert_eq!((own.any.load(Ordering::SeqCst), is_set(&own)), (true, false));
        assert_eq!(table.check_watched(), Some(vec![]));
        table.end(2);
        assert_eq!(table.check_watched(), None);
    }

    #[test]
    fn a_process_dies_of_what_it_neither_blocks_nor_ignores_nor_catches() {
        let status = |pending: u64, caught: u64| {
            format!("Name:\tx\nSigPnd:\t{pending:016x}\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t{caught:016x}\n")
        };
        let (quit, alarm) = (1 << 2, 1 << 13);
        assert!(has_fatal_signal(&status(KILL, 0)) && has_fatal_signal(&status(quit, 0)));
        assert!(!has_fatal_signal(&status(quit, quit)) && !has_fatal_signal(&status(alarm, alarm)));
        assert!(!has_fatal_signal(""));
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
        assert_eq!(table.table.lock().early.len(), EARLY_MAX);
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
