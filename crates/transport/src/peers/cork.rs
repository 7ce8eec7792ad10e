//! Delays the writes of a thread, so that several messages are written together.

use super::peer::Peer;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

// Nesting depth of the corks of this thread, and the peers that it has to write to when the outermost one is dropped.
thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static WAITING: RefCell<Vec<Arc<Peer>>> = const { RefCell::new(Vec::new()) };
}

/// Delays the writes of this thread's messages to peers. They are written when the outermost cork is dropped.
#[must_use = "it delays writes until it is dropped"]
pub struct Cork(PhantomData<*const ()>);

impl Cork {
    pub(super) fn new() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for Cork {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            flush();
        }
    }
}

/// If this thread holds a cork, notes that the peer must be written to and returns true.
pub(super) fn defer_flush(peer: &Arc<Peer>) -> bool {
    if DEPTH.get() == 0 {
        return false;
    }
    WAITING.with_borrow_mut(|waiting| {
        if !waiting.iter().any(|known| Arc::ptr_eq(known, peer)) {
            waiting.push(peer.clone());
        }
    });
    true
}

pub(super) fn flush() {
    for peer in WAITING.take() {
        peer.flush();
    }
}
