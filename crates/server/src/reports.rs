//! Reports for operators: statistics, and replies to requests of the command line.
//!
//! | file | what it reports | read by |
//! |---|---|---|
//! | `op_statistics` | counts and latencies of ops, ops in progress, slow ops | `hekate status`, `hekate debug slow` |
//! | `metrics` | the page for Prometheus | Prometheus, `hekate metrics` |
//! | `mapping` | files that two mounts have mapped for writing | `hekate status` |
//! | `heal_files` | files of which a replica lacks changes | `hekate heal list` |
//! | `where_is` | where a file's bytes are, and what each replica has of them | `hekate where` |
//!
//! Invariant: nothing here changes ground state. A bug here shows as a wrong figure, never as a wrong file.

pub(crate) mod heal_files;
pub(crate) mod mapping;
pub(crate) mod metrics;
pub(crate) mod op_statistics;
pub(crate) mod where_is;

use hekate_control::status::NetworkTraffic;
use hekate_transport::Traffic;
use mapping::Mappings;
use op_statistics::OpStatistics;
use std::sync::OnceLock;

/// What a server counts while it serves.
#[derive(Default)]
pub struct Statistics {
    ops: OpStatistics,
    mappings: Mappings,
    /// Tells what the connections of each network have carried.
    traffic: OnceLock<Box<dyn Fn() -> Vec<Traffic> + Send + Sync>>,
}

impl Statistics {
    pub fn ops(&self) -> &OpStatistics {
        &self.ops
    }

    /// Sets what tells the traffic of the networks. A server is given it once.
    pub fn set_traffic(&self, traffic: impl Fn() -> Vec<Traffic> + Send + Sync + 'static) {
        let _ = self.traffic.set(Box::new(traffic));
    }

    /// What the connections of each network have carried.
    pub fn networks(&self) -> Vec<NetworkTraffic> {
        let row = |found: Traffic| NetworkTraffic {
            network: found.network,
            connections: found.connections,
            received_bytes: found.received_bytes,
            sent_bytes: found.sent_bytes,
            round_trips: found.frames,
        };
        self.traffic.get().map(|traffic| traffic().into_iter().map(row).collect()).unwrap_or_default()
    }

    /// Files of which two mounts wrote back mapped pages, since the server started.
    pub fn mapped_by_two(&self) -> u64 {
        self.mappings.count()
    }
}
