//! Ops in progress: each thread that answers clients has a slot with its current op, which it writes without waiting.

use hekate_control::status::OpAtWork;
use hekate_proto::op::OP_LABELS;
use hekate_proto::{Op, SessionId};
use hekate_threads::{Mutex, elapsed, now};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The slots of all threads of a server.
pub struct AtWork {
    id: u64,
    started: Instant,
    slots: Mutex<Vec<Weak<Slot>>>,
}

/// The current op of one thread. A reader may see parts of two ops, which is good enough for a report.
#[derive(Default)]
struct Slot {
    /// When the op began, in ns after the server's start; 0: no op is in progress.
    since_ns: AtomicU64,
    op: AtomicUsize,
    session: AtomicU64,
}

/// Marks the thread as busy until it is dropped.
pub struct Busy<'a> {
    all: &'a AtWork,
    slot: Arc<Slot>,
}

thread_local! {
    /// The slots of this thread, by server: a test has several servers in one process.
    static OWN: RefCell<Vec<(u64, Arc<Slot>)>> = const { RefCell::new(Vec::new()) };
}

impl Default for AtWork {
    fn default() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self { id: COUNT.fetch_add(1, Ordering::Relaxed), started: now(), slots: Mutex::default() }
    }
}

impl AtWork {
    /// Marks this thread as busy.
    pub fn busy(&self) -> Busy<'_> {
        let known = OWN.with_borrow(|own| own.iter().find(|(id, _)| *id == self.id).map(|(_, slot)| slot.clone()));
        Busy { all: self, slot: known.unwrap_or_else(|| self.new_slot()) }
    }

    fn new_slot(&self) -> Arc<Slot> {
        let slot = Arc::<Slot>::default();
        let mut slots = self.slots.lock();
        // Threads that have ended dropped their slots.
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        OWN.with_borrow_mut(|own| own.push((self.id, slot.clone())));
        slot
    }

    /// The ops in progress, the oldest first: kind, session, and time since it began.
    pub fn look(&self) -> Vec<(&'static str, SessionId, Duration)> {
        let now = self.now();
        let look = |slot: Arc<Slot>| {
            let since = slot.since_ns.load(Ordering::Relaxed);
            let op = OP_LABELS.get(slot.op.load(Ordering::Relaxed)).copied().unwrap_or_default();
            let session = SessionId(slot.session.load(Ordering::Relaxed));
            (since != 0).then(|| (op, session, Duration::from_nanos(now.saturating_sub(since))))
        };
        let mut found: Vec<_> = self.slots.lock().iter().filter_map(Weak::upgrade).filter_map(look).collect();
        found.sort_by_key(|(_, _, age)| std::cmp::Reverse(*age));
        found
    }

    /// The ops in progress, the oldest first.
    pub fn rows(&self) -> Vec<OpAtWork> {
        let row = |(op, session, age): (&str, SessionId, Duration)| OpAtWork {
            op: op.into(),
            session,
            milliseconds: age.as_millis() as u64,
        };
        self.look().into_iter().map(row).collect()
    }

    fn now(&self) -> u64 {
        elapsed(self.started).as_nanos() as u64 + 1
    }
}

impl Busy<'_> {
    /// Sets the thread's current op.
    pub fn with(&self, op: &Op, session: SessionId) {
        self.slot.op.store(OP_LABELS.binary_search(&op.label()).unwrap_or(usize::MAX), Ordering::Relaxed);
        self.slot.session.store(session.0, Ordering::Relaxed);
        self.slot.since_ns.store(self.all.now(), Ordering::Relaxed);
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.slot.since_ns.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::VolumeOp;

    #[test]
    fn what_is_at_work_is_seen_until_it_ends() {
        let all = Arc::new(AtWork::default());
        let (go, wait) = std::sync::mpsc::channel();
        let threads: Vec<_> = [7, 8]
            .map(|session| {
                let (all, go) = (all.clone(), go.clone());
                let (end, ends) = std::sync::mpsc::channel::<()>();
                let thread = std::thread::spawn(move || {
                    let busy = all.busy();
                    busy.with(&Op::Volume { op: VolumeOp::StatFs }, SessionId(session));
                    go.send(()).unwrap();
                    let _ = ends.recv();
                });
                wait.recv().unwrap();
                (thread, end)
            })
            .into();
        let found = all.look();
        assert_eq!(
            found.iter().map(|(op, session, _)| (*op, session.0)).collect::<Vec<_>>(),
            [("statfs", 7), ("statfs", 8)]
        );
        assert!(found[0].2 >= found[1].2, "the oldest comes first");
        for (thread, end) in threads {
            drop(end);
            thread.join().unwrap();
        }
        assert!(all.look().is_empty());
    }
}
