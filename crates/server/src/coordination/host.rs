//! A coordinator that is a process of its own: it has no bricks and serves no volume, so any server can fail.
//!
//! It answers the same control requests as a first server that holds the coordinator, with the same checks.

use crate::control::coordinator::{answer_from, check_cluster};
use crate::control::{access, json, parse, reply};
use crate::coordination::state_directory;
use crate::hosting::access::may_ask_here;
use crate::hosting::authority;
use crate::hosting::keys::{Keys, write_private};
use hekate_cluster::{Coordinator, EmbeddedCoordinator, FIRST_SERVER, Registry};
use hekate_control::peer::PeerRequest;
use hekate_control::status::{Identity, Stopping};
use hekate_control::{ControlRequest, Request};
use hekate_proto::{Error, Reply, Result, SessionId, VolumeId};
use hekate_tls::{Holder, Root, SealKey};
use hekate_transport::{Peer, Service};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The service of a coordinator's process.
pub struct CoordinatorHost {
    coordinator: Arc<EmbeddedCoordinator>,
    registry: Registry,
    keys: Keys,
    endpoints: Vec<String>,
    stop_asked: AtomicBool,
}

impl CoordinatorHost {
    /// Opens the coordinator of a state directory. If there is none it is made, with the authority of the cluster to
    /// come: `ca/root.pem` and `ca/root.key`. `endpoints` are the addresses at which the process answers.
    ///
    /// # Errors
    ///
    /// `Damaged` or `Io` if the file cannot be read or made.
    pub fn open(state: &Path, endpoints: Vec<String>) -> Result<Self> {
        let coordinator = Arc::new(state_directory::open_apart(state)?);
        let registry = Registry::of(coordinator.clone(), FIRST_SERVER);
        if !Keys::exist(state) {
            make_keys(state, &registry)?;
        }
        Ok(Self { coordinator, registry, keys: Keys::read(state)?, endpoints, stop_asked: AtomicBool::new(false) })
    }

    /// The keys of the coordinator's state directory.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Renews the coordinator's certificate, if it is time.
    pub fn renew_credential(&self) {
        let renewed = || -> Result<()> {
            self.keys.show_valid()?;
            let authority = authority::read(&self.registry, self.keys.seal())?;
            let renewed = authority.renewed(&self.keys, &Holder::Server(access::COORDINATOR))?;
            renewed.map_or(Ok(()), |credential| self.keys.renew(credential))
        };
        if let Err(error) = renewed() {
            log::warn!("the coordinator's certificate cannot be renewed: {error}");
        }
    }

    /// True if the control interface was asked to stop the process.
    pub fn stop_asked(&self) -> bool {
        self.stop_asked.load(Ordering::Relaxed)
    }

    /// Ends the waits of servers for changes, before the process stops.
    pub fn end_watches(&self) {
        self.coordinator.end_watches();
    }

    /// The cluster's id; `None` before `hekate init --coordinator` has made the cluster.
    ///
    /// # Errors
    ///
    /// `Damaged` if the record cannot be read.
    pub fn cluster(&self) -> Result<Option<String>> {
        let unreadable = |e| Error::Damaged { what: format!("the coordinator's record of its cluster: {e}") };
        self.coordinator.get("/cluster")?.map(|text| serde_json::from_str(&text).map_err(unreadable)).transpose()
    }

    fn act(&self, peer: &Peer, request: Request) -> Result<Value> {
        match request {
            Request::Control(
                request @ (ControlRequest::TokenCreate(_) | ControlRequest::Enroll(_) | ControlRequest::CaShow(_)),
            ) => {
                let credential = self.keys.context().credential();
                let cluster = credential.map(|credential| credential.cluster.clone()).unwrap_or_default();
                let desk = access::Desk {
                    cluster,
                    registry: &self.registry,
                    keys: &self.keys,
                    endpoints: self.endpoints.clone(),
                    coordinator: self.endpoints.clone(),
                };
                access::act(&desk, peer, request, self.cluster()?.is_some())
            }
            Request::Control(ControlRequest::Identify(_)) => json(&Identity {
                cluster: self.cluster()?,
                server: None,
                pid: std::process::id(),
                endpoints: self.endpoints.clone(),
                coordinator: self.endpoints.clone(),
                holds_coordinator: true,
            }),
            Request::Peer(PeerRequest::Coordinator { cluster, asked }) => {
                check_cluster(self.cluster()?.as_deref(), cluster.as_deref())?;
                answer_from(&*self.coordinator, asked)
            }
            Request::Control(ControlRequest::Stop(_)) => {
                self.stop_asked.store(true, Ordering::Relaxed);
                self.end_watches();
                json(&Stopping { pid: std::process::id() })
            }
            _ => Err(Error::invalid(
                "a coordinator answers here, which does not serve this request; ask a server of its cluster",
            )),
        }
    }
}

impl Service for CoordinatorHost {
    fn open(&self, _: &Peer, volume: &str, _: Option<SessionId>) -> Result<(VolumeId, SessionId, String)> {
        let what = format!("a coordinator answers here; ask a server of its cluster for volume {volume}");
        Err(Error::NotSupported { what })
    }

    fn call(&self, _: SessionId, requests: Vec<hekate_proto::Request>) -> Vec<Result<Reply>> {
        requests.iter().map(|_| Err(Error::SessionEnded)).collect()
    }

