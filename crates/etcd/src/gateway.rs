//! Requests to etcd: which endpoint is asked, for how long, and what is known if no answer arrives.

use crate::credential::Credential;
use crate::messages::{self, Failure};
use crate::patience::Patience;
use hekate_proto::{Error, Result};
use hekate_threads::{Mutex, elapsed, now, sleep};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Time for a connection with its handshake.
const CONNECT_LIMIT: Duration = Duration::from_millis(700);
/// Time after which a read asks no further endpoint.
const READ_PATIENCE: Duration = Duration::from_secs(4);
/// Time between two attempts of a read: an endpoint that fails at once is not asked in a tight loop.
const READ_PAUSE: Duration = Duration::from_millis(100);
/// Time without a byte of a stream after which it is begun anew: the endpoint may be unreachable, which nothing else
/// shows. A server learns of a change that much later at most.
const STREAM_SILENCE_MAX: Duration = Duration::from_secs(3);
/// Largest answer in bytes: some 100,000 records.
const ANSWER_MAX: u64 = 64 << 20;
/// The request whose answer has no header in etcd 3.4.
const WITHOUT_HEADER: &str = "/v3/maintenance/alarm";
/// Refuses a watch, or ends it, while the endpoint's member knows no leader.
const NEEDS_LEADER: &str = "Grpc-Metadata-hasleader";

/// Addresses of etcd's members for clients: `https://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints(Vec<String>);

impl Endpoints {
    /// Parses addresses that are separated by commas.
    ///
    /// # Errors
    /// `Invalid` if there is none, or one is malformed: https and a host are needed; http only on this machine's
    /// loopback.
    pub fn parse(text: &str) -> Result<Self> {
        let one = |text: &str| {
            let text = text.trim().trim_end_matches('/');
            let wrong = || Error::invalid(format!("{text:?} is no address of etcd; write https://HOST:2379"));
            let (scheme, host) = text.split_once("://").ok_or_else(wrong)?;
            let uri: ureq::http::Uri = text.parse().map_err(|_| wrong())?;
            let name = uri.host().ok_or_else(wrong)?;
            if !uri.path().trim_matches('/').is_empty() || host.contains('@') {
                return Err(wrong());
            }
            let is_here = matches!(name, "localhost" | "127.0.0.1" | "[::1]" | "::1");
            match scheme {
                "https" => Ok(text.to_string()),
                "http" if is_here => Ok(text.to_string()),
                "http" => Err(Error::invalid(format!(
                    "{text} would carry the cluster's records unencrypted; etcd needs TLS (https) beyond this machine"
                ))),
                _ => Err(wrong()),
            }
        };
        text.split(',').map(one).collect::<Result<_>>().map(Self)
    }

    pub fn all(&self) -> &[String] {
        &self.0
    }
}

impl std::fmt::Display for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// What became of a request.
#[derive(Debug)]
pub enum Answer<T> {
    Arrived(T),
    /// It was not executed, and never will be.
    Refused(Error),
    /// It was not sent.
    Unreachable(String),
    /// It may have been executed, or may be executed later.
    Lost(String),
}

/// The way to etcd.
pub struct Gateway {
    endpoints: Endpoints,
    agent: ureq::Agent,
    /// Index of the endpoint that answered last.
    current: AtomicUsize,
    reads: Patience,
    writes: Patience,
    /// The id of the etcd cluster that answered first. An endpoint of another one is not believed.
    cluster: Mutex<Option<String>>,
}

/// A stream of lines, and the endpoint that it comes from.
pub struct Stream<R> {
    pub lines: R,
    endpoint: usize,
}

/// Codes of gRPC with which etcd says that it has executed nothing: invalid argument, permission denied, failed
/// precondition, out of range (a revision that was compacted), unimplemented, unauthenticated.
const REFUSALS: [u32; 6] = [3, 7, 9, 11, 12, 16];
const RESOURCE_EXHAUSTED: u32 = 8;
/// Texts with which an exhausted resource says that etcd has not executed the request. The error for want of space is
/// not among them: the transaction that reaches the quota is executed and answered with this error
/// (<https://github.com/etcd-io/etcd/issues/16659>).
const NOT_EXECUTED: [&str; 2] = ["too many requests", "received message larger than max"];

