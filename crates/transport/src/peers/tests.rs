//! Links over real sockets, with several servers in this process.

use super::*;
use crate::credentials::Peer as Client;
use crate::server::{Server, Service};
use hekate_proto::{Reply, Request, SessionId, VolumeId};
use hekate_tls::Context;
use hekate_tls::testing::TestCluster;
use parking_lot::{Condvar, Mutex};
use std::sync::OnceLock;

mod faults;
mod rates;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Heard {
    Up(ServerId, Boot),
    Down(ServerId),
    Message(ServerId, Bytes),
}

/// Records the calls, and echoes messages if `answers` is set.
#[derive(Default)]
struct Recorder {
    heard: Mutex<Vec<Heard>>,
    changed: Condvar,
    answers: AtomicBool,
    peers: OnceLock<Peers>,
}

impl PeerHandler for Recorder {
    fn up(&self, from: ServerId, boot: Boot) {
        self.hear(Heard::Up(from, boot));
    }
    fn message(&self, from: ServerId, message: Bytes) {
        assert_ne!(message, "panic", "as a bug in a handler would");
        if self.answers.load(Ordering::SeqCst) {
            self.peers.get().unwrap().send(from, message);
        } else {
            self.hear(Heard::Message(from, message));
        }
    }
    fn down(&self, from: ServerId) {
        self.hear(Heard::Down(from));
    }
}

impl Recorder {
    fn hear(&self, what: Heard) {
        self.heard.lock().push(what);
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(&[Heard]) -> bool) {
        let mut heard = self.heard.lock();
        while !until(&heard) {
            let timed_out = self.changed.wait_for(&mut heard, PATIENCE).timed_out();
            assert!(!timed_out, "still waiting after {} events, last {:?}", heard.len(), heard.last());
        }
    }

    fn messages(&self, from: ServerId) -> Vec<Bytes> {
        let message = |heard: &Heard| match heard {
            Heard::Message(server, bytes) if *server == from => Some(bytes.clone()),
            _ => None,
        };
        self.heard.lock().iter().filter_map(message).collect()
    }

    fn downs(&self) -> usize {
        self.heard.lock().iter().filter(|heard| matches!(heard, Heard::Down(_))).count()
    }
}

/// A service with peers and nothing else.
struct Host(Peers);

impl Service for Host {
    fn open(&self, _: &Client, _: &str, _: Option<SessionId>) -> Result<(VolumeId, SessionId, String)> {
        Err(Error::NotFound)
    }
    fn call(&self, _: SessionId, _: Vec<Request>) -> Vec<Result<Reply>> {
        Vec::new()
    }
    fn disconnected(&self, _: SessionId) {}
    fn control(&self, _: &Client, request: &str) -> String {
        request.into()
    }
    fn peers(&self, _: &Client, _: ServerId, _: Boot) -> Result<Peers> {
        Ok(self.0.clone())
    }
}

/// One server, without a process of its own.
struct Node {
    number: ServerId,
    peers: Peers,
    recorder: Arc<Recorder>,
    server: Server,
    endpoint: Endpoint,
}

impl Node {
    fn start(number: u32, boot: u64, endpoint: &Endpoint) -> Self {
        Self::start_with(number, boot, endpoint, LinkSettings::default())
    }

    fn start_with(number: u32, boot: u64, endpoint: &Endpoint, settings: LinkSettings) -> Self {
        let recorder = Arc::new(Recorder::default());
        let number = ServerId(number);
        let peers = Peers::start(number, Boot(boot), settings, recorder.clone()).unwrap();
        assert!(recorder.peers.set(peers.clone()).is_ok());
        let server = Server::new(Arc::new(Host(peers.clone())));
        server.listen(&as_server(endpoint, number.0), "back").unwrap();
        Self { number, peers, recorder, server, endpoint: endpoint.clone() }
    }

    fn answering(self) -> Self {
        self.recorder.answers.store(true, Ordering::SeqCst);
        self
    }

    fn meet(&self, other: u32, endpoint: &Endpoint) {
        self.peers.set_address(ServerId(other), as_server(endpoint, self.number.0)).unwrap();
    }

    fn wait_up(&self, other: u32, boot: u64) {
        self.recorder.wait(|heard| heard.contains(&Heard::Up(ServerId(other), Boot(boot))));
    }

    fn send(&self, to: u32, message: impl Into<Bytes>) -> bool {
        self.peers.send(ServerId(to), message.into())
    }

    fn wait_messages(&self, from: u32, count: usize) -> Vec<Bytes> {
        let is_message = |heard: &&Heard| matches!(heard, Heard::Message(server, _) if *server == ServerId(from));
        self.recorder.wait(|heard| heard.iter().filter(is_message).count() >= count);
        self.recorder.messages(ServerId(from))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.peers.stop();
        self.server.stop();
        if let Endpoint::Unix(path) = &self.endpoint {
            let _ = std::fs::remove_file(path);
        }
    }
}

static CLUSTER: OnceLock<TestCluster> = OnceLock::new();

/// Contexts of servers of one cluster. A certificate of any of them is valid as that of its number only.
fn context(server: u32) -> Arc<Context> {
    CLUSTER.get_or_init(|| TestCluster::create("c1").unwrap()).server(server).unwrap()
}

fn client_context() -> Arc<Context> {
    CLUSTER.get_or_init(|| TestCluster::create("c1").unwrap()).client("web").unwrap()
}

/// The same address, as this server reaches it.
fn as_server(endpoint: &Endpoint, server: u32) -> Endpoint {
    match endpoint {
        Endpoint::Unix(path) => Endpoint::Unix(path.clone()),
        Endpoint::Tcp(address, _) => Endpoint::Tcp(address.clone(), context(server)),
    }
}