    fn disconnected(&self, _: SessionId) {}

    fn control(&self, peer: &Peer, request: &str) -> String {
        let request = parse(request).and_then(|request| may_ask(peer, &request).map(|()| request));
        reply(request.and_then(|request| self.act(peer, request)))
    }
}

/// Servers may ask everything; who has no certificate may join with an invitation. Clients have nothing to ask.
fn may_ask(peer: &Peer, request: &Request) -> Result<()> {
    let is_enrolling = matches!(request, Request::Control(ControlRequest::Enroll(_) | ControlRequest::Identify(_)));
    match (peer, peer.holder()) {
        (Peer::Local { .. }, _) => may_ask_here(peer, request),
        (_, Some(Holder::Server(_))) => Ok(()),
        (_, None) if is_enrolling => Ok(()),
        _ => Err(Error::Denied { what: "the coordinator answers servers only; ask a server".into() }),
    }
}

/// Makes the authority of the cluster to come, and the coordinator's own credential.
fn make_keys(state: &Path, registry: &Registry) -> Result<()> {
    let (seal, cluster) = (SealKey::create()?, cluster_id()?);
    let root = authority::create(registry, &seal, &cluster)?;
    keep_root(state, &root)?;
    let holder = Holder::Server(access::COORDINATOR);
    Keys::write(state, &authority::read(registry, &seal)?.server_credential(&holder)?, &seal)
}

/// The id of a new cluster: 32 random hex digits.
///
/// # Errors
///
/// `Io` if the system has no random numbers.
pub fn cluster_id() -> Result<String> {
    let half = || hekate_threads::random().map_err(|e| Error::io("random bytes".to_string(), e));
    let (high, low): (u64, u64) = (half()?, half()?);
    Ok(format!("{high:016x}{low:016x}"))
}

/// Writes the root's certificate and key into the directory `ca`.
///
/// # Errors
///
/// `Io` if they cannot be written.
pub fn keep_root(state: &Path, root: &Root) -> Result<()> {
    let directory = state.join("ca");
    std::fs::create_dir_all(&directory).map_err(|e| Error::io(format!("make {}", directory.display()), e))?;
    write_private(&directory.join("root.key"), root.key.as_bytes())?;
    write_private(&directory.join("root.pem"), root.certificate.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RemoteCoordinator;
    use hekate_cluster::conformance::{LATE, conforms};
    use hekate_cluster::{FIRST_SERVER, Registry};
    use hekate_transport::{Endpoint, Server};

    struct Hosted {
        directory: std::path::PathBuf,
        host: Arc<CoordinatorHost>,
    }

    impl Hosted {
        fn new(name: &str) -> Self {
            let directory = std::env::temp_dir().join(format!("hekate-host-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::create_dir_all(&directory).unwrap();
            let host = Arc::new(CoordinatorHost::open(&directory, vec!["unix:/c".into()]).unwrap());
            Self { directory, host }
        }
    }

    impl Drop for Hosted {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    #[test]
    fn a_coordinator_of_a_process_of_its_own_conforms_and_keeps_to_its_cluster() {
        let hosted = Hosted::new("conforms");
        let endpoint = Endpoint::Unix(hosted.directory.join("server.sock"));
        let server = Server::new(hosted.host.clone());
        server.listen(&endpoint, "").unwrap();
        let early = RemoteCoordinator::new(endpoint.clone(), Some("c".into()));
        assert!(early.get("/x").unwrap_err().to_string().contains("no cluster yet"));
        let remote: Arc<dyn Coordinator> = Arc::new(RemoteCoordinator::new(endpoint.clone(), None));
        Registry::of(remote.clone(), FIRST_SERVER).create_cluster("c").unwrap();
        conforms(&remote, LATE);
        let own = RemoteCoordinator::new(endpoint.clone(), Some("c".into()));
        assert_eq!(own.get("/cluster").unwrap().unwrap(), r#""c""#);
        let stranger = RemoteCoordinator::new(endpoint, Some("d".into()));
        assert!(matches!(stranger.get("/cluster"), Err(Error::Denied { .. })));
        server.stop();
    }

    #[test]
    fn it_serves_no_volume_and_refuses_other_users() {
        let hosted = Hosted::new("nothing-else");
        let said = hosted.host.control(&Peer::Local { uid: 0 }, r#"{"request":"status"}"#);
        assert!(said.contains("a coordinator answers here"), "{said}");
        let request = r#"{"request":"coordinator","ask":"get","key":"/cluster"}"#;
        let refused = hosted.host.control(&Peer::Local { uid: 4242 }, request);
        assert!(refused.contains("4242") && refused.contains("77"), "{refused}");
        let known = hosted.host.control(&Peer::Local { uid: 4242 }, r#"{"request":"identify"}"#);
        assert!(known.contains(r#""cluster":null"#) && known.contains(r#""holds_coordinator":true"#), "{known}");
        assert!(matches!(hosted.host.open(&Peer::Local { uid: 0 }, "v", None), Err(Error::NotSupported { .. })));
        assert!(!hosted.host.stop_asked());
        hosted.host.control(&Peer::Local { uid: 0 }, r#"{"request":"stop"}"#);
        assert!(hosted.host.stop_asked());
    }
}