impl Gateway {
    /// # Errors
    /// `Invalid` if the credential cannot be used, or https has no certificate of an authority.
    pub fn new(endpoints: Endpoints, credential: &Credential) -> Result<Self> {
        let is_https = |endpoint: &String| endpoint.starts_with("https:");
        if credential.ca.is_empty() && endpoints.0.iter().any(is_https) {
            let what = "give the certificate of the authority that has signed those of its members";
            return Err(Error::invalid(format!("the CA's certificate for etcd is missing; {what}")));
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT_LIMIT))
            .tls_config(credential.tls()?)
            .build();
        // Servers begin with different members, so that none of these has all the work.
        let first = hekate_threads::random().unwrap_or_default();
        let (current, cluster) = (AtomicUsize::new(first as usize % endpoints.0.len()), Mutex::default());
        Ok(Self { endpoints, agent: config.into(), current, reads: Patience::new(), writes: Patience::new(), cluster })
    }

    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Sends a read to one endpoint after another until one answers.
    ///
    /// # Errors
    /// `Unavailable` if none does.
    pub fn read<T: DeserializeOwned>(&self, path: &str, request: &Value) -> Result<T> {
        let begun = now();
        loop {
            match self.send(path, request, self.reads.limit(), &self.reads) {
                Answer::Arrived(answer) => return Ok(answer),
                Answer::Refused(error) => return Err(error),
                Answer::Lost(_) if elapsed(begun) < READ_PATIENCE => sleep(READ_PAUSE),
                Answer::Lost(why) | Answer::Unreachable(why) => return Err(self.away(&why)),
            }
        }
    }

    /// Sends a write once. `limit`: the time for its answer; `None` for a write that is soon repeated.
    ///
    /// # Errors
    /// `Unavailable` if it was not sent, or the refusal of etcd. `Ok(Err(why))`: its outcome is unknown.
    pub fn write<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &Value,
        limit: Option<Duration>,
    ) -> Result<std::result::Result<T, String>> {
        let limit = limit.unwrap_or_else(|| self.writes.limit());
        match self.send(path, request, limit, &self.writes) {
            Answer::Arrived(answer) => Ok(Ok(answer)),
            Answer::Refused(error) => Err(error),
            Answer::Unreachable(why) => Err(self.away(&why)),
            Answer::Lost(why) => Ok(Err(why)),
        }
    }

    /// Sends a request to the endpoint that answered last. While endpoints do not take it, to the next ones.
    fn send<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &Value,
        limit: Duration,
        patience: &Patience,
    ) -> Answer<T> {
        let mut unreachable = Vec::new();
        for _ in 0..self.endpoints.0.len() {
            let at = self.current.load(Ordering::Relaxed);
            let begun = now();
            match self.send_to(&self.endpoints.0[at], path, request, limit) {
                Answer::Arrived(answer) => {
                    patience.answered(elapsed(begun));
                    return Answer::Arrived(answer);
                }
                Answer::Unreachable(why) => {
                    self.advance(at);
                    unreachable.push(why);
                }
                Answer::Lost(why) => {
                    self.advance(at);
                    if elapsed(begun) >= limit {
                        patience.unanswered(limit);
                    }
                    return Answer::Lost(why);
                }
                other => return other,
            }
        }
        Answer::Unreachable(unreachable.join("; "))
    }

    fn advance(&self, from: usize) {
        let next = (from + 1) % self.endpoints.0.len();
        let _ = self.current.compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Sends a request to one endpoint.
    pub fn send_to<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        path: &str,
        request: &Value,
        limit: Duration,
    ) -> Answer<T> {
        let sent = self.agent.post(format!("{endpoint}{path}")).config().timeout_global(Some(limit)).build();
        let mut response = match sent.send(request.to_string()) {
            Ok(response) => response,
            Err(error) if was_not_sent(&error) => return Answer::Unreachable(explained(endpoint, &error)),
            Err(error) => return Answer::Lost(explained(endpoint, &error)),
        };
        let status = response.status();
        let text = match response.body_mut().with_config().limit(ANSWER_MAX).read_to_string() {
            Ok(text) => text,
            Err(error) => return Answer::Lost(explained(endpoint, &error)),
        };
        if status.is_success() {
            return self.accept(endpoint, path, &text);
        }
        let failure = Failure::parse(&text);
        let said = failure.text();
        if REFUSALS.contains(&failure.code) || NOT_EXECUTED.iter().any(|text| said.contains(text)) {
            return Answer::Refused(refusal(endpoint, failure.code, said));
        }
        if failure.code == RESOURCE_EXHAUSTED && said.contains("space") {
            let what = "`hekate coordinator show` says what to do";
            return Answer::Lost(format!("etcd at {endpoint} has reached its quota ({said}); {what}"));
        }
        Answer::Lost(format!("{endpoint}: {status} {said}"))
    }

    /// The answer in a text, if it is one of the etcd cluster that answered first.
    fn accept<T: DeserializeOwned>(&self, endpoint: &str, path: &str, text: &str) -> Answer<T> {
        let (id, answer) = match messages::answer(text, path != WITHOUT_HEADER) {
            Ok(parsed) => parsed,
            Err(why) => return Answer::Lost(format!("{endpoint} does not answer as etcd does: {why}")),
        };
        if let Some(first) = self.other_cluster(&id) {
            let what = "correct the addresses, or restart this process if etcd was made anew";
            return Answer::Lost(format!("{endpoint} belongs to the etcd cluster {id}, not to {first}; {what}"));
        }
        Answer::Arrived(answer)
    }

    /// The id of the cluster that answered first, if it is another one.
    fn other_cluster(&self, id: &str) -> Option<String> {
        if id.is_empty() {
            return None;
        }
        let mut known = self.cluster.lock();
        let first = known.get_or_insert_with(|| id.to_string());
        (first != id).then(|| first.clone())
    }

    /// Opens a stream of lines at the endpoint that answered last. It ends after [`STREAM_SILENCE_MAX`] without a byte.
    ///
    /// # Errors
    /// `Unavailable` if the endpoint does not answer.
    pub fn stream(&self, path: &str, request: &Value) -> Result<Stream<impl std::io::Read + use<>>> {
        let at = self.current.load(Ordering::Relaxed);
        let endpoint = &self.endpoints.0[at];
        let request = self
            .agent
            .post(format!("{endpoint}{path}"))
            .header(NEEDS_LEADER, "true")
            .config()
            .timeout_recv_response(Some(CONNECT_LIMIT * 3))
            .timeout_per_read(Some(STREAM_SILENCE_MAX))
            .build()
            .send(request.to_string());
        let failed = |why: String| {
            self.advance(at);
            self.away(&why)
        };
        let response = request.map_err(|error| failed(explained(endpoint, &error)))?;
        if !response.status().is_success() {
            return Err(failed(format!("{endpoint}: {}", response.status())));
        }
        Ok(Stream { lines: response.into_body().into_reader(), endpoint: at })
    }

    /// The next requests go to another endpoint than that of a stream which has failed.
    pub fn leave<R>(&self, stream: &Stream<R>) {
        self.advance(stream.endpoint);
    }

    fn away(&self, why: &str) -> Error {
        Error::Unavailable { what: format!("etcd does not answer: {why}") }
    }
}

