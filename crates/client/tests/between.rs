//! A service between clients and a server: shows what another client does between two requests of one batch, and how
//! many connections clients keep.

#![allow(clippy::unwrap_used, reason = "tests")]

include!("support/scratch.rs");

use hekate_client::proto::*;
use hekate_client::{Context, New, OpenOptions, Volume};
use hekate_transport::{NotificationSink, Peer, Service};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

type Meanwhile = Box<dyn FnOnce() + Send>;

/// Forwards to a real server. Once, `meanwhile` runs between the reads or writes of shards at the beginning of a
/// batch and its other requests.
struct Between {
    node: Arc<Node>,
    meanwhile: Mutex<Option<Meanwhile>>,
    connections: AtomicUsize,
    /// Versions of layouts in the `Wrote` ops that clients sent.
    wrote: Mutex<Vec<u32>>,
}

impl Service for Between {
    fn open(&self, peer: &Peer, volume: &str, resume: Option<SessionId>) -> Result<(VolumeId, SessionId, String)> {
        self.connections.fetch_add(1, Ordering::SeqCst);
        self.node.open(peer, volume, resume)
    }

    fn call(&self, session: SessionId, mut requests: Vec<Request>) -> Vec<Result<Reply>> {
        let of_shards = |request: &&Request| {
            matches!(request.op, Op::Data { op: DataOp::ReadShard { .. } | DataOp::WriteShard { .. } })
        };
        self.wrote.lock().unwrap().extend(requests.iter().filter_map(|request| match request.op {
            Op::Data { op: DataOp::Wrote { layout_version, .. } } => Some(layout_version),
            _ => None,
        }));
        let first = requests.iter().take_while(of_shards).count();
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

    fn listening(&self, session: SessionId, listener: Arc<dyn NotificationSink>) {
        self.node.listening(session, listener);
    }

    fn deaf(&self, session: SessionId, listener: &Arc<dyn NotificationSink>) {
        self.node.deaf(session, listener);
    }

    fn disconnected(&self, session: SessionId) {
        self.connections.fetch_sub(1, Ordering::SeqCst);
        self.node.disconnected(session);
    }

    fn control(&self, peer: &Peer, request: &str) -> String {
        self.node.control(peer, request)
    }
}

fn in_front_of(scratch: &Scratch) -> (Arc<Between>, Server, Endpoint) {
    let node = scratch.running.as_ref().unwrap().0.clone();
    let (meanwhile, connections, wrote) = (Mutex::default(), AtomicUsize::new(0), Mutex::default());
    let between = Arc::new(Between { node, meanwhile, connections, wrote });
    let server = Server::new(between.clone());
    let endpoint = Endpoint::Unix(scratch.directory.join("between.sock"));
    server.listen(&endpoint, "").unwrap();
    (between, server, endpoint)
}

/// A client that waits for a partition fetches the map once a second, for hours if it must.
#[test]
fn fetching_the_map_repeatedly_keeps_one_connection() {
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

fn open(endpoint: Endpoint) -> Volume {
    Volume::open(endpoint, "v1", &OpenOptions::default()).unwrap()
}

fn sized(size: u64) -> AttrChanges {
    AttrChanges { size: Some(size), ..AttrChanges::default() }
}

/// Makes a file of `size` zeros in shards.
fn make(volume: &Volume, size: u64) -> InodeId {
    let new = New { node: NewNode::File, mode: 0o644, uid: 0, gid: 0, umask: 0, exclusive: true };
    let (file, _) = volume.create(&Context::default(), ROOT, Name::try_from("f").unwrap(), new).unwrap();
    volume.setattr(&Context::default(), file.id, sized(size)).unwrap();
    file.id
}

#[test]
fn a_read_that_learns_of_a_longer_file_reads_its_bytes_again() {
    let scratch = Scratch::new("between");
    let (between, server, endpoint) = in_front_of(&scratch);
    let (reader, writer) = (open(endpoint), open(scratch.endpoint()));
    let context = Context::default();
    let file = make(&writer, 100_000);
    // The bytes stay in shards although the file becomes short.
    writer.setattr(&context, file, sized(1000)).unwrap();
    assert_eq!(reader.getattr(&context, file).unwrap().size, 1000);
    let writes = move || writer.write(&Context::default(), file, 1000, vec![9; 4000].into(), false).map(drop).unwrap();
    *between.meanwhile.lock().unwrap() = Some(Box::new(writes));
    let read = reader.read(&context, file, 0, 5000);
    let wrote = between.meanwhile.lock().unwrap().is_none();
    drop(reader);
    server.stop();
    let bytes = read.unwrap();
    assert!(wrote && bytes.len() == 5000);
    assert!(bytes[..1000].iter().all(|byte| *byte == 0) && bytes[1000..].iter().all(|byte| *byte == 9));
}

/// The leader learns of a write after a truncate that removed nothing of it, and after an overwrite. The write must
/// not be repeated over the overwrite.
#[test]
fn what_was_written_before_a_truncate_that_kept_it_does_not_come_back_over_what_followed() {
    let scratch = Scratch::new("cuts");
    let (between, server, endpoint) = in_front_of(&scratch);
    let (first, second) = (open(endpoint), open(scratch.endpoint()));
    let context = Context::default();
    let file = make(&second, 200_000);
    assert_eq!(first.getattr(&context, file).unwrap().size, 200_000);
    let cuts_and_overwrites = move || {
        second.setattr(&Context::default(), file, sized(100_000)).unwrap();
        second.write(&Context::default(), file, 0, vec![2; 4096].into(), false).unwrap();
    };
    *between.meanwhile.lock().unwrap() = Some(Box::new(cuts_and_overwrites));
    let wrote = first.write(&context, file, 0, vec![1; 8192].into(), false);
    let happened = between.meanwhile.lock().unwrap().is_none();
    let read = first.read(&context, file, 0, 8192);
    // The client has learned from the reply where the file was truncated.
    let again = first.write(&context, file, 50_000, vec![3; 100].into(), false);
    let (size, wrote_under) =
        (first.getattr(&context, file).map(|attr| attr.size), between.wrote.lock().unwrap().clone());
    drop(first);
    server.stop();
    wrote.and(again).unwrap();
    let bytes = read.unwrap();
    assert!(happened && bytes.len() == 8192);
    assert!(bytes[..4096].iter().all(|byte| *byte == 2) && bytes[4096..].iter().all(|byte| *byte == 1));
    assert_eq!(size.unwrap(), 100_000);
    assert!(matches!(wrote_under[..], [before, after] if after > before), "{wrote_under:?}");
}
