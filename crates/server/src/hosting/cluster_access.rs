//! The way to the cluster: its records, which the coordinator holds, and the keys for the addresses of its servers.

use crate::coordination::current::CurrentCoordinator;
use crate::coordination::place::Place;
use crate::coordination::{etcd, state_directory};
use crate::hosting::access::Access;
use crate::hosting::keys::Keys;
use hekate_cluster::Registry;
use hekate_etcd::Endpoints;
use hekate_proto::{Error, Result, ServerId};
use hekate_transport::Endpoint;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Which cluster this server belongs to, and how it reaches the coordinator and the other servers.
pub struct ClusterAccess {
    /// The cluster's id: 32 hex digits.
    id: String,
    registry: Registry,
    /// The coordinator under the registry; `None` if the process has none of its own.
    current: Option<Arc<CurrentCoordinator>>,
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
        let (registry, current) = state_directory::open_records(state, keys.clone())?;
        let access = Self { current: Some(current), keys, ..Self::of(registry)? };
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
        Ok(Self { id: registry.cluster()?, registry, current: None, keys: None, access })
    }

    /// The cluster of these records, to a server with these keys.
    #[cfg(test)]
    pub(crate) fn with_keys(registry: Registry, keys: Keys) -> Result<Self> {
        Ok(Self { keys: Some(keys), ..Self::of(registry)? })
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

    /// Where the coordinator is.
    pub fn coordinator_place(&self) -> Place {
        self.current.as_ref().map_or(Place::Own, |current| current.place())
    }

    /// The coordinator of this server's state directory.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the process has no state directory.
    pub(crate) fn current(&self) -> Result<&Arc<CurrentCoordinator>> {
        let none = || Error::NotSupported { what: "this server has no state directory".into() };
        self.current.as_ref().ok_or_else(none)
    }

    /// How long this process has used this coordinator; `None` if it can have no other one.
    pub(crate) fn coordinator_in_use_for(&self) -> Option<Duration> {
        self.current.as_ref().map(|current| current.in_use_for())
    }

    /// Remembers where other servers answer: they know where the coordinator is if it moves while this server is down.
    ///
    /// # Errors
    ///
    /// Those of the coordinator and of the file.
    pub(crate) fn remember_servers(&self) -> Result<()> {
        let Some(current) = &self.current else { return Ok(()) };
        let others = self.registry.servers()?.into_iter().filter(|info| info.server != self.server());
        let tcp = others.flat_map(|info| info.endpoints).filter(|address| address.starts_with("tcp:"));
        let addresses: Vec<String> = tcp.collect();
        if addresses.is_empty() {
            return Ok(());
        }
        current.remember_servers(addresses)
    }

    /// Renews what lets this server into etcd, and takes over the addresses of its members.
    ///
    /// # Errors
    ///
    /// Those of the coordinator and of the files.
    pub(crate) fn refresh_etcd(&self, keys: &Keys) -> Result<()> {
        let Some(current) = &self.current else { return Ok(()) };
        let is_new = etcd::refresh_credential(current.state(), &self.registry, keys.seal())?;
        let Place::Etcd(before) = current.place() else { return Ok(()) };
        let Some(info) = self.registry.etcd()? else { return Ok(()) };
        let addresses = info.addresses().join(",");
        if addresses.is_empty() || addresses == before.to_string() && !is_new {
            return Ok(());
        }
        current.reopen(Place::Etcd(Endpoints::parse(&addresses)?))
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
