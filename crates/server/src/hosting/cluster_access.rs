//! The way to the cluster: its records, which the coordinator holds, and the keys for the addresses of its servers.

use crate::hosting::access::Access;
use crate::hosting::keys::Keys;
use crate::hosting::state_directory;
use hekate_cluster::Registry;
use hekate_proto::{Result, ServerId};
use hekate_transport::Endpoint;
use std::path::Path;

/// Which cluster this server belongs to, and how it reaches the coordinator and the other servers.
pub struct ClusterAccess {
    /// The cluster's id: 32 hex digits.
    id: String,
    registry: Registry,
    /// Where the coordinator answers; `None` if this server holds it.
    coordinator_address: Option<String>,
    /// `None`: the servers are not reached by addresses.
    keys: Option<Keys>,
    pub(crate) access: Access,
}

impl ClusterAccess {
    /// Opens the records of the cluster that the state directory's server belongs to.
    ///
    /// # Errors
    ///
    /// `Invalid` if the directory is no server's or its keys cannot be used; `Denied` if the coordinator is another
    /// cluster's or does not know the server; `Unavailable` if it does not answer; `Damaged` or `Io` if its file cannot
    /// be read; `NotSupported` if another version of the program wrote the records.
    pub fn open(state: &Path) -> Result<Self> {
        let keys = if Keys::exist(state) { Some(Keys::read(state)?) } else { None };
        let context = keys.as_ref().map(Keys::context);
        let (registry, coordinator_address) = state_directory::open_registry(state, context)?;
        let access = Self { coordinator_address, keys, ..Self::of(registry)? };
        access.refresh_access()?;
        Ok(access)
    }

    /// The cluster of these records, whose servers are not reached by addresses.
    ///
    /// # Errors
    ///
    /// `NotSupported` if another version of the program wrote the records; those of the coordinator.
    pub fn of(registry: Registry) -> Result<Self> {
        registry.check_version()?;
        let access = Access::default();
        Ok(Self { id: registry.cluster()?, registry, coordinator_address: None, keys: None, access })
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
    /// `Invalid` if it is no address, or a TCP address while this server has no credential.
    pub fn endpoint(&self, address: &str) -> Result<Endpoint> {
        Endpoint::parse(address, self.keys.as_ref().map(Keys::context))
    }

    /// The keys of this server; `None` if servers are not reached by addresses.
    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    /// True if this server can connect to others over TCP.
    pub(crate) fn has_address(&self) -> bool {
        self.keys.is_some()
    }
}