/// True if no member of etcd has received the request: the connection was not made, or one end has refused the other's
/// certificate. A member reads no request before it has accepted the certificate.
fn was_not_sent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::BadUri(_)
        | ureq::Error::Tls(_)
        | ureq::Error::Rustls(_) => true,
        ureq::Error::Io(error) => {
            let is_unconnected = matches!(
                error.kind(),
                ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
            );
            is_unconnected || tls_error(error).is_some_and(is_of_certificates)
        }
        _ => false,
    }
}

fn tls_error(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn is_of_certificates(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(_)) || is_refused(error)
}

/// True if the member refuses the certificate of this process, or misses one.
fn is_refused(error: &rustls::Error) -> bool {
    use rustls::AlertDescription as Alert;
    matches!(
        error,
        rustls::Error::AlertReceived(
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::CertificateRequired
        )
    )
}

/// What went wrong with an endpoint, and what to do if certificates are the cause.
fn explained(endpoint: &str, error: &ureq::Error) -> String {
    let ureq::Error::Io(cause) = error else { return format!("{endpoint}: {error}") };
    match tls_error(cause) {
        Some(tls @ rustls::Error::InvalidCertificate(_)) => {
            format!("{endpoint}: the certificate of etcd's member is not accepted: {tls}")
        }
        Some(tls) if is_refused(tls) => {
            format!("{endpoint}: etcd's member does not accept the certificate of this process: {tls}")
        }
        // A member that refuses a certificate may close the connection before its alert has been read.
        None if endpoint.starts_with("https:") && is_closed(cause.kind()) => {
            format!("{endpoint}: {cause}; etcd's member may not accept the certificate of this process")
        }
        _ => format!("{endpoint}: {error}"),
    }
}

fn is_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof)
}

