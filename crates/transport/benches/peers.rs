//! Cost of a message between two server processes: `cargo bench -p hekate-transport [-- unix|tcp [ask|tell|corked]]`.
//!
//! The bench starts itself again as the second process. `ask`: a question and its answer, both sent by handlers.
//! `tell`: one-way messages, each with its own write. `corked`: one-way messages, 16 in a write. `floor`: a question
//! and its answer over a plain socket between two blocking threads.

// A bench reports errors by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use hekate_proto::{Error, Reply, Request, Result, ServerId, SessionId, VolumeId};
use hekate_tls::testing::TestCluster;
use hekate_tls::{Context, Credential, Holder};
use hekate_transport::PeerLinks;
use hekate_transport::link::{Boot, LinkSettings};
use hekate_transport::{Endpoint, Peer, PeerHandler, Peers, Server, Service};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const MESSAGES: u64 = 100_000;
const CORKED: u64 = 16;
const MESSAGE_BYTES: usize = 64;
const LISTENER: ServerId = ServerId(1);
const ASKER: ServerId = ServerId(2);

/// Echoes questions (`?`), and answers once when all one-way messages (`!`) have arrived.
#[derive(Default)]
struct Listening {
    peers: OnceLock<Peers>,
    received: AtomicU64,
}

impl PeerHandler for Listening {
    fn up(&self, _: ServerId, _: Boot) {}
    fn down(&self, _: ServerId) {}
    fn message(&self, from: ServerId, message: Bytes) {
        let all = message[0] == b'!' && self.received.fetch_add(1, Ordering::Relaxed) % MESSAGES == MESSAGES - 1;
        if all || message[0] == b'?' {
            self.peers.get().unwrap().send(from, message);
        }
    }
}

struct Host(Peers);

impl Service for Host {
    fn open(&self, _: &Peer, _: &str, _: Option<SessionId>) -> Result<(VolumeId, SessionId, String)> {
        Err(Error::NotFound)
    }
    fn call(&self, _: SessionId, _: Vec<Request>) -> Vec<Result<Reply>> {
        Vec::new()
    }
    fn disconnected(&self, _: SessionId) {}
    fn control(&self, _: &Peer, request: &str) -> String {
        request.into()
    }
    fn peers(&self, _: &Peer, _: ServerId, _: Boot) -> Result<Peers> {
        Ok(self.0.clone())
    }
}

fn listen(endpoint: &Endpoint) {
    let handler = Arc::new(Listening::default());
    let peers = Peers::start(LISTENER, Boot(1), LinkSettings::default(), handler.clone()).unwrap();
    let _ = handler.peers.set(peers.clone());
    let server = Server::new(Arc::new(Host(peers)));
    server.listen(endpoint, "back").unwrap();
    std::thread::park();
}

/// Sends the next question when an answer arrives.
struct Asking {
    peers: OnceLock<Peers>,
    left: AtomicU64,
    done: Mutex<Sender<()>>,
}

impl Asking {
    fn is_done(&self) {
        let _ = self.done.lock().unwrap().send(());
    }
}

impl PeerHandler for Asking {
    fn up(&self, _: ServerId, _: Boot) {
        self.is_done();
    }
    fn down(&self, _: ServerId) {
        panic!("the listener has gone");
    }
    fn message(&self, from: ServerId, message: Bytes) {
        if message[0] == b'!' || self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            return self.is_done();
        }
        self.peers.get().unwrap().send(from, question());
    }
}

fn question() -> Bytes {
    Bytes::from_static(&[b'?'; MESSAGE_BYTES])
}

fn asker(endpoint: &Endpoint) -> (Arc<Asking>, Peers, Receiver<()>) {
    let (done, wait) = channel();
    let handler = Arc::new(Asking { peers: OnceLock::new(), left: AtomicU64::new(0), done: Mutex::new(done) });
    let peers = Peers::start(ASKER, Boot(2), LinkSettings::default(), handler.clone()).unwrap();
    let _ = handler.peers.set(peers.clone());
    peers.set_address(LISTENER, endpoint.clone()).unwrap();
    wait.recv().unwrap();
    (handler, peers, wait)
}

fn measure(endpoint: &Endpoint, wanted: Option<&str>) {
    let (handler, peers, wait) = asker(endpoint);
    let kind = endpoint.to_string().split(':').next().unwrap_or_default().to_string();
    for what in ["ask", "tell", "corked"].into_iter().filter(|what| wanted.is_none_or(|wanted| wanted == *what)) {
        let begun = Instant::now();
        match what {
            "ask" => {
                handler.left.store(MESSAGES, Ordering::Relaxed);
                peers.send(LISTENER, question());
            }
            "tell" => (0..MESSAGES).for_each(|_| tell(&peers)),
            _ => (0..MESSAGES / CORKED).for_each(|_| {
                let _cork = peers.cork();
                (0..CORKED).for_each(|_| tell(&peers));
            }),
        }
        wait.recv().unwrap();
        report(&format!("{kind} {what}"), begun.elapsed());
    }
}

fn tell(peers: &Peers) {
    assert!(peers.send(LISTENER, Bytes::from_static(&[b'!'; MESSAGE_BYTES])));
}

fn report(what: &str, took: Duration) {
    let each = took.as_secs_f64() * 1e6 / MESSAGES as f64;
    println!("{what:12} {each:7.2} µs each, {:9.0} a second", 1e6 / each);
}

/// Cost of two blocking threads and a socket, without the transport.
fn floor() {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; MESSAGE_BYTES];
        while theirs.read_exact(&mut bytes).is_ok() {
            theirs.write_all(&bytes).unwrap();
        }
    });
    let begun = Instant::now();
    let mut bytes = [0; MESSAGE_BYTES];
    for _ in 0..MESSAGES {
        ours.write_all(&bytes).unwrap();
        ours.read_exact(&mut bytes).unwrap();
    }
    report("floor", begun.elapsed());
    drop(ours);
    echo.join().unwrap();
}

fn endpoint(kind: &str, folder: &Path, server: u32) -> Endpoint {
    match kind {
        "unix" => Endpoint::Unix(folder.join("socket")),
        _ => {
            let credential = Credential::read(&folder.join(server.to_string())).unwrap();
            let port = std::fs::read_to_string(folder.join("port")).unwrap();
            Endpoint::Tcp(format!("127.0.0.1:{port}"), Arc::new(Context::of(credential).unwrap()))
        }
    }
}

fn other_process(kind: &str, folder: &Path) -> Child {
    std::fs::create_dir_all(folder).unwrap();
    let cluster = TestCluster::create("c").unwrap();
    for server in [1, 2] {
        cluster.credential(&Holder::Server(ServerId(server))).unwrap().write(&folder.join(server.to_string())).unwrap();
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    std::fs::write(folder.join("port"), free.port().to_string()).unwrap();
    let me = std::env::current_exe().unwrap();
    Command::new(me).args(["listen", kind]).arg(folder).spawn().unwrap()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let ["listen", kind, folder] = words[..] {
        return listen(&endpoint(kind, Path::new(folder), 1));
    }
    let wanted = words.get(1).copied();
    if wanted.is_none() {
        floor();
    }
    for kind in ["unix", "tcp"].into_iter().filter(|kind| words.first().is_none_or(|only| only == kind)) {
        let folder = std::env::temp_dir().join(format!("hekate-bench-peers-{}-{kind}", std::process::id()));
        let mut other = other_process(kind, &folder);
        measure(&endpoint(kind, &folder, 2), wanted);
        other.kill().unwrap();
        other.wait().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
