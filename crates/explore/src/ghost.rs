//! The observable history of a shard: all orders of ops that the observations so far allow.
//!
//! Linearizability is checked during the exploration (just-in-time linearization, Lowe 2017): an order is a sequence of
//! ops, and grows only when an answer needs it to. A read is an instant here, which is stricter than what a client
//! sees. When the last memory of a partition is lost, any prefix of an order may remain, as long as it has all ops that
//! were acknowledged as durable.

use crate::scope::{Scope, bit, numbers};
use crate::state::{CELLS, Mask};

/// Ops in their order, four bits each, the last one lowest.
type Order = u32;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// Ops that were sent and not acknowledged.
    pub pending: Mask,
    pub acked: Mask,
    /// Ops acknowledged as durable.
    pub durable: Mask,
    /// Ops acknowledged, and not lost with the memory of all members.
    pub kept: Mask,
    pub orders: Vec<Order>,
}

impl Ghost {
    pub fn new() -> Self {
        Self { pending: 0, acked: 0, durable: 0, kept: 0, orders: vec![0] }
    }

    pub fn sent(&mut self, op: u8) {
        self.pending |= bit(op);
    }

    /// An op was acknowledged; `kept`: in a view that still has its memory.
    ///
    /// # Errors
    ///
    /// The promise that the acknowledgement breaks.
    pub fn ack(&mut self, scope: &Scope, op: u8, kept: bool) -> Result<(), &'static str> {
        // An answer that was sent before the memory was lost and arrives later: the op may be lost as well.
        self.grow(scope, |order, _| !kept || ops_of(order) & bit(op) != 0);
        self.kept |= if kept { bit(op) } else { 0 };
        self.pending &= !bit(op);
        self.acked |= bit(op);
        self.check("an op was acknowledged that can not have been done")
    }

    /// A read returned these bytes.
    ///
    /// # Errors
    ///
    /// The promise that the read breaks.
    pub fn read(&mut self, scope: &Scope, cells: [u8; CELLS]) -> Result<(), &'static str> {
        self.grow(scope, |_, found| found == cells);
        self.check("a read shows what it must not (stale, lost, done twice, or never written)")
    }

    /// Ops that every order contains.
    pub fn done(&self) -> Mask {
        self.orders.iter().fold(!0, |mask, order| mask & ops_of(*order))
    }

    /// These bytes are the answer to a read that began when the ops `done` had been done, and was in flight since.
    ///
    /// # Errors
    ///
    /// The promise that the read breaks.
    pub fn read_since(&mut self, scope: &Scope, cells: [u8; CELLS], done: Mask) -> Result<(), &'static str> {
        assert!(scope.power, "orders are kept completely");
        self.grow(scope, |order, _| {
            let mut then = beginnings(order).filter(|then| ops_of(*then) & done == done);
            then.any(|then| cells_of(scope, then) == cells)
        });
        self.check("a read shows what it must not (stale, lost, done twice, or never written)")
    }

    /// True if reading these bytes adds no observation: every order that shows them shows others with any further op.
    pub fn shows_only(&self, scope: &Scope, cells: [u8; CELLS]) -> bool {
        self.orders.iter().all(|order| cells_of(scope, *order) == cells)
    }

    /// An fsync of these writes succeeded.
    ///
    /// # Errors
    ///
    /// The promise that the fsync breaks.
    pub fn synced(&mut self, ops: Mask) -> Result<(), &'static str> {
        self.orders.retain(|order| ops_of(*order) & ops == ops);
        self.durable |= ops;
        self.kept |= ops;
        self.check("an fsync succeeded although what it covers was lost")
    }

    /// No member has its memory any more.
    pub fn lose(&mut self) {
        let mut left = Vec::new();
        for order in &self.orders {
            left.extend(beginnings(*order).filter(|order| ops_of(*order) & self.durable == self.durable));
        }
        self.orders = left;
        self.kept &= self.durable;
        self.tidy();
    }

    fn check(&mut self, complaint: &'static str) -> Result<(), &'static str> {
        if self.orders.is_empty() { Err(complaint) } else { Ok(()) }
    }

    /// Extends the orders by pending ops in every way, and keeps those that satisfy the predicate.
    fn grow(&mut self, scope: &Scope, pleases: impl Fn(Order, [u8; CELLS]) -> bool) {
        let mut open = std::mem::take(&mut self.orders);
        while let Some(order) = open.pop() {
            if pleases(order, cells_of(scope, order)) {
                self.orders.push(order);
            }
            let left = self.pending & !ops_of(order);
            open.extend(numbers(left).map(|op| order << 4 | Order::from(op)));
        }
        self.tidy();
        if !scope.power {
            // No op can be lost: only the result of an order counts.
            self.orders.dedup_by_key(|order| (ops_of(*order), cells_of(scope, *order)));
            let mut seen = Vec::new();
            self.orders.retain(|order| {
                let result = (ops_of(*order), cells_of(scope, *order));
                let is_new = !seen.contains(&result);
                seen.push(result);
                is_new
            });
        }
    }

    fn tidy(&mut self) {
        self.orders.sort_unstable();
        self.orders.dedup();
    }
}

impl Default for Ghost {
    fn default() -> Self {
        Self::new()
    }
}

/// All prefixes, from the whole order to the empty one.
fn beginnings(order: Order) -> impl Iterator<Item = Order> {
    (0..8).map(move |place| order >> (4 * place)).take_while(|left| *left != 0).chain([0])
}

fn in_order(order: Order) -> impl Iterator<Item = u8> {
    (0..8).rev().map(move |place| (order >> (4 * place) & 15) as u8).filter(|op| *op != 0)
}

fn ops_of(order: Order) -> Mask {
    in_order(order).fold(0, |mask, op| mask | bit(op))
}

fn cells_of(scope: &Scope, order: Order) -> [u8; CELLS] {
    let mut cells = [0; CELLS];
    in_order(order).for_each(|op| cells[scope.target(op).1] = op);
    cells
}
