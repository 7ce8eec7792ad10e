//! What a door counts: connections, and requests by their operation.

use crate::service::operations::OPERATIONS;
use hekate_metrics::{S3Counters, S3OperationCounters};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Requests that no operation was found for: refused before, from a browser that asks first, or for the door's health.
const OTHER: &str = "other";
const OTHER_INDEX: usize = OPERATIONS.len();

/// The counters as they count.
#[derive(Debug)]
pub(crate) struct Counting {
    pub(crate) connections_accepted: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) connections_closed: AtomicU64,
    operations: [OperationCounting; OTHER_INDEX + 1],
}

#[derive(Debug, Default)]
struct OperationCounting {
    requests: AtomicU64,
    client_errors: AtomicU64,
    server_errors: AtomicU64,
    bytes_received: AtomicU64,
    bytes_sent: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

fn of(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Default for Counting {
    fn default() -> Self {
        Self {
            connections_accepted: AtomicU64::default(),
            connections_refused: AtomicU64::default(),
            connections_closed: AtomicU64::default(),
            operations: std::array::from_fn(|_| OperationCounting::default()),
        }
    }
}

impl Counting {
    pub(crate) fn read(&self) -> S3Counters {
        let closed = of(&self.connections_closed);
        let names = OPERATIONS.iter().map(|operation| operation.name).chain([OTHER]);
        let operations = names.zip(&self.operations).map(|(name, counting)| counting.read(name));
        S3Counters {
            connections: of(&self.connections_accepted).saturating_sub(closed),
            connections_accepted: of(&self.connections_accepted),
            connections_refused: of(&self.connections_refused),
            operations: operations.filter(|counters| counters.requests > 0).collect(),
        }
    }
}

impl OperationCounting {
    fn read(&self, operation: &'static str) -> S3OperationCounters {
        S3OperationCounters {
            operation,
            requests: of(&self.requests),
            client_errors: of(&self.client_errors),
            server_errors: of(&self.server_errors),
            bytes_received: of(&self.bytes_received),
            bytes_sent: of(&self.bytes_sent),
        }
    }
}

/// What one request adds to the counters: to those of its operation, once that is known.
#[derive(Debug)]
pub(crate) struct Tally {
    counting: Arc<Counting>,
    /// Index of the operation.
    operation: AtomicUsize,
}

impl Tally {
    pub(crate) fn new(counting: Arc<Counting>) -> Self {
        Self { counting, operation: AtomicUsize::new(OTHER_INDEX) }
    }

    /// `index`: of the operation in [`OPERATIONS`].
    pub(crate) fn is_for(&self, index: usize) {
        self.operation.store(index, Ordering::Relaxed);
    }

    pub(crate) fn operation(&self) -> &'static str {
        OPERATIONS.get(self.operation.load(Ordering::Relaxed)).map_or(OTHER, |operation| operation.name)
    }

    pub(crate) fn received(&self, bytes: usize) {
        add(&self.of_operation().bytes_received, bytes as u64);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        add(&self.of_operation().bytes_sent, bytes as u64);
    }

    pub(crate) fn answered(&self, status: u16) {
        let counting = self.of_operation();
        add(&counting.requests, 1);
        match status {
            400..=499 => add(&counting.client_errors, 1),
            500..=599 => add(&counting.server_errors, 1),
            _ => {}
        }
    }

    fn of_operation(&self) -> &OperationCounting {
        &self.counting.operations[self.operation.load(Ordering::Relaxed).min(OTHER_INDEX)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_for_their_operation() {
        let counting = Arc::<Counting>::default();
        let tally = Tally::new(counting.clone());
        assert_eq!(tally.operation(), OTHER);
        tally.answered(403);
        let tally = Tally::new(counting.clone());
        tally.is_for(0);
        tally.received(5);
        tally.sent(7);
        tally.answered(500);
        let first =
            S3OperationCounters { operation: OPERATIONS[0].name, requests: 1, server_errors: 1, ..Default::default() };
        let first = S3OperationCounters { bytes_received: 5, bytes_sent: 7, ..first };
        let other = S3OperationCounters { operation: OTHER, requests: 1, client_errors: 1, ..Default::default() };
        assert_eq!(counting.read().operations, [first, other]);
    }
}
