//! Endpoints that do not answer as etcd does.

use hekate_cluster::{Coordinator, Outcome, Revision};
use hekate_etcd::{Credential, Endpoints, EtcdCoordinator};
use hekate_proto::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{scope, sleep, spawn};
use std::time::{Duration, Instant};

/// What an endpoint does with a request to a path.
type Answer = fn(&mut TcpStream, &str) -> std::io::Result<()>;

/// Starts an endpoint. Returns its address, and the count of requests.
fn serve(answer: Answer) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let count = count.clone();
            spawn(move || {
                while let Some(path) = request(&mut client) {
                    count.fetch_add(1, Ordering::Relaxed);
                    if answer(&mut client, &path).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (endpoint, asked)
}

/// Reads a request. Returns its path.
fn request(client: &mut TcpStream) -> Option<String> {
    let (mut text, mut bytes) = (Vec::new(), [0; 8192]);
    loop {
        let head = text.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = head {
            let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
            if text.len() >= end + 4 + length.parse::<usize>().ok()? {
                return head.split(' ').nth(1).map(str::to_string);
            }
        }
        match client.read(&mut bytes) {
            Ok(count @ 1..) => text.extend_from_slice(&bytes[..count]),
            _ => return None,
        }
    }
}

fn body(client: &mut TcpStream, text: &str) -> std::io::Result<()> {
    write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}

fn endless(client: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    write!(client, "HTTP/1.1 200 OK\r\n\r\n")?;
    loop {
        client.write_all(bytes)?;
    }
}

const ANSWERS: [(&str, Answer); 11] = [
    ("a page", |client, _| body(client, "<html>a proxy</html>")),
    ("an empty object", |client, _| body(client, "{}")),
    ("no header", |client, _| body(client, r#"{"kvs":[],"succeeded":true}"#)),
    ("another type", |client, _| body(client, r#"{"header":{"cluster_id":"1","revision":7},"succeeded":"yes"}"#)),
    ("deep", |client, _| body(client, &format!(r#"{{"header":{}"#, "[".repeat(1 << 20)))),
    ("no text", |client, _| client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\x00\x01")),
    ("cut off", |client, _| {
        client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"header\":{")?;
        Err(std::io::ErrorKind::Other.into())
    }),
    ("an error without a code", |client, _| client.write_all(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno")),
    ("no answer", |_, _| Err(std::io::ErrorKind::Other.into())),
    ("an endless body", |client, _| endless(client, &[b'['; 64 << 10])),
    ("an endless head", |client, _| {
        loop {
            client.write_all(&[b'x'; 64 << 10])?;
        }
    }),
];

/// The most memory that this process has used so far, in bytes.
fn memory_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn answers_that_are_not_of_etcd_are_errors() {
    scope(|scope| {
        for (what, answer) in ANSWERS {
            scope.spawn(move || {
                let (endpoint, asked) = serve(answer);
                let endpoints = Endpoints::parse(&endpoint).unwrap();
                let coordinator = EtcdCoordinator::new(endpoints, &Credential::default()).unwrap();
                let begun = Instant::now();
                let read = coordinator.get("/a");
                assert!(matches!(read, Err(Error::Unavailable { .. })), "{what}: {read:?}");
                assert!(begun.elapsed() < Duration::from_secs(8), "{what}: {:?}", begun.elapsed());
                assert!(asked.load(Ordering::Relaxed) < 60, "{what}: {asked:?} attempts of one read");
                let written = coordinator.transact(&[], &[("/a", Some("1"))]);
                assert!(matches!(written, Ok(Outcome::Unknown { .. })), "{what}: {written:?}");
                let kept = coordinator.keep("/a", "1", Duration::from_secs(3));
                assert!(matches!(kept, Ok(Outcome::Unknown { .. })), "{what}: {kept:?}");
            });
        }
    });
    let peak = memory_peak();
    assert!(peak < 1 << 30, "{peak} bytes");
}

/// An endpoint that is right but for its stream of changes.
fn with_stream(
    client: &mut TcpStream,
    path: &str,
    stream: impl Fn(&mut TcpStream) -> std::io::Result<()>,
) -> std::io::Result<()> {
    if path == "/v3/watch" {
        return stream(client);
    }
    body(client, r#"{"header":{"cluster_id":"1","revision":"9"}}"#)
}

const CREATED: &str = "{\"result\":{\"header\":{\"revision\":\"9\"},\"created\":true}}\n";

const STREAMS: [(&str, Answer); 6] = [
    ("refused", |client, path| {
        with_stream(client, path, |client| client.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"))
    }),
    ("no JSON", |client, path| with_stream(client, path, |client| body(client, "<html>\n"))),
    ("no leader", |client, path| with_stream(client, path, |client| body(client, "{\"error\":{\"grpc_code\":14}}\n"))),
    ("ends", |client, path| with_stream(client, path, |client| body(client, CREATED))),
    ("an older change", |client, path| {
        let event = r#"{"result":{"events":[{"kv":{"key":"L2E=","mod_revision":"3"}}]}}"#;
        with_stream(client, path, |client| body(client, &format!("{CREATED}{event}\n")))
    }),
    ("an endless line", |client, path| with_stream(client, path, |client| endless(client, &[b'x'; 64 << 10]))),
];

#[test]
fn streams_that_are_not_of_etcd_end_and_are_not_opened_in_a_tight_loop() {
    scope(|scope| {
        for (what, answer) in STREAMS {
            scope.spawn(move || {
                let (endpoint, asked) = serve(answer);
                let endpoints = Endpoints::parse(&endpoint).unwrap();
                let coordinator = EtcdCoordinator::new(endpoints, &Credential::default()).unwrap();
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_secs(3) {
                    let watched = coordinator.watch(&["/"], Revision(9), Duration::from_millis(500));
                    let is_quiet = watched.is_ok_and(|it| !matches!(it, hekate_cluster::Watched::Changed { .. }));
                    assert!(is_quiet, "{what}");
                    sleep(Duration::from_millis(20));
                }
                // The thread of kept keys reads each 0.3 s too.
                assert!(asked.load(Ordering::Relaxed) < 250, "{what}: {asked:?}");
            });
        }
    });
    let peak = memory_peak();
    assert!(peak < 1 << 30, "{peak} bytes");
}
