//! The coordinator of another process, called over that process's control interface.

use hekate_cluster::Coordinator;
use hekate_cluster::coordinator::{Expect, Write};
use hekate_control::peer::{CoordinatorRequest, PeerRequest};
use hekate_control::{ControlReply, Refusal};
use hekate_proto::{Error, Result};
use hekate_transport::{Control, Endpoint};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long one call may take. A transaction waits for the coordinator's disk.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A coordinator of another process. Connects at the first call, and again after that process was restarted.
///
/// While the process does not answer every call is `Unavailable`. So is a transaction whose connection ends before the
/// answer; it may have been carried out, and it is not sent again.
pub struct RemoteCoordinator {
    control: Control,
    cluster: Option<String>,
}

impl RemoteCoordinator {
    /// The coordinator that answers at `endpoint`. A coordinator of another cluster than `cluster` refuses each call;
    /// `None` while the caller has no cluster yet.
    pub fn new(endpoint: Endpoint, cluster: Option<String>) -> Self {
        Self { control: Control::new(endpoint, Some(ANSWER_LIMIT)), cluster }
    }

    fn ask<T: DeserializeOwned>(&self, request: CoordinatorRequest) -> Result<T> {
        let request = PeerRequest::Coordinator { cluster: self.cluster.clone(), asked: request };
        let request = serde_json::to_string(&request);
        let away = |error| match error {
            Error::Unavailable { what } => Error::Unavailable { what: format!("the coordinator: {what}") },
            other => other,
        };
        let answer = self.control.ask(&request.map_err(|e| Error::bug(e.to_string()))?).map_err(away)?;
        let unreadable = |e: serde_json::Error| Error::Protocol {
            what: format!("the coordinator at {}: {e}", self.control.endpoint()),
        };
        match serde_json::from_str(&answer).map_err(unreadable)? {
            ControlReply::Ok(value) => Ok(value),
            ControlReply::Error(Refusal { text, exit }) => Err(self.refused(&text, exit)),
        }
    }

    /// The error that the other process answered, of the same kind.
    fn refused(&self, text: &str, exit: u8) -> Error {
        let kinds: [fn(String) -> Error; 3] =
            [|what| Error::Denied { what }, |what| Error::Unavailable { what }, |what| Error::Invalid { what }];
        let other = |what| Error::Io { what };
        let make = kinds.into_iter().find(|make| make(String::new()).entry().exit == exit).unwrap_or(other);
        // The text begins with the words of its kind, which the new error adds again.
        let detail = text.strip_prefix(make(String::new()).entry().text).and_then(|rest| rest.strip_prefix(": "));
        make(format!("the coordinator at {}: {}", self.control.endpoint(), detail.unwrap_or(text)))
    }

    /// Sends a read once more if its connection ended before the answer: a read may be carried out twice.
    fn read<T: DeserializeOwned>(&self, request: CoordinatorRequest) -> Result<T> {
        match self.ask(request.clone()) {
            Err(Error::Unavailable { .. }) => self.ask(request),
            settled => settled,
        }
    }
}

impl Coordinator for RemoteCoordinator {
    fn get(&self, key: &str) -> Result<Option<String>> {
        self.read(CoordinatorRequest::Get { key: key.into() })
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, String)>> {
        self.read(CoordinatorRequest::List { prefix: prefix.into() })
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<bool> {
        let owned = |pairs: &[(&str, Option<&str>)]| {
            pairs.iter().map(|(key, value)| ((*key).into(), value.map(String::from))).collect()
        };
        self.ask(CoordinatorRequest::Transact { expect: owned(expect), writes: owned(writes) })
    }

    fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<()> {
        let milliseconds = lifetime.as_millis() as u64;
        self.read(CoordinatorRequest::Keep { key: key.into(), value: value.into(), milliseconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Served;
    use hekate_cluster::conformance::conforms;
    use hekate_transport::{Peer, Server, Service};

    #[test]
    fn a_remote_coordinator_conforms_and_outlives_the_server() {
        let served = Served::new("coordinator");
        let endpoint = Endpoint::Unix(served.directory.join("server.sock"));
        let server = Server::new(served.node.clone());
        server.listen(&endpoint).unwrap();
        let remote = RemoteCoordinator::new(endpoint.clone(), Some(served.node.cluster.id().into()));
        conforms(&remote);
        server.stop();
        drop(server);
        let away = remote.get("/suite/b").unwrap_err();
        assert!(matches!(away, Error::Unavailable { .. }) && away.to_string().contains("server.sock"), "{away}");
        let served = served.restart();
        let server = Server::new(served.node.clone());
        server.listen(&endpoint).unwrap();
        assert_eq!(remote.get("/suite/b").unwrap().unwrap(), "2");
        assert!(remote.transact(&[("/suite/b", Some("2"))], &[("/suite/b", None)]).unwrap());
        server.stop();
    }

    #[test]
    fn only_root_the_servers_user_and_the_secret_reach_the_coordinator() {
        let served = Served::new("coordinator-denied");
        let request = r#"{"request":"coordinator","ask":"get","key":"/cluster"}"#;
        let refused = served.node.control(Peer::Local { uid: 4242 }, request);
        assert!(refused.contains("4242") && refused.contains("77"), "{refused}");
        assert_eq!(served.node.control(Peer::Secret, request), r#"{"ok":"\"c\""}"#);
    }

    #[test]
    fn a_server_of_another_cluster_is_refused() {
        let served = Served::new("coordinator-other");
        let endpoint = Endpoint::Unix(served.directory.join("server.sock"));
        let server = Server::new(served.node.clone());
        server.listen(&endpoint).unwrap();
        let stranger = RemoteCoordinator::new(endpoint, Some("theirs".into()));
        let refused = stranger.transact(&[], &[("/suite/b", Some("2"))]).unwrap_err();
        assert!(matches!(&refused, Error::Denied { what } if what.contains("theirs")), "{refused}");
        assert!(matches!(stranger.get("/cluster"), Err(Error::Denied { .. })));
        assert_eq!(served.node.cluster.registry().coordinator().get("/suite/b").unwrap(), None);
        server.stop();
    }

    #[test]
    fn refusals_arrive_as_the_errors_that_they_were() {
        let remote = RemoteCoordinator::new(Endpoint::Unix("/c".into()), None);
        let denied = Error::Denied { what: "user 5".into() };
        let refused = remote.refused(&denied.to_string(), denied.entry().exit);
        assert_eq!(refused, Error::Denied { what: "the coordinator at unix:/c: user 5".into() });
        assert!(matches!(remote.refused("odd", 70), Error::Io { .. }));
    }
}
