//! Holding back writes on a thread until several messages can go in one.

use super::peer::Peer;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static WAITING: RefCell<Vec<Arc<Peer>>> = const { RefCell::new(Vec::new()) };
}

/// While it lives, what this thread sends to peers is not written; the outermost one writes it when it ends.
#[must_use = "it holds back writes as long as it lives"]
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

/// Remembers to write to the peer later, if this thread is corked.
pub(super) fn holds_back(peer: &Arc<Peer>) -> bool {
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