fn refusal(endpoint: &str, code: u32, said: &str) -> Error {
    match code {
        RESOURCE_EXHAUSTED if said.contains("requests") => Error::Unavailable { what: format!("{endpoint}: {said}") },
        7 | 16 => Error::Denied { what: format!("etcd at {endpoint}: {said}") },
        12 => Error::NotSupported { what: format!("etcd at {endpoint}: {said}; version 3.4 or later is needed") },
        _ => Error::invalid(format!("etcd at {endpoint}: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_gets_its_turn_again_and_again() {
        let endpoints = Endpoints::parse("http://localhost:1,http://localhost:2").unwrap();
        let gateway = Gateway::new(endpoints, &Credential::default()).unwrap();
        let asked = (0..5).map(|_| {
            let at = gateway.current.load(Ordering::Relaxed);
            gateway.advance(at);
            at
        });
        let asked: Vec<usize> = asked.collect();
        assert!(asked == [0, 1, 0, 1, 0] || asked == [1, 0, 1, 0, 1], "{asked:?}");
    }

    #[test]
    fn endpoints_are_https_or_on_this_machine() {
        let parsed = |text: &str| Endpoints::parse(text).map(|endpoints| endpoints.to_string());
        assert_eq!(parsed("https://a:2379, https://b:2379/").unwrap(), "https://a:2379,https://b:2379");
        assert_eq!(parsed("http://127.0.0.1:2379").unwrap(), "http://127.0.0.1:2379");
        assert!(parsed("http://a:2379").unwrap_err().to_string().contains("unencrypted"));
        for wrong in ["", "a:2379", "ftp://a:1", "https://", "https://a:2379/v3", "https://u:p@a:1", "https://a:1,,"] {
            assert!(parsed(wrong).unwrap_err().to_string().contains("no address of etcd"), "{wrong}");
        }
    }

    #[test]
    fn what_was_refused_is_told_from_what_may_have_happened() {
        assert!(matches!(refusal("e", 8, "etcdserver: too many requests"), Error::Unavailable { .. }));
        assert!(matches!(refusal("e", 8, "grpc: received message larger than max"), Error::Invalid { .. }));
        assert!(matches!(refusal("e", 7, "etcdserver: permission denied"), Error::Denied { .. }));
        assert!(matches!(refusal("e", 11, "compacted"), Error::Invalid { .. }));
        let io = |error: rustls::Error| ureq::Error::Io(std::io::Error::new(ErrorKind::InvalidData, error));
        let alert = |description| io(rustls::Error::AlertReceived(description));
        let sent = [
            ureq::Error::Timeout(ureq::Timeout::Global),
            ureq::Error::Io(ErrorKind::ConnectionReset.into()),
            alert(rustls::AlertDescription::InternalError),
        ];
        assert!(!sent.iter().any(was_not_sent));
        let unsent = [
            ureq::Error::Timeout(ureq::Timeout::Connect),
            ureq::Error::Io(ErrorKind::ConnectionRefused.into()),
            io(rustls::CertificateError::UnknownIssuer.into()),
            alert(rustls::AlertDescription::CertificateRequired),
        ];
        assert!(unsent.iter().all(was_not_sent));
    }

    #[test]
    fn https_needs_the_certificate_of_an_authority() {
        let gateway = |address: &str| Gateway::new(Endpoints::parse(address).unwrap(), &Credential::default());
        assert!(gateway("https://a:1").err().unwrap().to_string().contains("the CA's certificate for etcd is missing"));
        gateway("http://127.0.0.1:1").unwrap();
    }

    #[test]
    fn an_answer_is_one_of_the_first_etcd_cluster() {
        let gateway = Gateway::new(Endpoints::parse("http://127.0.0.1:1").unwrap(), &Credential::default()).unwrap();
        let lost = |text: &str| match gateway.accept::<Value>("e", "/v3/kv/range", text) {
            Answer::Lost(why) => why,
            other => panic!("{text}: {other:?}"),
        };
        for strange in ["", "{}", "[]", "null", "<html>", r#"{"header":{}}"#] {
            assert!(lost(strange).contains("does not answer as etcd does"), "{strange}");
        }
        let arrives = |path: &str, text: &str| {
            assert!(matches!(gateway.accept::<Value>("e", path, text), Answer::Arrived(_)), "{text}");
        };
        arrives(WITHOUT_HEADER, "{}");
        arrives("/v3/kv/range", r#"{"header":{"cluster_id":"7"}}"#);
        assert!(lost(r#"{"header":{"cluster_id":"8"}}"#).contains("belongs to the etcd cluster 8, not to 7"));
        assert!(lost("{}").contains("no header"));
    }
}
