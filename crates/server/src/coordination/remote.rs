//! The coordinator of another process, called over that process's control interface.

use hekate_cluster::coordinator::{Changed, Expect, Known, Write};
use hekate_cluster::{Coordinator, Listing, Outcome, Revision, Watched};
use hekate_control::peer::{CoordinatorRequest, PeerRequest, WATCH_MAX};
use hekate_control::{ControlReply, Refusal};
use hekate_proto::{Error, Result};
use hekate_threads::{elapsed, now};
use hekate_transport::{Asked, Control, Endpoint};
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long one call may take, besides the time that it is to wait: a transaction waits for the disk there.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A coordinator of another process. Connects at the first call, and again after that process was restarted.
///
/// While the process does not answer every call is `Unavailable`. The outcome of a write whose connection ends before
/// the answer is unknown; it is not sent again.
pub struct RemoteCoordinator {
    control: Control,
    cluster: Option<String>,
    watches_ended: AtomicBool,
}

impl RemoteCoordinator {
    /// The coordinator that answers at `endpoint`. A coordinator of another cluster than `cluster` refuses each call;
    /// `None` while the caller has no cluster yet.
    pub fn new(endpoint: Endpoint, cluster: Option<String>) -> Self {
        let control = Control::new(endpoint, Some(ANSWER_LIMIT));
        Self { control, cluster, watches_ended: AtomicBool::new(false) }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// Those that the coordinator answers; `Unavailable` if the request was not sent.
    fn ask<T: DeserializeOwned>(
        &self,
        request: CoordinatorRequest,
        limit: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<Answer<T>> {
        let request = PeerRequest::Coordinator { cluster: self.cluster.clone(), asked: request };
        let request = serde_json::to_string(&request).map_err(|e| Error::bug(e.to_string()))?;
        let unreadable = |e: serde_json::Error| Error::Protocol {
            what: format!("the coordinator at {}: {e}", self.control.endpoint()),
        };
        let text = match self.control.send(&request).map_err(away)?.receive(Some(limit), keep_waiting) {
            Ok(Asked::Answered(text)) => text,
            Ok(Asked::Unanswered(error)) | Err(error) => return Ok(Answer::Lost(away(error))),
        };
        match serde_json::from_str(&text).map_err(unreadable) {
            Ok(ControlReply::Ok(value)) => Ok(Answer::Arrived(value)),
            Ok(ControlReply::Error(Refusal { text, exit })) => Err(self.refused(&text, exit)),
            Err(error) => Ok(Answer::Lost(error)),
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

    /// Sends a read, once more if its answer was lost: a read may be carried out twice.
    fn read<T: DeserializeOwned>(&self, request: CoordinatorRequest) -> Result<T> {
        match self.ask(request.clone(), ANSWER_LIMIT, &|| true)? {
            Answer::Arrived(value) => Ok(value),
            Answer::Lost(_) => self.ask(request, ANSWER_LIMIT, &|| true)?.arrived(),
        }
    }

    /// Sends a write once.
    fn write(&self, request: CoordinatorRequest) -> Result<Outcome> {
        match self.ask(request, ANSWER_LIMIT, &|| true)? {
            Answer::Arrived(outcome) => Ok(outcome),
            Answer::Lost(error) => Ok(Outcome::Unknown { why: error.to_string() }),
        }
    }
}

/// What became of a request that was sent.
enum Answer<T> {
    Arrived(T),
    /// The answer did not arrive, or cannot be read: the request may have been carried out.
    Lost(Error),
}

impl<T> Answer<T> {
    fn arrived(self) -> Result<T> {
        match self {
            Self::Arrived(value) => Ok(value),
            Self::Lost(error) => Err(error),
        }
    }
}

fn away(error: Error) -> Error {
    match error {
        Error::Unavailable { what } => Error::Unavailable { what: format!("the coordinator: {what}") },
        other => other,
    }
}

impl Coordinator for RemoteCoordinator {
    fn get(&self, key: &str) -> Result<Option<String>> {
        self.read(CoordinatorRequest::Get { key: key.into() })
    }

    fn list(&self, prefix: &str) -> Result<Listing> {
        self.read(CoordinatorRequest::List { prefix: prefix.into(), after: None, count: 0 })
    }

    fn changes(&self, known: &[Known<'_>]) -> Result<Vec<Changed>> {
        let of_prefix = |known: &Known<'_>| {
            let (after, count) = (known.after.map(|revision| revision.0), known.count as u64);
            self.read(CoordinatorRequest::List { prefix: known.prefix.into(), after, count })
        };
        known.iter().map(of_prefix).collect()
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        let owned = |pairs: &[(&str, Option<&str>)]| {
            pairs.iter().map(|(key, value)| ((*key).into(), value.map(String::from))).collect()
        };
        self.write(CoordinatorRequest::Transact { expect: owned(expect), writes: owned(writes) })
    }

    fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<Outcome> {
        let milliseconds = lifetime.as_millis() as u64;
        self.write(CoordinatorRequest::Keep { key: key.into(), value: value.into(), milliseconds })
    }

    fn release(&self, key: &str) -> Result<Outcome> {
        self.write(CoordinatorRequest::Release { key: key.into() })
    }

    /// Asks again and again, each time for at most [`WATCH_MAX`].
    fn watch(&self, prefixes: &[&str], after: Revision, limit: Duration) -> Result<Watched> {
        let begun = now();
        let prefixes: Vec<String> = prefixes.iter().map(|prefix| (*prefix).into()).collect();
        let mut after = after;
        loop {
            let wait = limit.saturating_sub(elapsed(begun)).min(WATCH_MAX);
            // Rounded up, so that the last request does not end before the limit.
            let milliseconds = wait.as_millis() as u64 + 1;
            let request = CoordinatorRequest::Watch { prefixes: prefixes.clone(), after: after.0, milliseconds };
            let keep_waiting = || !self.watches_ended.load(Ordering::Relaxed);
            let watched = self.ask(request, wait + ANSWER_LIMIT, &keep_waiting)?.arrived()?;
            if !keep_waiting() {
                return Err(Error::Unavailable { what: "this process stops".into() });
            }
            match watched {
                Watched::Unchanged { revision } if elapsed(begun) < limit => after = revision,
                ended => return Ok(ended),
            }
        }
    }

    fn end_watches(&self) {
        self.watches_ended.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Served;
    use hekate_cluster::conformance::{LATE, conforms};
    use hekate_transport::{Peer, Server, Service};
    use std::sync::Arc;

    #[test]
    fn a_remote_coordinator_conforms_and_outlives_the_server() {
        let served = Served::new("coordinator");
        let endpoint = Endpoint::Unix(served.directory.join("server.sock"));
        let server = Server::new(served.node.clone());
        server.listen(&endpoint, "").unwrap();
        let remote: Arc<dyn Coordinator> =
            Arc::new(RemoteCoordinator::new(endpoint.clone(), Some(served.node.cluster.id().into())));
        conforms(&remote, LATE);
        server.stop();
        drop(server);
        let away = remote.get("/suite/b").unwrap_err();
        assert!(matches!(away, Error::Unavailable { .. }) && away.to_string().contains("server.sock"), "{away}");
        let served = served.restart();
        let server = Server::new(served.node.clone());
        server.listen(&endpoint, "").unwrap();
        assert_eq!(remote.get("/suite/b").unwrap().unwrap(), "2");
        let removed = remote.transact(&[("/suite/b", Some("2"))], &[("/suite/b", None)]).unwrap();
        assert_eq!(removed, Outcome::Written);
        server.stop();
    }

    #[test]
    fn only_root_the_servers_user_and_the_secret_reach_the_coordinator() {
        let served = Served::new("coordinator-denied");
        let request = r#"{"request":"coordinator","ask":"get","key":"/cluster"}"#;
        let refused = served.node.control(&Peer::Local { uid: 4242 }, request);
        assert!(refused.contains("4242") && refused.contains("77"), "{refused}");
        assert_eq!(served.node.control(&Peer::Local { uid: 0 }, request), r#"{"ok":"\"c\""}"#);
    }

    #[test]
    fn a_server_of_another_cluster_is_refused() {
        let served = Served::new("coordinator-other");
        let endpoint = Endpoint::Unix(served.directory.join("server.sock"));
        let server = Server::new(served.node.clone());
        server.listen(&endpoint, "").unwrap();
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
