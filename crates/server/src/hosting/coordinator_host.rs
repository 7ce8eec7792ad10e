//! A coordinator that is a process of its own: it has no bricks and serves no volume, so any server can fail.
//!
//! It answers the same control requests as a first server that holds the coordinator, with the same checks.

use crate::control::coordinator::{answer_from, check_cluster};
use crate::control::{allowed, json, reply};
use crate::hosting::state_directory;
use hekate_cluster::{Coordinator, EmbeddedCoordinator};
use hekate_control::peer::PeerRequest;
use hekate_control::status::{Identity, Stopping};
use hekate_control::{ControlRequest, Request};
use hekate_proto::{Error, Reply, Result, SessionId, VolumeId};
use hekate_transport::{Peer, Service};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The service of a coordinator's process.
pub struct CoordinatorHost {
    coordinator: EmbeddedCoordinator,
    endpoints: Vec<String>,
    stop_asked: AtomicBool,
}

impl CoordinatorHost {
    /// Opens the coordinator of a state directory, and makes its file if there is none. `endpoints` are the
    /// addresses at which the process answers.
    ///
    /// # Errors
    ///
    /// `Damaged` or `Io` if the file cannot be read or made.
    pub fn open(state: &Path, endpoints: Vec<String>) -> Result<Self> {
        let coordinator = state_directory::open_apart(state)?;
        Ok(Self { coordinator, endpoints, stop_asked: AtomicBool::new(false) })
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

    fn act(&self, request: Request) -> Result<Value> {
        match request {
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
                answer_from(&self.coordinator, asked)
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
    fn open(&self, _: Peer, volume: &str, _: Option<SessionId>) -> Result<(VolumeId, SessionId, String)> {
        let what = format!("a coordinator answers here; ask a server of its cluster for volume {volume}");
        Err(Error::NotSupported { what })
    }

    fn call(&self, _: SessionId, requests: Vec<hekate_proto::Request>) -> Vec<Result<Reply>> {
        requests.iter().map(|_| Err(Error::SessionEnded)).collect()
    }

    fn disconnected(&self, _: SessionId) {}

    fn control(&self, peer: Peer, request: &str) -> String {
        reply(allowed(peer, request).and_then(|request| self.act(request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RemoteCoordinator;
    use hekate_cluster::conformance::conforms;
    use hekate_cluster::{FIRST_SERVER, Registry};
    use hekate_transport::{Endpoint, Server};
    use std::sync::Arc;

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
        server.listen(&endpoint).unwrap();
        let early = RemoteCoordinator::new(endpoint.clone(), Some("c".into()));
        assert!(early.get("/x").unwrap_err().to_string().contains("no cluster yet"));
        let remote: Arc<dyn Coordinator> = Arc::new(RemoteCoordinator::new(endpoint.clone(), None));
        Registry::of(remote.clone(), FIRST_SERVER).create_cluster("c").unwrap();
        conforms(&remote);
        let own = RemoteCoordinator::new(endpoint.clone(), Some("c".into()));
        assert_eq!(own.get("/cluster").unwrap().unwrap(), r#""c""#);
        let stranger = RemoteCoordinator::new(endpoint, Some("d".into()));
        assert!(matches!(stranger.get("/cluster"), Err(Error::Denied { .. })));
        server.stop();
    }

    #[test]
    fn it_serves_no_volume_and_refuses_other_users() {
        let hosted = Hosted::new("nothing-else");
        let said = hosted.host.control(Peer::Secret, r#"{"request":"status"}"#);
        assert!(said.contains("a coordinator answers here"), "{said}");
        let request = r#"{"request":"coordinator","ask":"get","key":"/cluster"}"#;
        let refused = hosted.host.control(Peer::Local { uid: 4242 }, request);
        assert!(refused.contains("4242") && refused.contains("77"), "{refused}");
        let known = hosted.host.control(Peer::Local { uid: 4242 }, r#"{"request":"identify"}"#);
        assert!(known.contains(r#""cluster":null"#) && known.contains(r#""holds_coordinator":true"#), "{known}");
        assert!(matches!(hosted.host.open(Peer::Secret, "v", None), Err(Error::NotSupported { .. })));
        assert!(!hosted.host.stop_asked());
        hosted.host.control(Peer::Secret, r#"{"request":"stop"}"#);
        assert!(hosted.host.stop_asked());
    }
}
