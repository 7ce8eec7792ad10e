//! S3 over TLS: a server in a thread with certificates made here, correct ones and those that users get wrong.

use super::*;
use crate::measure::run;
use crate::series::record::{Pattern, Sample, Sync};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// A certificate with its key.
struct Made {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

fn authority() -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "a CA of the test");
    (params, KeyPair::generate().unwrap())
}

fn signed(issuer: &Issuer<'_, KeyPair>, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Made {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    change(&mut params);
    Made { certificate: params.signed_by(&key, issuer).unwrap(), key }
}

fn self_signed(is_ca: IsCa) -> Made {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = is_ca;
    Made { certificate: params.self_signed(&key).unwrap(), key }
}

/// A file that is removed when it is dropped.
struct Pem(PathBuf);

impl Pem {
    fn new(certificate: &rcgen::Certificate) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hekate-variation-ca-{}-{number}.pem", std::process::id()));
        std::fs::write(&path, certificate.pem()).unwrap();
        Self(path)
    }
}

impl Drop for Pem {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

type Objects = parking_lot::Mutex<HashMap<String, Vec<u8>>>;

/// Keeps objects in memory, for clients that sign with the key `key`.
struct Server {
    port: u16,
    objects: Arc<Objects>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Uses TLS if there is a certificate.
    fn new(made: Option<&Made>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, config) = (listener.local_addr().unwrap().port(), made.map(|made| Arc::new(config(made))));
        let (objects, connections) = (Arc::new(Objects::default()), Arc::new(AtomicUsize::new(0)));
        let server = Self { port, objects: objects.clone(), connections: connections.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::result::Result::ok) {
                connections.fetch_add(1, Ordering::Relaxed);
                let (objects, config) = (objects.clone(), config.clone());
                // A client that rejects the certificate closes the connection; that is what the tests are for.
                std::thread::spawn(move || match config {
                    Some(config) => {
                        let tls = ServerConnection::new(config).unwrap();
                        serve(StreamOwned::new(tls, stream), &objects)
                    }
                    None => serve::<TcpStream>(stream, &objects),
                });
            }
        });
        server
    }
}

fn config(made: &Made) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(made.key.serialize_der()).unwrap();
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    builder.with_no_client_auth().with_single_cert(vec![made.certificate.der().clone()], key).unwrap()
}

/// Serves the requests of one connection, until it ends.
fn serve<S: Read + Write>(mut stream: S, objects: &Objects) -> std::io::Result<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
            if !head[0].is_ascii_alphabetic() {
                // The answer of servers to bytes that are not a request, such as TLS on a port without it.
                return stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
            }
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let mut body = vec![0; field("content-length:").map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body)?;
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().to_owned());
        let is_known = field("authorization:").is_some_and(|text| text.starts_with("aws4-hmac-sha256 credential=key/"));
        let mut objects = objects.lock();
        let (status, answer) = match method {
            _ if !is_known => (403, b"<Code>InvalidAccessKeyId</Code>".to_vec()),
            "put" => (200, objects.insert(path, body).map_or_else(Vec::new, |_| Vec::new())),
            "get" => objects.get(&path).map_or((404, Vec::new()), |body| (200, body.clone())),
            _ => (204, objects.remove(&path).map_or_else(Vec::new, |_| Vec::new())),
        };
        stream.write_all(format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n", answer.len()).as_bytes())?;
        stream.write_all(&answer)?;
        stream.flush()?;
    }
}

fn job(access: Access) -> Job {
    Job {
        target: "s3://bucket/test/".into(),
        kind: "s3".into(),
        access,
        pattern: Pattern::Random,
        block_bytes: 8192,
        threads: 2,
        sync: Sync::Sync,
        direct: false,
        size_bytes: 3 * 8192,
        interval_ms: 300,
        host: "here".into(),
    }
}

fn endpoint(address: &str, key: &str, ca: Option<&Pem>) -> Result<Endpoint> {
    let credentials =
        Credentials { access_key: key.into(), secret_key: "secret".into(), session_token: Some("t".into()) };
    Endpoint::new(address, "region", credentials, ca.map(|pem| pem.0.as_path()))
}

fn open(endpoint: &Endpoint, access: Access) -> Result<S3Target> {
    S3Target::new("s3://bucket/test/", endpoint, &job(access), &AtomicBool::new(false), &mut |_| ()).map(Option::unwrap)
}

/// The error of a target that cannot be made.
fn refusal(address: &str, ca: Option<&Pem>) -> String {
    match endpoint(address, "key", ca).and_then(|endpoint| open(&endpoint, Access::Write)) {
        Ok(_) => panic!("{address} was trusted"),
        Err(error) => {
            assert_eq!(error.kind, Kind::Unavailable, "{error}");
            error.text
        }
    }
}

