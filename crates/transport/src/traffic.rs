//! What the connections of each network carry.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of the connections that were accepted at one network's addresses, since the server started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    open: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    frames: AtomicU64,
}

/// What the connections of one network have carried since the server started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    pub network: String,
    /// Connections that are open now.
    pub connections: u64,
    /// Bytes, with those that TLS adds.
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Frames that arrived: batches of requests, control requests, packets of other servers.
    pub frames: u64,
}

impl Counters {
    pub fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Relaxed);
    }

    pub fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Relaxed);
    }

    pub fn frame(&self) {
        self.frames.fetch_add(1, Relaxed);
    }
}

/// Counts a connection while it is open.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Counters>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// The counters of all networks of a server.
#[derive(Debug, Default)]
pub(crate) struct Networks(Mutex<BTreeMap<String, Arc<Counters>>>);

impl Networks {
    /// The counters of a network.
    pub fn of(&self, network: &str) -> Arc<Counters> {
        self.0.lock().entry(network.into()).or_default().clone()
    }

    /// Counts a connection at a network.
    pub fn connected(&self, network: &str) -> Counted {
        let counters = self.of(network);
        counters.open.fetch_add(1, Relaxed);
        Counted(counters)
    }

    pub fn traffic(&self) -> Vec<Traffic> {
        let row = |(network, counters): (&String, &Arc<Counters>)| Traffic {
            network: network.clone(),
            connections: counters.open.load(Relaxed),
            received_bytes: counters.received.load(Relaxed),
            sent_bytes: counters.sent.load(Relaxed),
            frames: counters.frames.load(Relaxed),
        };
        self.0.lock().iter().map(row).collect()
    }
}