/// A new endpoint of each kind.
fn endpoints(test: &str) -> [Endpoint; 2] {
    [unix(test, 1), tcp()]
}

fn unix(test: &str, number: u32) -> Endpoint {
    let path = std::env::temp_dir().join(format!("hekate-peers-{}-{test}-{number}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    Endpoint::Unix(path)
}

fn tcp() -> Endpoint {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    Endpoint::Tcp(free.to_string(), context(1))
}

/// Two servers whose link is up; server 2 connects to server 1.
fn two(endpoint: &Endpoint, settings: &LinkSettings) -> (Node, Node) {
    let one = Node::start_with(1, 11, endpoint, settings.clone());
    let two = Node::start_with(2, 22, &unix("unused", endpoint_number()), settings.clone());
    two.meet(1, endpoint);
    one.wait_up(2, 22);
    two.wait_up(1, 11);
    (one, two)
}

/// A number for socket paths, so that concurrent tests do not share one.
fn endpoint_number() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(100);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn number(bytes: &Bytes) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn numbered(number: u64, filler: usize) -> Bytes {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + filler, 7);
    bytes.into()
}

#[test]
fn messages_go_both_ways_over_either_kind_of_socket() {
    for endpoint in endpoints("both") {
        let (one, two) = two(&endpoint, &LinkSettings::default());
        assert!(one.send(2, "from one") && two.send(1, "from two"));
        assert_eq!(one.wait_messages(2, 1), ["from two"]);
        assert_eq!(two.wait_messages(1, 1), ["from one"]);
    }
}

#[test]
fn three_servers_hear_each_other_apart() {
    let places: Vec<_> = (1..=3).map(|number| unix("three", number)).collect();
    let nodes: Vec<_> = (1..=3).map(|number| Node::start(number, 7, &places[number as usize - 1])).collect();
    for (own, node) in (1..=3).zip(&nodes) {
        (1..=3).filter(|other| *other != own).for_each(|other| node.meet(other, &places[other as usize - 1]));
    }
    let pairs = || (1..=3usize).flat_map(|a| (1..=3usize).map(move |b| (a, b))).filter(|(a, b)| a != b);
    pairs().for_each(|(own, other)| nodes[own - 1].wait_up(other as u32, 7));
    for count in 0..1000 {
        pairs().for_each(|(own, other)| assert!(nodes[own - 1].send(other as u32, numbered(count, own))));
    }
    for (own, other) in pairs() {
        let expected: Vec<_> = (0..1000).map(|count| numbered(count, other)).collect();
        assert_eq!(nodes[own - 1].wait_messages(other as u32, 1000), expected);
    }
    assert!(nodes.iter().all(|node| node.recorder.downs() == 0));
}

#[test]
fn great_and_small_messages_keep_their_order_on_a_full_socket() {
    for endpoint in endpoints("great") {
        let (one, two) = two(&endpoint, &LinkSettings::default());
        let size = |count: u64| [0, 9_000, 100, 3 << 20, 8_190][count as usize % 5];
        for count in 0..30 {
            assert!(one.send(2, numbered(count, size(count))) && two.send(1, numbered(count, size(count))));
        }
        let expected: Vec<_> = (0..30).map(|count| numbered(count, size(count))).collect();
        assert!(one.wait_messages(2, 30) == expected, "what one heard");
        assert!(two.wait_messages(1, 30) == expected, "what two heard");
    }
}

#[test]
fn what_is_corked_is_written_in_one_go() {
    let endpoint = unix("cork", 1);
    let (one, two) = two(&endpoint, &LinkSettings::default());
    let before = one.peers.shared.peer(ServerId(2)).writes();
    for _ in 0..100 {
        let _cork = one.peers.cork();
        (0..16).for_each(|count| assert!(one.send(2, numbered(count, 0))));
    }
    let expected: Vec<_> = (0..1600).map(|count| numbered(count % 16, 0)).collect();
    assert_eq!(two.wait_messages(1, 1600), expected);
    // A full socket and acknowledgements need some more writes.
    let writes = one.peers.shared.peer(ServerId(2)).writes() - before;
    assert!((1..800).contains(&writes), "{writes} writes");
}

#[test]
fn a_cork_can_be_flushed_before_it_goes() {
    let endpoint = unix("flush", 1);
    let (one, two) = two(&endpoint, &LinkSettings::default());
    let _cork = one.peers.cork();
    assert!(one.send(2, "a") && one.send(2, "b"));
    one.peers.flush();
    assert_eq!(two.wait_messages(1, 2), ["a", "b"]);
}

#[test]
fn nothing_is_taken_for_a_server_that_is_not_there() {
    let node = Node::start(5, 7, &unix("nobody", 1));
    assert!(!node.send(4, "x"));
    node.meet(4, &unix("nobody", 2));
    assert!(!node.send(4, "x"));
    assert!(node.peers.set_address(node.number, unix("nobody", 1)).is_err());
}

/// The timer thread sleeps until something is due, also while acknowledgements are due all the time.
#[test]
fn the_timer_wakes_seldom() {
    let (one, two) = two(&unix("timer", 1), &LinkSettings::default());
    let begun = Instant::now();
    for count in 0..200 {
        assert!(one.send(2, "x") && two.send(1, "y"));
        one.wait_messages(2, count + 1);
        two.wait_messages(1, count + 1);
        std::thread::sleep(Duration::from_micros(500));
    }
    let wakes = one.peers.shared.alarm.wakes.load(Ordering::SeqCst);
    let allowed = 50 + begun.elapsed().as_millis() as u64 / 4;
    assert!(wakes < allowed, "{wakes} wakes, {allowed} would be well");
}
