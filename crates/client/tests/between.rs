//! A service between clients and a server: what another client does between two requests of one batch, and how many
//! connections clients keep.

#![allow(clippy::unwrap_used, reason = "tests")]

include!("support/scratch.rs");

use hekate_client::proto::*;
use hekate_client::{Context, New, OpenOptions, Volume};
use hekate_transport::{Listener, Peer, Service};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

type Meanwhile = Box<dyn FnOnce() + Send>;

/// In front of a real server: once, something happens after a batch's reads of shards and before what follows them.
struct Between {
    node: Arc<Node>,
    meanwhile: Mutex<Option<Meanwhile>>,
    connections: AtomicUsize,
}

impl Service for Between {
    fn open(&self, peer: Peer, volume: &str, resume: Option<SessionId>) -> Result<(VolumeId, SessionId, String)> {
        self.connections.fetch_add(1, Ordering::SeqCst);
        self.node.open(peer, volume, resume)
    }

    fn call(&self, session: SessionId, mut requests: Vec<Request>) -> Vec<Result<Reply>> {
        let reads = |request: &&Request| matches!(request.op, Op::Data { op: DataOp::ReadShard { .. } });
        let first = requests.iter().take_while(reads).count();
        if first == 0 || first == requests.len() {
            return self.node.call(session, requests);
        }
        let meanwhile = self.meanwhile.lock().unwrap().take();
        let rest = requests.split_off(first);
        let mut replies = self.node.call(session, requests);
        if let Some(happens) = meanwhile {
            happens();
        }
        replies.extend(self.node.call(session, rest));
        replies
    }

    fn listening(&self, session: SessionId, listener: Arc<Listener>) {
        self.node.listening(session, listener);
    }

    fn deaf(&self, session: SessionId, listener: &Arc<Listener>) {
        self.node.deaf(session, listener);
    }

    fn disconnected(&self, session: SessionId) {
        self.connections.fetch_sub(1, Ordering::SeqCst);
        self.node.disconnected(session);
    }

    fn control(&self, peer: Peer, request: &str) -> String {
        self.node.control(peer, request)
    }
}

fn in_front_of(scratch: &Scratch) -> (Arc<Between>, Server, Endpoint) {
    let node = scratch.running.as_ref().unwrap().0.clone();
    let between = Arc::new(Between { node, meanwhile: Mutex::default(), connections: AtomicUsize::new(0) });
    let server = Server::new(between.clone());
    let endpoint = Endpoint::Unix(scratch.directory.join("between.sock"));
    server.listen(&endpoint).unwrap();
    (between, server, endpoint)
}

/// Who waits for a partition does so once a second: a mount that had waited for half an hour had 1,286 connections.
#[test]
fn who_asks_for_the_map_again_and_again_keeps_no_connections() {
    let scratch = Scratch::new("maps");
    let (between, server, endpoint) = in_front_of(&scratch);
    let (remote, _) = hekate_transport::Remote::open(endpoint, "v1").unwrap();
    for _ in 0..20 {
        remote.map(std::time::Duration::from_secs(5)).unwrap();
    }
    let patience = std::time::Instant::now();
    while between.connections.load(Ordering::SeqCst) > 1 && patience.elapsed().as_secs() < 5 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(between.connections.load(Ordering::SeqCst), 1);
    drop(remote);
    server.stop();
}

#[test]
fn a_read_that_learns_of_a_longer_file_reads_its_bytes_again() {
    let scratch = Scratch::new("between");
    let (between, server, endpoint) = in_front_of(&scratch);
    let open = |endpoint| Volume::open(endpoint, "v1", &OpenOptions::default()).unwrap();
    let (reader, writer) = (open(endpoint), open(scratch.endpoint()));
    let context = Context::default();
    let new = New { node: NewNode::File, mode: 0o644, uid: 0, gid: 0, umask: 0, exclusive: true };
    let (file, _) = writer.create(&context, ROOT, Name::try_from("f").unwrap(), new).unwrap();
    // Its bytes are in a shard, and few.
    let sized = |size| AttrChanges { size: Some(size), ..AttrChanges::default() };
    writer.setattr(&context, file.id, sized(100_000)).unwrap();
    writer.setattr(&context, file.id, sized(1000)).unwrap();
    assert_eq!(reader.getattr(&context, file.id).unwrap().size, 1000);
    let writes =
        move || writer.write(&Context::default(), file.id, 1000, vec![9; 4000].into(), false).map(drop).unwrap();
    *between.meanwhile.lock().unwrap() = Some(Box::new(writes));
    let read = reader.read(&context, file.id, 0, 5000);
    let wrote = between.meanwhile.lock().unwrap().is_none();
    drop(reader);
    server.stop();
    let bytes = read.unwrap();
    assert!(wrote && bytes.len() == 5000);
    assert!(bytes[..1000].iter().all(|byte| *byte == 0) && bytes[1000..].iter().all(|byte| *byte == 9));
}