/// Measures reads and writes; no operation may fail, and no object may be left.
fn measured(server: &Server, address: &str, ca: Option<&Pem>) {
    for access in [Access::Write, Access::Read] {
        let mut target = open(&endpoint(address, "key", ca).unwrap(), access).unwrap();
        assert_eq!(server.objects.lock().len(), 3);
        let mut samples: Vec<Sample> = Vec::new();
        run(&job(access), &target, 3, &AtomicBool::new(false), &mut |sample| {
            samples.push(sample);
            Ok(())
        })
        .unwrap();
        assert!(samples.iter().all(|sample| sample.errors == 0), "{samples:?}");
        assert!(samples.iter().any(|sample| sample.operations > 0), "{samples:?}");
        target.clean().unwrap();
        assert!(server.objects.lock().is_empty());
    }
    // Each of two threads keeps its connection, and so do the putting and the removing of the objects: twice.
    assert!(server.connections.load(Ordering::Relaxed) <= 8, "{:?}", server.connections);
}

#[test]
fn an_endpoint_is_measured_over_http() {
    let server = Server::new(None);
    measured(&server, &format!("http://127.0.0.1:{}", server.port), None);
}

#[test]
fn an_endpoint_is_measured_over_https_with_a_ca_of_our_own() {
    let (params, key) = authority();
    let ca = Pem::new(&params.self_signed(&key).unwrap());
    let server = Server::new(Some(&signed(&Issuer::new(params, key), "127.0.0.1", |_| ())));
    measured(&server, &format!("https://127.0.0.1:{}/", server.port), Some(&ca));
}

#[test]
fn a_server_that_signed_itself_is_its_own_authority() {
    let made = self_signed(IsCa::ExplicitNoCa);
    let server = Server::new(Some(&made));
    measured(&server, &format!("https://127.0.0.1:{}", server.port), Some(&Pem::new(&made.certificate)));
}

#[test]
fn certificates_that_do_not_hold_are_refused_with_the_fix() {
    let (params, key) = authority();
    let ca = Pem::new(&params.self_signed(&key).unwrap());
    let issuer = Issuer::new(params, key);
    let made = |change: fn(&mut CertificateParams)| signed(&issuer, "127.0.0.1", change);
    for (made, words) in [
        (made(|params| params.not_after = date_time_ymd(2020, 2, 1)), "expired at 2020-02-01T00:00:00Z; renew it"),
        (
            made(|params| params.not_before = date_time_ymd(2090, 1, 1)),
            "is not valid before 2090-01-01T00:00:00Z; set the clock",
        ),
        (signed(&issuer, "other.example", |_| ()), "is for other.example, not for 127.0.0.1"),
        (made(|params| params.subject_alt_names.clear()), "is for no name at all"),
    ] {
        let server = Server::new(Some(&made));
        let found = refusal(&format!("https://127.0.0.1:{}", server.port), Some(&ca));
        assert!(found.contains(words) && server.objects.lock().is_empty(), "{found}");
    }
}

#[test]
fn an_unknown_issuer_is_refused_with_the_fix() {
    let (params, key) = authority();
    let server = Server::new(Some(&signed(&Issuer::new(params, key), "127.0.0.1", |_| ())));
    let address = format!("https://127.0.0.1:{}", server.port);
    let (other, other_key) = authority();
    let other = Pem::new(&other.self_signed(&other_key).unwrap());
    let found = refusal(&address, Some(&other));
    // Another CA of the same name: its key did not sign.
    assert!(found.contains("signed the server's") && found.contains(&other.0.display().to_string()), "{found}");
    assert!(refusal(&address, None).contains("--ca-file"));
    let itself = self_signed(IsCa::Ca(BasicConstraints::Unconstrained));
    let server = Server::new(Some(&itself));
    let found = refusal(&format!("https://127.0.0.1:{}", server.port), Some(&Pem::new(&itself.certificate)));
    assert!(found.contains("basicConstraints=critical,CA:FALSE"), "{found}");
}

#[test]
fn mistakes_in_the_address_and_in_keys_are_named() {
    let made = self_signed(IsCa::ExplicitNoCa);
    let (plain, tls) = (Server::new(None), Server::new(Some(&made)));
    let pem = Pem::new(&made.certificate);
    let found = refusal(&format!("https://127.0.0.1:{}", plain.port), Some(&pem));
    assert!(found.contains("does not speak TLS"), "{found}");
    let found = refusal(&format!("http://127.0.0.1:{}", tls.port), None);
    assert!(found.contains("write https://"), "{found}");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let found = refusal(&format!("http://127.0.0.1:{closed}"), None);
    assert!(found.contains("nothing listens there"), "{found}");
    assert!(refusal("http://no-such-host.invalid:80", None).contains("no host of that name"));
    let wrong = endpoint(&format!("http://127.0.0.1:{}", plain.port), "other", None).unwrap();
    let error = open(&wrong, Access::Write).err().unwrap();
    assert!(error.text.contains("InvalidAccessKeyId; set AWS_ACCESS_KEY_ID"), "{error}");
    for target in ["s3://", "s3://bucket/a b", "s3:///x"] {
        let opened = S3Target::new(target, &wrong, &job(Access::Read), &AtomicBool::new(false), &mut |_| ());
        assert!(opened.err().unwrap().text.contains("s3://BUCKET/PREFIX"), "{target}");
    }
}
