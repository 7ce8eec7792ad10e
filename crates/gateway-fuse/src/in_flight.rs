//! The requests that are being answered, so that an INTERRUPT finds its request.
//!
//! An INTERRUPT may overtake its request, since another worker may have read it: then it is remembered, at most
//! [`EARLY_MAX`] of them, and found when the request comes. It may also come too late, and is then forgotten in time.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const EARLY_MAX: usize = 64;

/// Says that the caller gave up.
pub(crate) type GaveUp = Arc<AtomicBool>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    requests: HashMap<u64, GaveUp>,
    early: VecDeque<u64>,
    over: bool,
}

impl InFlight {
    /// A request has been read.
    pub(crate) fn begin(&self, unique: u64) -> GaveUp {
        let mut table = self.0.lock();
        let early = table.early.iter().position(|interrupted| *interrupted == unique);
        early.map(|position| table.early.remove(position));
        let gave_up = GaveUp::new(AtomicBool::new(early.is_some() || table.over));
        table.requests.insert(unique, gave_up.clone());
        gave_up
    }

    /// It is about to be answered.
    pub(crate) fn end(&self, unique: u64) {
        self.0.lock().requests.remove(&unique);
    }

    /// Its caller gave up.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut table = self.0.lock();
        if let Some(gave_up) = table.requests.get(&unique) {
            return gave_up.store(true, Ordering::SeqCst);
        }
        if table.early.len() == EARLY_MAX {
            table.early.pop_front();
        }
        table.early.push_back(unique);
    }

    /// All callers are gone, and all that come.
    pub(crate) fn interrupt_all(&self) {
        let mut table = self.0.lock();
        table.over = true;
        table.requests.values().for_each(|gave_up| gave_up.store(true, Ordering::SeqCst));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_set(gave_up: &GaveUp) -> bool {
        gave_up.load(Ordering::SeqCst)
    }

    #[test]
    fn an_interrupt_reaches_its_request_and_no_other() {
        let table = InFlight::default();
        let (two, four) = (table.begin(2), table.begin(4));
        table.interrupt(2);
        assert_eq!((is_set(&two), is_set(&four)), (true, false));
    }

    #[test]
    fn an_interrupt_that_overtakes_is_remembered_once() {
        let table = InFlight::default();
        table.interrupt(6);
        assert!(is_set(&table.begin(6)));
        table.end(6);
        assert!(!is_set(&table.begin(6)));
    }

    #[test]
    fn late_interrupts_do_not_pile_up() {
        let table = InFlight::default();
        (0..1000).for_each(|unique| table.interrupt(unique));
        assert_eq!(table.0.lock().early.len(), EARLY_MAX);
        assert!(!is_set(&table.begin(1)) && is_set(&table.begin(999)));
    }

    #[test]
    fn the_end_interrupts_all() {
        let table = InFlight::default();
        let running = table.begin(1);
        table.interrupt_all();
        assert!(is_set(&running) && is_set(&table.begin(2)));
    }
}
