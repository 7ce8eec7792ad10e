//! The way to the cluster: its records, which the coordinator holds, and the secret for the addresses of its servers.

use crate::hosting::state_directory;
use hekate_cluster::Registry;
use hekate_proto::{Result, ServerId};
use hekate_transport::{Endpoint, Secret};
use std::path::Path;

/// Which cluster this server belongs to, and how it reaches the coordinator and the other servers.
pub struct ClusterAccess {
    /// The cluster's id: 32 hex digits.
    id: String,
    registry: Registry,
    /// Where the coordinator answers; `None` if this server holds it.
    coordinator_address: Option<String>,
    secret: Option<Secret>,
}

impl ClusterAccess {
    /// Opens the records of the cluster that the state directory's server belongs to.
    ///
    /// # Errors
    ///
    /// `Invalid` if the directory is no server's or its secret cannot be used; `Denied` if the coordinator is another
    /// cluster's or does not know the server; `Unavailable` if it does not answer; `Damaged` or `Io` if its file cannot
    /// be read; `NotSupported` if another version of the program wrote the records.
    pub fn open(state: &Path) -> Result<Self> {
        let secret = state_directory::secret(state)?;
        let (registry, coordinator_address) = state_directory::open_registry(state, secret.as_ref())?;
        Ok(Self { coordinator_address, secret, ..Self::of(registry)? })
    }

    /// The cluster of these records, whose servers are not reached by addresses.
    ///
    /// # Errors
    ///
    /// `NotSupported` if another version of the program wrote the records; those of the coordinator.
    pub fn of(registry: Registry) -> Result<Self> {
        registry.check_version()?;
        Ok(Self { id: registry.cluster()?, registry, coordinator_address: None, secret: None })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The records of the cluster.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The number of this server.
    pub fn server(&self) -> ServerId {
        self.registry.server()
    }

    /// Where the coordinator answers; `None` if this server holds it.
    pub fn coordinator_address(&self) -> Option<&String> {
        self.coordinator_address.as_ref()
    }

    /// Parses the address of another server, as the cluster records it.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is no address, or a TCP address while this server has no secret.
    pub fn endpoint(&self, address: &str) -> Result<Endpoint> {
        Endpoint::parse(address, self.secret.as_ref())
    }
}
