//! Whose state directory it is: the first server's, with the embedded coordinator; that of a server that has joined or has
//! its coordinator elsewhere; or that of a coordinator as a process of its own.
//!
//! `server.json` says the second, `apart.redb` is the third's; `docs/format/coordinator.md` is the document.

use crate::hosting::remote_coordinator::RemoteCoordinator;
use hekate_cluster::{EmbeddedCoordinator, Registry};
use hekate_proto::{Error, Result, ServerId};
use hekate_transport::{Endpoint, Secret};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const COORDINATOR_FILE: &str = "coordinator.redb";
const APART_FILE: &str = "apart.redb";
const MEMBERSHIP_FILE: &str = "server.json";
const SECRET_FILE: &str = "secret";

/// What a server keeps of the cluster, if it does not hold the coordinator.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Membership {
    /// Which server it is.
    pub server: ServerId,
    /// The cluster's id, 32 hex digits.
    pub cluster: String,
    /// Where the coordinator answers, as a process of its own or in the first server: `unix:PATH` or `tcp:ADDRESS:PORT`.
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

    /// The records of the cluster, as its coordinator gives them; of no other cluster.
    pub fn registry(&self, secret: Option<&Secret>) -> Result<Registry> {
        let endpoint = Endpoint::parse(&self.coordinator, secret)?;
        let coordinator = RemoteCoordinator::new(endpoint, Some(self.cluster.clone()));
        Ok(Registry::of(Arc::new(coordinator), self.server))
    }

    /// The cluster whose coordinator answers there now.
    pub fn cluster_there(&self, secret: Option<&Secret>) -> Result<String> {
        let endpoint = Endpoint::parse(&self.coordinator, secret)?;
        Registry::of(Arc::new(RemoteCoordinator::new(endpoint, None)), self.server).cluster()
    }
}

/// Whether a server's state is there, of either kind.
pub fn is_member(state: &Path) -> bool {
    state.join(COORDINATOR_FILE).exists() || state.join(MEMBERSHIP_FILE).exists()
}

/// Whether the state of a coordinator is there that is a process of its own.
pub fn is_coordinator(state: &Path) -> bool {
    state.join(APART_FILE).exists()
}

/// The coordinator's file: that of a process of its own, or, as long as there is none, that of a first server.
pub fn coordinator_file(state: &Path) -> PathBuf {
    state.join(if is_coordinator(state) { APART_FILE } else { COORDINATOR_FILE })
}

/// The coordinator of a process of its own; made if it is not there.
pub(crate) fn open_apart(state: &Path) -> Result<EmbeddedCoordinator> {
    let path = state.join(APART_FILE);
    if path.exists() { EmbeddedCoordinator::open(&path) } else { EmbeddedCoordinator::create(&path) }
}

/// The cluster's secret, if the state directory has it.
pub(crate) fn secret(state: &Path) -> Result<Option<Secret>> {
    let path = state.join(SECRET_FILE);
    if path.exists() { Secret::read(&path).map(Some) } else { Ok(None) }
}

/// The records of the cluster, for the server whose state directory it is, and where they are if not here.
pub(crate) fn open_registry(state: &Path, secret: Option<&Secret>) -> Result<(Registry, Option<String>)> {
    let embedded = state.join(COORDINATOR_FILE);
    if embedded.exists() {
        return Ok((Registry::new(Arc::new(EmbeddedCoordinator::open(&embedded)?)), None));
    }
    let Some(membership) = Membership::read(state)? else {
        return Err(Error::invalid(format!(
            "there is no cluster in {}; `hekate init` makes one, `hekate join` joins one",
            state.display()
        )));
    };
    let (at, server) = (&membership.coordinator, membership.server);
    let found = membership.cluster_there(secret).map_err(|error| match error {
        // `init --coordinator` writes what the server is before the cluster.
        Error::Invalid { what } => Error::Denied {
            what: format!(
                "{} is of server {server}, and {what}: its making was cut short; remove it and its bricks and make it again",
                state.display()
            ),
        },
        other => other,
    })?;
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
    Ok((registry, Some(membership.coordinator)))
}
