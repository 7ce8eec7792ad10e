//! Which role a state directory belongs to, and the files in it.
//!
//! | role | its file |
//! |---|---|
//! | the first server, with the embedded coordinator | `coordinator.redb` |
//! | a server whose coordinator is elsewhere, or was moved | `server.json`; `coordinator.redb` as well if it held it |
//! | a coordinator that is a process of its own | `apart.redb` |
//!
//! `docs/format/coordinator.md` describes them.

use crate::coordination::current::CurrentCoordinator;
use crate::coordination::remote::RemoteCoordinator;
use crate::hosting::keys::Keys;
use hekate_cluster::{EmbeddedCoordinator, Registry};
use hekate_proto::{Error, Result, ServerId};
use hekate_transport::Endpoint;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const COORDINATOR_FILE: &str = "coordinator.redb";
const APART_FILE: &str = "apart.redb";
const MEMBERSHIP_FILE: &str = "server.json";

/// What `server.json` says: the identity of a server, and where its coordinator is. A first server that holds the
/// coordinator from the beginning has none.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Membership {
    pub server: ServerId,
    /// The cluster's id: 32 hex digits.
    pub cluster: String,
    /// Where the coordinator is: a [`super::place::Place`].
    pub coordinator: String,
    /// Addresses of other servers, which know where the coordinator is if it has moved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
}

impl Membership {
    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    ///
    /// `Damaged` if the file cannot be parsed, `Io` if it cannot be read.
    pub fn read(state: &Path) -> Result<Option<Self>> {
        let path = state.join(MEMBERSHIP_FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(format!("read {}", path.display()), error)),
        };
        let damaged = |e: serde_json::Error| Error::Damaged { what: format!("{}: {e}", path.display()) };
        serde_json::from_str(&text).map(Some).map_err(damaged)
    }

    /// Writes the file; it is on stable storage when this returns.
    ///
    /// # Errors
    ///
    /// `Io` if the file cannot be written.
    pub fn write(&self, state: &Path) -> Result<()> {
        let (path, new) = (state.join(MEMBERSHIP_FILE), state.join("server.new"));
        let text = serde_json::to_string(self).map_err(|e| Error::bug(e.to_string()))?;
        File::create(&new)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&new, &path))
            .and_then(|()| File::open(state)?.sync_all())
            .map_err(|e| Error::io(format!("write {}", path.display()), e))
    }
}

/// True if the directory is a server's.
pub fn is_member(state: &Path) -> bool {
    state.join(COORDINATOR_FILE).exists() || state.join(MEMBERSHIP_FILE).exists()
}

/// True if the directory is that of a coordinator that is a process of its own.
pub fn is_coordinator(state: &Path) -> bool {
    state.join(APART_FILE).exists()
}

/// The path of the coordinator's file, of either kind.
pub fn coordinator_file(state: &Path) -> PathBuf {
    state.join(if is_coordinator(state) { APART_FILE } else { COORDINATOR_FILE })
}

/// Opens the coordinator of a process of its own; makes its file if there is none.
///
/// # Errors
///
/// `Damaged` or `Io` if the file cannot be read or made.
pub(crate) fn open_apart(state: &Path) -> Result<EmbeddedCoordinator> {
    let path = state.join(APART_FILE);
    if path.exists() { EmbeddedCoordinator::open(&path) } else { EmbeddedCoordinator::create(&path) }
}

/// Opens the cluster's records for the server of a state directory.
///
/// # Errors
///
/// `Invalid` if the directory is no server's, `Denied` if the coordinator is another cluster's or does not know the
/// server, `Unavailable` if it does not answer.
pub(crate) fn open_records(state: &Path, keys: Option<Keys>) -> Result<(Registry, Arc<CurrentCoordinator>)> {
    let current = CurrentCoordinator::open(state, keys)?;
    let (server, shown, at) = (current.server(), state.display(), current.place());
    let registry = Registry::of(current.clone(), server);
    let found = registry.cluster().map_err(|error| match error {
        // `init --coordinator` writes `server.json` before it makes the cluster.
        Error::Invalid { what } => Error::Denied {
            what: format!(
                "{shown} is of server {server}, and {what}: its creation was interrupted; remove it and its bricks \
                 and make it again"
            ),
        },
        other => other,
    })?;
    if let Some(cluster) = current.cluster().filter(|cluster| **cluster != found) {
        return Err(Error::Denied {
            what: format!("{shown} is of a server of cluster {cluster}, but {at} answers for cluster {found}"),
        });
    }
    if registry.servers()?.iter().all(|info| info.server != server) {
        return Err(Error::Denied {
            what: format!(
                "the cluster at {at} has no server {server}: `hekate join` was interrupted; remove {shown} and its \
                 bricks and join again"
            ),
        });
    }
    Ok((registry, current))
}

/// The cluster's records for a tool that runs beside no server: in the state directory, or where its server finds them.
///
/// # Errors
///
/// `Invalid` if the directory is no server's; `Unavailable` if the file is in use, or the coordinator does not answer.
pub fn records_of(state: &Path) -> Result<Registry> {
    if is_coordinator(state) {
        return Ok(Registry::new(Arc::new(EmbeddedCoordinator::open(&coordinator_file(state))?)));
    }
    let keys = if Keys::exist(state) { Some(Keys::read(state)?) } else { None };
    let current = CurrentCoordinator::open(state, keys)?;
    let server = current.server();
    Ok(Registry::of(current, server))
}

/// The id of the cluster whose coordinator answers at an address.
///
/// # Errors
///
/// `Unavailable` if none answers, `Invalid` if it has no cluster yet.
pub fn cluster_at(address: &str, keys: &Keys, server: ServerId) -> Result<String> {
    let endpoint = Endpoint::parse(address, Some(keys.context()))?;
    Registry::of(Arc::new(RemoteCoordinator::new(endpoint, None)), server).cluster()
}
