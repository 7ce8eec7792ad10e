//! Whose state directory it is: the first server's, with the embedded coordinator, or that of a server that has joined.
//!
//! `server.json` says the latter; `docs/format/coordinator.md` is the document.

use crate::remote_coordinator::RemoteCoordinator;
use hekate_cluster::{EmbeddedCoordinator, Registry};
use hekate_proto::{Error, Result, ServerId};
use hekate_transport::{Endpoint, Secret};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

const COORDINATOR_FILE: &str = "coordinator.redb";
const MEMBERSHIP_FILE: &str = "server.json";
const SECRET_FILE: &str = "secret";

/// What a server that joined keeps of the cluster.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Membership {
    /// Which server it is.
    pub server: ServerId,
    /// The cluster's id, 32 hex digits.
    pub cluster: String,
    /// Where the first server answers: `unix:PATH` or `tcp:ADDRESS:PORT`.
    pub coordinator: String,
}

impl Membership {
    /// What the state directory says; nothing if no server joined with it.
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

    /// Writes it, durably.
    pub fn write(&self, state: &Path) -> Result<()> {
        let (path, new) = (state.join(MEMBERSHIP_FILE), state.join("server.new"));
        let text = serde_json::to_string(self).map_err(|e| Error::bug(e.to_string()))?;
        File::create(&new)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&new, &path))
            .and_then(|()| File::open(state)?.sync_all())
            .map_err(|e| Error::io(format!("write {}", path.display()), e))
    }

    /// The records of the cluster, as the first server gives them; of no other cluster.
    pub fn registry(&self, secret: Option<&Secret>) -> Result<Registry> {
        let endpoint = Endpoint::parse(&self.coordinator, secret)?;
        let coordinator = RemoteCoordinator::new(endpoint, Some(self.cluster.clone()));
        Ok(Registry::of(Arc::new(coordinator), self.server))
    }

    /// The cluster whose first server answers there now.
    pub fn cluster_there(&self, secret: Option<&Secret>) -> Result<String> {
        let endpoint = Endpoint::parse(&self.coordinator, secret)?;
        Registry::of(Arc::new(RemoteCoordinator::new(endpoint, None)), self.server).cluster()
    }
}

/// Whether a server's state is there, of either kind.
pub fn is_member(state: &Path) -> bool {
    state.join(COORDINATOR_FILE).exists() || state.join(MEMBERSHIP_FILE).exists()
}

/// The cluster's secret, if the state directory has it.
pub(crate) fn secret(state: &Path) -> Result<Option<Secret>> {
    let path = state.join(SECRET_FILE);
    if path.exists() { Secret::read(&path).map(Some) } else { Ok(None) }
}

/// The records of the cluster, for the server whose state directory it is.
pub(crate) fn open_registry(state: &Path, secret: Option<&Secret>) -> Result<Registry> {
    let embedded = state.join(COORDINATOR_FILE);
    if embedded.exists() {
        return Ok(Registry::new(Arc::new(EmbeddedCoordinator::open(&embedded)?)));
    }
    let Some(membership) = Membership::read(state)? else {
        return Err(Error::invalid(format!(
            "there is no cluster in {}; `hekate init` makes one, `hekate join` joins one",
            state.display()
        )));
    };
    let (found, at, server) = (membership.cluster_there(secret)?, &membership.coordinator, membership.server);
    if found != membership.cluster {
        return Err(Error::Denied {
            what: format!(
                "{} is of a server of cluster {}, but {at} answers for cluster {found}",
                state.display(),
                membership.cluster
            ),
        });
    }
    let registry = membership.registry(secret)?;
    if registry.servers()?.iter().all(|info| info.server != server) {
        return Err(Error::Denied {
            what: format!(
                "the cluster at {at} has no server {server}: its joining was cut short; remove {} and its bricks and \
                 join again",
                state.display()
            ),
        });
    }
    Ok(registry)
}
